"""A word for trained weights means the same wherever one is taken."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import load_file, save_file

import torchvars
from torchvars.models.sources import find_weights, open_classifier
from torchvars.training import loop
from training.tiny import RECIPE

DATA = Path(__file__).parent.parent / "data"
CLASSES = ("cat", "dog")


class Named:
    """All that is asked of pictures before the first is looked at."""

    classes = ("blue", "red", "white")


@pytest.fixture(params=["name", "tagged", "folder", "run", "hub", "released", "timm"])
def word(request, tmp_path, monkeypatch):
    """A word of each kind, and the model it is to give."""
    monkeypatch.setattr("torchvars.models.embedded.EMBEDDED", tmp_path / "shipped")
    model = torchvars.create("deit_micro_softmax", img_size=16, patch_size=4, num_classes=2, embed_dim=16, depth=1)
    classifier, folder = torchvars.Classifier(model, classes=CLASSES), tmp_path / "saved"
    match request.param:
        case "name" | "tagged":
            folder = tmp_path / "shipped" / "deit_micro_softmax.pets"
            word = "deit_micro_softmax" if request.param == "name" else folder.name
        case "folder":
            word = str(folder)
        case "run":
            folder = tmp_path / "run" / "weights"
            word = str(tmp_path / "run")
        case "hub":
            files = lambda name, file, **_: str(folder / file)  # noqa: E731
            monkeypatch.setattr("torchvars.models.sources.hf_hub_download", files)
            word = "somebody/pets"
        case "released":
            tensors = load_file(DATA / "rvt_micro_vars_d.safetensors")
            state = {name.removeprefix("state."): each for name, each in tensors.items() if name.startswith("state.")}
            torch.save({"model": state}, tmp_path / "theirs.pth")
            return str(tmp_path / "theirs.pth"), torchvars.load_released(tmp_path / "theirs.pth")
        case "timm":
            model = timm.create_model("test_vit").eval()
            save_file(model.state_dict(), tmp_path / "vit.safetensors")
            return f"timm:test_vit:{tmp_path / 'vit.safetensors'}", model
    classifier.save_pretrained(folder)
    return word, model.eval()


def test_it_is_the_same_model_everywhere(word):
    word, model = word
    expected = torchvars.Classifier(model).eval()
    size = model.pretrained_cfg["input_size"][1:]
    pixels = torch.rand(2, 3, *size)
    for found in (open_classifier(word)[1], torchvars.Classifier.from_pretrained(word), find_weights(word).load()):
        assert not found.training
        torch.testing.assert_close(found(pixels), expected(pixels), rtol=0, atol=0)


def test_a_training_begins_with_it_and_a_head_for_its_own_classes(word):
    word, model = word
    architecture = find_weights(word).architecture
    size = model.pretrained_cfg["input_size"][-1]
    recipe = replace(RECIPE, model=architecture, initial=word, img_size=size, patch_size=None, drop_path=0.0)
    classifier = loop.build(recipe, Named)
    assert classifier.classes == Named.classes
    images = torch.randn(2, 3, size, size)
    features = classifier.eval().model.forward_features(images)
    torch.testing.assert_close(features, model.forward_features(images))
    assert classifier.model(images).shape == (2, 3)
    with pytest.raises(ValueError, match=f"are of {architecture}, and the recipe is for gfnet_micro_softmax"):
        loop.build(replace(recipe, model="gfnet_micro_softmax"), Named)


@pytest.mark.parametrize(
    ("word", "told"),
    [
        (
            "deit_micro_softmax.pet",
            r"is no trained model: did you mean deit_micro_softmax.pets\?",
        ),
        ("nothing.pth", "no file nothing.pth"),
        ("timm:nothing", "timm knows no model 'nothing'"),
        ("somebody/nothing", "no folder somebody/nothing here, nor could it be downloaded from the hub"),
        ("/nowhere/at/all", "no folder /nowhere/at/all here, nor could it be downloaded from the hub"),
    ],
)
def test_a_word_for_nothing_says_what_there_is(word, told, tmp_path, monkeypatch):
    monkeypatch.setattr("torchvars.models.embedded.EMBEDDED", tmp_path)
    model = torchvars.create("deit_micro_softmax", img_size=16, patch_size=4, num_classes=2, embed_dim=16, depth=1)
    torchvars.Classifier(model).save_pretrained(tmp_path / "deit_micro_softmax.pets")
    for find in (find_weights, torchvars.Classifier.from_pretrained):
        with pytest.raises((ValueError, FileNotFoundError), match=told):
            find(word)
    shutil.rmtree(tmp_path / "deit_micro_softmax.pets")
    with pytest.raises(ValueError, match=r"a name whose weights ship \(none yet\)"):
        find_weights("deit_micro_softmax")
