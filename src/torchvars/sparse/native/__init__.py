"""C++ kernels for CPUs: ISTA with filters, atoms or both, and the atoms of a layer.

`library` loads the compiled kernels, `operators` registers them with PyTorch, and this file converts between their
shapes and those of the package. docs/performance.md describes how the kernels work.
"""

import os

import torch
from torch import Tensor

from . import library, operators


def instruction_set() -> str | None:
    """The instruction set that the kernels use: avx512, avx2 or baseline; None without kernels."""
    return library.INSTRUCTION_SET


def describe() -> str:
    """A sentence that says whether there are kernels."""
    if library.INSTRUCTION_SET is not None:
        return f"C++ kernels for {library.INSTRUCTION_SET}"
    if os.environ.get(library.SWITCH) == "0":
        return f"no C++ kernels, {library.SWITCH}=0 turns them off"
    return (
        "no C++ kernels, they were not compiled from these sources: install a C++ compiler (g++ or clang++), then "
        "torchvars again"
    )


def takes(*tensors: Tensor) -> bool:
    """Whether the kernels support these tensors: on a CPU, and all in single or all in double precision."""
    return (
        library.INSTRUCTION_SET is not None
        and tensors[0].dtype in (torch.float32, torch.float64)
        and all(each.device.type == "cpu" and each.dtype == tensors[0].dtype for each in tensors)
    )


def reconstruct(static, atoms: Tensor | None, bound: Tensor, signal: Tensor, strength: float, start: str, steps: int):
    """P u after ISTA with a convolution, alone or with atoms.

    Args:
        static: a `Convolution` with filters (..., F, h, w, C).
        atoms: (..., N, M).
        bound: an upper bound on the eigenvalues of P^T P, (..., 1, C).
        signal: (batch, heads, N, C).
    Returns:
        (batch, heads, N, C).
    """
    batch, heads, _, channels = signal.shape
    bound = bound.expand(*bound.shape[:-3], heads, 1, channels).reshape(-1, heads * channels)
    image = operators.reconstruct(
        _joined(signal),
        _bank(static.filters, heads),
        None if atoms is None else _expanded(atoms, batch, heads),
        bound,
        *static.grid,
        float(strength),
        start,
        steps,
    )
    return _split(image, heads)


def reconstruct_dense(
    atoms: Tensor,
    step_size: Tensor | str,
    reader: Tensor | None,
    signal: Tensor,
    strength: float,
    start: str,
    steps: int,
) -> Tensor:
    """P u after ISTA with atoms, or R u for a reader R.

    Args:
        atoms: (..., N, M).
        step_size: (..., M, 1), or (..., 1, 1) as a constant; "bound" is one over a bound on the eigenvalues, for atoms
            without negative entries, and "totals" one over the sum of each atom.
        reader: (..., K, M).
        signal: (batch, heads, N, C).
    Returns:
        (batch, heads, N or K, C).
    """
    batch, heads = signal.shape[:2]
    image, _ = operators.reconstruct_dense(
        _joined(signal),
        _expanded(atoms, batch, heads),
        None if isinstance(step_size, str) else _expanded(step_size, batch, heads).squeeze(-1),
        None if reader is None else _expanded(reader, batch, heads),
        step_size if isinstance(step_size, str) else "given",
        float(strength),
        start,
        steps,
    )
    return _split(image, heads)


def reconstruct_shares(
    dictionary: tuple[Tensor, Tensor],
    reader: tuple[Tensor, Tensor] | None,
    signal: Tensor,
    strength: float,
    start: str,
    steps: int,
) -> Tensor:
    """`reconstruct_dense` with "totals" for P = softmax(k W), computed in parts that are never stored as a whole.

    Args:
        dictionary: keys (batch, heads, N, d) and prototypes (heads, d, M).
        reader: queries and prototypes of a reader of K positions; None for the dictionary itself.
        signal: (batch, heads, N, C).
    Returns:
        (batch, heads, N or K, C).
    """
    (keys, prototypes), (queries, others) = dictionary, reader or (None, None)
    read = None if queries is None else _joined(queries)
    image, _ = operators.reconstruct_shares(
        _joined(signal), _joined(keys), prototypes, read, others, float(strength), start, steps
    )
    return _split(image, signal.shape[1])


def unit_features(queries: Tensor, directions: Tensor, scale: float) -> Tensor:
    """exp(s q W - s^2 |q|^2 / 2) with columns of unit length.

    Args:
        queries: q, (batch, heads, N, d).
        directions: W, (heads, d, M).
        scale: s.
    Returns:
        (batch, heads, N, M).
    """
    return operators.features(_joined(queries), directions, scale, False)


def shares(queries: Tensor, directions: Tensor) -> Tensor:
    """softmax(q W) along the rows: queries (batch, heads, N, d), directions (heads, d, M) -> (batch, heads, N, M)."""
    return operators.features(_joined(queries), directions, 1.0, True)


def filter_power(filters: Tensor, grid: tuple[int, int]) -> Tensor:
    """sum_f |k_f|^2 of filters (..., F, h, w, C) at the half spectrum's frequencies: (..., H, W / 2 + 1, C)."""
    bank = filters.detach().movedim(-1, -4)
    power = operators.filter_power(bank.reshape(-1, *bank.shape[-4:]), *grid)
    return power.view(*bank.shape[:-3], *power.shape[-2:]).movedim(-3, -1)


def union_bound(static, atoms: Tensor) -> Tensor:
    """An upper bound on the eigenvalues of a convolution with nonnegative atoms (batch, heads, N, M), M <= N.

    Returns:
        (batch, heads, 1, C).
    """
    batch, heads = atoms.shape[:2]
    bound = operators.union_bound(_bank(static.filters.detach(), heads), atoms.detach(), *static.grid)
    return bound.view(batch, heads, 1, static.filters.shape[-1])


def solve_on_support(static, atoms: Tensor | None, bound: Tensor, support: Tensor, target: Tensor, iterations: int):
    """w with (P^T P w)_S = target_S and w = 0 outside the support S, for a convolution, alone or with atoms.

    Args:
        static, atoms, bound: as in `reconstruct`.
        support, target: (batch, heads, M, C).
        iterations: largest number of conjugate gradient iterations.
    Returns:
        (batch, heads, M, C).
    """
    batch, heads, _, channels = target.shape
    bound = bound.expand(*bound.shape[:-3], heads, 1, channels).reshape(-1, heads * channels)
    atoms = None if atoms is None else _expanded(atoms.detach(), batch, heads)
    bank = _bank(static.filters.detach(), heads)
    grid = static.grid
    found = operators.solve_on_support(bank, atoms, bound, _joined(support), _joined(target), *grid, iterations)
    return _split(found, heads)


def _joined(signal: Tensor) -> Tensor:
    """(batch, heads, N, C) -> (batch, N, heads C), the layout of a layer's projections."""
    return signal.transpose(1, 2).flatten(2)


def _split(signal: Tensor, heads: int) -> Tensor:
    return signal.unflatten(-1, (heads, -1)).transpose(1, 2)


def _bank(filters: Tensor, heads: int) -> Tensor:
    bank = filters.movedim(-1, -4)
    return bank.expand(heads, *bank.shape[-4:])


def _expanded(tensor: Tensor, batch: int, heads: int) -> Tensor:
    return tensor.expand(batch, heads, *tensor.shape[-2:])
