"""The kinds of maps. In their formulas o = M(v) are the mixed values of a head, and q is the query.

The query is a vector of weights over the outputs: 1/N for each of N patches ("mean"), or 1 for one token.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch import Tensor

from .observe import Observation


class Request(NamedTuple):
    """The arguments of a map of one attention.

    Attributes:
        name: the name of the attention.
        query: (N,), a weight for each token.
        step: number of recurrent steps; None for all.
        target: the class of each image; None for the predicted class.
    """

    name: str
    query: Tensor
    step: int | None
    target: int | Sequence[int] | Tensor | None


def implicit(observation: Observation, request: Request) -> Tensor:
    """1/C sum_c |d (q . o_c) / d v_jc|: how much the output at the query depends on the value at each position j.

    For softmax attention this is the attention weights, and for linear attention the normalised kernel.
    """
    return observation.derivative(request.name, request.query[:, None], request.step).abs().mean(-1)


def kernel(observation: Observation, request: Request) -> Tensor:
    """1/C sum_c |q^T K_c|_j: attention weights, the normalised kernel of linear attention, a filter, or R P^T.

    For a dictionary P it is the similarity of the query through the atoms, without sparsity. R is P if the layer has no
    reader.
    """
    return observation.kernel(request.name, request.query).abs().mean(-1)


def energy(observation: Observation, request: Request) -> Tensor:
    """|o_j|, the norm over the channels of a head: the size of the output at each position j."""
    return observation.mixed(request.name, request.step).norm(dim=-1)


def rollout(observation: Observation, request: Request) -> Tensor:
    """q^T (I + A_l) / 2 ... (I + A_1) / 2, with the weights A of all layers up to this one, averaged over heads.

    Abnar and Zuidema 2020. It exists for attentions with weights that sum to one: softmax and linear attention.
    """
    row = request.query.unsqueeze(0)
    before = observation.names[: observation.names.index(request.name) + 1]
    for name in reversed(before):
        weights = observation.weights(name)
        if weights is None:
            kind = type(observation.model.get_submodule(name)).__name__
            raise ValueError(
                f"rollout multiplies attention weights, and {name} ({kind}) has none: take kind='implicit', which "
                "every attention has"
            )
        if weights.shape[-1] != row.shape[-1]:
            raise ValueError(
                f"rollout multiplies attention weights of one set of tokens, but {name} has {weights.shape[-1]} tokens "
                f"and {request.name} {row.shape[-1]}: take kind='implicit', or a layer of the first stage"
            )
        row = row.to(weights.dtype)
        row = (row + (row.unsqueeze(1) @ weights.mean(1)).squeeze(1)) / 2
    return row.unsqueeze(1)


def gradient(observation: Observation, request: Request) -> Tensor:
    """sum_c v_jc dy/dv_jc with M fixed: the contribution of the value at each position j to the logit y in this layer.

    For softmax attention it is sum_q A_qj dy/dA_qj, the weights A times the gradient of the logit with respect to them.
    """
    slope = observation.slope(request.name, request.target)
    return (observation.derivative(request.name, slope) * observation.mixing(request.name).values).sum(-1)


class Kind(NamedTuple):
    """A kind of map.

    Attributes:
        find: computes the maps of each head, (batch, heads, N).
        join: combines the maps of several heads: their mean, its positive part, or the root of their mean square, which
            for a norm gives that over all channels.
        queried, stepped, targeted: whether the map depends on a query, a recurrent step, a target class.
        heads: whether each head has a map.
    """

    find: Callable[[Observation, Request], Tensor]
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
"""The kinds of maps by name; the first is the default."""
