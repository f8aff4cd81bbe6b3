"""What is exported gives the model's logits."""

import sys

import pytest
import torch

import torchvars
from torchvars.attention import ATTENTIONS
from torchvars.cli.main import main
from torchvars.models.export import export

# Depth one: what matters is each attention within each kind of block.
SMALL = {
    "rvt_micro": {"widths": (8,), "heads": (2,), "depths": (1,)},
    "deit_micro": {"embed_dim": 16, "num_heads": 2, "depth": 1},
    "gfnet_micro": {"dim": 16, "heads": 2, "depth": 1},
}
SLOW = pytest.mark.slow
PRODUCT = [
    pytest.param(backbone, attention, kind, marks=[] if backbone == "rvt_micro" else [SLOW])
    for backbone in SMALL
    for attention in ATTENTIONS
    for kind in ("onnx", "pt2")
]


def build(backbone, attention):
    settings = {"img_size": 32, "patch_size": 8, "num_classes": 4, **SMALL[backbone]}
    return torchvars.Classifier(torchvars.create(f"{backbone}_{attention}", **settings))


def written(path):
    """What a file computes, by its own runtime."""
    if path.suffix == ".pt2":
        return torch.export.load(path).module()
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return lambda pixels: torch.from_numpy(session.run(None, {"pixels": pixels.numpy()})[0])


@pytest.mark.parametrize(("backbone", "attention", "kind"), PRODUCT)
def test_every_backbone_and_attention_exports_with_any_batch(backbone, attention, kind, tmp_path):
    classifier = build(backbone, attention).eval()
    path = tmp_path / f"model.{kind}"
    difference = export(classifier, path, kind)
    assert difference < 1e-4
    assert [path.name for path in tmp_path.iterdir()] == [f"model.{kind}"]
    pixels = torch.rand(5, 3, 32, 32)
    torch.testing.assert_close(written(path)(pixels), classifier(pixels), rtol=0, atol=1e-4)


@pytest.mark.parametrize("kind", ["onnx", "pt2"])
def test_another_resolution(kind, tmp_path):
    assert export(build("rvt_micro", "vars_d"), tmp_path / f"new/model.{kind}", kind, img_size=(48, 64)) < 1e-4


def test_exporting_leaves_the_model_as_it_was(tmp_path):
    classifier = build("rvt_micro", "softmax").train()
    export(classifier, tmp_path / "model.pt2", "pt2")
    assert classifier.training
    assert all(parameter.requires_grad for parameter in classifier.parameters())


def test_unknown_formats_are_refused(tmp_path):
    with pytest.raises(ValueError, match="format must be one of onnx, pt2, got 'tflite'"):
        export(build("rvt_micro", "vars_d"), tmp_path / "model", "tflite")


def test_a_failed_export_leaves_the_old_file(tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(b"old")
    classifier = build("rvt_micro", "vars_d")
    classifier.model.blocks[0].attn.solver.tolerance = 1e-3  # a decision that a graph cannot hold
    with pytest.raises(Exception):  # noqa: B017, PT011 (PyTorch's own, of a kind that changes)
        export(classifier, path, "onnx")
    assert path.read_bytes() == b"old"
    assert [each.name for each in tmp_path.iterdir()] == ["model.onnx"]


def test_a_model_in_another_precision_is_written_in_single(tmp_path):
    classifier = build("rvt_micro", "vars_d").double()
    assert export(classifier, tmp_path / "model.pt2", "pt2") < 1e-4
    assert next(classifier.parameters()).dtype == torch.float64


def test_command_exports_a_run_and_leaves_its_classes_alone(tmp_path, capsys):
    build("rvt_micro", "vars_d").save_pretrained(tmp_path / "run" / "weights")
    begin = ["export", str(tmp_path / "run"), "--format=pt2", "--output", str(tmp_path / "model.pt2")]
    with pytest.raises(SystemExit):
        main([*begin, "--num-classes=3"])
    assert "run is trained for the classes it has: leave out --num-classes" in capsys.readouterr().err
    main(begin)
    pixels = torch.rand(2, 3, 32, 32)
    expected = torchvars.Classifier.from_pretrained(tmp_path / "run" / "weights")(pixels)
    torch.testing.assert_close(written(tmp_path / "model.pt2")(pixels), expected)


def test_command_exports_the_weights_that_ship(tmp_path, capsys):
    main(["export", "rvt_micro_softmax.cifar10", "--format=pt2", "--output", str(tmp_path / "trained.pt2")])
    assert "not trained" not in capsys.readouterr().out
    pixels = torch.rand(2, 3, 32, 32)
    expected = torchvars.Classifier.from_pretrained("rvt_micro_softmax.cifar10")(pixels)
    torch.testing.assert_close(torch.export.load(tmp_path / "trained.pt2").module()(pixels), expected)


def test_command_says_that_a_model_is_not_trained_and_what_is_not_installed(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(SystemExit):
        main(["export", "rvt_micro_softmax", "--num-classes=4", "--output", str(tmp_path / "model.onnx")])
    said = capsys.readouterr()
    assert "rvt_micro_softmax is not trained: give a folder of weights" in said.out
    assert 'exporting needs onnxruntime: pip install "torchvars[export]"' in said.err
    assert list(tmp_path.iterdir()) == []


def test_command_exports_a_folder_and_names_what_is_wrong(tmp_path, capsys):
    build("rvt_micro", "vars_d").save_pretrained(tmp_path / "saved")
    main(["export", str(tmp_path / "saved"), "--format", "pt2", "--output", str(tmp_path / "model.pt2")])
    assert "model.pt2: logits within" in capsys.readouterr().out
    assert (tmp_path / "model.pt2").exists()
    with pytest.raises(SystemExit) as stopped:
        main(["export", "rvt_tiny_varsd"])
    assert stopped.value.code == 2
    assert "no model named 'rvt_tiny_varsd'" in capsys.readouterr().err
