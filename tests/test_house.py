"""The package as a whole: what it imports, and what its command prints."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import torchvars
from torchvars.attention import ATTENTIONS
from torchvars.cli.main import main
from torchvars.sparse import SOLVERS

SOURCE = Path(torchvars.__file__).parent
# Each subpackage imports only from those before it.
SUBPACKAGES = [
    "sparse",
    "attention",
    "models",
    "maps",
    "data",
    "scoring",
    "training",
    "evaluation",
    "generalization",
    "figures",
    "explorer",
    "cli",
]


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_subpackages_import_only_from_those_above(path):
    parts = path.relative_to(SOURCE).parts
    if len(parts) == 1:
        return
    allowed = SUBPACKAGES[: SUBPACKAGES.index(parts[0]) + 1]
    for name in imported(path, ("torchvars", *parts[:-1])):
        _, subpackage, *_ = *name.split("."), ""
        assert subpackage not in SUBPACKAGES or subpackage in allowed, f"{path.name} imports {subpackage}"


def imported(path: Path, package: tuple[str, ...]) -> Iterator[str]:
    """Whole names of what a file of torchvars imports of torchvars, however it does so."""
    for node in ast.walk(ast.parse(path.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
        if isinstance(node, ast.ImportFrom):
            above = package[: len(package) + 1 - node.level] if node.level else ()
            start = ".".join([*above, *([node.module] if node.module else [])])
            names = [f"{start}.{name}" for name in names]
        yield from (name for name in names if name.split(".")[0] == "torchvars")


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("from torchvars.models import x", "torchvars.models.x"),
        ("import torchvars.models as m", "torchvars.models"),
        ("from .. import models", "torchvars.models"),
        ("from ..models.weights import y", "torchvars.models.weights.y"),
        ("from .solvers import ISTA", "torchvars.sparse.solvers.ISTA"),
        ("import torch", None),
    ],
)
def test_an_import_is_found_however_it_is_written(line, found, tmp_path):
    (tmp_path / "file.py").write_text(line)
    assert list(imported(tmp_path / "file.py", ("torchvars", "sparse"))) == ([] if found is None else [found])


@pytest.mark.parametrize(
    "program",
    ["import torchvars", "import sys; sys.argv = ['torchvars', '--help']; from torchvars.cli.main import main; main()"],
    ids=["import", "help"],
)
def test_pytorch_is_loaded_only_when_used(program):
    code = f"import atexit, sys; atexit.register(lambda: print('torch' in sys.modules)); {program}"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.splitlines()[-1] == "False"


def test_public_names_load_when_used():
    assert set(torchvars.__all__) <= set(dir(torchvars))
    for name in torchvars.__all__:
        assert getattr(torchvars, name) is not None
    with pytest.raises(AttributeError, match="module 'torchvars' has no attribute 'nothing'"):
        _ = torchvars.nothing


def test_editors_see_the_names_that_load_when_used():
    tree = ast.parse((SOURCE / "__init__.py").read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    seen = {alias.name: node.module for node in block.body for alias in node.names}
    assert set(seen) == set(torchvars.__all__)
    for name, subpackage in seen.items():
        owner = torchvars if subpackage is None else getattr(torchvars, subpackage)
        assert getattr(owner, name) is getattr(torchvars, name)


def test_list_names_every_member(capsys):
    main(["list"])
    printed = capsys.readouterr().out.split()
    assert set(ATTENTIONS) | set(SOLVERS) <= set(printed)
    main(["list", "solvers"])
    printed = capsys.readouterr().out.split()
    assert set(SOLVERS) <= set(printed)
    assert "vars_d" not in printed


def test_installed_command_tells_its_version():
    output = subprocess.run(
        [sys.executable, "-m", "torchvars", "--version"], capture_output=True, text=True, check=True
    )
    assert output.stdout.strip() == f"torchvars {torchvars.__version__}"
