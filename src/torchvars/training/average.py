"""The running average of a model's weights."""

import copy

import torch
from torch import Tensor, nn


class Average:
    """A copy of a model that follows it: average <- decay average + (1 - decay) weights, after each step.

    Early on the decay is lower, (1 + step) / (10 + step), so that a short run is not averaged with its beginning.
    Buffers, such as the statistics of a norm, are taken over as they are.
    """

    def __init__(self, model: nn.Module, decay: float):
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        self.decay = decay

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        decay = min(self.decay, (1 + step) / (10 + step))
        for average, weight in zip(self.model.parameters(), model.parameters(), strict=True):
            average.lerp_(weight, 1 - decay)
        for average, buffer in zip(self.model.buffers(), model.buffers(), strict=True):
            average.copy_(buffer)

    def state(self) -> dict[str, Tensor]:
        return self.model.state_dict()
