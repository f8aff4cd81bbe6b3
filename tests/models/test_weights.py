"""Saving, loading, and the authors' checkpoints."""

import argparse
import copy
import json
import os
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import load_file, save_file

import torchvars
from torchvars.attention import ATTENTIONS
from torchvars.models.weights import card, load, read_config, save
from torchvars.sparse import FISTA, SOLVERS, Equilibrium, LearnedISTA, NeuralDynamics, SpaRSA, settings_of, solver_from

DATA = Path(__file__).parent.parent / "data"
RELEASED = ("self_att", "perf", "vars_s", "vars_d", "vars_sd")


def small(attention="vars_d", **options):
    settings = {"img_size": 32, "patch_size": 8, "num_classes": 4, "widths": (8,), "heads": (2,), "depths": (2,)}
    return torchvars.create(f"rvt_micro_{attention}", **settings, **options)


def released(case, tmp_path, wrap=lambda state: {"model": state}, prefix=""):
    """A file as the authors would write it, its input and logits."""
    tensors = load_file(DATA / f"rvt_micro_{case}.safetensors")
    state = {prefix + key.removeprefix("state."): value for key, value in tensors.items() if key.startswith("state.")}
    path = tmp_path / f"{case}.pth"
    torch.save(wrap(state), path)
    return path, tensors


@pytest.mark.parametrize("case", RELEASED)
def test_whole_models_of_the_authors_give_their_logits(case, tmp_path):
    path, tensors = released(case, tmp_path)
    model = torchvars.load_released(path, heads=[2, 4] if case == "self_att" else None)
    torch.testing.assert_close(model(tensors["input"]), tensors["logits"], rtol=0, atol=1e-5)
    features = model.forward_head(model.forward_features(tensors["input"]), pre_logits=True)
    torch.testing.assert_close(features, tensors["features"], rtol=0, atol=1e-5)


def test_forms_of_a_checkpoint(tmp_path):
    options = argparse.Namespace(lam=0.3)
    whole = lambda state: {"model": state, "model_ema": shifted(state), "epoch": 299, "args": options}  # noqa: E731

    def shifted(state):
        return {key: value + 1 if key.endswith("head.bias") else value for key, value in state.items()}

    path, tensors = released("vars_d", tmp_path, whole, prefix="module.")
    logits = torchvars.load_released(path)(tensors["input"])
    torch.testing.assert_close(logits, tensors["logits"], rtol=0, atol=1e-5)
    averaged = torchvars.load_released(path, ema=True)(tensors["input"])
    torch.testing.assert_close(averaged, tensors["logits"] + 1, rtol=0, atol=1e-5)
    other = torchvars.load_released(path, normalize=False)(tensors["input"])
    assert (other - tensors["logits"]).abs().max() > 1e-2
    plain, _ = released("vars_d", tmp_path, lambda state: state)
    torch.testing.assert_close(torchvars.load_released(plain)(tensors["input"]), logits, rtol=0, atol=0)


def test_a_released_model_can_be_saved_as_one_of_ours(tmp_path):
    path, tensors = released("vars_sd", tmp_path)
    torchvars.Classifier(torchvars.load_released(path), (0, 0, 0), (1, 1, 1)).save_pretrained(tmp_path / "ours")
    again = torchvars.Classifier.from_pretrained(tmp_path / "ours")
    torch.testing.assert_close(again(tensors["input"]), tensors["logits"], rtol=0, atol=1e-5)


@pytest.mark.parametrize(("case", "trainable"), [("vars_d", 8_029_312), ("vars_sd", 9_004_672)])
def test_every_tensor_of_the_real_rvt_tiny_finds_its_place(case, trainable, tmp_path):
    """By the names and shapes of the authors' RVT-Ti, and their count of trainable parameters."""
    shapes = json.loads((DATA / "rvt_tiny_keys.json").read_text())[case]
    state = {
        name: torch.zeros(shape, dtype=torch.long if "tracked" in name else None) for name, shape in shapes.items()
    }
    torch.save({"model": state}, tmp_path / "rvt.pth")
    model = torchvars.load_released(tmp_path / "rvt.pth")
    assert sum(parameter.numel() for parameter in model.parameters()) == trainable
    assert model.origin["name"] == f"rvt_tiny_{case}_released"


