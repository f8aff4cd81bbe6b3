"""What is listed, and that a list may be cut off."""

import os
import sys

import pytest

from torchvars.cli.main import main
from torchvars.evaluation.attacks import ATTACKS
from torchvars.evaluation.benchmarks import BENCHMARKS
from torchvars.evaluation.corruptions import CORRUPTIONS
from torchvars.sparse import SOLVERS


@pytest.mark.parametrize(
    ("kind", "registry"), [("benchmarks", BENCHMARKS), ("corruptions", CORRUPTIONS), ("attacks", ATTACKS)]
)
def test_what_evaluate_takes_is_listed_with_a_line_each(kind, registry, capsys):
    main(["list", kind])
    title, *lines = capsys.readouterr().out.splitlines()
    assert title.startswith(kind)
    assert [line.split()[0] for line in lines] == list(registry)
    assert all(len(line.split()) > 2 for line in lines)


def test_names_are_listed_also_where_python_has_left_out_their_doc_strings(monkeypatch, capsys):
    monkeypatch.setitem(SOLVERS, "bare", lambda: None)
    main(["list", "solvers"])
    assert "\n  bare\n" in capsys.readouterr().out


def test_a_command_whose_output_nobody_reads_ends_quietly(monkeypatch, capfd):
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as gone:
        monkeypatch.setattr(sys, "stdout", gone)
        with pytest.raises(SystemExit) as ended:
            main(["list", "solvers"])
        gone.flush()  # which Python does when it ends
    assert ended.value.code == 141
    assert capfd.readouterr().err == ""
