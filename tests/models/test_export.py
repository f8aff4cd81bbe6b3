"""What is exported gives the model's logits."""

import json
import resource
import sys

import pytest
import torch

import torchvars
from torchvars.attention import ATTENTIONS
from torchvars.attention.folded import fold
from torchvars.cli.main import main
from torchvars.evaluation.subjects import open_subject
from torchvars.maps import WithMaps, find_maps, observe
from torchvars.models.calls import by_calls
from torchvars.models.export import export
from torchvars.sparse import LearnedISTA

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


@pytest.mark.parametrize("kind", ["onnx", "pt2"])
def test_a_number_of_steps_that_depends_on_the_picture_is_refused(kind, tmp_path):
    classifier = build("rvt_micro", "vars_d")
    classifier.model.blocks[0].attn.solver = torchvars.sparse.ISTA(50, tolerance=1e-3)
    with pytest.raises(ValueError, match=r"1 layers, such as blocks\.0\.attn, solve to a tolerance"):
        export(classifier, tmp_path / f"model.{kind}", kind)
    assert not list(tmp_path.iterdir())


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
    assert "--num-classes is for --untrained" in capsys.readouterr().err
    main(begin)
    pixels = torch.rand(2, 3, 32, 32)
    expected = torchvars.Classifier.from_pretrained(tmp_path / "run" / "weights")(pixels)
    torch.testing.assert_close(written(tmp_path / "model.pt2")(pixels), expected)


@pytest.fixture
def shipped(tmp_path, monkeypatch):
    """Weights of one name, as if they came with the package."""
    monkeypatch.setattr("torchvars.models.embedded.EMBEDDED", tmp_path / "shipped")
    build("rvt_micro", "softmax").save_pretrained(tmp_path / "shipped" / "rvt_micro_softmax.birds")


@pytest.mark.parametrize("word", ["rvt_micro_softmax", "rvt_micro_softmax.birds"])
def test_a_name_means_the_trained_weights_as_everywhere(word, shipped, tmp_path, capsys):
    main(["export", word, "--format=pt2", "--output", str(tmp_path / "model.pt2")])
    assert "rvt_micro_softmax.birds: trained weights" in capsys.readouterr().out
    pixels = torch.rand(2, 3, 32, 32)
    found = written(tmp_path / "model.pt2")(pixels)
    torch.testing.assert_close(found, torchvars.Classifier.from_pretrained(word)(pixels))
    torch.testing.assert_close(found, open_subject(word).classifier(pixels))


def test_a_name_without_weights_is_refused_and_random_ones_are_asked_for(shipped, tmp_path, capsys):
    output = tmp_path / "model.pt2"
    begin = ["export", "deit_micro_softmax", "--format=pt2", "--output", str(output)]
    with pytest.raises(SystemExit) as stopped:
        main(begin)
    assert stopped.value.code == 2
    told = capsys.readouterr().err
    assert "'deit_micro_softmax' is no trained model" in told
    assert "a name whose weights ship (rvt_micro_softmax.birds)" in told
    assert "To export random weights, add --untrained" in told
    assert not output.exists()
    main([*begin, "--untrained", "--num-classes=3", "--img-size", "16"])
    assert "random weights" in capsys.readouterr().out
    assert written(output)(torch.rand(2, 3, 16, 16)).shape == (2, 3)


