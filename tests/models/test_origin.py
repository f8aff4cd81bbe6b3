"""Models of timm, of transformers and converted ones are saved, loaded, evaluated and exported like our own."""

import json

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from torchvision.models import VisionTransformer as TorchvisionVisionTransformer
from transformers import Dinov2Config, Dinov2ForImageClassification, Dinov2Model, ViTConfig, ViTForImageClassification

import torchvars
from torchvars.attention import Reconstruction, look
from torchvars.cli.main import main
from torchvars.evaluation.paper import paper_row
from torchvars.evaluation.subjects import open_subject, subject_of
from torchvars.models.origin import build, image_size, origin_of
from torchvars.sparse import FISTA, LearnedISTA, settings_of

pytestmark = [
    pytest.mark.filterwarnings("ignore:with vars_s:UserWarning"),
    pytest.mark.filterwarnings("ignore:this model takes pictures of any shape:UserWarning"),
    pytest.mark.usefixtures("one_thread"),
]


def of_timm(**options):
    return timm.create_model("test_vit", **{"img_size": 32, "num_classes": 5, **options})


SIZES = {"hidden_size": 24, "num_attention_heads": 3, "num_hidden_layers": 2, "image_size": 32, "patch_size": 8}


def of_transformers(kind=ViTForImageClassification, config=ViTConfig, **options):
    return kind(config(**SIZES, num_labels=5, **options))


def ours(attention="softmax", **options):
    sizes = {"img_size": 32, "num_classes": 5, "widths": (8,), "heads": (2,), "depths": (2,)}
    return torchvars.create(f"rvt_micro_{attention}", **{**sizes, **options})


def converted(model, *args, **options):
    return torchvars.convert(model, *args, **options)


MODELS = {
    "timm": of_timm,
    "timm, other arguments": lambda: of_timm(img_size=(32, 48), in_chans=1, global_pool="avg", dynamic_img_size=True),
    "timm, a network of convolutions": lambda: timm.create_model("test_resnet", num_classes=5),
    "timm, to vars_d": lambda: converted(of_timm(), "vars_d", layers=[-2, -1], strength=0.1, atoms=1),
    "timm, to vars_sd by degrees": lambda: converted(of_timm(), "vars_sd", layers=[1], filters=2, interpolate=True),
    "timm, to performer": lambda: converted(of_timm(), "performer", layers=["blocks.0.attn"]),
    "transformers": of_transformers,
    "transformers, to vars_s": lambda: converted(of_transformers(), "vars_s", layers=[0], grid=(4, 4), size=(3, 3)),
    "dinov2, to vars_d": lambda: converted(of_transformers(Dinov2ForImageClassification, Dinov2Config), "vars_d"),
    "ours, to vars_d": lambda: converted(ours(), "vars_d"),
    "ours, to vars_s": lambda: converted(ours("performer"), "vars_s", layers=[1]),
}


