"""What a code pays for being large: the penalty of a problem, or a shrinkage that belongs to none."""

from collections.abc import Callable

from torch import Tensor

from .threshold import soft


class L1:
    """strength |u|_1, the penalty of the paper.

    Args:
        strength: the paper's lambda; a number, or a tensor that broadcasts against a code.
    """

    def __init__(self, strength: Tensor | float):
        self.strength = strength

    def value(self, code: Tensor) -> Tensor:
        """strength |u|_1: (..., M, C) -> (..., C)."""
        return (self.strength * code.abs()).sum(-2)

    def rise(self, code: Tensor, move: Tensor) -> Tensor:
        """value(code + move) - value(code), without the rounding of either sum."""
        return (self.strength * ((code + move).abs() - code.abs())).sum(-2)

    def prox(self, code: Tensor, step: Tensor | float) -> Tensor:
        """S(u, strength step), the other half of a step of that size."""
        return soft(code, self.strength * step)

    def slope(self, code: Tensor) -> Tensor:
        """strength sign(u), the derivative where u is not zero: at an optimum minus that of the smooth half."""
        return self.strength * code.sign()


class Shrinkage:
    """A threshold that is no proximal map, as the released code has it: a step can be taken, but nothing is minimised.

    Args:
        strength: as of `L1`.
        threshold: (code, amount) -> code.
    """

    def __init__(self, strength: Tensor | float, threshold: Callable[[Tensor, Tensor | float], Tensor]):
        self.strength, self.threshold = strength, threshold

    def prox(self, code: Tensor, step: Tensor | float) -> Tensor:
        return self.threshold(code, self.strength * step)

    def value(self, *codes: Tensor) -> Tensor:
        raise self.refusal()

    rise = slope = value

    def refusal(self) -> ValueError:
        """The error of whatever needs a penalty."""
        return ValueError(
            f"the threshold {getattr(self.threshold, '__name__', self.threshold)} belongs to no penalty, so there is "
            "no objective and no optimum, which Equilibrium and SpaRSA need: take ISTA, FISTA or LearnedISTA"
        )
