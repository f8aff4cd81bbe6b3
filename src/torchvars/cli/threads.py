"""Waiting policy of the OpenMP threads of PyTorch."""

import os

VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
SPINS = "10000"


def limit_spinning() -> None:
    """Lets waiting OpenMP threads sleep after a short time, unless an environment variable sets their policy.

    By default libgomp, which comes with PyTorch, lets them spin for milliseconds. If another process occupies the CPU
    that the awaited thread needs, most of the time is lost: docs/training.md has figures. OpenMP reads the environment
    when it is loaded, so this must be called before PyTorch is imported. Child processes inherit the setting.
    """
    if not any(name in os.environ for name in VARIABLES):
        os.environ["GOMP_SPINCOUNT"] = SPINS
