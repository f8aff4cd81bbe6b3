"""An attack on another model."""

from dataclasses import dataclass

from torch import Tensor, nn

from ..generators import Generators
from .base import Attack


@dataclass(frozen=True)
class Transferred:
    """An attack on another classifier, evaluated on this one. It is called like an attack.

    Args:
        attack: the attack.
        source: the classifier that is attacked.
    """

    attack: Attack
    source: nn.Module

    @property
    def radius(self) -> float:
        return self.attack.radius

    @property
    def passes(self) -> float:
        return self.attack.passes

    @property
    def norm(self) -> str:
        return self.attack.norm

    def __call__(self, classifier: nn.Module, pixels: Tensor, labels: Tensor, generators: Generators) -> Tensor:
        """Attacked pictures; `classifier` is not used. See `Attack`."""
        return self.attack(self.source, pixels, labels, generators)
