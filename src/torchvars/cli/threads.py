"""How the threads of PyTorch wait for each other."""

import os

VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
SPINS = "10000"


def limit_spinning() -> None:
    """Has threads of OpenMP sleep soon while they wait, unless the environment says how they are to wait.

    By itself libgomp, which comes with PyTorch, lets them spin for milliseconds. Where another process has the CPU that
    the awaited thread needs, they spin away most of the time: docs/training.md has figures. OpenMP reads the
    environment when it is loaded, so that this comes before PyTorch is imported; later processes inherit it.
    """
    if not any(name in os.environ for name in VARIABLES):
        os.environ["GOMP_SPINCOUNT"] = SPINS
