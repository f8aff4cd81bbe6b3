"""Completion of commands and options in a shell."""

import subprocess
import sys

import pytest

from torchvars.cli.main import COMMANDS, main


def test_bash_completes_commands_and_options(capsys, tmp_path):
    with pytest.raises(SystemExit) as ended:
        main(["--print-completion", "bash"])
    assert ended.value.code == 0
    script = tmp_path / "completion.bash"
    script.write_text(capsys.readouterr().out)

    def complete(*words):
        """What bash offers for the last of some words."""
        quoted = " ".join(f"'{word}'" for word in words)
        program = f"""
            source {script}
            COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}
            $(complete -p torchvars | sed 's/.*-F \\([^ ]*\\).*/\\1/') torchvars '{words[-1]}' '{words[-2]}'
            printf '%s\\n' "${{COMPREPLY[@]}}"
        """
        return subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True).stdout.split()

    assert set(complete("torchvars", "")) >= set(COMMANDS)
    assert complete("torchvars", "evaluate", "--bench") == ["--benchmark"]


def test_a_missing_package_is_named(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "shtab", None)
    with pytest.raises(SystemExit) as ended:
        main(["--print-completion", "bash"])
    assert ended.value.code == 2
    assert 'pip install "torchvars[completion]"' in capsys.readouterr().err
