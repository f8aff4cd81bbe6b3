"""A linear probe: logistic regression on the features of a frozen model."""

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

STRENGTHS = (1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5)  # of the penalty, in decreasing order


class Probe(NamedTuple):
    """A linear classifier of features."""

    weight: Tensor  # (classes, features)
    bias: Tensor  # (classes,)

    def __call__(self, features: Tensor) -> Tensor:
        """Features (N, features) -> logits (N, classes), in double precision."""
        return features.double() @ self.weight.T + self.bias


def only_head(model: nn.Module) -> nn.Linear:
    """The head of a model. Raises a ValueError unless it is one linear layer."""
    heads = linear_heads(model)
    if len(heads) > 1:
        raise ValueError(f"{type(model).__name__} has the heads {', '.join(heads)}: a linear probe needs a single one")
    return next(iter(heads.values()))


def features_of(
    classifier: Classifier, source: Source, size: int, processes: Processes, *, batch: int = 64, workers: int = 0
) -> tuple[Tensor, Tensor]:
    """Inputs of the head of a classifier for all pictures (N, features), and which could not be read (N,)."""
    classifier = classifier.to(processes.device).eval()

    def ask(batch: Asked) -> dict[str, Tensor]:
        with inputs_of(only_head(classifier.model)) as inputs:
            classifier(batch.pixels)
        return {"features": inputs[0].float().cpu()}

    scores = score(source, Shown(size), ask, None, processes, batch=batch, workers=workers)
    return scores.columns["features"], scores.unread


@contextmanager
def inputs_of(layer: nn.Module) -> Iterator[list[Tensor]]:
    """Collects the inputs of a layer whenever it runs."""
    inputs: list[Tensor] = []
    hook = layer.register_forward_pre_hook(lambda _, arguments: inputs.append(arguments[0]))
    try:
        yield inputs
    finally:
        hook.remove()


def fit(features: Tensor, labels: Tensor, classes: int, strength: float) -> Probe:
    """Minimises the mean cross-entropy plus strength / 2 times the squared norm of the weights.

    The features (N, D) are standardised first, and the norm is that of the weights for standardised features; the
    returned weights are for the original features.
    """
    features = features.double()
    mean, deviation = features.mean(0), features.std(0, correction=0)
    deviation = torch.where(
        deviation > 1e-9 * features.abs().amax(0), deviation, 1.0
    )  # constant features are not scaled
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
    """The probe with the strength of the highest held-out accuracy; of equals the one with the largest strength.

    Args:
        train, held_out: features and labels.
    """
    best, chosen = -1.0, None
    for strength in STRENGTHS:
        probe = fit(*train, classes, strength)
        features, labels = held_out
        right = probe(features).argmax(-1) == labels
        if (accuracy := float(right.double().mean())) > best:
            best, chosen = accuracy, probe
    if chosen is None:
        raise ValueError("no held-out picture could be read: the strength of a linear probe cannot be chosen")
    return chosen


@torch.no_grad()
def set_head(model: nn.Module, probe: Probe) -> None:
    """Copies the weights of a probe into the head of a model with the same number of classes."""
    head = only_head(model)
    head.weight.copy_(probe.weight)
    head.bias.copy_(probe.bias)
