"""Positive random features of the softmax kernel (Performer, Choromanski et al. 2021)."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..sparse import native
from ..sparse.forms import operators_allowed
from .tokens import precise


class PositiveFeatures(nn.Module):
    """Phi(q) = exp(W q - |q|^2 / 2) / sqrt(M), so that the mean of Phi(q).Phi(k) over W is exp(q.k).

    W is a buffer, one matrix for each head. It is drawn once and saved with the model; `redraw` draws it again.

    Args:
        dim: width of a head.
        heads: number of heads.
        count: M, the number of features.
        orthogonal: whether rows of W are orthogonal in blocks of `dim`, which lowers the variance of the kernel.
        normalize: whether queries are normalised to length 1, instead of scaled by dim^(-1/4) as in softmax attention.
    """

    directions: Tensor

    def __init__(self, dim: int, heads: int, count: int, *, orthogonal: bool = True, normalize: bool = False):
        super().__init__()
        if count < 1:
            raise ValueError(f"the number of features must be at least 1, got {count}")
        self.orthogonal, self.normalize = orthogonal, normalize
        self.register_buffer("directions", torch.empty(heads, dim, count))
        self.redraw()

    @torch.no_grad()
    def redraw(self, generator: torch.Generator | None = None) -> None:
        """Draws W again."""
        self.directions.normal_(generator=generator)
        if self.orthogonal:
            self.directions.copy_(orthogonalized(self.directions))

    def log(self, queries: Tensor) -> Tensor:
        """log(sqrt(M) Phi(q)): queries (..., heads, N, dim) -> (..., heads, N, M)."""
        queries = F.normalize(queries, dim=-1) if self.normalize else queries * queries.shape[-1] ** -0.25
        return queries @ self._directions(queries) - queries.square().sum(-1, keepdim=True) / 2

    def forward(self, queries: Tensor) -> Tensor:
        """Phi(q): queries (..., heads, N, dim) -> (..., heads, N, M)."""
        return self.log(queries).exp() / math.sqrt(self.directions.shape[-1])

    def atoms(self, queries: Tensor) -> Tensor:
        """Phi(q) with columns of unit length over the tokens: queries (..., heads, N, dim) -> (..., heads, N, M)."""
        directions = self._directions(queries)
        if operators_allowed() and queries.ndim == 4 and native.takes(queries, directions):
            if self.normalize:
                return native.unit_features(F.normalize(queries, dim=-1), directions, 1.0)
            return native.unit_features(queries, directions, queries.shape[-1] ** -0.25)
        logarithm = self.log(queries)
        # exp(l) / |exp(l)| by logarithms, to avoid overflow and division by zero
        return (logarithm - (2 * logarithm).logsumexp(-2, keepdim=True) / 2).exp()

    def _directions(self, queries: Tensor) -> Tensor:
        """W in the precision of the queries."""
        return precise(self.directions).to(queries.dtype)

    def extra_repr(self) -> str:
        heads, dim, count = self.directions.shape
        return f"{dim}, heads={heads}, count={count}, orthogonal={self.orthogonal}, normalize={self.normalize}"


def orthogonalized(directions: Tensor) -> Tensor:
    """Gaussian columns (heads, dim, M), orthogonalised in blocks of dim. Each column keeps its length."""
    precise_directions = directions.double()
    lengths = precise_directions.norm(dim=-2, keepdim=True)
    blocks = []
    for block in precise_directions.split(directions.shape[-2], dim=-1):
        orthonormal, triangle = torch.linalg.qr(block)
        blocks.append(orthonormal * triangle.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2))
    return (torch.cat(blocks, dim=-1) * lengths).to(directions.dtype)
