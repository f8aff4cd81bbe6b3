"""C++ kernels for CPUs: ISTA with a convolution, alone or beside a dense dictionary.

`library` loads what the installation compiled, `operators` registers it with PyTorch, and this file speaks the language
of the rest of the package. docs/performance.md tells how the kernels work.
"""

import os

import torch
from torch import Tensor

from . import library, operators


def instruction_set() -> str | None:
    """For which the kernels run: avx512, avx2 or baseline; None where there are none."""
    return library.INSTRUCTION_SET


def describe() -> str:
    """In words, whether there are kernels."""
    if library.INSTRUCTION_SET is not None:
        return f"C++ kernels for {library.INSTRUCTION_SET}"
    if os.environ.get(library.SWITCH) == "0":
        return f"no C++ kernels, {library.SWITCH}=0 turns them off"
    return "no C++ kernels, they were not compiled: install a C++ compiler (g++ or clang++), then torchvars again"


def takes_filters(filters: Tensor) -> bool:
    """Whether the kernels can work with filters (..., F, h, w, C): on a CPU, in single or double precision."""
    return (
        library.INSTRUCTION_SET is not None
        and filters.device.type == "cpu"
        and filters.dtype in (torch.float32, torch.float64)
        and filters.ndim <= 5  # the same for all of a batch
    )


def takes(static, signal: Tensor) -> bool:
    """Whether the kernels can solve for signals (batch, heads, N, C) with this convolution."""
    return signal.ndim == 4 and signal.dtype == static.filters.dtype and takes_filters(static.filters)


def reconstruct(static, atoms: Tensor | None, bound: Tensor, signal: Tensor, strength: float, start: str, steps: int):
    """P u after ISTA, for a convolution and, if they are given, atoms beside it.

    Args:
        static: a `Convolution` with filters (..., F, h, w, C).
        atoms: (..., N, M).
        bound: on the eigenvalues of P^T P, (..., 1, C).
        signal: (batch, heads, N, C).
    Returns:
        (batch, heads, N, C).
    """
    batch, heads, positions, channels = signal.shape
    filters = static.filters.movedim(-1, -4)
    bound = bound.expand(*bound.shape[:-3], heads, 1, channels).reshape(-1, heads * channels)
    image = operators.reconstruct(
        signal.transpose(1, 2).reshape(batch, positions, heads * channels),
        filters.expand(heads, *filters.shape[-4:]),
        None if atoms is None else atoms.expand(batch, heads, *atoms.shape[-2:]),
        bound,
        *static.grid,
        float(strength),
        start,
        steps,
    )
    return image.unflatten(-1, (heads, channels)).transpose(1, 2)


def filter_power(filters: Tensor, grid: tuple[int, int]) -> Tensor:
    """sum_f |k_f|^2 of filters (..., F, h, w, C) at the half spectrum's frequencies: (..., H, W / 2 + 1, C)."""
    return operators.filter_power(filters.detach().movedim(-1, -4), *grid).movedim(-3, -1)
