"""Functions of tokens that all attentions share: checks, grids, heads, and precision."""

import math
from collections.abc import Callable, Sequence
from numbers import Integral
from typing import NamedTuple, TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor

Grid = tuple[int, int]


class Place(NamedTuple):
    """The layout of tokens (batch, prefix + H W, dim) that come without their grid; None for what is unknown."""

    grid: Grid | None  # grid of the patches for which the model was built
    prefix: int | None  # number of class, register and distillation tokens before the patches


def check_heads(dim: int, heads: int) -> int:
    """Returns the width of a head; raises a ValueError if `heads` does not divide `dim`."""
    if heads < 1 or dim % heads:
        raise ValueError(f"dim must be a multiple of heads, got dim={dim} and heads={heads}")
    return dim // heads


def check_grid(grid: Grid | None) -> Grid:
    """Returns the grid for which a layer is built; raises a ValueError if it is invalid."""
    if not _is_grid(grid) or not all(isinstance(side, Integral) and side > 0 for side in grid):
        raise ValueError(f"this attention is built for a grid: pass grid=(height, width) in tokens, got {grid}")
    return as_grid(grid)


def as_grid(sides: Sequence[int]) -> Grid:
    """A grid from two sides, such as a part of a shape."""
    height, width = sides
    return height, width


def _is_grid(grid) -> TypeGuard[Grid]:
    return isinstance(grid, tuple | list) and len(grid) == 2


def check_tokens(tokens: Tensor, dim: int, grid: Grid | None) -> None:
    """Raises a ValueError unless tokens are (batch, N, dim) with N >= 1, and the grid, if given, has N positions."""
    if tokens.ndim != 3 or tokens.shape[-1] != dim:
        raise ValueError(f"tokens must have shape (batch, N, {dim}) or (batch, H, W, {dim}), got {tuple(tokens.shape)}")
    if tokens.shape[-2] == 0:
        raise ValueError(f"there are no tokens to mix: at least 1 is needed, got shape {tuple(tokens.shape)}")
    if grid is not None and not (_is_grid(grid) and grid[0] > 0 and grid[1] > 0):
        raise ValueError(f"grid must be (height, width) in tokens, got {grid}")
    if grid is not None and grid[0] * grid[1] != tokens.shape[-2]:
        raise ValueError(
            f"a grid of {grid[0]} x {grid[1]} has {grid[0] * grid[1]} positions, but {tokens.shape[-2]} tokens came: "
            "pass the grid of these tokens, without class or register tokens"
        )


def resolve_grid(tokens: Tensor, grid: Grid | None, built_for: Grid) -> Grid:
    """The grid of the tokens: the given one, else the one for which the layer was built, else a square."""
    count = tokens.shape[-2]
    for candidate in (grid, built_for):
        if candidate is not None and candidate[0] * candidate[1] == count:
            return as_grid(candidate)
    side = math.isqrt(count)  # last, since it cannot be traced for a dynamic number of tokens
    if side * side == count:
        return side, side
    message = (
        f"{count} tokens are neither a grid of {built_for[0]} x {built_for[1]}, for which this layer was built, nor a "
        "square"
    )
    if prefix := _prefix_tokens(count, built_for):
        raise ValueError(
            f"{message}, but {count - prefix} of them would be: prefix tokens (class, register, distillation) have no "
            "place on the grid. Split them off before this layer, or let torchvars.convert do so, or use vars_d, which "
            "needs no grid; if there are none, pass grid=(height, width)"
        )
    raise ValueError(f"{message}: pass grid=(height, width)")


def _prefix_tokens(count: int, built_for: Grid) -> int:
    """The number of prefix tokens, at most 5, that leaves the grid of the layer or else a square; 0 if none does."""
    tried = range(1, min(5, count - 1) + 1)
    own = [extra for extra in tried if count - extra == built_for[0] * built_for[1]]
    square = [extra for extra in tried if math.isqrt(count - extra) ** 2 == count - extra]
    return next(iter(own + square), 0)


def split_heads(tokens: Tensor, heads: int) -> Tensor:
    """(batch, N, dim) -> (batch, heads, N, dim / heads)."""
    return tokens.unflatten(-1, (heads, -1)).transpose(-3, -2)


def merge_heads(tokens: Tensor) -> Tensor:
    """(batch, heads, N, dim / heads) -> (batch, N, dim)."""
    return tokens.transpose(-3, -2).flatten(-2)


def precise(tensor: Tensor) -> Tensor:
    """The tensor in at least single precision, which solving a problem needs."""
    return tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor


def without_format(change: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """A function of tensors, as `nn.Module._apply` takes it, that keeps the memory format of 5-D filters.

    PyTorch treats any 5-D parameter as that of a 3-D convolution, so that `to(memory_format=channels_last)` would fail.
    As a stack of matrices, filters have no memory format, but change device and precision like other parameters.
    """

    def changed(tensor: Tensor) -> Tensor:
        return change(tensor.flatten(0, 2)).view(tensor.shape) if tensor.ndim == 5 else change(tensor)

    return changed


def fit(filters: Tensor, grid: Grid) -> Tensor:
    """Filters (..., h, w), cropped at their centre if they are larger than the grid."""
    height, width = filters.shape[-2:]
    top, left = max(0, height // 2 - grid[0] // 2), max(0, width // 2 - grid[1] // 2)
    return filters[..., top : top + grid[0], left : left + grid[1]]


def resample(atoms: Tensor, old: Grid, new: Grid) -> Tensor:
    """Atoms (heads, N, M) of one grid, resampled on another by bicubic interpolation."""
    if old == new:
        return atoms
    images = atoms.mT.unflatten(-1, old)
    return F.interpolate(images, size=new, mode="bicubic", align_corners=False).flatten(-2).mT
