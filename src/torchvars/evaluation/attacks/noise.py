"""A random place in the ball."""

from dataclasses import dataclass

from torch import Tensor, nn

from ..chance import Generators
from .base import Attack


@dataclass(frozen=True)
class Noise(Attack):
    """A random place in the ball: no attack, but what every attack must beat."""

    @property
    def passes(self) -> float:
        return 0

    def run(self, classifier: nn.Module, pixels: Tensor, labels: Tensor, generators: Generators) -> Tensor:
        return self.ball.draw(pixels, self.radius, generators)
