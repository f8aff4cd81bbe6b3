"""A linear probe: logistic regression on the features of a model that is not trained further."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..data import Shown, Source
from ..models import Classifier
from ..models.head import linear_heads
from ..scoring import Asked, Processes, score

STRENGTHS = (1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5)  # of the penalty, from the simplest probe on


class Probe(NamedTuple):
    """A linear classifier of features."""

    weight: Tensor  # (classes, features)
    bias: Tensor  # (classes,)

    def __call__(self, features: Tensor) -> Tensor:
        """Features (N, features) -> logits (N, classes), in double precision."""
        return features.double() @ self.weight.T + self.bias


def only_head(model: nn.Module) -> nn.Linear:
    """The head of a model; a ValueError unless it is one linear layer."""
    heads = linear_heads(model)
    if len(heads) > 1:
        raise ValueError(f"{type(model).__name__} has the heads {', '.join(heads)}: a linear probe needs a single one")
    return next(iter(heads.values()))


def features_of(
    classifier: Classifier, source: Source, size: int, processes: Processes, *, batch: int = 64, workers: int = 0
) -> tuple[Tensor, Tensor]:
    """What the head of a classifier is given for each picture (N, features), and which could not be read (N,)."""
    classifier = classifier.to(processes.device).eval()

    def ask(asked: Asked) -> dict[str, Tensor]:
        with seen(only_head(classifier.model)) as inputs:
            classifier(asked.pixels)
        return {"features": inputs[0].float().cpu()}

    scores = score(source, Shown(size), ask, None, processes, batch=batch, workers=workers)
    return scores.columns["features"], scores.unread


@contextmanager
def seen(layer: nn.Module) -> Iterator[list[Tensor]]:
    """The inputs of a layer while it is within."""
    inputs: list[Tensor] = []
    hook = layer.register_forward_pre_hook(lambda _, given: inputs.append(given[0]))
    try:
        yield inputs
    finally:
        hook.remove()


def fit(features: Tensor, labels: Tensor, classes: int, strength: float) -> Probe:
    """Minimises the mean cross-entropy plus strength / 2 times the squared norm of the weights.

    The features (N, D) are first made to have mean 0 and deviation 1; the weights that are returned are for the
    features as they are, the norm is that of the weights for the others.
    """
    features = features.double()
    mean, deviation = features.mean(0), features.std(0, correction=0)
    deviation = torch.where(
        deviation > 1e-9 * features.abs().amax(0), deviation, 1.0
    )  # a constant feature says nothing
    inputs = (features - mean) / deviation
    weight = torch.zeros(classes, features.shape[1], dtype=torch.float64, requires_grad=True)
    bias = torch.zeros(classes, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [weight, bias], max_iter=500, tolerance_grad=1e-7, tolerance_change=1e-12, line_search_fn="strong_wolfe"
    )

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = functional.cross_entropy(inputs @ weight.T + bias, labels) + strength / 2 * weight.square().sum()
        value.backward()
        return value

    with torch.enable_grad():
        optimizer.step(loss)
    weight, bias = weight.detach() / deviation, bias.detach()
    return Probe(weight, bias - weight @ mean)


def choose(train: tuple[Tensor, Tensor], held_out: tuple[Tensor, Tensor], classes: int) -> Probe:
    """The probe of the strength that is right most often on held-out features; of equals the strongest.

    Args:
        train, held_out: features and labels.
    """
    best, found = -1.0, None
    for strength in STRENGTHS:
        probe = fit(*train, classes, strength)
        features, labels = held_out
        right = probe(features).argmax(-1) == labels
        if (accuracy := float(right.double().mean())) > best:
            best, found = accuracy, probe
    if found is None:
        raise ValueError("no picture is held out that could be read, to choose the strength of a linear probe by")
    return found


@torch.no_grad()
def set_head(model: nn.Module, probe: Probe) -> None:
    """Gives the head of a model, which has as many classes, the weights of a probe."""
    head = only_head(model)
    head.weight.copy_(probe.weight)
    head.bias.copy_(probe.bias)
