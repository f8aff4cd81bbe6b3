"""Heads for some of the classes that a model knows."""

import pytest
import timm
import torch
from torch import nn

import torchvars
from models.test_convert import MODELS, logits, shaken
from torchvars.models.head import cut_head, linear_heads
from torchvars.models.origin import count_classes

pytestmark = pytest.mark.usefixtures("one_thread")


def distilled():
    return timm.create_model("deit_tiny_distilled_patch16_224", img_size=32, depth=1, num_classes=5)


@pytest.mark.parametrize("name", [*MODELS, "timm distilled"])
def test_a_cut_head_gives_the_logits_of_its_classes(name):
    model, images = shaken({**MODELS, "timm distilled": distilled}[name]()), torch.randn(2, 3, 32, 32)
    expected = logits(model, images)[:, [3, 0]]
    torch.testing.assert_close(logits(cut_head(model, [3, 0]), images), expected)
    assert count_classes(model) == 2


@pytest.mark.parametrize("name", ["timm", "our deit", "vit sdpa"])
def test_a_model_with_a_cut_head_is_saved_and_loaded(name, tmp_path):
    model = timm.create_model("test_vit", num_classes=5, img_size=32) if name == "timm" else MODELS[name]()
    classifier = torchvars.Classifier(cut_head(shaken(model), [3, 0]), classes=["d", "a"])
    classifier.save_pretrained(tmp_path / "saved")
    again = torchvars.Classifier.from_pretrained(tmp_path / "saved")
    pixels = torch.rand(2, 3, 32, 32)
    assert torch.equal(again(pixels), classifier.eval()(pixels))
    assert again.classes == ("d", "a")


def test_heads_that_are_not_known_are_told_of():
    with pytest.raises(ValueError, match="Sequential has no known head: expected a linear layer"):
        linear_heads(nn.Sequential(nn.Linear(2, 3)))
    model = timm.create_model("test_vit", num_classes=0)
    with pytest.raises(ValueError, match="VisionTransformer has a head of Identity: expected a linear layer"):
        cut_head(model, [0])