def test_tensors_too_many_and_too_few_are_named(tmp_path):
    path, _ = released("vars_d", tmp_path)
    state = torch.load(path, weights_only=True)["model"]
    state["transformers.0.blocks.0.attn.surprise"] = torch.zeros(1)
    torch.save(state, path)
    with pytest.raises(KeyError, match="'surprise' is no tensor of the authors' attention"):
        torchvars.load_released(path)
    del state["transformers.0.blocks.0.attn.surprise"], state["head.weight"]
    torch.save(state, path)
    with pytest.raises(ValueError, match=r"does not fit the model: missing head\.weight"):
        torchvars.load_released(path)


def test_foreign_and_broken_checkpoints_are_refused(tmp_path):
    path, _ = released("vars_d", tmp_path)
    with pytest.raises(FileNotFoundError, match="no file"):
        torchvars.load_released(tmp_path / "nowhere.pth")
    with pytest.raises(ValueError, match="has no entry model_ema; it has model"):
        torchvars.load_released(path, ema=True)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="is no checkpoint that can be read safely, or is cut short"):
        torchvars.load_released(path)
    torch.save({"model": {"conv.weight": torch.zeros(1)}}, path)
    with pytest.raises(ValueError, match="holds no RVT of the authors' code"):
        torchvars.load_released(path)
    torch.save([1, 2], path)
    with pytest.raises(ValueError, match="holds a list, not the entries of a checkpoint"):
        torchvars.load_released(path)


def test_code_in_a_checkpoint_is_never_run(tmp_path):
    class Evil:
        def __reduce__(self):
            return (Path(tmp_path / "run").touch, ())

    torch.save({"model": Evil()}, tmp_path / "evil.pth")
    with pytest.raises(ValueError, match="is no checkpoint that can be read safely"):
        torchvars.load_released(tmp_path / "evil.pth")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_a_saved_classifier_is_the_same_one(attention, tmp_path):
    classifier = torchvars.Classifier(small(attention), (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)).eval()
    classifier.save_pretrained(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"config.json", "model.safetensors", "README.md"}
    again = torchvars.Classifier.from_pretrained(tmp_path)
    assert not again.training
    pixels = torch.rand(2, 3, 32, 32)
    torch.testing.assert_close(again(pixels), classifier(pixels), rtol=0, atol=0)


@pytest.mark.parametrize(
    "solver",
    [*(kind(steps=4) for kind in SOLVERS.values()), NeuralDynamics(9, beta=1.5), Equilibrium(FISTA(50), iterations=7)],
    ids=lambda solver: type(solver).__name__,
)
def test_solver_and_strength_are_saved_as_they_are_now(solver, tmp_path):
    model = small(attention_options={"solver": SpaRSA(2)})
    for block in model.blocks:
        block.attn.solver, block.attn.strength = copy.deepcopy(solver), 0.11
        if isinstance(solver, LearnedISTA):
            torch.nn.init.constant_(block.attn.solver.step.size, 0.4)
    classifier = torchvars.Classifier(model).eval()
    classifier.save_pretrained(tmp_path)
    again = torchvars.Classifier.from_pretrained(tmp_path)
    assert settings_of(again.model.blocks[1].attn.solver) == settings_of(solver)
    assert again.model.blocks[1].attn.strength == 0.11
    pixels = torch.rand(2, 3, 32, 32)
    torch.testing.assert_close(again(pixels), classifier(pixels), rtol=0, atol=0)


def test_half_precision_is_of_the_file_only(tmp_path):
    classifier = torchvars.Classifier(small()).eval()
    classifier.model.patch_embed.proj[1].num_batches_tracked.fill_(100_001)  # no number of half precision
    before = {name: tensor.clone() for name, tensor in classifier.model.state_dict().items()}
    save(classifier, tmp_path, half=True)
    written = load_file(tmp_path / "model.safetensors")
    assert {name for name, tensor in written.items() if tensor.dtype != torch.float16} == {
        name for name in before if name.endswith("num_batches_tracked")
    }
    again = torchvars.Classifier.from_pretrained(tmp_path).model.state_dict()
    for name, tensor in before.items():
        torch.testing.assert_close(classifier.model.state_dict()[name], tensor, rtol=0, atol=0)
        assert again[name].dtype == tensor.dtype
        # The nearest there is: ten binary digits behind the first, or steps of 2^-24.
        torch.testing.assert_close(again[name], tensor, rtol=2**-11, atol=2**-25)
        torch.testing.assert_close(again[name], written[name].to(tensor.dtype), rtol=0, atol=0)


