"""How the threads of PyTorch wait for each other."""

import os

SAID = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")


def wait_without_spinning() -> None:
    """Has threads of OpenMP sleep while they wait, unless the environment says how they are to wait.

    By itself libgomp, which comes with PyTorch, lets them spin for milliseconds. Where another process has the CPU that
    the awaited thread needs, they spin away most of the time: docs/training.md has figures. OpenMP reads the
    environment when it is loaded, so that this comes before PyTorch is imported; later processes inherit it.
    """
    if not any(name in os.environ for name in SAID):
        os.environ["OMP_WAIT_POLICY"] = "passive"
