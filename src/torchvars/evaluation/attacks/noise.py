"""A random point of the ball."""

from dataclasses import dataclass

from torch import Tensor, nn

from ..generators import Generators
from .base import Attack


@dataclass(frozen=True)
class Noise(Attack):
    """A random point of the ball: not an attack, but a baseline for attacks."""

    @property
    def passes(self) -> float:
        return 0

    def run(self, classifier: nn.Module, pixels: Tensor, labels: Tensor, generators: Generators) -> Tensor:
        return self.ball.draw(pixels, self.radius, generators)
