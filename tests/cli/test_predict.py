"""`torchvars predict`: pictures in, top classes out."""

import json
import os

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file

import torchvars
from torchvars.cli.main import main

CLASSES = ("n01440764", "n02979186", "mug", "cup")


@pytest.fixture
def weights(tmp_path):
    model = torchvars.create("rvt_micro_softmax", img_size=16, patch_size=8, widths=(8,), depths=(1,), num_classes=4)
    torchvars.Classifier(model, classes=CLASSES).save_pretrained(tmp_path / "weights")
    return tmp_path / "weights"


@pytest.fixture
def pictures(tmp_path):
    """In folders: of another size, wide, grey, with transparency; and what is to be passed over."""
    folder, draw = tmp_path / "pictures", np.random.default_rng(0)
    (folder / "more").mkdir(parents=True)
    for name, shape in {
        "b.png": (20, 30, 3),
        "a.png": (16, 16, 3),
        "more/grey.png": (40, 17),
        "c.png": (9, 9, 4),
    }.items():
        Image.fromarray(draw.integers(0, 256, shape, dtype=np.uint8)).save(folder / name)
    (folder / ".hidden.png").write_bytes(b"hidden")
    (folder / "notes.txt").write_text("notes")
    return folder


def read(path):
    content = json.loads(path.read_text())
    return {line["picture"]: line["top"] for line in content["pictures"]}, content


def test_the_confidences_are_those_of_the_classifier_on_the_pictures_of_evaluation(weights, pictures, tmp_path, capsys):
    output = tmp_path / "new" / "predictions.json"
    main(["predict", str(weights), str(pictures), "--output", str(output), "--batch", "3"])
    found, content = read(output)
    assert list(found) == [str(pictures / name) for name in ("a.png", "b.png", "c.png", "more/grey.png")]
    assert (content["size"], content["unreadable"]) == (16, {})
    classifier = torchvars.Classifier.from_pretrained(weights)
    for path, top in found.items():
        expected = classifier(classifier.transform(Image.open(path))[None]).softmax(-1)[0]
        order = expected.argsort(descending=True).tolist()
        assert [each["index"] for each in top] == order  # four classes, of five asked for
        assert [each["name"] for each in top] == [CLASSES[index] for index in order]
        assert [each["confidence"] for each in top] == pytest.approx(expected[order].tolist(), abs=1e-6)
    labels = {each["label"] for each in found[str(pictures / "a.png")]}
    assert labels == {"tench (n01440764)", "cassette player (n02979186)", "mug", "cup"}
    printed = capsys.readouterr().out
    assert all(label in printed for label in labels)


def test_as_many_classes_as_asked_for_and_pictures_by_their_names(weights, pictures, capsys):
    main(["predict", str(weights), str(pictures / "b.png"), "--top", "1"])
    first, second = capsys.readouterr().out.splitlines()
    assert first == str(pictures / "b.png")
    assert second.split()[1] == "%"


def test_pictures_that_cannot_be_read_are_named_and_counted(weights, pictures, tmp_path, capsys):
    (pictures / "broken.png").write_bytes(b"no picture")
    output = tmp_path / "predictions.json"
    with pytest.raises(SystemExit) as stopped:
        main(["predict", str(weights), str(pictures), "--output", str(output)])
    told = str(stopped.value)
    assert "1 of 5 pictures could not be read" in told
    assert f"{pictures / 'broken.png'}: UnidentifiedImageError: its 10 bytes are no picture" in told
    found, content = read(output)
    assert len(found) == 4
    assert list(content["unreadable"]) == [str(pictures / "broken.png")]


def test_the_home_folder_may_be_written_as_a_tilde(weights, pictures, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("HOME", str(tmp_path))
    main(["predict", "~/weights", "~/pictures/a.png", "--output", "~/out.json"])
    assert list(read(tmp_path / "out.json")[0]) == [str(pictures / "a.png")]


def test_models_of_timm_by_their_files_know_the_classes_of_imagenet(pictures, tmp_path, capsys):
    model = timm.create_model("test_vit")
    save_file(model.state_dict(), tmp_path / "vit.safetensors")
    main(["predict", f"timm:test_vit:{tmp_path / 'vit.safetensors'}", str(pictures / "a.png")])
    names = set(timm.data.ImageNetInfo("imagenet-1k").label_names())
    shown = capsys.readouterr().out.splitlines()[1:]
    assert len(shown) == 5
    assert {line.rpartition("(")[2].rstrip(")") for line in shown} <= names


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["nowhere.png"], "no picture at nowhere.png: there is no such file or folder"),
        (["{empty}"], "holds no pictures"),
        (["{pictures}", "--top", "0"], "--top must be at least 1, got 0"),
        (["{pictures}", "--img-size", "-3"], "at least 1, got -3"),
        (["{pictures}", "--device", "abacus"], "no device 'abacus' here"),
        (["{pictures}", "--output", "{other}"], "exists and holds no predictions"),
        (["{pictures}", "--output", "{empty}"], "is a folder: give --output a file in it"),
        (["{pictures}", "--output", "/dev/null"], "is a device, a pipe or a socket"),
        (["{pictures}", "--output", "{other}/x.json"], "is a file: give --output a path in a folder"),
        (["{pipe}"], "is no file, but a pipe or a device"),
    ],
)
def test_what_makes_no_sense_is_refused_and_nothing_is_lost(more, told, weights, pictures, tmp_path, capsys):
    empty, other, pipe = tmp_path / "empty", tmp_path / "other.json", tmp_path / "pipe.png"
    empty.mkdir()
    other.write_text('{"mine": 1}')
    os.mkfifo(pipe)
    places = {"pictures": pictures, "empty": empty, "other": other, "pipe": pipe}
    with pytest.raises(SystemExit) as stopped:
        main(["predict", str(weights), *(each.format(**places) for each in more)])
    assert stopped.value.code == 2
    assert told in capsys.readouterr().err
    assert other.read_text() == '{"mine": 1}'


def test_predictions_are_replaced_by_new_ones(weights, pictures, tmp_path):
    output = tmp_path / "predictions.json"
    for name in ("a.png", "b.png"):
        main(["predict", str(weights), str(pictures / name), "--output", str(output)])
        assert list(read(output)[0]) == [str(pictures / name)]


def test_a_classifier_without_names_numbers_its_classes(pictures, tmp_path, capsys):
    model = torchvars.create("rvt_micro_softmax", img_size=16, patch_size=8, widths=(8,), depths=(1,), num_classes=2)
    torchvars.Classifier(model).save_pretrained(tmp_path / "nameless")
    main(["predict", str(tmp_path / "nameless"), str(pictures / "a.png")])
    assert {line.partition("%")[2].strip() for line in capsys.readouterr().out.splitlines()[1:]} == {
        "class 0",
        "class 1",
    }
    assert torch.is_grad_enabled()
