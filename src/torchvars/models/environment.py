"""The environment that numbers and times depend on: versions and the machine."""

import os
import platform

import timm
import torch

from .. import __version__
from ..sparse import native


def environment() -> dict[str, str | int | None]:
    """Versions and the machine, for files that hold results."""
    return {
        "torchvars": __version__,
        "torch": torch.__version__,
        "timm": timm.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "kernels": native.describe(),
    }
