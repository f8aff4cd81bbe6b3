"""The attentions with which VARS is compared."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..sparse.fourier import Spectrum, filter_spectrum, inverse, transform
from ..sparse.precision import outside_autocast
from .base import Attention
from .features import PositiveFeatures
from .tokens import (
    Grid,
    check_grid,
    fit,
    merge_heads,
    precise,
    resolve_grid,
)


class Softmax(Attention):
    """Self-attention, softmax(q k^T / sqrt(d)) v, by the fused kernel."""

    def __init__(self, dim: int, heads: int, *, bias: bool = True):
        super().__init__(dim, heads)
        self.qkv = nn.Linear(dim, 3 * dim, bias=bias)
        self.proj = nn.Linear(dim, dim)

    def project(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, (batch, heads, N, dim / heads) each."""
        return self.qkv(tokens).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)

    def mix(self, tokens: Tensor, grid: Grid | None) -> Tensor:
        return self.proj(merge_heads(F.scaled_dot_product_attention(*self.project(tokens))))


class Performer(Softmax):
    """Softmax attention approximated by positive random features: linear in the number of tokens.

        output = Phi(q) (Phi(k)^T v) / Phi(q) (Phi(k)^T 1)

    Args:
        features: number of features of a head, divided by its number of channels.
        orthogonal, normalize: options of `PositiveFeatures`.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        features: float = 2,
        orthogonal: bool = True,
        normalize: bool = False,
        bias: bool = True,
    ):
        super().__init__(dim, heads, bias=bias)
        width = dim // heads
        self.features = PositiveFeatures(
            width, heads, round(features * width), orthogonal=orthogonal, normalize=normalize
        )

    def mix(self, tokens: Tensor, grid: Grid | None) -> Tensor:
        queries, keys, values = (precise(part) for part in self.project(tokens))
        with outside_autocast(tokens):
            mixed = linear_attention(*self.featurize(queries, keys), values)
        return self.proj(merge_heads(mixed).to(tokens.dtype))

    def featurize(self, queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Phi(q) and Phi(k), up to a factor for each query and one for all keys: (batch, heads, N, M) each."""
        # These factors cancel in the ratio: divide by the largest feature, to avoid overflow.
        queries, keys = self.features.log(queries), self.features.log(keys)
        queries = (queries - queries.detach().amax(-1, keepdim=True)).exp()
        return queries, (keys - keys.detach().amax((-2, -1), keepdim=True)).exp()


class Hedgehog(Softmax):
    """Linear attention with learned features that approximate softmax attention (Zhang et al. 2024).

        Phi(x) = [softmax(W x), softmax(-W x)]        output = Phi(q) (Phi(k)^T v) / Phi(q) (Phi(k)^T 1)

    Queries and keys have separate maps W, one for each head, initialised as identities.

    Args:
        features: number of rows of W, divided by the number of channels of a head.
    """

    def __init__(self, dim: int, heads: int, *, features: float = 1, bias: bool = True):
        super().__init__(dim, heads, bias=bias)
        width = dim // heads
        count = round(features * width)
        if count < 1:
            raise ValueError(f"features must make at least one feature of the {width} channels of a head: {features}")
        self.query_map, self.key_map = (nn.Parameter(torch.eye(width, count).repeat(heads, 1, 1)) for _ in range(2))

    def mix(self, tokens: Tensor, grid: Grid | None) -> Tensor:
        queries, keys, values = (precise(part) for part in self.project(tokens))
        with outside_autocast(tokens):
            mixed = linear_attention(*self.featurize(queries, keys), values)
        return self.proj(merge_heads(mixed).to(tokens.dtype))

    def featurize(self, queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Phi(q) and Phi(k): (batch, heads, N, M) each."""
        queries, keys = (
            torch.cat([logits.softmax(-1), (-logits).softmax(-1)], -1)
            for logits in (queries @ precise(self.query_map), keys @ precise(self.key_map))
        )
        return queries, keys

    def extra_repr(self) -> str:
        return f"heads={self.heads}, features={2 * self.key_map.shape[-1]}"


def linear_attention(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Q (K^T v) / Q (K^T 1) for nonnegative features Q, K (..., N, M) and values v (..., N, C)."""
    weights = queries @ keys.sum(-2).unsqueeze(-1)
    return queries @ (keys.mT @ values) / weights.clamp_min(torch.finfo(weights.dtype).tiny)


class GlobalFilter(Attention):
    """GFNet's mixer (Rao et al. 2021): a learned circular filter of the size of the grid for each channel.

    It is stored as in GFNet, as the half spectrum on the grid for which it was built. On another grid the spatial
    filter is used, as in `Static`.
    """

    def __init__(self, dim: int, grid: Grid):
        super().__init__(dim)
        self.grid = check_grid(grid)
        self.complex_weight = nn.Parameter(torch.randn(self.grid[0], self.grid[1] // 2 + 1, dim, 2) * 0.02)

    def spectrum(self, grid: Grid) -> Spectrum:
        """The filter's spectrum on a grid: (H, W / 2 + 1, dim)."""
        return refit(Spectrum(*precise(self.complex_weight).unbind(-1)), self.grid, grid)

    def mix(self, tokens: Tensor, grid: Grid | None) -> Tensor:
        grid = resolve_grid(tokens, grid, self.grid)
        with outside_autocast(tokens):
            return filtered(precise(tokens), self.spectrum(grid), grid).to(tokens.dtype)

    def extra_repr(self) -> str:
        return f"{self.dim}, grid={self.grid}"


def filtered(tokens: Tensor, spectrum: Spectrum, grid: Grid) -> Tensor:
    """Tokens (..., H W, dim) convolved circularly with filters of spectrum (H, W / 2 + 1, dim)."""
    return inverse(transform(tokens.unflatten(-2, grid)).times(spectrum), grid).flatten(-3, -2)


def refit(spectrum: Spectrum, old: Grid, new: Grid) -> Spectrum:
    """Half spectra (..., H, W / 2 + 1, C) on a new grid of filters given by their half spectra on an old one."""
    if old == new:
        return spectrum
    filters = inverse(spectrum, old).movedim(-1, -3)
    centred = filters.roll((old[0] // 2, old[1] // 2), dims=(-2, -1))
    return filter_spectrum(fit(centred, new).movedim(-3, -1), new)
