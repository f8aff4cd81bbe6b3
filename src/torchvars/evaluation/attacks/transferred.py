"""An attack on another model."""

from dataclasses import dataclass

from torch import Tensor, nn

from ..chance import Generators
from .base import Attack


@dataclass(frozen=True)
class Transferred:
    """An attack on another classifier, to be scored on this one. It is called as an attack is.

    Args:
        attack: how the pictures are made.
        source: the classifier against which they are made.
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
        """Attacked pictures; the classifier is not asked. For the rest see `Attack`."""
        return self.attack(self.source, pixels, labels, generators)
