"""Models by a word, and the knobs that are turned on a trained one."""

import math
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file

import torchvars
from evaluation.halves import HALVES, SIZE, Halves, save_weights, write
from torchvars.evaluation.benchmarks import BENCHMARKS
from torchvars.evaluation.run import evaluate
from torchvars.evaluation.subjects import Subject, digest_weights, open_subject, set_solving, subject_of
from torchvars.sparse import SOLVERS, settings_of, solver_from


@pytest.fixture
def weights(tmp_path) -> Path:
    return save_weights(tmp_path / "tiny")


def pixels(size: int = 16) -> torch.Tensor:
    return torch.rand(3, 3, size, size, generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def logits(subject: Subject, **knobs) -> torch.Tensor:
    set_solving(subject, **knobs)
    return subject.classifier(pixels())


def test_a_folder_of_weights_or_of_a_run(weights, tmp_path, monkeypatch):
    subject = open_subject(str(weights))
    assert (subject.name, subject.size, subject.classes) == ("tiny", 16, HALVES)
    torch.testing.assert_close(
        subject.classifier(pixels()), torchvars.Classifier.from_pretrained(weights)(pixels()), rtol=0, atol=0
    )
    assert not subject.classifier.training
    # In the folder of a run they are called after the run.
    save_weights(tmp_path / "run" / "weights")
    for word in (tmp_path / "run", tmp_path / "run" / "weights"):
        run = open_subject(str(word))
        assert (run.name, run.sha256) == ("run", subject.sha256)
    monkeypatch.chdir(tmp_path / "run" / "weights")
    assert open_subject(".").name == "run"
    assert open_subject(str(weights), size=24).size == 24


def test_a_name_whose_weights_ship(weights, monkeypatch):
    monkeypatch.setattr("torchvars.models.embedded.EMBEDDED", weights.parent)
    assert open_subject("tiny").sha256 == open_subject(str(weights)).sha256
    with pytest.raises(ValueError, match=r"'huge' is no trained model: .* a name whose weights ship \(tiny\)"):
        open_subject("huge")


def test_a_module_of_ones_own(tmp_path):
    data = str(write(tmp_path / "pictures"))
    plain = Halves(range(4), 4)  # knows nothing of timm or of us
    subject = subject_of("my.model", torchvars.Classifier(plain, classes=HALVES), size=SIZE)
    assert (subject.classes, subject.architecture, subject.layers) == (HALVES, None, {})
    results = evaluate(subject, [BENCHMARKS["clean"](data, subject)], tmp_path / "results.json")
    assert results.value("clean", "accuracy", "clean").value == 100
    assert results.model["name"] == "my.model"
    with pytest.raises(ValueError, match="mine, made for 224 pixels, takes no pictures of 16 x 16"):
        subject_of("mine", torchvars.Classifier(timm.create_model("vit_tiny_patch16_224", depth=1, num_classes=2)), 16)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_a_model_of_another_precision_is_refused(dtype, weights):
    classifier = torchvars.Classifier.from_pretrained(weights).to(dtype)
    with pytest.raises(ValueError, match=f"mine has weights of {dtype}: models are evaluated in single precision"):
        subject_of("mine", classifier, size=16)


def test_a_model_of_timm_with_weights_from_a_file(tmp_path):
    model = timm.create_model("test_vit").eval()
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    subject = open_subject(f"timm:test_vit:{tmp_path / 'model.safetensors'}")
    size = model.pretrained_cfg["input_size"][-1]
    assert (subject.name, subject.size) == ("timm:test_vit", size)
    cfg = model.pretrained_cfg
    normalised = (pixels(size) - torch.tensor(cfg["mean"]).view(3, 1, 1)) / torch.tensor(cfg["std"]).view(3, 1, 1)
    torch.testing.assert_close(subject.classifier(pixels(size)), model(normalised))
    # A thousand logits are those of ImageNet, in the order of its folders.
    assert len(subject.classes) == 1000
    assert subject.classes[:2] == ("n01440764", "n01443537")


def test_models_of_timm_that_cannot_be_had(tmp_path):
    with pytest.raises(ValueError, match="timm knows no model 'test_vot'"):
        open_subject("timm:test_vot")
    with pytest.raises(ValueError, match=r"timm knows no model 'resnet5'; did you mean .*resnet5"):
        open_subject("timm:resnet5")
    with pytest.raises(FileNotFoundError, match=r"no weights at /nowhere.bin for test_vit"):
        open_subject("timm:test_vit:/nowhere.bin")
    with pytest.raises(
        ValueError, match=r"timm:test_vit.nonsense cannot be loaded with weights: Invalid pretrained tag"
    ):
        open_subject("timm:test_vit.nonsense")
    (tmp_path / "model.bin").write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"timm:test_vit cannot be loaded with weights of .*model.bin"):
        open_subject(f"timm:test_vit:{tmp_path / 'model.bin'}")


