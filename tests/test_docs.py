"""What README and docs show, runs."""

import json
import re
import runpy
import sys
from pathlib import Path

import pytest

from torchvars.evaluation.results import Results
from torchvars.models.registry import trained

PGD = "linf 2/255, 5 steps"
ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCKS = [
    pytest.param(block, id=f"{page.relative_to(ROOT)}-{index}")
    for page in PAGES
    for index, block in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL))
]


@pytest.mark.parametrize("block", BLOCKS)
def test_every_example_in_the_docs_runs(block, monkeypatch):
    # Examples that register a member do so in a copy.
    import torchvars.attention.registry
    import torchvars.sparse

    monkeypatch.setattr(torchvars.sparse, "SOLVERS", dict(torchvars.sparse.SOLVERS))
    copied = dict(torchvars.attention.registry.ATTENTIONS)
    monkeypatch.setattr(torchvars.attention.registry, "ATTENTIONS", copied)
    monkeypatch.setattr(torchvars.attention, "ATTENTIONS", copied)
    exec(compile(block, "example", "exec"), {"__name__": "__main__"})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file(page):
    prose = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", prose):
        assert target.startswith("https://") or (page.parent / target).exists(), target


def test_reconstruct_writes_its_picture(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["reconstruct.py", "--output", str(tmp_path / "new")])
    runpy.run_path(str(ROOT / "examples/reconstruct.py"), run_name="__main__")
    picture = tmp_path / "new/reconstruct.png"
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert str(picture) in capsys.readouterr().out


def test_demo_compares_every_model_and_draws(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "new/demo"
    monkeypatch.setattr(sys, "argv", ["demo.py", "--output", str(folder), "--limit", "10"])
    runpy.run_path(str(ROOT / "examples/demo.py"), run_name="__main__")
    printed = capsys.readouterr().out
    names = trained("rvt_micro", "cifar10").values()
    assert "rvt_micro_vars_d.cifar10" in names
    for name in names:
        results = Results.read(folder / f"{name}.json")
        clean, attacked = results.value("clean", "accuracy", "clean"), results.value("pgd", "accuracy", PGD)
        assert clean.images == 10
        assert clean.value >= 60  # 80 and more of all pictures
        assert attacked.value < clean.value
        assert name in printed
    for picture in ("corruptions", "attacks", "steps", "steps_corrupted", "models"):
        assert (folder / f"{picture}.png").read_bytes().startswith(b"\x89PNG")
    assert f"results and pictures: {folder}" in printed


@pytest.mark.slow
def test_benchmark_of_solvers_prints_and_writes_its_tables(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["solvers.py", "--repeats", "1", "--output", str(tmp_path / "new/solvers.json")])
    runpy.run_path(str(ROOT / "benchmarks/solvers.py"), run_name="__main__")
    assert "The gap after three steps" in capsys.readouterr().out
    rows = json.loads((tmp_path / "new/solvers.json").read_text())
    three = {(row["problem"], row["solver"], row["start"], row["rule"]): row for row in rows if row["steps"] == 3}
    # What docs/solvers.md says of it.
    for problem in {row["problem"] for row in rows}:
        near = three[problem, "SpaRSA", "scaled", "curvature"]["gap"]
        assert 0 < near < 0.2
        assert near < three[problem, "ISTA", "zero", "spectral"]["gap"] / 2
        assert (
            three[problem, "ISTA", "zero", "spectral"]["gap"]
            < three[problem, "ISTA", "analysis", "spectral"]["gap"] * 1.1
        )
