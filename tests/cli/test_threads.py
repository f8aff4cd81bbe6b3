"""Threads that wait for each other leave the CPU to others."""

import os
import subprocess
import sys

import pytest
import torch

LIST = [sys.executable, "-m", "torchvars", "list", "attentions"]


@pytest.mark.skipif("OpenMP" not in torch.__config__.parallel_info(), reason="needs OpenMP")
@pytest.mark.skipif(sys.platform != "linux", reason="of libgomp")
@pytest.mark.parametrize(("said", "spins"), [({}, "10000"), ({"GOMP_SPINCOUNT": "77"}, "77")])
def test_openmp_is_told_before_it_is_loaded_unless_the_environment_says_otherwise(said, spins):
    quiet = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_", "KMP_"))}
    run = subprocess.run(LIST, env={**quiet, **said, "OMP_DISPLAY_ENV": "verbose"}, capture_output=True, text=True)
    assert f"GOMP_SPINCOUNT = '{spins}'" in run.stderr  # the policy is called passive also where nothing is said
