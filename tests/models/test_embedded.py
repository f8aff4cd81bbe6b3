"""Weights that come with the package: found by name and pictures, by us and by timm."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import timm
import torch
from timm.models import PretrainedCfg
from timm.models._registry import _model_pretrained_cfgs
from torch import Tensor

import torchvars
from torchvars.models import registry
from torchvars.models.embedded import embedded, find_embedded
from torchvars.models.weights import save
from torchvars.sparse import LearnedISTA, SpaRSA, settings_of

NAME = "rvt_micro_vars_d"
SMALL = {"patch_size": 8, "widths": (8,), "heads": (2,), "depths": (4,)}
SIZES = {"imagenette": 48, "cifar10": 32, "birds": 40}


def trained(pictures: str) -> torchvars.Classifier:
    """As if trained on these pictures: of their size and classes, with solvers that no new model has."""
    torch.manual_seed(SIZES[pictures])
    options = {"atoms": 1, "centered": True}
    model = torchvars.create(NAME, img_size=SIZES[pictures], num_classes=4, attention_options=options, **SMALL)
    for block, solver in zip(model.blocks[:2], (SpaRSA(2), LearnedISTA(4)), strict=True):
        block.attn.solver, block.attn.strength = solver, 0.07
    torch.nn.init.constant_(model.blocks[1].attn.solver.step.size, 0.4)
    return torchvars.Classifier(model, (0.5, 0.4, 0.3), (0.2, 0.3, 0.4), ["a", "b", "c", "d"]).eval()


@pytest.fixture
def shipped(tmp_path, monkeypatch) -> Path:
    """A folder of weights, as the package has one; timm, which is told when it is imported, is told now."""
    folder = tmp_path / "shipped"
    monkeypatch.setattr("torchvars.models.embedded.EMBEDDED", folder)
    for pictures in SIZES:
        name = f"{NAME}.{pictures}"
        trained(pictures).save_pretrained(folder / name)
        monkeypatch.setitem(_model_pretrained_cfgs, name, PretrainedCfg(**registry._cfg(NAME, folder / name)))
    return folder


def images(size: int = 32, channels: int = 3) -> Tensor:
    return torch.randn(2, channels, size, size, generator=torch.Generator().manual_seed(1))


def assert_same(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_timm_is_told_what_part_of_a_picture_a_model_wants():
    """Of CIFAR's whole ones all, as in training; of others the middle."""
    for name, crop in {"rvt_micro_softmax.cifar10": 1.0, "rvt_tiny_softmax": 0.875}.items():
        model = timm.create_model(name, pretrained="." in name)
        assert timm.data.resolve_model_data_config(model)["crop_pct"] == crop


def test_the_models_of_some_pictures_by_their_attention(shipped):
    trained("birds").save_pretrained(shipped / "rvt_micro_softmax.birds")
    trained("birds").save_pretrained(shipped / "deit_micro_softmax.birds")
    found = registry.trained("rvt_micro", "birds")
    assert list(found.items()) == [("softmax", "rvt_micro_softmax.birds"), ("vars_d", f"{NAME}.birds")]
    assert registry.trained("rvt_micro", "cats") == {}


@pytest.mark.parametrize("pictures", SIZES)
def test_a_model_as_it_was_trained_on_some_pictures(pictures, shipped):
    model = torchvars.create(f"{NAME}.{pictures}", pretrained=True)
    assert_same(model(images()), trained(pictures).model(images()))


def test_the_name_alone_is_the_first_of_the_pictures_that_are_there(shipped):
    order = ["imagenette", "cifar10", "birds"]  # those without a place of their own come last
    assert embedded() == [f"{NAME}.{pictures}" for pictures in order]
    for pictures in order:
        assert find_embedded(NAME) == shipped / f"{NAME}.{pictures}"
        model = torchvars.create(NAME, pretrained=True)
        assert_same(model(images()), trained(pictures).model(images()))
        shutil.rmtree(shipped / f"{NAME}.{pictures}")
    with pytest.raises(ValueError, match=f"{NAME} has no weights here; names that have: none yet"):
        find_embedded(NAME)


