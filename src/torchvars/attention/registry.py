"""Attentions by name."""

import difflib
from collections.abc import Callable

import torch

from ..sparse import ISTA, RowSum, Solver
from .base import Attention
from .baselines import GlobalFilter, Hedgehog, Performer, Softmax
from .dictionaries import Dynamic, Prototypes, Static, StaticDynamic
from .reconstruction import Reconstruction
from .released import vars_d_released, vars_s_released, vars_sd_released
from .tokens import Grid, check_heads


def softmax(dim: int, heads: int, grid: Grid | None = None, **options) -> Softmax:
    """Softmax self-attention, by the fused kernel of PyTorch."""
    return Softmax(dim, heads, **options)


def performer(dim: int, heads: int, grid: Grid | None = None, **options) -> Performer:
    """Softmax attention approximated by positive random features, linear in the number of tokens."""
    return Performer(dim, heads, **options)


def hedgehog(dim: int, heads: int, grid: Grid | None = None, **options) -> Hedgehog:
    """Softmax attention approximated by learned features, linear in the number of tokens."""
    return Hedgehog(dim, heads, **options)


def global_filter(dim: int, heads: int, grid: Grid, **options) -> GlobalFilter:
    """The learned circular filter of GFNet, without heads."""
    check_heads(dim, heads)
    return GlobalFilter(dim, grid, **options)


def vars_s(
    dim: int,
    heads: int,
    grid: Grid,
    *,
    filters: int = 5,
    size: Grid | None = None,
    solver: Solver | str | None = None,
    strength: float = 0.3,
    bias: bool = True,
) -> Reconstruction:
    """VARS-S: all shifts of learned filters, three steps of ISTA."""
    dictionary = Static(dim, heads, grid, filters=filters, size=size)
    return Reconstruction(dim, heads, dictionary, solver or ISTA(), strength, bias=bias)


def vars_d(
    dim: int,
    heads: int,
    grid: Grid | None = None,
    *,
    atoms: float = 2,
    orthogonal: bool = True,
    normalize: bool = False,
    centered: bool = False,
    solver: Solver | str | None = None,
    strength: float = 0.3,
    bias: bool = True,
) -> Reconstruction:
    """VARS-D: random features of the tokens, three steps of ISTA."""
    dictionary = Dynamic(
        dim, heads, atoms=atoms, orthogonal=orthogonal, normalize=normalize, centered=centered, bias=bias
    )
    return Reconstruction(dim, heads, dictionary, solver or ISTA(), strength, bias=bias)


def vars_sd(
    dim: int,
    heads: int,
    grid: Grid,
    *,
    filters: int = 3,
    size: Grid | None = None,
    atoms: float = 2,
    orthogonal: bool = True,
    normalize: bool = False,
    centered: bool = False,
    solver: Solver | str | None = None,
    strength: float = 0.3,
    bias: bool = True,
) -> Reconstruction:
    """VARS-SD: both dictionaries, solved jointly, three steps of ISTA."""
    static = Static(dim, heads, grid, filters=filters, size=size)
    dynamic = Dynamic(dim, heads, atoms=atoms, orthogonal=orthogonal, normalize=normalize, centered=centered, bias=bias)
    return Reconstruction(dim, heads, StaticDynamic(static, dynamic), solver or ISTA(), strength, bias=bias)


def vars_p(
    dim: int,
    heads: int,
    grid: Grid | None = None,
    *,
    atoms: float = 2,
    solver: Solver | str | None = None,
    strength: float = 0.0,
    bias: bool = True,
) -> Reconstruction:
    """VARS-P: softmax of keys over prototypes, code read out at the queries, three steps of ISTA from zero."""
    dictionary, reader = (Prototypes(dim, heads, atoms=atoms, bias=bias) for _ in range(2))
    with torch.no_grad():  # equal at first, so that a query reads out the atoms of similar keys
        reader.prototypes.copy_(dictionary.prototypes)
    solver = solver or ISTA(start="zero", step=RowSum())
    return Reconstruction(dim, heads, dictionary, solver, strength, bias=bias, reader=reader)


ATTENTIONS: dict[str, Callable[..., Attention]] = {
    "softmax": softmax,
    "performer": performer,
    "hedgehog": hedgehog,
    "global_filter": global_filter,
    "vars_s": vars_s,
    "vars_d": vars_d,
    "vars_sd": vars_sd,
    "vars_p": vars_p,
    "vars_s_released": vars_s_released,
    "vars_d_released": vars_d_released,
    "vars_sd_released": vars_sd_released,
}


def create(name: str, dim: int, *, heads: int, grid: Grid | None = None, **options) -> Attention:
    """An attention by name: module(tokens, grid) -> tokens.

    Args:
        name: a key of `ATTENTIONS`.
        dim, heads: width of the tokens and number of heads.
        grid: (H, W) on which the layer is trained; attentions with filters need it.
        options: options of the constructor.
    """
    if name not in ATTENTIONS:
        close = difflib.get_close_matches(name, ATTENTIONS, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"no attention named {name!r}: there are {', '.join(ATTENTIONS)}{hint}")
    return ATTENTIONS[name](dim, heads, grid, **options)