def test_values_too_large_for_half_precision_are_named_and_cost_nothing(tmp_path):
    classifier = torchvars.Classifier(small())
    bias = classifier.model.head.bias.data
    bias[1] = -65519.0  # the last that is rounded to a number, 65504
    save(classifier, tmp_path, half=True)
    assert torchvars.Classifier.from_pretrained(tmp_path).model.head.bias[1].item() == -65504
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    bias[1] = -65520.0
    with pytest.raises(ValueError, match=r"head\.bias has values up to 6\.55e\+04, too large for half precision"):
        save(classifier, tmp_path, half=True)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    with pytest.raises(ValueError, match="too large for half precision"):
        save(classifier, tmp_path / "new", half=True)
    assert not (tmp_path / "new").exists()
    save(classifier, tmp_path)
    assert torchvars.Classifier.from_pretrained(tmp_path).model.head.bias[1].item() == -65520


def test_bad_solver_settings_are_refused():
    with pytest.raises(ValueError, match="no solver named 'newton'"):
        solver_from({"name": "newton"})
    with pytest.raises(ValueError, match="sparsa has no setting learned"):
        solver_from({"name": "sparsa", "steps": 3, "learned": 2})
    with pytest.raises(ValueError, match="learned must be a whole number of at least 1, got 0"):
        solver_from({"name": "ista", "learned": 0})
    with pytest.raises(ValueError, match="ista has no setting momentum"):
        solver_from({"name": "ista", "momentum": 1})
    with pytest.raises(ValueError, match="settings of a solver have a name and its arguments"):
        solver_from("ista")
    with pytest.raises(ValueError, match="equilibrium has no setting momentum"):
        solver_from({"name": "equilibrium", "solver": {"name": "ista"}, "momentum": 1})
    assert (
        solver_from({"name": "equilibrium", "solver": {"name": "ista"}}).iterations == Equilibrium(FISTA()).iterations
    )
    assert solver_from({"name": "learned_ista", "learned": 4}).steps == 4


def test_card_says_what_was_measured(tmp_path):
    classifier = torchvars.Classifier(small())
    classifier.save_pretrained(tmp_path / "without")
    assert "These weights have not been evaluated" in (tmp_path / "without/README.md").read_text()
    row = {"benchmark": "clean", "metric": "top-1", "value": 12.5, "images": 8, "command": "torchvars evaluate"}
    classifier.save_pretrained(tmp_path / "with", results=[row])
    assert "| clean | top-1 | 12.5 | 8 | torchvars evaluate |" in (tmp_path / "with/README.md").read_text()


def test_card_of_weights_that_ship_shows_how_they_are_had(tmp_path, monkeypatch):
    monkeypatch.setattr("torchvars.models.embedded.EMBEDDED", tmp_path)
    name = "rvt_micro_vars_d.cifar10"
    classifier = torchvars.Classifier(small(), classes=["cat", "dog", "frog", "ship"]).eval()
    classifier.save_pretrained(tmp_path / name)
    text = card(classifier, read_config(tmp_path / name), None, name=name, trained_on="CIFAR-10")
    assert f"\n# {name}\n" in text
    assert "M parameters, trained on CIFAR-10. Pixels" in text
    made = card(classifier, read_config(tmp_path / name), None, name=name, made_by="torchvars convert vit --batch 8")
    assert "M parameters. Made by `torchvars convert vit --batch 8`. Pixels" in made
    assert "Classes: cat, dog, frog, ship." in text
    example, found = text.split("```python\n")[1].split("```")[0], {}
    exec(compile(example, "card", "exec"), found)
    pixels = torch.rand(1, 3, 32, 32)
    torch.testing.assert_close(found["classifier"](pixels), classifier(pixels), rtol=0, atol=0)
    # Of a folder it says no name, and of pictures nothing that nobody said.
    own = (tmp_path / name / "README.md").read_text()
    assert "\n# rvt_micro_vars_d\n" in own
    assert 'from_pretrained("this folder")' in own
    assert "trained on" not in own


