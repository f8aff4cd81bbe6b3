"""The running average of a model's weights."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from .sharding import like


class Average:
    """Weights that follow a model's: average <- decay average + (1 - decay) weights, after each step.

    Early on the decay is lower, (1 + step) / (10 + step), so that a short run is not averaged with its beginning.
    Buffers, such as the statistics of a norm, are the model's own.
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
        """Takes over whole weights by their names."""
        self.weights = {name: like(weights[name], weight) for name, weight in self.weights.items()}

    @contextmanager
    def applied(self, model: nn.Module) -> Iterator[None]:
        """Within it the model has the averaged weights; afterwards its own again, to the bit."""
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
