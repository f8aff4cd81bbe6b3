"""Trained models of transformers by their folder, and models at another size."""

import json

import pytest
import timm
import torch
from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessor, ViTModel

import torchvars
from models.test_convert import MODELS, of_transformers, shaken
from torchvars.models.peers import class_names, resized
from torchvars.models.sources import open_classifier

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def folder(tmp_path):
    """A classifier as transformers saves it, with its processor."""
    names = {0: "cat", 1: "dog", 2: "frog"}
    config = {"id2label": names, "label2id": {name: number for number, name in names.items()}}
    model = shaken(of_transformers(ViTForImageClassification, ViTConfig))
    model = ViTForImageClassification(ViTConfig(**{**model.config.to_dict(), **config}))
    shaken(model).save_pretrained(tmp_path / "vit")
    ViTImageProcessor(image_mean=[0.2, 0.3, 0.4], image_std=[0.5, 0.6, 0.7]).save_pretrained(tmp_path / "vit")
    return tmp_path / "vit"


def test_a_folder_of_transformers_is_opened_with_its_processor(folder, tmp_path):
    name, classifier = open_classifier(str(folder))
    assert name == "vit"
    assert class_names(classifier) == ("cat", "dog", "frog")
    pixels = torch.rand(2, 3, 32, 32)
    normal = ViTImageProcessor.from_pretrained(folder)(
        pixels, do_resize=False, do_rescale=False, return_tensors="pt"
    ).pixel_values
    expected = ViTForImageClassification.from_pretrained(folder).eval()(normal).logits
    torch.testing.assert_close(classifier(pixels), expected)
    torchvars.convert(classifier.model, "vars_p")
    classifier.save_pretrained(tmp_path / "converted")
    again = torchvars.Classifier.from_pretrained(tmp_path / "converted")
    assert torch.equal(again(pixels), classifier(pixels))


def test_names_that_say_nothing_are_none(tmp_path):
    MODELS["vit sdpa"]().save_pretrained(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"do_normalize": False, "image_mean": [0.5] * 3}))
    _, classifier = open_classifier(str(tmp_path))
    assert class_names(classifier) is None
    assert (classifier.mean.flatten().tolist(), classifier.std.flatten().tolist()) == ([0.0] * 3, [1.0] * 3)


def test_folders_of_transformers_that_are_no_classifiers_are_told_of(folder, tmp_path):
    (folder / "preprocessor_config.json").unlink()
    with pytest.raises(ValueError, match=r"vit does not say the mean and deviation of its pixels: save the image proc"):
        open_classifier(str(folder))
    model = of_transformers(ViTForImageClassification, ViTConfig)
    ViTModel(model.config).save_pretrained(tmp_path / "headless")
    with pytest.raises(ValueError, match=r"headless has no weights for classifier\.\w+, so that it is no trained"):
        open_classifier(str(tmp_path / "headless"))
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "config.json").write_text(json.dumps({"model_type": "bert"}))
    with pytest.raises(ValueError, match=r"text holds no image classifier of transformers that can be loaded"):
        open_classifier(str(tmp_path / "text"))


def test_another_size_keeps_the_function_where_embeddings_are_constant():
    vit = timm.create_model("test_vit", img_size=32, num_classes=3, class_token=False, global_pool="avg")
    shaken(vit)
    with torch.no_grad():
        vit.pos_embed[:] = 0.1
    classifier = torchvars.Classifier(vit)
    grey = torch.full((1, 3, 32, 32), 0.3)
    before = classifier(grey)
    resized("vit", classifier, 64)
    torch.testing.assert_close(classifier(torch.full((1, 3, 64, 64), 0.3)), before)
    with pytest.raises(ValueError, match="vit, made for 64 pixels, takes no pictures of 3 x 3"):
        resized("vit", classifier, 3)