def test_command_says_what_is_not_installed_before_it_begins(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(SystemExit):
        main(["export", "rvt_micro_softmax", "--untrained", "--output", str(tmp_path / "model.onnx")])
    told = capsys.readouterr().err
    assert 'exporting needs onnxruntime: pip install "torchvars[export]", or pip install -e ".[export]"' in told
    assert list(tmp_path.iterdir()) == []


def test_command_exports_a_folder_in_steps_that_it_names(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    build("rvt_micro", "vars_s").save_pretrained(tmp_path / "saved")
    main(["export", "~/saved", "--output", "~/model.onnx"])
    printed = capsys.readouterr().out
    assert "model.onnx: logits within" in printed
    steps = ("trained weights", "tracing the model", "translating", "adding the solver", "comparing its logits")
    assert sorted(steps, key=printed.index) == list(steps)
    assert (tmp_path / "model.onnx").exists()


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["rvt_tiny_varsd"], "'rvt_tiny_varsd' is no trained model"),
        (["rvt_tiny_varsd", "--untrained"], "no model named 'rvt_tiny_varsd': did you mean rvt_tiny_vars_d"),
        (["rvt_micro_softmax", "--untrained", "--num-classes", "-1"], "--num-classes must be at least 1, got -1"),
        (["rvt_micro_softmax", "--untrained", "--num-classes", "0"], "--num-classes must be at least 1, got 0"),
        (["rvt_micro_softmax.cifar10", "--img-size", "0"], "each at least 1, got 0"),
        (["rvt_micro_softmax.cifar10", "--img-size", "1", "2", "3"], "one number or two, each at least 1, got 1 2 3"),
        (["rvt_micro_softmax.cifar10", "--img-size", "33"], "the model takes no pictures of 33 x 33 pixels"),
        (["rvt_micro_softmax.cifar10", "--output", "/dev/full"], "/dev/full is a device, a pipe or a socket"),
        (["rvt_micro_softmax.cifar10", "--output", "{folder}"], "is a folder: give --output a file in it"),
        (
            ["rvt_micro_softmax.cifar10", "--output", "{folder}/file/x.pt2"],
            "is a file: give --output a path in a folder",
        ),
        (["rvt_micro_softmax.cifar10", "--output", "/proc/x/model.pt2"], "torchvars export: "),
    ],
)
def test_what_makes_no_sense_is_an_error_of_one_line(more, told, tmp_path, capsys):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(SystemExit) as stopped:
        main(["export", *(each.format(folder=tmp_path) for each in more), "--format=pt2"])
    assert stopped.value.code == 2
    said = capsys.readouterr().err
    assert told in said
    assert "Traceback" not in said
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("kind", ["onnx", "pt2"])
def test_a_full_disk_is_an_error_of_one_line_and_leaves_the_old_file(kind, tmp_path, capsys):
    build("rvt_micro", "softmax").save_pretrained(tmp_path / "saved")
    output = tmp_path / f"model.{kind}"
    output.write_bytes(b"old")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))  # no file can grow further
    try:
        with pytest.raises(SystemExit) as stopped:
            main(["export", str(tmp_path / "saved"), f"--format={kind}", "--output", str(output)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert stopped.value.code == 2
    assert "File too large" in capsys.readouterr().err
    assert output.read_bytes() == b"old"
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"model.{kind}", "saved"]


def test_an_onnx_file_says_what_it_takes_and_what_its_logits_mean(tmp_path):
    import onnx

    mean, std, classes = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3), ("a", "b", "ç", "d")
    classifier = torchvars.Classifier(build("rvt_micro", "vars_s").model, mean, std, classes).eval()
    export(classifier, tmp_path / "model.onnx", "onnx")
    assert b".py" not in (tmp_path / "model.onnx").read_bytes()  # nor where in the code each node came from
    model = onnx.load(tmp_path / "model.onnx")
    onnx.checker.check_model(model, full_check=True)
    for value, rest in ((model.graph.input[0], [3, 32, 32]), (model.graph.output[0], [4])):
        first, *others = value.type.tensor_type.shape.dim
        assert first.dim_param == "batch"
        assert [each.dim_value for each in others] == rest
    told = {each.key: each.value for each in model.metadata_props}
    assert json.loads(told["classes"]) == list(classes)
    assert (json.loads(told["mean"]), json.loads(told["std"])) == (list(mean), list(std))
    assert (json.loads(told["size"]), json.loads(told["range"]), json.loads(told["resize"])) == ([32, 32], [0, 1], 37)
    assert (told["interpolation"], told["crop"], told["architecture"]) == ("bicubic", "centre", "rvt_micro_vars_s")


def test_layers_that_are_alike_are_traced_once():
    settings = {"img_size": 32, "patch_size": 8, "num_classes": 4, "widths": (8,), "heads": (2,), "depths": (4,)}
    model = torchvars.create("rvt_micro_vars_sd", **settings).eval()
    model.blocks[1].attn.strength = 0.1
    model.blocks[2].attn.solver = LearnedISTA(2)
    images = torch.rand(2, 3, 32, 32)
    assert len(by_calls(fold(model, images), images)) == 3  # the first and the last are alike


