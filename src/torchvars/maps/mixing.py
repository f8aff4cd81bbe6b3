"""An attention as three functions: values, their mixing over positions, and the output for each token.

    values v = V(tokens)        mixed o = M(v)        output = F(o)

M also depends on the tokens. Here it is fixed as it was when the attention ran, and can be applied to any values. Maps
need only its derivative.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import singledispatch
from itertools import islice

import torch
import torch.nn.functional as F
from timm.models.vision_transformer import Attention as TimmAttention
from torch import Tensor, nn

from ..attention import Attention, GlobalFilter, Hedgehog, Performer, Reconstruction, Softmax
from ..attention.baselines import filtered, linear_attention
from ..attention.folded import Folded
from ..attention.released import ReleasedStaticReconstruction
from ..attention.tokens import Grid, merge_heads, precise, resolve_grid, split_heads
from ..models.selfattention import class_path, is_known, read
from ..sparse import SparseCoding
from ..sparse.fourier import Spectrum

Finish = Callable[[Tensor], Tensor]  # F for the output of all heads: (batch, N, dim) -> (batch, N, dim)


class Mixing(ABC):
    """The mixing of one run of an attention, as a fixed function of the values. Heads and channels do not mix.

    Args:
        values: v, (batch, heads, N, C).
        finish: F, the output from the mixed values of each token: (batch, N, dim) -> (batch, N, dim).
    """

    def __init__(self, values: Tensor, finish: Finish):
        self.values, self._finish = values, finish

    @property
    def heads(self) -> int:
        return self.values.shape[1]

    @property
    def steps(self) -> int | None:
        """The number of recurrent steps; None for an attention that is not recurrent."""
        return None

    @abstractmethod
    def mix(self, values: Tensor, step: int | None = None) -> Tensor:
        """M(v) for any values (batch, heads, N, C), after `step` recurrent steps; all steps if None."""

    @abstractmethod
    def kernel(self, query: Tensor) -> Tensor:
        """q^T K for a query q (N,), where K is the kernel of the attention: (batch, heads, N, C or 1)."""

    def weights(self) -> Tensor | None:
        """The matrix M, (batch, heads, N, N), if its rows are nonnegative with a sum of 1; else None."""
        return None

    def finish(self, mixed: Tensor) -> Tensor:
        """The output of the attention: o (batch, heads, N, C) -> (batch, N, dim)."""
        return self._finish(merge_heads(mixed))


class SoftmaxMixing(Mixing):
    """M = K = softmax(q k^T / sqrt(C))."""

    def __init__(self, queries: Tensor, keys: Tensor, values: Tensor, finish: Finish):
        super().__init__(values, finish)
        self.queries, self.keys = queries, keys

    def mix(self, values: Tensor, step: int | None = None) -> Tensor:
        return F.scaled_dot_product_attention(self.queries, self.keys, values)

    def kernel(self, query: Tensor) -> Tensor:
        needed = query.nonzero().flatten()  # rows with weight 0 are not computed
        return self.rows(needed).mT @ query[needed].to(self.values.dtype).unsqueeze(-1)

    def weights(self) -> Tensor:
        return self.rows(slice(None))

    def rows(self, index: Tensor | slice) -> Tensor:
        return (self.queries[..., index, :] @ self.keys.mT * self.queries.shape[-1] ** -0.5).softmax(-1)


class LinearMixing(Mixing):
    """M = K = Q K^T / (Q K^T 1), for features of queries and keys."""

    def __init__(self, queries: Tensor, keys: Tensor, values: Tensor, finish: Finish):
        super().__init__(values, finish)
        self.queries, self.keys = queries, keys

    def mix(self, values: Tensor, step: int | None = None) -> Tensor:
        return linear_attention(self.queries, self.keys, values)

    def kernel(self, query: Tensor) -> Tensor:
        return self.weights().mT @ query.to(self.values.dtype).unsqueeze(-1)

    def weights(self) -> Tensor:
        products = self.queries @ self.keys.mT
        return products / products.sum(-1, keepdim=True).clamp_min(torch.finfo(products.dtype).tiny)


class FilterMixing(Mixing):
    """M = K, a circular convolution of each channel. The values are the tokens."""

    def __init__(self, layer: GlobalFilter, tokens: Tensor, grid: Grid):
        super().__init__(precise(tokens).unsqueeze(1), lambda mixed: mixed)
        self.spectrum, self.grid = layer.spectrum(grid), grid

    def mix(self, values: Tensor, step: int | None = None) -> Tensor:
        return filtered(values, self.spectrum, self.grid)

    def kernel(self, query: Tensor) -> Tensor:
        return filtered(spread(query, self.values), self.spectrum.conj(), self.grid)


class SparseMixing(Mixing):
    """M(v) = R u, for the code u of v in a dictionary P and a reader R; K = R P^T. Without a reader, R is P."""

    def __init__(self, layer: Reconstruction | Folded, tokens: Tensor, grid: Grid | None):
        problem = layer.pose(tokens, grid)
        super().__init__(problem.signal, layer.proj)
        self.solver, self.penalty, self.operator = layer.solver, problem.penalty, problem.operator
        self.reader = self.operator if layer.reader is None else layer.reader(tokens, grid)

    @property
    def steps(self) -> int:
        return sum(1 for _ in self.solver.trajectory(self.problem(self.values))) - 1

    def problem(self, values: Tensor) -> SparseCoding:
        return SparseCoding(self.operator, values, self.penalty)

    def mix(self, values: Tensor, step: int | None = None) -> Tensor:
        problem = self.problem(values)
        if step is None:
            return self.read(self.solver.solve(problem))
        return self.read(next(islice(self.solver.trajectory(problem), step, None)))

    def read(self, code: Tensor) -> Tensor:
        """R u for a code u: (batch, heads, N, C)."""
        return self.reader.synthesize(code)

    def kernel(self, query: Tensor) -> Tensor:
        return self.operator.synthesize(self.reader.analyze(spread(query, self.values)))


class ReleasedStaticMixing(SparseMixing):
    """VARS-S of the authors' code, with a second filter W: M(v) = W P u and K = W P P^T."""

    def __init__(self, layer: ReleasedStaticReconstruction, tokens: Tensor, grid: Grid | None):
        self.grid = resolve_grid(tokens, grid, layer.grid)
        super().__init__(layer, tokens, self.grid)
        self.spectrum, self._finish = layer.second_spectrum(self.grid), layer.finish

    def read(self, code: Tensor) -> Tensor:
        return self.filter(super().read(code), self.spectrum)

    def kernel(self, query: Tensor) -> Tensor:
        filtered_query = self.filter(spread(query, self.values), self.spectrum.conj())
        return self.operator.synthesize(self.operator.analyze(filtered_query))

    def filter(self, mixed: Tensor, spectrum: Spectrum) -> Tensor:
        return split_heads(filtered(merge_heads(mixed), spectrum, self.grid), self.heads)


