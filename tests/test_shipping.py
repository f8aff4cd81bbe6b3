"""From a training run to weights that ship, as a maintainer does it; and what ships is what is claimed."""

import json
import runpy
import sys
from pathlib import Path

import pytest
from safetensors import safe_open

from evaluation.halves import write
from torchvars.cli.main import main
from torchvars.evaluation.record import Record
from torchvars.models.embedded import EMBEDDED, embedded

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["softmax", "vars_sd"])
def test_a_run_becomes_weights_that_can_be_verified(attention, tmp_path, monkeypatch, capsys):
    for split, count in (("train", 8), ("val", 3)):
        write(tmp_path / "pictures" / split, count=count)
    data, run, shipped = str(tmp_path / "pictures"), str(tmp_path / "run"), tmp_path / "shipped"
    few = ["--epochs=2", "--batch=16", "--warmup-epochs=1", "--workers=0"]
    main(["train", f"cifar10_rvt_micro_{attention}", "--data", data, "--output", run, *few])

    monkeypatch.setattr("torchvars.models.embedded.EMBEDDED", shipped)
    given = [run, "--pictures=cifar10", "--data", data, "--results", str(tmp_path / "results")]
    monkeypatch.setattr(sys, "argv", ["embed.py", *given])
    for _ in range(2):  # the second time nothing is left to be done, and nothing changes
        runpy.run_path(str(ROOT / "benchmarks/embed.py"), run_name="__main__")
    name = f"rvt_micro_{attention}.cifar10"
    assert [path.name for path in shipped.iterdir()] == [name]

    capsys.readouterr()
    main(["verify", name, "--data", data, "--benchmark", "clean,pgd"])
    assert f"{name} is what is claimed" in capsys.readouterr().out
    main(["list", "weights"])
    _, line = capsys.readouterr().out.splitlines()
    clean = Record.read(shipped / name).value("clean", "accuracy", "clean")
    assert line.split()[:2] == [name, f"{clean.value:.1f}"]
    results = json.loads((tmp_path / "results" / f"{name}.json").read_text())
    assert next(row["value"] for row in results["rows"] if row["benchmark"] == "clean") == pytest.approx(clean.value)


@pytest.mark.parametrize("name", embedded())
def test_weights_that_ship_are_those_of_their_record(name):
    """What `torchvars verify` says without pictures; and no file is larger or says more than it should."""
    record = Record.read(EMBEDDED / name)
    architecture, _, pictures = name.partition(".")
    assert record.recipe["model"] == architecture
    assert set(record.trials) == {"clean", "corruptions", "pgd", "square"}
    with safe_open(EMBEDDED / name / "model.safetensors", "pt") as tensors:
        kinds = {tensors.get_slice(key).get_dtype() for key in tensors.keys()}  # noqa: SIM118
    assert kinds <= {"F16", "I64"}
    files = {path.name: path for path in (EMBEDDED / name).iterdir()}
    assert set(files) == {"config.json", "model.safetensors", "record.json", "README.md"}
    assert sum(path.stat().st_size for path in files.values()) < 4e6
    card = files["README.md"].read_text()
    stored = {"cifar10": "CIFAR-10, stored as JPEG", "imagenette": "Imagenette, squashed"}[pictures]
    assert f"trained on {stored}" in card
    assert f"{record.value('clean', 'accuracy', 'clean').value:.1f}" in card
    for text in (card, files["record.json"].read_text(), files["config.json"].read_text()):
        assert str(ROOT) not in text
        assert '"/' not in text  # no path of the machine it was made on
