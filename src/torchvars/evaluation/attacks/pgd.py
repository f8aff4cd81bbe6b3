"""Projected gradient descent."""

from dataclasses import KW_ONLY, dataclass
from math import isfinite

import torch
from torch import Tensor, nn

from ..generators import Generators
from .base import Attack, gradient, margins


@dataclass(frozen=True)
class PGD(Attack):
    """Gradient steps that increase the cross-entropy, each followed by a projection on the ball (Madry et al. 2018).

    The result is that of the last step, even if an earlier one was misclassified, and pictures that are misclassified
    from the start are attacked too. This is the published protocol, with its numbers as defaults. With restarts, each
    picture is the result with the smallest `margin`.

    Args:
        step: length of a step in the norm; None for half the radius.
        steps: number of steps.
        random_start: whether to start at a random point of the ball, like `Noise`, or at the clean picture.
        restarts: number of runs.
    """

    radius: float = 1 / 255
    _: KW_ONLY
    step: float | None = None
    steps: int = 5
    random_start: bool = True
    restarts: int = 1

    def __post_init__(self):
        super().__post_init__()
        if self.step is not None and not (isfinite(self.step) and self.step > 0):
            raise ValueError(f"step must be more than 0, got {self.step}: leave it out for half the radius")
        if self.steps < 1:
            raise ValueError(f"steps must be 1 or more, got {self.steps}: for no step there is Noise")
        if self.restarts < 1:
            raise ValueError(f"restarts must be 1 or more, got {self.restarts}: 1 begins once")
        if self.restarts > 1 and not self.random_start:
            raise ValueError(f"{self.restarts} restarts all begin at the clean picture: set random_start=True")

    @property
    def passes(self) -> float:
        return 3 * self.steps * self.restarts

    def run(self, classifier: nn.Module, pixels: Tensor, labels: Tensor, generators: Generators) -> Tensor:
        pictures = self._climb(classifier, pixels, labels, generators)
        for _ in range(self.restarts - 1):
            other = self._climb(classifier, pixels, labels, generators)
            lower = margins(classifier, other, labels) < margins(classifier, pictures, labels)
            pictures = torch.where(lower.view(-1, 1, 1, 1), other, pictures)
        return pictures

    def _climb(self, classifier: nn.Module, pixels: Tensor, labels: Tensor, generators: Generators) -> Tensor:
        step = self.radius / 2 if self.step is None else self.step
        pictures = pixels
        if self.random_start:
            start = self.ball.draw(pixels, self.radius, generators)
            pictures = self.ball.project(start, pixels, self.radius)
        for _ in range(self.steps):
            uphill = self.ball.steepest(gradient(classifier, pictures, labels))
            pictures = self.ball.project(pictures + step * uphill, pixels, self.radius)
        return pictures