def spread(query: Tensor, values: Tensor) -> Tensor:
    """A query (N,) expanded to the shape of the values: (batch, heads, N, C)."""
    return query.to(values.dtype).unsqueeze(-1).expand_as(values)


# By the class of the attention

KNOWN = (
    "the attentions of torchvars, timm's Attention, torch.nn.MultiheadAttention, and those of ViT, DeiT, CLIP and "
    "DINOv2 of transformers 5"
)


@singledispatch
def mixing_of(layer: nn.Module, tokens: Tensor, grid: Grid | None) -> Mixing:
    """The mixing of an attention for tokens (batch, N, dim). `mixing_of.register` adds a class of attentions.

    Raises:
        ValueError: if the class of the attention is unknown.
    """
    if not is_known(layer):
        raise ValueError(
            f"there are no maps of {class_path(type(layer))}: known are {KNOWN}; torchvars.maps.mixing_of.register "
            "adds a class"
        )
    return _of_projections(layer, tokens)


@mixing_of.register
def _of_reconstruction(layer: Reconstruction, tokens: Tensor, grid: Grid | None) -> Mixing:
    return SparseMixing(layer, tokens, grid)


@mixing_of.register
def _of_released(layer: ReleasedStaticReconstruction, tokens: Tensor, grid: Grid | None) -> Mixing:
    return ReleasedStaticMixing(layer, tokens, grid)


@mixing_of.register
def _of_filter(layer: GlobalFilter, tokens: Tensor, grid: Grid | None) -> Mixing:
    return FilterMixing(layer, tokens, resolve_grid(tokens, grid, layer.grid))


@mixing_of.register
def _of_softmax(layer: Softmax, tokens: Tensor, grid: Grid | None) -> Mixing:
    queries, keys, values = map(precise, layer.project(tokens))
    return SoftmaxMixing(queries, keys, values, layer.proj)


@mixing_of.register(Performer)
@mixing_of.register(Hedgehog)
def _of_linear(layer: Performer | Hedgehog, tokens: Tensor, grid: Grid | None) -> Mixing:
    queries, keys, values = map(precise, layer.project(tokens))
    return LinearMixing(*layer.featurize(queries, keys), values, layer.proj)


@mixing_of.register
def _of_timm(layer: TimmAttention, tokens: Tensor, grid: Grid | None) -> Mixing:
    if not is_known(layer):  # a subclass with another forward pass
        return mixing_of.dispatch(nn.Module)(layer, tokens, grid)
    queries, keys, values = layer.qkv(tokens).unflatten(-1, (3, layer.num_heads, -1)).permute(2, 0, 3, 1, 4)
    queries, keys = layer.q_norm(queries), layer.k_norm(keys)
    gating = getattr(layer, "gate", None)
    gate = None if gating is None else gating(tokens).sigmoid()

    def finish(mixed: Tensor) -> Tensor:
        mixed = layer.norm(mixed)
        return layer.proj(mixed if gate is None else mixed * gate)

    return SoftmaxMixing(precise(queries), precise(keys), precise(values), finish)


def _of_projections(layer: nn.Module, tokens: Tensor) -> Mixing:
    """The mixing of any softmax attention with four projections."""
    source = read(nn.ModuleDict({"attention": layer}), "attention")
    queries, keys, values = (
        precise(split_heads(F.linear(tokens, *projection), source.heads))
        for projection in (source.query, source.key, source.value)
    )
    return SoftmaxMixing(queries, keys, values, lambda mixed: F.linear(mixed, *source.proj))


def is_attention(module: nn.Module) -> bool:
    """Whether a module is an attention: of torchvars, of a known class, or of a class registered in `mixing_of`."""
    added = mixing_of.dispatch(type(module)) not in (mixing_of.dispatch(nn.Module), _of_timm)
    return isinstance(module, Attention) or added or is_known(module)
