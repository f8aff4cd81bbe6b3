"""From a training run to weights that ship, as a maintainer does it; and what ships is what is claimed."""

import json
import runpy
import shutil
import sys
from functools import partial
from pathlib import Path

import pytest
from safetensors import safe_open

from evaluation.halves import write
from torchvars.cli.main import main
from torchvars.evaluation.record import Record
from torchvars.evaluation.run import evaluate
from torchvars.models.embedded import EMBEDDED, embedded

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
def test_runs_become_weights_that_can_be_verified_and_compared(tmp_path, monkeypatch, capsys):
    for split, count in (("train", 8), ("val", 2)):
        write(tmp_path / "pictures" / split, count=count)
    data, shipped, results = str(tmp_path / "pictures"), tmp_path / "shipped", tmp_path / "results"
    monkeypatch.setattr("torchvars.models.embedded.EMBEDDED", shipped)
    monkeypatch.setattr("torchvars.evaluation.run.evaluate", partial(evaluate, workers=0))
    monkeypatch.setattr("torchvars.evaluation.metrics.RESAMPLES", 50)
    monkeypatch.syspath_prepend(ROOT / "benchmarks")  # as a program has it

    def program(name: str, *arguments: str) -> str:
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        runpy.run_path(str(ROOT / "benchmarks" / name), run_name="__main__")
        return capsys.readouterr().out

    names = {attention: f"rvt_micro_{attention}.cifar10" for attention in ("softmax", "vars_sd")}
    for attention in names:
        run = str(tmp_path / attention)
        few = ["--epochs=2", "--batch=16", "--warmup-epochs=1", "--workers=0"]
        main(["train", f"cifar10_rvt_micro_{attention}", "--data", data, "--output", run, *few])
        for _ in range(2):  # the second time nothing is left to be done, and nothing changes
            program("embed.py", run, "--pictures=cifar10", "--data", data, "--results", str(results))
    assert {path.name for path in shipped.iterdir()} == set(names.values())

    clean = {name: Record.read(shipped / name).value("clean", "accuracy", "clean").value for name in names.values()}
    for name in names.values():
        main(["verify", name, "--data", data, "--benchmark", "clean,pgd", "--workers=0"])
        assert f"{name} is what is claimed" in capsys.readouterr().out
        rows = json.loads((results / f"{name}.json").read_text())["rows"]
        assert next(row["value"] for row in rows if row["benchmark"] == "clean") == pytest.approx(clean[name])
    main(["list", "weights"])
    lines = capsys.readouterr().out.splitlines()[1:]
    assert [line.split()[:2] for line in lines] == [[name, f"{value:.1f}"] for name, value in clean.items()]

    # Whoever has the weights and the pictures gets the same tables, but for repetitions, which do not ship.
    shutil.copy(results / f"{names['vars_sd']}.json", results / f"{names['vars_sd']}.seed1.json")
    told = [
        program("results.py", "cifar10", "--data", data, "--results", str(folder)).strip().split("\n\n")
        for folder in (results, tmp_path / "elsewhere")
    ]
    assert [len(tables) for tables in told] == [6, 6]
    figures, again = (tables[0].splitlines() for tables in told)
    assert figures[:4] == again
    assert figures[4] == figures[3].replace("vars_sd", "vars_sd, seed 1")
    for line, value in zip(again[2:], clean.values(), strict=True):
        assert line.split(" | ")[2].startswith(f"{value:.1f} (")


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
