"""From a training run to weights that ship, as a maintainer does it; and what ships is what is claimed."""

import json
import runpy
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
    runs = {name: (attention, "--seed=0") for attention, name in names.items()}
    runs["rvt_micro_vars_sd.cifar10_seed1"] = ("vars_sd", "--seed=1")
    for name, (attention, seed) in runs.items():
        run = str(tmp_path / name)
        few = ["--epochs=2", "--batch=16", "--warmup-epochs=1", "--workers=0", seed]
        main(["train", f"cifar10_rvt_micro_{attention}", "--data", data, "--output", run, *few])
        program("embed.py", run, "--pictures=cifar10", "--data", data, "--results", str(results))
    assert {path.name for path in shipped.iterdir()} == set(runs)

    records = {name: Record.read(shipped / name) for name in runs}
    clean = {name: record.value("clean", "accuracy", "clean").value for name, record in records.items()}
    again = tmp_path / "again"
    for name, record in records.items():
        main(["verify", name, "--data", data, "--workers=0", "--output", str(again / f"{name}.json")])
        said = capsys.readouterr().out
        assert "square: 24 of 24 pictures were recognised, or not, as it is recorded" in said
        assert f"{name} is what is claimed" in said
        # Measured again, with nothing left to be done, they are the same.
        program("embed.py", name, "--data", data, "--results", str(again))
        assert Record.read(shipped / name) == record
        rows = json.loads((shipped / name / "results.json").read_text())["rows"]
        assert next(row["value"] for row in rows if row["benchmark"] == "clean") == pytest.approx(clean[name])
    main(["list", "weights"])
    lines = capsys.readouterr().out.splitlines()[1:]
    assert [line.split()[:2] for line in lines] == [[name, f"{value:.1f}"] for name, value in clean.items()]

    tables = program("results.py", "cifar10", "--data", data, "--results", str(results)).strip().split("\n\n")
    assert len(tables) == 6
    for line, label, value in zip(tables[0].splitlines()[2:], [*names, "vars_sd, seed 1"], clean.values(), strict=True):
        assert line.startswith(f"| {label} | ")
        assert line.split(" | ")[2].startswith(f"{value:.1f} (")
    pairs = [line.split(" | ")[:2] for line in tables[1].splitlines()[2:]]
    assert pairs == [["| vars_sd", "softmax"], ["| vars_sd, seed 1", "vars_sd"]]

    codes, gains, parts = program("codes.py", "rvt_micro_vars_sd.cifar10", "--data", data).strip().split("\n\n")
    assert len(gains.splitlines()) == 2  # a union has none
    # The parts of a union are solved anew, and both together leave what the layer left.
    left = [float(line.split(" | ")[5].removesuffix(" %")) / 100 for line in codes.splitlines()[2:]]
    both = [float(line.removesuffix(" |").rpartition(" to ")[2]) for line in parts.splitlines()[2:]]
    assert both == pytest.approx(left, abs=0.011)
    assert len(both) == 6


@pytest.mark.parametrize("name", embedded())
def test_weights_that_ship_are_those_of_their_record(name):
    """What `torchvars verify` says without pictures; and no file is larger or says more than it should."""
    record = Record.read(EMBEDDED / name)
    architecture, _, tag = name.partition(".")
    pictures, _, seed = tag.partition("_seed")
    assert (record.recipe["model"], record.recipe["seed"]) == (architecture, int(seed or 0))
    assert set(record.trials) == {"clean", "corruptions", "pgd", "square"}
    with safe_open(EMBEDDED / name / "model.safetensors", "pt") as tensors:
        kinds = {tensors.get_slice(key).get_dtype() for key in tensors.keys()}  # noqa: SIM118
    assert kinds <= {"F16", "I64"}
    files = {path.name: path for path in (EMBEDDED / name).iterdir()}
    texts = {"README.md", "config.json", "record.json", "results.json"}
    assert set(files) == {"model.safetensors", *texts}
    assert sum(path.stat().st_size for path in files.values()) < 4e6
    card = files["README.md"].read_text()
    stored = {"cifar10": "CIFAR-10, stored as JPEG", "imagenette": "Imagenette, squashed"}[pictures]
    assert f"trained on {stored}" in card
    assert f"{record.value('clean', 'accuracy', 'clean').value:.1f}" in card
    for text in (files[each].read_text() for each in texts):
        assert str(ROOT) not in text
        assert '"/' not in text  # no path of the machine it was made on
