"""The running average of a model's weights."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from .sharding import like


class Average:
    """Exponential moving average of weights: average <- decay average + (1 - decay) weights, after each step.

    In the first steps the decay is lower, (1 + step) / (10 + step), so that initial weights do not dominate short runs.
    Buffers, such as the statistics of a norm, are not averaged.
    """

    def __init__(self, model: nn.Module, decay: float):
        self.weights = {name: weight.detach().clone() for name, weight in model.named_parameters()}
        self.decay = decay

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        decay = min(self.decay, (1 + step) / (10 + step))
        for name, weight in model.named_parameters():
            self.weights[name].lerp_(weight, 1 - decay)

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Loads whole weights by their names."""
        self.weights = {name: like(weights[name], weight) for name, weight in self.weights.items()}

    @contextmanager
    def applied(self, model: nn.Module) -> Iterator[None]:
        """A context in which the model has the averaged weights; its own are restored afterwards, bit for bit."""
        own = {name: weight.detach().clone() for name, weight in model.named_parameters()}
        _assign(model, self.weights)
        try:
            yield
        finally:
            _assign(model, own)


@torch.no_grad()
def _assign(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    for name, weight in model.named_parameters():
        weight.copy_(weights[name])