def test_layers_share_what_was_traced_but_not_their_weights(tmp_path):
    settings = {"img_size": 32, "patch_size": 8, "num_classes": 4, "widths": (8,), "heads": (2,), "depths": (2,)}
    model = torchvars.create("rvt_micro_vars_s", **settings).eval()
    for block, step in zip(model.blocks, (0.4, -1.0), strict=True):
        block.attn.solver = LearnedISTA(1)
        torch.nn.init.constant_(block.attn.solver.step.size, step)
    classifier = torchvars.Classifier(model)
    export(classifier, tmp_path / "model.onnx", "onnx")
    pixels = torch.rand(5, 3, 32, 32)
    torch.testing.assert_close(written(tmp_path / "model.onnx")(pixels), classifier(pixels), rtol=0, atol=1e-5)


# With maps


def sharp(attention):
    """A classifier whose codes have zeros and whose maps are not flat."""
    classifier = build("rvt_micro", attention).eval()
    with torch.no_grad():
        for name, parameter in classifier.named_parameters():
            if any(part in name for part in ("value", "query", "qkv")):
                parameter.mul_(4)
    return classifier


@pytest.mark.parametrize("attention", ["softmax", "vars_d", pytest.param("vars_sd", marks=SLOW)])
def test_a_file_with_maps_has_those_of_the_model_for_any_batch_and_query(attention, tmp_path, capsys):
    import onnx
    import onnxruntime

    # An entry of a code within rounding of the threshold is zero in one runtime and not in the other, which moves its
    # map by a percent: with this seed there is none.
    torch.manual_seed(1)
    classifier = sharp(attention)
    classifier.save_pretrained(tmp_path / "saved")
    path = tmp_path / "model.onnx"
    main(["export", str(tmp_path / "saved"), "--maps", "--output", str(path)])
    classifier = torchvars.Classifier.from_pretrained(tmp_path / "saved")
    onnx.checker.check_model(onnx.load(path), full_check=True)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    told = session.get_modelmeta().custom_metadata_map
    steps = None if attention == "softmax" else 3
    assert json.loads(told["maps"]) == {
        "kind": "implicit",
        "grid": [4, 4],
        "layers": {"model.blocks.0.attn": steps},
    }
    pixels = torch.rand(3, 3, 32, 32)
    seen = observe(classifier, pixels)
    for place in ((-1, -1), (31, 9)):
        query = torch.tensor(place).numpy()
        logits, maps, *sparsity = session.run(None, {"pixels": pixels.numpy(), "query": query})
        torch.testing.assert_close(torch.from_numpy(logits), seen.output, rtol=0, atol=1e-4)
        assert len(sparsity) == (steps is not None)
        for step in [None] if steps is None else range(steps + 1):
            expected = find_maps(seen, step=step, query="mean" if place == (-1, -1) else place)
            found = torch.from_numpy(maps[:, 0, step or 0])
            torch.testing.assert_close(found, expected, rtol=1e-3, atol=2e-3 * expected.max().item())


def test_weights_in_half_precision_halve_the_file_and_keep_the_logits(tmp_path):
    settings = {"img_size": 32, "patch_size": 8, "num_classes": 4, "widths": (32,), "heads": (2,), "depths": (1,)}
    classifier = torchvars.Classifier(torchvars.create("rvt_micro_softmax", **settings)).eval()
    difference = export(classifier, tmp_path / "half.onnx", "onnx", half=True)
    single = 4 * sum(parameter.numel() for parameter in classifier.parameters())
    assert 0.45 < (tmp_path / "half.onnx").stat().st_size / single < 0.7
    assert 0 < difference < 0.01
    pixels = torch.rand(2, 3, 32, 32)
    rounded = {
        name: value.half().float() if value.is_floating_point() and value.numel() >= 1024 else value
        for name, value in classifier.state_dict().items()
    }
    classifier.load_state_dict(rounded)
    torch.testing.assert_close(written(tmp_path / "half.onnx")(pixels), classifier(pixels), rtol=0, atol=1e-5)


def test_maps_and_half_precision_are_of_onnx_alone(tmp_path, capsys):
    for option in ("--maps", "--half"):
        with pytest.raises(SystemExit):
            main(["export", "rvt_micro_softmax.cifar10", option, "--format", "pt2", "--output", str(tmp_path / "x")])
        assert f"{option} is for --format onnx, got pt2" in capsys.readouterr().err
    with pytest.raises(ValueError, match="are for the format onnx, got 'pt2'"):
        export(build("rvt_micro", "softmax"), tmp_path / "x", "pt2", extend=WithMaps)
    assert not list(tmp_path.iterdir())
