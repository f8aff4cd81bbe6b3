"""Dictionaries of a layer: (tokens, grid) -> Operator on signals (batch, heads, N, dim / heads)."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..sparse import Convolution, Dense, Joint, SoftPartition
from ..sparse.precision import outside_autocast
from .features import PositiveFeatures, orthogonalized
from .tokens import Grid, as_grid, check_grid, check_heads, fit, precise, resolve_grid, split_heads, without_format


class Static(nn.Module):
    """All circular shifts of a few learned filters for each channel (the paper's S).

    Filters are stored in space: on a larger grid they are used unchanged, on a smaller one they are cropped.

    Args:
        dim, heads: width of the tokens and number of heads.
        grid: (H, W) on which the layer is trained.
        filters: number of filters for each channel.
        size: (h, w) of a filter; the whole grid when None.
    """

    def __init__(self, dim: int, heads: int, grid: Grid, *, filters: int = 5, size: Grid | None = None):
        super().__init__()
        self.grid = check_grid(grid)
        size = self.grid if size is None else as_grid(size)
        if size[0] > grid[0] or size[1] > grid[1]:
            raise ValueError(f"filters of {size[0]} x {size[1]} are larger than the grid of {grid[0]} x {grid[1]}")
        if filters < 1:
            raise ValueError(f"filters must be at least 1, got {filters}")
        # Atoms have about unit length.
        scale = (size[0] * size[1]) ** -0.5
        self.filters = nn.Parameter(torch.randn(heads, check_heads(dim, heads), filters, *size) * scale)

    def forward(self, tokens: Tensor, grid: Grid | None = None) -> Convolution:
        grid = resolve_grid(tokens, grid, self.grid)
        with outside_autocast(tokens):
            return Convolution(precise(fit(self.filters, grid)), grid)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
        return super()._apply(without_format(fn), recurse)

    def extra_repr(self) -> str:
        return f"filters={self.filters.shape[-3]}, size={tuple(self.filters.shape[-2:])}, grid={self.grid}"


class Dynamic(nn.Module):
    """Positive random features of the projected tokens, one atom for each feature (the paper's D); query = key.

    Args:
        dim, heads: width of the tokens and number of heads.
        atoms: number of atoms of a head, divided by its number of channels.
        orthogonal, normalize: options of the features, see `PositiveFeatures`.
        centered: whether to subtract the mean over the tokens from the atoms, and add a constant atom. Positive
            features have a large component in common, which makes the problem ill-conditioned; without it a few steps
            suffice.
        bias: whether the query projection has a bias.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        atoms: float = 2,
        orthogonal: bool = True,
        normalize: bool = False,
        centered: bool = False,
        bias: bool = True,
    ):
        super().__init__()
        self.heads, self.centered = heads, centered
        width = check_heads(dim, heads)
        self.query = nn.Linear(dim, dim, bias=bias)
        self.features = PositiveFeatures(width, heads, round(atoms * width), orthogonal=orthogonal, normalize=normalize)

    def atoms(self, tokens: Tensor, grid: Grid | None = None) -> Tensor:
        """The atoms, one in each column, of unit length over the tokens: (batch, heads, N, M)."""
        queries = precise(split_heads(self.query(tokens), self.heads))
        with outside_autocast(tokens):
            atoms = self.features.atoms(queries)
            return _centered(atoms) if self.centered else atoms

    def forward(self, tokens: Tensor, grid: Grid | None = None) -> Dense:
        atoms = self.atoms(tokens, grid)
        with outside_autocast(tokens):
            return Dense(atoms, nonnegative=not self.centered)


def _centered(atoms: Tensor) -> Tensor:
    """Atoms (..., N, M) minus their mean, normalised, and a constant atom: (..., N, M + 1)."""
    constant = torch.full_like(atoms[..., :1], atoms.shape[-2] ** -0.5)
    least = torch.finfo(atoms.dtype).eps ** 0.5  # keeps the rounding error of a constant atom small
    return torch.cat([F.normalize(atoms - atoms.mean(-2, keepdim=True), dim=-2, eps=least), constant], dim=-1)


class StaticDynamic(nn.Module):
    """The union of a static and a dynamic dictionary, solved jointly (the paper's SD)."""

    def __init__(self, static: Static, dynamic: Dynamic):
        super().__init__()
        self.static, self.dynamic = static, dynamic

    def forward(self, tokens: Tensor, grid: Grid | None = None) -> Joint:
        return Joint(self.static(tokens, grid), self.dynamic(tokens, grid))


class Prototypes(nn.Module):
    """A softmax of each projected token over learned prototypes: one atom for each prototype.

    Args:
        dim, heads: width of the tokens and number of heads.
        atoms: number of prototypes of a head, divided by its number of channels.
        bias: whether the projection has a bias.
    """

    def __init__(self, dim: int, heads: int, *, atoms: float = 2, bias: bool = True):
        super().__init__()
        width = check_heads(dim, heads)
        count = round(atoms * width)
        if count < 1:
            raise ValueError(f"atoms must make at least one prototype of the {width} channels of a head, got {atoms}")
        self.heads = heads
        self.project = nn.Linear(dim, dim, bias=bias)
        # Orthogonal, of length 2 on average: the softmax of tokens of unit variance is neither uniform nor one-hot.
        self.prototypes = nn.Parameter(orthogonalized(torch.randn(heads, width, count)) * 2 * width**-0.5)

    def forward(self, tokens: Tensor, grid: Grid | None = None) -> SoftPartition:
        projected = precise(split_heads(self.project(tokens), self.heads))
        with outside_autocast(tokens):
            return SoftPartition(projected, precise(self.prototypes).to(projected.dtype))

    def extra_repr(self) -> str:
        return f"heads={self.heads}, prototypes={self.prototypes.shape[-1]}"
