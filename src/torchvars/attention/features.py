"""Positive random features of the softmax kernel (Performer, Choromanski et al. 2021)."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..sparse.forms import handwritten_allowed
from ..sparse.once import once
from ..sparse.precision import precisely
from .tokens import precise


class PositiveFeatures(nn.Module):
    """Phi(q) = exp(W q - |q|^2 / 2) / sqrt(M), so that the mean of Phi(q).Phi(k) over W is exp(q.k).

    W is a buffer, one matrix a head: drawn once, saved with the model, drawn again only on request.

    Args:
        dim: width of a head.
        heads: number of heads.
        count: M, the number of features.
        orthogonal: rows of W orthogonal in blocks of `dim`, which lowers the variance of the kernel.
        normalize: queries of length one, so that only their direction counts, instead of queries scaled by dim^(-1/4)
            as in softmax attention.
    """

    def __init__(self, dim: int, heads: int, count: int, *, orthogonal: bool = True, normalize: bool = False):
        super().__init__()
        if count < 1:
            raise ValueError(f"the number of features must be at least 1, got {count}")
        self.orthogonal, self.normalize = orthogonal, normalize
        self.register_buffer("directions", torch.empty(heads, dim, count))
        self.redraw()

    @torch.no_grad()
    def redraw(self, generator: torch.Generator | None = None) -> None:
        """Draw W anew."""
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
        if handwritten_allowed():
            queries, scale = (
                (F.normalize(queries, dim=-1), 1.0) if self.normalize else (queries, queries.shape[-1] ** -0.25)
            )
            return _UnitFeatures.apply(queries, self._directions(queries), scale)
        logarithm = self.log(queries)
        # exp(l) / |exp(l)|, by logarithms so that it neither overflows nor divides by zero
        return (logarithm - (2 * logarithm).logsumexp(-2, keepdim=True) / 2).exp()

    def _directions(self, queries: Tensor) -> Tensor:
        """W in the precision of the queries."""
        return precise(self.directions).to(queries.dtype)

    def extra_repr(self) -> str:
        heads, dim, count = self.directions.shape
        return f"{dim}, heads={heads}, count={count}, orthogonal={self.orthogonal}, normalize={self.normalize}"


class _UnitFeatures(torch.autograd.Function):
    """`PositiveFeatures.atoms`, in place and with its gradient written out, of queries that are still to be scaled."""

    @staticmethod
    def forward(ctx, queries: Tensor, directions: Tensor, scale: float) -> Tensor:
        given, queries, directions = queries, queries.contiguous(), directions * scale
        atoms = queries @ directions
        atoms -= queries.square().sum(-1, keepdim=True).mul_(scale**2 / 2)
        atoms -= atoms.amax(-2, keepdim=True)  # any shift of a column cancels; with this one nothing overflows
        atoms.exp_()
        atoms /= atoms.square().sum(-2, keepdim=True).sqrt_()
        ctx.save_for_backward(given, directions, atoms)
        ctx.scale = scale
        return atoms

    @staticmethod
    @once()
    @precisely
    def backward(ctx, upstream: Tensor):
        given, directions, atoms = ctx.saved_tensors
        queries = given.contiguous()
        along = (upstream * atoms).sum(-2, keepdim=True)  # a column of unit length can only turn
        of_logarithm = torch.addcmul(upstream, atoms, along, value=-1).mul_(atoms)
        of_queries = of_logarithm @ directions.mT
        of_queries.addcmul_(queries, of_logarithm.sum(-1, keepdim=True), value=-(ctx.scale**2))
        return of_queries, None, None


def orthogonalized(directions: Tensor) -> Tensor:
    """Gaussian columns (heads, dim, M) made orthogonal in blocks of dim, each with the length it had."""
    precise_directions = directions.double()
    lengths = precise_directions.norm(dim=-2, keepdim=True)
    blocks = []
    for block in precise_directions.split(directions.shape[-2], dim=-1):
        orthonormal, triangle = torch.linalg.qr(block)
        blocks.append(orthonormal * triangle.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2))
    return (torch.cat(blocks, dim=-1) * lengths).to(directions.dtype)
