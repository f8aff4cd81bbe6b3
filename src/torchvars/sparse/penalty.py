"""The penalty on the code: L1, or a shrinkage function that is not the proximal map of any penalty."""

from collections.abc import Callable

from torch import Tensor

from .threshold import soft


class L1:
    """The penalty of the paper, strength |u|_1.

    Args:
        strength: the paper's lambda; a number, or a tensor that broadcasts against a code.
    """

    def __init__(self, strength: Tensor | float):
        self.strength = strength

    def value(self, code: Tensor) -> Tensor:
        """strength |u|_1: (..., M, C) -> (..., C)."""
        return (self.strength * code.abs()).sum(-2)

    def rise(self, code: Tensor, move: Tensor) -> Tensor:
        """value(code + move) - value(code), without the rounding errors of the two sums."""
        return (self.strength * ((code + move).abs() - code.abs())).sum(-2)

    def prox(self, code: Tensor, step: Tensor | float) -> Tensor:
        """S(u, strength step), the proximal map of the penalty for a step size."""
        return soft(code, self.strength * step)

    def slope(self, code: Tensor) -> Tensor:
        """strength sign(u), the derivative where u is not zero; at an optimum minus the gradient of the smooth part."""
        return self.strength * code.sign()


class Shrinkage:
    """A threshold that is not a proximal map, as in the authors' code. Steps are defined, but there is no objective.

    Args:
        strength: as in `L1`.
        threshold: (code, amount) -> code.
    """

    def __init__(self, strength: Tensor | float, threshold: Callable[[Tensor, Tensor | float], Tensor]):
        self.strength, self.threshold = strength, threshold

    def prox(self, code: Tensor, step: Tensor | float) -> Tensor:
        return self.threshold(code, self.strength * step)

    def value(self, *codes: Tensor) -> Tensor:
        raise self.error()

    rise = slope = value

    def error(self) -> ValueError:
        """The error for a method that needs a penalty."""
        return ValueError(
            f"the threshold {getattr(self.threshold, '__name__', self.threshold)} belongs to no penalty, so there is "
            "no objective and no optimum, which Equilibrium and SpaRSA need: use ISTA, FISTA or LearnedISTA"
        )