def test_a_converted_model_of_timm_comes_with_its_weights_only(shipped):
    vit = timm.create_model("test_vit", num_classes=4, img_size=32)
    known = torchvars.Classifier(torchvars.convert(vit, "vars_p")).eval()
    known.save_pretrained(shipped / "test_vit_vars_p.birds")
    for name in ("test_vit_vars_p.birds", "test_vit_vars_p"):
        assert_same(torchvars.create(name, pretrained=True)(images()), known.model(images()))
    assert torchvars.create("test_vit_vars_p", pretrained=True, num_classes=3)(images()).shape == (2, 3)
    with pytest.raises(ValueError, match=r"no model named 'test_vit_vars_p'.* comes with its weights only: pretrained"):
        torchvars.create("test_vit_vars_p")
    assert "test_vit_vars_p.birds" in embedded()
    assert not [name for name in registry._cfgs() if name.startswith("test_vit")]  # of timm it is not known


def test_without_its_weights_a_model_is_new_but_built_as_it_was(shipped, tmp_path):
    model, known = torchvars.create(f"{NAME}.cifar10").eval(), trained("cifar10").model
    assert not torch.allclose(model(images()), known(images()))
    model.load_state_dict(known.state_dict())
    assert_same(model(images()), known(images()))
    assert model.pretrained_cfg["input_size"] == (3, 32, 32)
    # It is saved like any other.
    torchvars.Classifier(model).save_pretrained(tmp_path / "again")
    assert_same(torchvars.Classifier.from_pretrained(tmp_path / "again").model(images()), known(images()))


def test_what_is_said_otherwise_counts(shipped):
    model = torchvars.create(f"{NAME}.cifar10", num_classes=3, attention_options={"atoms": 2})
    assert model.head.out_features == 3
    assert [block.attn.dictionary.features.directions.shape[-1] for block in model.blocks] == [16] * 4
    known = trained("cifar10").model
    solvers = [settings_of(block.attn.solver) for block in known.blocks]
    assert [settings_of(block.attn.solver) for block in model.blocks] == solvers
    # With weights, the head is new and the rest is not.
    tuned = torchvars.create(f"{NAME}.cifar10", pretrained=True, num_classes=3)
    assert_same(tuned.forward_features(images()), known.forward_features(images()))
    assert tuned(images()).shape == (2, 3)


@pytest.mark.parametrize("pretrained", [True, False])
def test_pictures_that_nothing_was_trained_on(pretrained, shipped):
    names = rf"names that have: {NAME}\.imagenette, {NAME}\.cifar10, {NAME}\.birds"
    for strange in (f"{NAME}.flowers", "rvt_micro_vars_s.cifar10"):
        with pytest.raises(ValueError, match=f"{strange} has no weights here; {names}"):
            torchvars.create(strange, pretrained=pretrained)
    with pytest.raises(ValueError, match=rf"no model named 'rvt_micro_varsd\.cifar10': did you mean .*{NAME}"):
        torchvars.create("rvt_micro_varsd.cifar10", pretrained=pretrained)


def test_a_model_by_name_brings_its_mean_and_deviation(shipped):
    known = trained("cifar10")
    for model in (torchvars.create(f"{NAME}.cifar10", pretrained=True), timm.create_model(f"{NAME}.cifar10")):
        classifier = torchvars.Classifier(model)
        torch.testing.assert_close(classifier.mean, known.mean)
        torch.testing.assert_close(classifier.std, known.std)


def test_a_model_without_weights_is_what_its_name_says_whatever_ships(shipped):
    for model in (torchvars.create(NAME), timm.create_model(NAME)):
        assert model.pretrained_cfg["input_size"] == (3, 112, 112)
        assert model.num_classes == 10


def test_weights_are_fitted_to_other_channels(shipped):
    grey = images(channels=1)
    fitted = torchvars.create(f"{NAME}.cifar10", pretrained=True, in_chans=1).eval()
    expected = trained("cifar10").model(grey.expand(-1, 3, -1, -1))
    torch.testing.assert_close(fitted(grey), expected, rtol=0, atol=1e-4)