def test_broken_folders_are_refused(tmp_path):
    classifier = torchvars.Classifier(small())
    classifier.save_pretrained(tmp_path)
    weights, config = tmp_path / "model.safetensors", tmp_path / "config.json"
    good_weights, good_config = weights.read_bytes(), config.read_text()

    weights.write_bytes(good_weights[:-100])
    with pytest.raises(ValueError, match="is no safetensors file, or is cut short"):
        torchvars.Classifier.from_pretrained(tmp_path)
    state = load_file(DATA / "attention_vars_d.safetensors")
    save_file(state, weights)
    with pytest.raises(ValueError, match=r"is not the file that config\.json was written for"):
        torchvars.Classifier.from_pretrained(tmp_path)
    config.write_text(json.dumps({**json.loads(good_config), "sha256": None}))
    with pytest.raises(ValueError, match=r"does not fit the model: missing .* and \d+ more"):
        torchvars.Classifier.from_pretrained(tmp_path)
    weights.write_bytes(good_weights)
    config.write_text("{}")
    with pytest.raises(ValueError, match="was not written by torchvars: it has no architecture, options, mean, std"):
        torchvars.Classifier.from_pretrained(tmp_path)
    config.write_text(good_config[:50])
    with pytest.raises(ValueError, match="is not JSON"):
        torchvars.Classifier.from_pretrained(tmp_path)
    config.unlink()
    with pytest.raises(FileNotFoundError, match="no file"):
        torchvars.Classifier.from_pretrained(tmp_path)


SOLVER = {"name": "ista", "steps": 3, "start": "analysis", "tolerance": None}


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("architecture", 3, "architecture is 3, expected the name of a model"),
        ("options", [1, 2], r"options is \[1, 2\], expected an object"),
        ("options", {"img_size": "large"}, "options .* do not build rvt_micro_vars_d"),
        ("options", {"colour": "red"}, "options .* do not build rvt_micro_vars_d: .*colour"),
        ("mean", ["a", "b", "c"], "mean is .*, expected a list of 3 numbers"),
        ("mean", 0.5, "mean is 0.5, expected a list of 3 numbers"),
        ("mean", [0.5, 0.5], "mean is .*, expected a list of 3 numbers"),
        ("mean", [0.5, float("nan"), 0.5], "mean is .*nan.*, expected a list of 3 numbers"),
        ("std", [0.5, 0.5, 0.0], "std is .*, expected a list of 3 positive numbers"),
        ("std", [0.5, float("inf"), 0.5], "std is .*, expected a list of 3 positive numbers"),
        ("classes", "abcd", "classes is 'abcd', expected a list of names"),
        ("classes", [1, 2, 3, 4], "classes is .*, expected a list of names"),
        ("classes", ["a", "b", "c"], "classes is .*, expected a name for each of the 4 classes it has"),
        (
            "classes",
            ["a", "b", "b", "d"],
            "classes is .*, expected a name of its own for each class: 'b' is there twice",
        ),
        ("layers", [1], r"layers is \[1\], expected an object"),
        (
            "layers",
            {"blocks.0.attn": 3},
            r"layers\['blocks.0.attn'\] is 3, expected an object with strength and solver",
        ),
        ("layers", {"blocks.0.attn": {"strength": 0.3}}, "expected an object with strength and solver"),
        ("layers", {"blocks.0.attn": {"strength": "x", "solver": SOLVER}}, "strength must be zero or positive"),
        ("layers", {"blocks.0.attn": {"strength": 0.3, "solver": "ista"}}, "solver is 'ista', expected an object"),
        ("layers", {"blocks.0.attn": {"strength": 0.3, "solver": {"name": "newton"}}}, "no solver named 'newton'"),
        (
            "layers",
            {"blocks.0.attn": {"strength": 0.3, "solver": {**SOLVER, "steps": 10**9}}},
            r"layers\['blocks.0.attn'\].solver.steps is 1000000000, expected at most 10000",
        ),
        (
            "layers",
            {"blocks.0.attn": {"strength": 0.3, "solver": {"name": "equilibrium", "solver": {"steps": 10**9}}}},
            r"layers\['blocks.0.attn'\].solver.solver.steps is 1000000000, expected at most 10000",
        ),
    ],
)
def test_values_of_a_configuration_that_make_no_sense_are_named(saved, tmp_path, key, value, expected):
    for path in saved.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    config = json.loads((saved / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, key: value}))
    with pytest.raises(ValueError, match=rf"config\.json: .*{expected}"):
        torchvars.Classifier.from_pretrained(tmp_path)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    torchvars.Classifier(small()).save_pretrained(folder)
    return folder


