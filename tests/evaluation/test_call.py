"""An evaluation from Python is one call, and the same as the command's."""

import re
from pathlib import Path

import pytest
from torch import nn

import torchvars
from evaluation.halves import HALVES, Halves, counted, save_weights, subject, write
from torchvars.cli.main import main
from torchvars.evaluation import metrics
from torchvars.evaluation.results import Results

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def _rough_intervals(monkeypatch):
    monkeypatch.setattr(metrics, "RESAMPLES", 50)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory) -> Path:
    return write(tmp_path_factory.mktemp("pictures"), count=2)


def test_it_does_what_the_command_does(pictures, tmp_path, monkeypatch, capsys):
    weights, output = save_weights(tmp_path / "tiny"), tmp_path / "call.json"
    options = ["--benchmark=clean,pgd", "--radii=1/255", "--attack-steps=2", "--limit=5", "--workers=0"]
    main(["evaluate", str(weights), "--data", str(pictures), *options, "--output", str(tmp_path / "command.json")])
    shown = capsys.readouterr().err
    chosen = {"radii": (1 / 255,), "attack_steps": (2,), "limit": 5}
    results = torchvars.evaluate(str(weights), "clean, pgd", pictures, output=output, **chosen)
    assert output.read_text() == (tmp_path / "command.json").read_text()
    assert capsys.readouterr().err == shown
    assert Results.read(output).rows == results.rows
    # It goes on where it was, and adds to the file.
    keys = counted(monkeypatch)
    torchvars.evaluate(weights, ["clean", "pgd", "fgsm"], str(pictures), output=output, quiet=True, **chosen)
    assert keys == ["linf 1/255"]
    assert capsys.readouterr().err == ""


class Centred(nn.Module):
    """A model of normalised images, whose classes have no names."""

    def forward(self, images):
        return Halves([0, 1, 2, 3], 4)(images)


def test_a_model_of_ones_own_in_any_form(pictures):
    classifier = torchvars.Classifier(Centred(), mean=(0.5,) * 3, std=(1.0,) * 3, classes=HALVES)
    how = {"size": 32, "quiet": True}
    for model, name in ((classifier, "Centred"), (subject(), "halves")):
        results = torchvars.evaluate(model, "clean", pictures, **how)
        assert results.model["name"] == name
        assert results.value("clean", "accuracy", "clean").value == 100
    assert torchvars.evaluate(classifier, "clean", pictures, name="mine", **how).model["name"] == "mine"
    # Without names the logits stand for the folders in alphabetical order, in which the halves are not.
    nameless = torchvars.evaluate(Centred(), "clean", pictures, **how)
    assert nameless.value("clean", "accuracy", "clean").value == 0
    assert "its classes have no names" in nameless.rows[0].protocol


@pytest.mark.parametrize(
    ("model", "benchmarks", "options", "message"),
    [
        ("nothing", "clean", {}, "'nothing' is no trained model"),
        (subject(), "clean,cleen", {}, "no benchmark named 'cleen': there are clean, corruptions"),
        (subject(), "", {}, "there are clean, corruptions"),
        (subject(), "clean", {"limt": 3}, "no benchmark takes 'limt': there are attack_steps, baselines, "),
        (subject(), "pgd", {"radii": (8,)}, "no linf radius is above 1, got 8: did you mean 8/255?"),
        (subject(classes=("a", "b", "c", "d"), names=("a", "b", "c", "d")), "clean", {}, "does not know 4 of the 4"),
    ],
)
def test_what_is_wrong_is_told(model, benchmarks, options, message, pictures):
    with pytest.raises(ValueError, match=re.escape(message)):
        torchvars.evaluate(model, benchmarks, pictures, quiet=True, **options)


def test_the_public_names_are_there():
    for name in torchvars.evaluation.__all__:
        assert getattr(torchvars.evaluation, name) is not None
