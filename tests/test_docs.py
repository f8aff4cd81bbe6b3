"""What README and docs show, runs."""

import json
import re
import runpy
import sys
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import matplotlib.pyplot as plt
import pytest

import torchvars
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


PACKAGES = [name for _, name, is_package in iter_modules(torchvars.__path__) if is_package]


@pytest.mark.parametrize(
    "package", [name for name in PACKAGES if hasattr(import_module(f"torchvars.{name}"), "__all__")]
)
def test_every_public_name_of_a_package_is_in_the_reference(package):
    page = ROOT / f"docs/api/{package}.md"
    documented = re.findall(r"^\.\. (?:auto\w+|py:data):: (\w+)$", page.read_text(), re.MULTILINE)
    assert sorted(documented) == sorted(import_module(f"torchvars.{package}").__all__)


def test_every_public_name_of_the_top_level_is_in_the_reference():
    text = (ROOT / "docs/api/torchvars.md").read_text()
    assert {*re.findall(r"\btorchvars\.(\w+)[] ]", text)} == {*torchvars.__all__}


@pytest.mark.parametrize("script", sorted((ROOT / "examples/gallery").glob("plot_*.py")), ids=lambda path: path.stem)
def test_gallery_scripts_end_in_a_figure(script, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [str(script)])
    monkeypatch.setattr(plt, "show", lambda: None)
    before = plt.get_backend()
    plt.switch_backend("agg")
    try:
        runpy.run_path(str(script), run_name="__main__")
        assert all(axis.has_data() for axis in plt.gcf().axes)
    finally:
        plt.close("all")
        plt.switch_backend(before)
    if script.stem == "plot_5_robustness":  # what docs/results/robustness.md says, found in another way
        assert "seed 0: +1.8 points" in (printed := capsys.readouterr().out)
        assert "seed 1: +1.7 points" in printed


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
    for picture in ("corruptions", "attacks", "maps", "steps"):
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