def test_a_folder_of_something_else(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no file .*config.json"):
        open_subject(str(tmp_path))
    (tmp_path / "model.pth").write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"model.pth is no checkpoint that can be read safely"):
        open_subject(str(tmp_path / "model.pth"))


def test_a_hash_is_of_weights_and_of_how_pictures_are_normalised(weights):
    subject = open_subject(str(weights))
    before = digest_weights(subject.classifier)
    assert before == subject.sha256
    with torch.no_grad():
        subject.classifier.model.head.bias[0] += 1e-6
    after = digest_weights(subject.classifier)
    assert after != before
    assert digest_weights(torchvars.Classifier(subject.classifier.model, (0.5,) * 3, (0.5,) * 3)) != after


# Knobs


@pytest.mark.parametrize(
    "knobs", [{"steps": 1}, {"steps": 9}, {"strength": 1.5}, *({"solver": name} for name in SOLVERS)]
)
def test_each_knob_changes_what_a_model_says(knobs, weights):
    plain, turned = logits(open_subject(str(weights))), logits(open_subject(str(weights)), **knobs)
    same = knobs in ({"solver": "ista"}, {"solver": "learned_ista"})  # which it is, and which starts as it is
    assert torch.allclose(plain, turned, atol=1e-6) == same


@pytest.mark.parametrize("start", ["zero", "scaled"])
@pytest.mark.parametrize("solver", [*SOLVERS, "equilibrium_fista"])
def test_another_solver_starts_where_the_model_did(solver, start, weights):
    told = open_subject(str(weights))
    for block in told.classifier.model.blocks:
        block.attn.solver.start = start
    set_solving(told, solver=solver)
    expected = settings_of(solver_from({"name": solver, "steps": 3, "start": start}))
    assert [settings_of(block.attn.solver) for block in told.classifier.model.blocks] == [expected] * 2


def test_knobs_are_those_of_the_solver(weights):
    """In one turn or in several."""
    told = open_subject(str(weights))
    set_solving(told, steps=5, strength=0.7, solver="fista")
    other = torchvars.Classifier.from_pretrained(weights)
    for block in other.model.blocks:
        block.attn.solver, block.attn.strength = SOLVERS["fista"](steps=5), 0.7
    torch.testing.assert_close(told.classifier(pixels()), other(pixels()), rtol=0, atol=0)
    turns = open_subject(str(weights))
    for knob in ({"steps": 5}, {"solver": "fista"}, {"strength": 0.7}):
        set_solving(turns, **knob)
    torch.testing.assert_close(turns.classifier(pixels()), other(pixels()), rtol=0, atol=0)


def test_knobs_that_cannot_be_turned(weights, tmp_path):
    softmax = open_subject(str(save_weights(tmp_path / "softmax", "softmax")))
    for knob in ({"steps": 3}, {"strength": 0.3}, {"solver": "ista"}):
        with pytest.raises(ValueError, match="softmax has no VARS layer: steps, strength and solver cannot be set"):
            set_solving(softmax, **knob)
    subject = open_subject(str(weights))
    before = subject.classifier(pixels())
    with pytest.raises(ValueError, match="no solver named 'newton': there are ista, fista"):
        set_solving(subject, solver="newton")
    with pytest.raises(ValueError, match="steps must be a whole number of at least 1, got 0"):
        set_solving(subject, steps=0)
    with pytest.raises(ValueError, match="strength must be zero or positive, and finite, got -1"):
        set_solving(subject, strength=-1)
    for bad in ({"steps": 0, "strength": 0.7}, {"steps": 5, "strength": math.nan}):
        with pytest.raises(ValueError, match="must be"):
            set_solving(subject, solver="fista", **bad)
    torch.testing.assert_close(subject.classifier(pixels()), before, rtol=0, atol=0)