def test_a_configuration_that_is_no_object(tmp_path):
    (tmp_path / "config.json").write_text("[1, 2]")
    with pytest.raises(ValueError, match=r"config\.json was not written by torchvars: it holds a list"):
        torchvars.Classifier.from_pretrained(tmp_path)


def test_what_could_not_be_loaded_again_is_not_saved(tmp_path):
    classifier = torchvars.Classifier(small(attention_options={"solver": FISTA(20_000)}))
    with pytest.raises(ValueError, match=r"solver\.steps is 20000, expected at most 10000"):
        classifier.save_pretrained(tmp_path / "folder")
    assert not (tmp_path / "folder").exists()


@pytest.mark.parametrize("umask", [0o022, 0o002, 0o077])
def test_the_umask_decides_who_may_read_the_files(umask, tmp_path):
    before = os.umask(umask)
    try:
        torchvars.Classifier(small()).save_pretrained(tmp_path)
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes == dict.fromkeys(["config.json", "model.safetensors", "README.md"], 0o666 & ~umask)


def test_a_failed_save_leaves_the_old_files(tmp_path, monkeypatch):
    classifier = torchvars.Classifier(small())
    classifier.save_pretrained(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def full(state, path, **_):
        Path(path).write_bytes(b"half")
        raise OSError("no space left on device")

    monkeypatch.setattr("torchvars.models.weights.save_file", full)
    with pytest.raises(OSError, match="no space left"):
        torchvars.Classifier(small()).save_pretrained(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_model_that_would_be_built_otherwise_is_not_saved(tmp_path):
    classifier = torchvars.Classifier(small())
    classifier.model.blocks[0].attn = torchvars.attention.create("softmax", classifier.model.embed_dim, heads=2)
    with pytest.raises(ValueError, match=r"blocks.0.attn.qkv.weight is \(.*\) here, and missing in rvt_micro_vars_d"):
        classifier.save_pretrained(tmp_path / "folder")
    assert not (tmp_path / "folder").exists()


def test_other_options_than_were_saved(tmp_path):
    saved = torchvars.Classifier(small())
    saved.save_pretrained(tmp_path)
    other = torchvars.Classifier.from_pretrained(tmp_path, num_classes=7, attention_options={"strength": 0.05})
    assert other.model.num_classes == other.model.head.out_features == 7
    assert other.model.blocks[0].attn.strength == 0.05
    assert torch.equal(other.model.blocks[0].attn.value.weight, saved.model.blocks[0].attn.value.weight)
    with pytest.raises(TypeError, match="unexpected keyword argument 'foo'"):
        torchvars.Classifier.from_pretrained(tmp_path, foo=1)


def test_a_model_that_has_no_name_cannot_be_saved(tmp_path):
    with pytest.raises(ValueError, match="Linear was not built by name"):
        torchvars.Classifier(torch.nn.Linear(2, 2)).save_pretrained(tmp_path)


def test_weights_that_ship_are_loaded_by_name(tmp_path, monkeypatch):
    monkeypatch.setattr("torchvars.models.embedded.EMBEDDED", tmp_path)
    classifier = torchvars.Classifier(torchvars.create("rvt_micro_vars_d")).eval()
    classifier.model.blocks[0].attn.solver = SpaRSA(2)
    classifier.save_pretrained(tmp_path / "rvt_micro_vars_d")
    pictures = torch.randn(1, 3, 112, 112)
    loaded = torchvars.create("rvt_micro_vars_d", pretrained=True)
    torch.testing.assert_close(loaded(pictures), classifier.model(pictures), rtol=0, atol=0)
    # Another number of classes: the same features behind a new head.
    tuned = torchvars.create("rvt_micro_vars_d", pretrained=True, num_classes=3)
    assert tuned(pictures).shape == (1, 3)
    torch.testing.assert_close(tuned.forward_features(pictures), classifier.model.forward_features(pictures))
    with pytest.raises(ValueError, match="rvt_micro_vars_s has no weights here; names that have: rvt_micro_vars_d"):
        torchvars.create("rvt_micro_vars_s", pretrained=True)
    with pytest.raises(ValueError, match="does not fit the model"):
        torchvars.create("rvt_micro_vars_d", pretrained=True, depths=(5,))


def test_a_model_that_timm_made_is_saved_like_any_other(tmp_path):
    classifier = torchvars.Classifier(timm.create_model("rvt_micro_vars_d", num_classes=3)).eval()
    classifier.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["options"] == {"num_classes": 3}
    pixels = torch.rand(1, 3, 112, 112)
    again = torchvars.Classifier.from_pretrained(tmp_path)
    torch.testing.assert_close(again(pixels), classifier(pixels), rtol=0, atol=0)


def test_options_of_the_attention_change_one_by_one(tmp_path):
    """Those that are not given stay as they were saved, and those that are given hold."""
    model = small(attention_options={"centered": True})
    for block in model.blocks:
        block.attn.strength, block.attn.solver = 0.7, SpaRSA(5)
    torchvars.Classifier(model).save_pretrained(tmp_path)

    def layer(**options):
        return load(tmp_path, attention_options=options).model.blocks[1].attn

    for changed, strength, solver in (
        ({"strength": 0.9}, 0.9, SpaRSA(5)),
        ({"solver": FISTA(50)}, 0.7, FISTA(50)),
        ({"strength": 0.9, "solver": FISTA(50)}, 0.9, FISTA(50)),
    ):
        found = layer(**changed)
        assert (found.strength, settings_of(found.solver)) == (strength, settings_of(solver))
        assert found.dictionary.centered
    assert not layer(centered=False).dictionary.centered


def test_a_new_head_is_saved_with_its_classes(tmp_path):
    model = small()
    model.reset_classifier(7)
    torchvars.Classifier(model).save_pretrained(tmp_path)
    again = torchvars.Classifier.from_pretrained(tmp_path)
    pixels = torch.rand(1, 3, 32, 32)
    torch.testing.assert_close(again(pixels), torchvars.Classifier(model).eval()(pixels))
    assert again(pixels).shape == (1, 7)


@pytest.mark.parametrize("name", ["runs/mistyped", "several/folders/mistyped"])
def test_a_folder_that_is_not_there_is_named(name):
    with pytest.raises(ValueError, match=f"no folder {name} here, nor could it be downloaded from the hub"):
        torchvars.Classifier.from_pretrained(name)


def test_a_solver_that_learned_fewer_steps_than_it_takes(tmp_path):
    model = small(attention_options={"solver": LearnedISTA(3)})
    with torch.no_grad():
        for block in model.blocks:
            block.attn.solver.step.size += 0.5
            block.attn.solver.steps = 5
    model.blocks[1].attn.solver = model.blocks[0].attn.solver  # and it may be shared
    classifier = torchvars.Classifier(model).eval()
    classifier.save_pretrained(tmp_path)
    again = torchvars.Classifier.from_pretrained(tmp_path)
    assert again.model.blocks[0].attn.solver.steps == 5
    pixels = torch.rand(2, 3, 32, 32)
    torch.testing.assert_close(again(pixels), classifier(pixels))


def test_what_cannot_be_saved_leaves_what_is_there_alone(tmp_path):
    class Mine(FISTA):
        pass

    classifier = torchvars.Classifier(small()).eval()
    classifier.save_pretrained(tmp_path)
    pixels = torch.rand(2, 3, 32, 32)
    before = classifier(pixels)
    classifier.model.blocks[0].attn.solver = Mine()
    with torch.no_grad():
        classifier.model.head.bias += 1
    with pytest.raises(ValueError, match="Mine is not in SOLVERS"):
        classifier.save_pretrained(tmp_path)
    torch.testing.assert_close(torchvars.Classifier.from_pretrained(tmp_path)(pixels), before)