def shaken(model):
    """No parameter at zero or at a value that would hide what it does."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def pixels_for(classifier, count=2):
    return torch.rand(count, len(classifier.mean), *image_size(classifier.model))


@pytest.fixture
def vit():
    """A converted model of timm."""
    return shaken(torchvars.convert(of_timm(), "vars_d", layers=[-2, -1]))


@pytest.mark.parametrize("name", MODELS)
def test_a_saved_classifier_is_the_same_one(name, tmp_path):
    model = shaken(MODELS[name]())
    channels = getattr(model, "in_chans", 3)
    classifier = torchvars.Classifier(model, (0.5,) * channels, (0.2,) * channels, classes=list("abcde")).train()
    before, chance = {name: tensor.clone() for name, tensor in model.state_dict().items()}, torch.get_rng_state()
    classifier.save_pretrained(tmp_path)
    assert classifier.training
    assert torch.equal(torch.get_rng_state(), chance)
    torch.testing.assert_close(dict(model.state_dict()), before, rtol=0, atol=0)
    again = torchvars.Classifier.from_pretrained(tmp_path)
    assert not again.training
    assert again.classes == tuple("abcde")
    pixels = pixels_for(classifier)
    torch.testing.assert_close(again(pixels), classifier.eval()(pixels), rtol=0, atol=0)
    again.save_pretrained(tmp_path / "twice")
    one, other = (json.loads((folder / "config.json").read_text()) for folder in (tmp_path, tmp_path / "twice"))
    assert one == other


def test_the_file_says_how_the_model_is_made(vit, tmp_path):
    torchvars.Classifier(vit).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["architecture"] == "timm:test_vit"
    assert config["options"]["img_size"] == [32, 32]
    assert config["conversion"] == {
        "attention": "vars_d",
        "layers": ["blocks.4.attn", "blocks.5.attn"],
        "options": {},
        "interpolate": False,
    }
    assert "converted to vars_d in blocks.4.attn, blocks.5.attn" in (tmp_path / "README.md").read_text()


def test_solvers_and_strengths_are_saved_as_they_are_now(tmp_path):
    model = torchvars.convert(of_timm(), "vars_d", layers=[0, 1], solver=FISTA(5), strength=0.7)
    model.blocks[0].attn.solver, model.blocks[0].attn.strength = LearnedISTA(4), 0.2
    torch.nn.init.constant_(model.blocks[0].attn.solver.step.size, 0.4)
    classifier = torchvars.Classifier(model).eval()
    classifier.save_pretrained(tmp_path)
    again = torchvars.Classifier.from_pretrained(tmp_path)
    for one, other in zip(model.blocks[:2], again.model.blocks[:2], strict=True):
        assert settings_of(one.attn.solver) == settings_of(other.attn.solver)
        assert one.attn.strength == other.attn.strength
    pixels = pixels_for(classifier)
    torch.testing.assert_close(again(pixels), classifier(pixels), rtol=0, atol=0)


@pytest.mark.parametrize("name", ["timm, to vars_d", "dinov2, to vars_d", "ours, to vars_d"])
def test_other_options_than_were_saved(name, tmp_path):
    saved = torchvars.Classifier(MODELS[name]())
    saved.save_pretrained(tmp_path)
    other = torchvars.Classifier.from_pretrained(tmp_path, num_classes=7, attention_options={"strength": 0.05})
    assert other(pixels_for(other)).shape == (2, 7)
    layers = {name: part for name, part in other.named_modules() if isinstance(part, Reconstruction)}
    for layer, part in layers.items():
        assert part.strength == 0.05
        assert torch.equal(part.value.weight, saved.get_submodule(layer).value.weight)
    with pytest.raises(TypeError, match="unexpected keyword argument 'foo'"):
        torchvars.Classifier.from_pretrained(tmp_path, foo=1)


@pytest.mark.parametrize("number", [7, 0])
def test_a_new_head_is_saved_with_its_classes(vit, number, tmp_path):
    vit.reset_classifier(number)
    classifier = torchvars.Classifier(vit).eval()
    classifier.save_pretrained(tmp_path)
    again, pixels = torchvars.Classifier.from_pretrained(tmp_path), pixels_for(classifier)
    torch.testing.assert_close(again(pixels), classifier(pixels), rtol=0, atol=0)
    assert torchvars.Classifier.from_pretrained(tmp_path, num_classes=3)(pixels).shape == (2, 3)


def test_a_classifier_is_converted_like_the_model_in_it(tmp_path):
    classifier = torchvars.convert(torchvars.Classifier(of_timm()), "vars_d", layers=["model.blocks.1.attn"]).eval()
    classifier.save_pretrained(tmp_path)
    pixels = pixels_for(classifier)
    torch.testing.assert_close(torchvars.Classifier.from_pretrained(tmp_path)(pixels), classifier(pixels))


def test_a_restored_model_is_saved_without_a_conversion(vit, tmp_path):
    torchvars.Classifier(torchvars.restore(vit)).save_pretrained(tmp_path)
    assert "conversion" not in json.loads((tmp_path / "config.json").read_text())


def test_originals_are_not_saved_and_so_cannot_be_restored(vit, tmp_path):
    torchvars.Classifier(vit).save_pretrained(tmp_path)
    loaded = torchvars.Classifier.from_pretrained(tmp_path)
    with pytest.raises(ValueError, match="the original attentions are not there"):
        torchvars.restore(loaded.model)
    with pytest.raises(ValueError, match="converted already"):
        torchvars.convert(loaded.model)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"depth": 2}, r"blocks\.2\.norm1\.weight is missing here, and \(64,\) in timm:test_vit as it was created"),
        ({"num_heads": 4}, "timm:test_vit, built again and with the same weights, gives logits that differ by"),
        ({"act_layer": "relu"}, "built with arguments that the model does not say"),
    ],
)
def test_arguments_that_a_model_does_not_say_have_to_be_told(options, told, tmp_path):
    classifier = torchvars.Classifier(shaken(of_timm(**options))).eval()
    with pytest.raises(ValueError, match=rf"{told}.* save its state_dict, or say how it was built: model.origin = "):
        classifier.save_pretrained(tmp_path / "folder")
    assert not (tmp_path / "folder").exists()
    classifier.model.origin = {"name": "timm:test_vit", "options": {"img_size": 32, "num_classes": 5, **options}}
    classifier.save_pretrained(tmp_path / "folder")
    pixels = pixels_for(classifier)
    torch.testing.assert_close(torchvars.Classifier.from_pretrained(tmp_path / "folder")(pixels), classifier(pixels))


def test_arguments_that_are_told_wrongly_are_refused(tmp_path):
    classifier = torchvars.Classifier(of_timm())
    classifier.model.origin = {"name": "timm:test_vit", "options": {"img_size": 32, "wings": 2}}
    with pytest.raises(ValueError, match=r"timm:test_vit cannot be built again: .* 'wings'"):
        classifier.save_pretrained(tmp_path / "folder")
    assert not (tmp_path / "folder").exists()


def test_models_that_no_name_makes_are_refused(tmp_path):
    sizes = {"num_layers": 1, "num_heads": 2, "hidden_dim": 8, "mlp_dim": 8, "image_size": 32, "patch_size": 8}
    model = torchvars.convert(TorchvisionVisionTransformer(**sizes))
    with pytest.raises(ValueError, match=r"VisionTransformer was not built by name.* or save its state_dict"):
        torchvars.Classifier(model).save_pretrained(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_model_of_transformers_without_a_head_has_no_logits():
    classifier = torchvars.Classifier(Dinov2Model(Dinov2Config(**SIZES)))
    with pytest.raises(ValueError, match="Dinov2Model returns BaseModelOutputWithPooling without logits"):
        classifier(torch.rand(1, 3, 32, 32))


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"architecture": "keras:vit"}, "no library 'keras' to build keras:vit with"),
        ({"architecture": "timm:test_vitt"}, "timm knows no model 'test_vitt'"),
        ({"architecture": "transformers:ViTForImages"}, r"transformers 5\S+ has no model 'ViTForImages'"),
        ({"architecture": "transformers:PreTrainedModel"}, r"transformers 5\S+ has no model 'PreTrainedModel'"),
        ({"conversion": {"attention": "vars_d"}}, "the conversion of timm:test_vit has no layers"),
        ({"conversion": {"attention": "vars_x", "layers": ["blocks.0.attn"]}}, "cannot convert to 'vars_x'"),
        ({"conversion": {"attention": "vars_d", "layers": ["blocks.9.attn"]}}, "no self-attention .'blocks.9.attn'"),
        ({"conversion": {"attention": "vars_d", "layers": ["blocks.0.attn"]}}, "it has no layer blocks.4.attn that"),
        ({"options": {"pretrained_cfg": "none_such"}}, r"timm cannot build test_vit with .*Invalid pretrained tag"),
    ],
)
def test_files_that_say_nonsense_are_refused(vit, changed, told, tmp_path):
    torchvars.Classifier(vit).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **changed}))
    with pytest.raises(ValueError, match=told):
        torchvars.Classifier.from_pretrained(tmp_path)


def test_origins_build_what_they_are_of():
    for make in MODELS.values():
        written = json.dumps(origin_of(make()))
        assert json.dumps(origin_of(build(json.loads(written)))) == written


def test_a_converted_model_is_known_for_one(vit, tmp_path):
    """And is not taken for the one it was made from, of which the paper has figures."""
    torchvars.Classifier(vit).save_pretrained(tmp_path / "mine")
    loaded, at_hand = open_subject(str(tmp_path / "mine")), subject_of("mine", torchvars.Classifier(vit))
    assert loaded.describe() == at_hand.describe()
    assert (loaded.size, loaded.architecture) == (32, "timm:test_vit")
    assert loaded.describe()["conversion"]["layers"] == ["blocks.4.attn", "blocks.5.attn"]
    known = {"name": "deit", "architecture": "timm:deit_tiny_patch16_224", "size": 224}
    assert paper_row(known) is not None
    assert paper_row({**known, "conversion": loaded.conversion}) is None


@pytest.fixture
def folder(tmp_path):
    """Of a small converted model."""
    options = {"img_size": 32, "num_classes": 5, "depth": 1}
    model = torchvars.convert(of_timm(**options), "vars_d")
    model.origin = {"name": "timm:test_vit", "options": options}
    torchvars.Classifier(model, classes=list("abcde")).save_pretrained(tmp_path / "mine")
    return tmp_path / "mine"


def test_a_folder_of_a_converted_model_is_evaluated(folder, tmp_path):
    generator = np.random.default_rng(0)
    for name in "abcde":
        (tmp_path / "val" / name).mkdir(parents=True)
        noise = generator.integers(0, 255, (32, 32, 3), dtype=np.uint8)
        Image.fromarray(noise).save(tmp_path / "val" / name / "one.png")
    results = tmp_path / "results.json"
    main(["evaluate", str(folder), "--data", str(tmp_path), "--output", str(results), "--workers=0"])
    rows = [row for row in json.loads(results.read_text())["rows"] if row["metric"] == "accuracy"]
    assert (rows[0]["model"], rows[0]["images"]) == ("mine", 5)


@pytest.mark.slow
def test_a_folder_of_a_converted_model_is_exported(folder, tmp_path, capsys):
    main(["export", str(folder), "--format=pt2", "--output", str(tmp_path / "mine.pt2")])
    assert "mine.pt2: logits within" in capsys.readouterr().out
    pixels = torch.rand(3, 3, 32, 32)
    classifier = torchvars.Classifier.from_pretrained(folder)
    torch.testing.assert_close(torch.export.load(tmp_path / "mine.pt2").module()(pixels), classifier(pixels))
    assert look(classifier, pixels).energy["model.blocks.0.attn"].shape == (3, 2, 2)