def test_a_classifier_by_name(shipped, monkeypatch):
    monkeypatch.setattr("torchvars.models.sources.hf_hub_download", None)  # nothing is asked of the hub
    pixels = images().sigmoid()
    for name, pictures in ((f"{NAME}.cifar10", "cifar10"), (NAME, "imagenette")):
        classifier, known = torchvars.Classifier.from_pretrained(name), trained(pictures)
        assert classifier.classes == known.classes
        assert_same(classifier(pixels), known(pixels))
    told = rf"'{NAME}\.flowers' is no trained model: did you mean .*expected a folder .* whose weights ship \({NAME}"
    with pytest.raises(ValueError, match=told):
        torchvars.Classifier.from_pretrained(f"{NAME}.flowers")


def test_a_folder_comes_before_a_name_and_an_owner_means_the_hub(shipped, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pixels = images().sigmoid()
    trained("birds").save_pretrained(tmp_path / NAME)
    assert_same(torchvars.Classifier.from_pretrained(NAME)(pixels), trained("birds")(pixels))
    asked = []

    def download(name: str, file: str, **options) -> str:
        asked.append((name, file, options))
        return str(shipped / f"{NAME}.cifar10" / file)

    monkeypatch.setattr("torchvars.models.sources.hf_hub_download", download)
    classifier = torchvars.Classifier.from_pretrained(f"somebody/{NAME}", revision="old")
    assert_same(classifier(pixels), trained("cifar10")(pixels))
    files = ("config.json", "model.safetensors")
    assert asked == [(f"somebody/{NAME}", file, {"revision": "old"}) for file in files]


TIMM = """
import sys
import timm, torch, torchvars.models

assert torchvars.__file__.startswith(sys.argv[1])  # the copy
name, images, grey = torch.load("images.pt")
found = {"pretrained": timm.list_pretrained(name + "*")}

def create(tag="", **options):
    return timm.create_model(name + tag, **{"pretrained": True, **options}).eval()

with torch.no_grad():
    for tag in ("", ".cifar10", ".imagenette"):
        model = create(tag)
        found["logits" + tag] = model(images)
        found["size" + tag] = timm.data.resolve_data_config(model=model)["input_size"]
    tuned = create(".cifar10", num_classes=3)
    found["tuned"], found["head"] = tuned.forward_features(images), tuned(images).shape
    found["grey"] = create(".cifar10", in_chans=1)(grey)
    found["features"] = create(".cifar10", features_only=True)(images)
    new = create(".cifar10", pretrained=False)
    found["new"] = new(images)
    new.load_state_dict(create(".cifar10").state_dict())
    found["learned"] = new(images)
torch.save(found, "found.pt")
"""


def test_timm_has_the_same_models(tmp_path):
    """By a copy of the package that has weights: timm is told of them when it is imported."""
    package = tmp_path / "torchvars"
    shutil.copytree(Path(torchvars.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__", "weights"))
    for pictures in ("cifar10", "imagenette"):
        save(trained(pictures), package / "weights" / f"{NAME}.{pictures}", half=True)
    grey = images(channels=1)
    torch.save([NAME, images(), grey], tmp_path / "images.pt")
    settings = {**os.environ, "PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    subprocess.run([sys.executable, "-c", TIMM, str(tmp_path)], cwd=tmp_path, env=settings, check=True)
    found = torch.load(tmp_path / "found.pt")

    assert set(found["pretrained"]) == {f"{NAME}.cifar10", f"{NAME}.imagenette"}
    ours = {
        pictures: torchvars.Classifier.from_pretrained(package / "weights" / f"{NAME}.{pictures}").model
        for pictures in ("cifar10", "imagenette")
    }
    for tag, pictures in (("", "imagenette"), (".cifar10", "cifar10"), (".imagenette", "imagenette")):
        torch.testing.assert_close(found[f"logits{tag}"], ours[pictures](images()), rtol=0, atol=1e-5)
        assert found[f"size{tag}"] == (3, SIZES[pictures], SIZES[pictures])
    model = ours["cifar10"]
    torch.testing.assert_close(found["tuned"], model.forward_features(images()), rtol=0, atol=1e-5)
    assert found["head"] == (2, 3)
    # Of one channel it sees what the other sees of three that are alike.
    torch.testing.assert_close(found["grey"], model(grey.expand(-1, 3, -1, -1)), rtol=0, atol=1e-4)
    features = model.forward_intermediates(images(), indices=3, intermediates_only=True)
    for one, other in zip(found["features"], features, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5)
    assert not torch.allclose(found["new"], found["learned"])
    assert_same(found["learned"], found["logits.cifar10"])
