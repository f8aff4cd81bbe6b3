"""Memory that is freed is used again, which the system tells by the pages it had to hand out."""

import os
import platform
import subprocess
import sys

import pytest

from torchvars.cli.main import main

PROGRAM = """
import resource, sys, torch
from torchvars.cli.memory import keep_freed_memory

def pages(times):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(times):
        torch.empty(16 * 2**20).fill_(1)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

if sys.argv[1] == "kept":
    keep_freed_memory()
pages(16)
print(pages(4) * resource.getpagesize())
"""


def fresh_bytes(how: str, **told: str) -> int:
    """What four tensors of 64 MB, one after the other, are made of that the process did not have yet."""
    spoken = ("MALLOC_", "GLIBC_TUNABLES")
    quiet = {name: value for name, value in os.environ.items() if not name.startswith(spoken)}
    run = [sys.executable, "-c", PROGRAM, how]
    return int(subprocess.run(run, env={**quiet, **told}, capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="of the GNU C library")
def test_large_tensors_are_made_of_memory_that_was_freed():
    assert fresh_bytes("as it is") > 200e6
    assert fresh_bytes("kept") < 10e6


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="of the GNU C library")
def test_what_the_environment_says_of_memory_holds():
    assert fresh_bytes("kept", MALLOC_ARENA_MAX="4") > 200e6
    assert fresh_bytes("kept", GLIBC_TUNABLES="glibc.malloc.arena_max=4") > 200e6


@pytest.mark.parametrize(
    "command", ["train --resume run", "evaluate model --benchmark clean --data pictures --output file", "verify model"]
)
def test_commands_that_run_for_long_keep_it(command, monkeypatch, capsys):
    def stop() -> None:
        raise ValueError("here")

    name, *more = command.split()
    monkeypatch.setattr(f"torchvars.cli.{name}.keep_freed_memory", stop)
    with pytest.raises(SystemExit):
        main([name, *more])
    assert capsys.readouterr().err == f"torchvars {name}: here\n"
