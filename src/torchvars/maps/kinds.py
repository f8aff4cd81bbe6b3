"""The kinds of maps, each one formula: o = M(v) are the mixed values of a head, and q is the query.

The query is a weight for each output that is averaged over: 1/N for each of N patches ("mean"), or 1 for one token.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch import Tensor

from .observe import Observation


class Ask(NamedTuple):
    """What is asked of one attention.

    Attributes:
        name: of the attention.
        query: (N,), a weight for each token.
        step: number of recurrent steps; None for all.
        target: the class of each picture; None for the one that the model names.
    """

    name: str
    query: Tensor
    step: int | None
    target: int | Sequence[int] | Tensor | None


def implicit(seen: Observation, ask: Ask) -> Tensor:
    """1/C sum_c |d (q . o_c) / d v_jc|: how much the output at the query depends on the value at each position j.

    For softmax these are the attention weights, and for linear attention the normalised kernel.
    """
    return seen.derivative(ask.name, ask.query[:, None], ask.step).abs().mean(-1)


def kernel(seen: Observation, ask: Ask) -> Tensor:
    """1/C sum_c |q^T K_c|_j: attention weights, the normalised kernel of linear attention, a filter, or R P^T.

    Of a dictionary P it is what its atoms have in common with the query, before they compete. R is P unless the layer
    reads its code out by other atoms.
    """
    return seen.kernel(ask.name, ask.query).abs().mean(-1)


def energy(seen: Observation, ask: Ask) -> Tensor:
    """|o_j|, the norm over the channels of a head: how much the attention passes on at each position j."""
    return seen.mixed(ask.name, ask.step).norm(dim=-1)


def rollout(seen: Observation, ask: Ask) -> Tensor:
    """q^T (I + A_l) / 2 ... (I + A_1) / 2, of weights A averaged over heads in every layer up to this one.

    Abnar and Zuidema 2020. It is of attentions with weights that sum to one: softmax and linear attention.
    """
    row = ask.query.unsqueeze(0)
    before = seen.names[: seen.names.index(ask.name) + 1]
    for name in reversed(before):
        weights = seen.weights(name)
        if weights is None:
            kind = type(seen.model.get_submodule(name)).__name__
            raise ValueError(
                f"rollout multiplies attention weights, and {name} ({kind}) has none: take kind='implicit', which "
                "every attention has"
            )
        if weights.shape[-1] != row.shape[-1]:
            raise ValueError(
                f"rollout multiplies attention weights of one set of tokens, but {name} has {weights.shape[-1]} tokens "
                f"and {ask.name} {row.shape[-1]}: take kind='implicit', or a layer of the first stage"
            )
        row = row.to(weights.dtype)
        row = (row + (row.unsqueeze(1) @ weights.mean(1)).squeeze(1)) / 2
    return row.unsqueeze(1)


def gradient(seen: Observation, ask: Ask) -> Tensor:
    """sum_c v_jc dy/dv_jc with M held: how much the value at each position j adds to the logit y through this layer.

    For softmax it is sum_q A_qj dy/dA_qj, the weights A times the gradient of the logit with respect to them.
    """
    slope = seen.slope(ask.name, ask.target)
    return (seen.derivative(ask.name, slope) * seen.mixing(ask.name).values).sum(-1)


class Kind(NamedTuple):
    """A kind of map.

    Attributes:
        find: maps of each head, (batch, heads, N).
        join: how some heads become one map: their mean, its positive part, or the root of their mean square, so that a
            norm is one over all channels.
        queried, stepped, targeted: whether it depends on a query, on the recurrent step, on a class.
        heads: whether each head has a map.
    """

    find: Callable[[Observation, Ask], Tensor]
    join: Callable[[Tensor], Tensor] = lambda maps: maps.mean(1)
    queried: bool = True
    stepped: bool = False
    targeted: bool = False
    heads: bool = True


KINDS: dict[str, Kind] = {
    "implicit": Kind(implicit, stepped=True),
    "kernel": Kind(kernel),
    "energy": Kind(energy, lambda maps: maps.square().mean(1).sqrt(), queried=False, stepped=True),
    "rollout": Kind(rollout, heads=False),
    "gradient": Kind(gradient, lambda maps: maps.mean(1).relu(), queried=False, targeted=True),
}
"""By name; the first is what is shown unless another is asked for."""
