"""One step along the gradient."""

from dataclasses import dataclass

from torch import Tensor, nn

from ..generators import Generators
from .base import Attack, gradient


@dataclass(frozen=True)
class FGSM(Attack):
    """One gradient step of the length of the radius that increases the cross-entropy (Goodfellow et al. 2015)."""

    radius: float = 1 / 255

    def run(self, classifier: nn.Module, pixels: Tensor, labels: Tensor, generators: Generators) -> Tensor:
        return pixels + self.radius * self.ball.steepest(gradient(classifier, pixels, labels))
