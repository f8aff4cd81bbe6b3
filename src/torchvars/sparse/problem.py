"""The problem that a VARS layer solves."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from .operators import Operator, lazy
from .penalty import L1, Shrinkage
from .threshold import soft


class SparseCoding:
    """The problem of minimising 1/2 |P u - x|^2 + strength |u|_1 over u, separately for each channel of each signal.

    Args:
        operator: the dictionary P.
        signal: x, (..., N, C).
        strength: the paper's lambda: a number, a tensor that broadcasts against a code, or a penalty object.
        threshold: the shrinkage function of a step; `soft` belongs to |u|_1, any other to no penalty.
    """

    def __init__(
        self,
        operator: Operator,
        signal: Tensor,
        strength: Tensor | float | L1 | Shrinkage,
        threshold: Callable[[Tensor, Tensor | float], Tensor] = soft,
    ):
        if isinstance(strength, L1 | Shrinkage):
            penalty = strength
        else:
            penalty = L1(strength) if threshold is soft else Shrinkage(strength, threshold)
        if not isinstance(penalty.strength, Tensor):
            check_strength(penalty.strength)
        self.operator = operator
        self.signal = signal
        self.penalty = penalty
        self.grad_enabled = torch.is_grad_enabled()

    @property
    def strength(self) -> Tensor | float:
        """The strength of the penalty."""
        return self.penalty.strength

    @property
    def threshold(self) -> Callable[[Tensor, Tensor | float], Tensor]:
        """The shrinkage of a step."""
        return soft if isinstance(self.penalty, L1) else self.penalty.threshold

    @lazy
    def analysis(self) -> Tensor:
        """P^T x, through which alone the iterations depend on the signal: (..., M, C)."""
        return self.operator.analyze(self.signal)

    def objective(self, code: Tensor) -> Tensor:
        """1/2 |P u - x|^2 + strength |u|_1: code (..., M, C) -> (..., C)."""
        error = self.operator.synthesize(code) - self.signal
        return error.square().sum(-2) / 2 + self.penalty.value(code)

    def gradient(self, code: Tensor) -> Tensor:
        """P^T P u - P^T x, the gradient of the smooth part of the objective."""
        return self.operator.gram(code) - self.analysis

    def shrink(self, code: Tensor, step: Tensor | float) -> Tensor:
        """S(u, strength * step), the shrinkage for a step size."""
        return self.penalty.prox(code, step)

    def violation(self, code: Tensor) -> Tensor:
        """The distance of a code from optimality, max |u - S(u - gradient(u), strength)|: (..., M, C) -> (..., C)."""
        return (code - self.shrink(code - self.gradient(code), 1.0)).abs().amax(-2)


def check_strength(strength: float) -> float:
    """Returns the strength; raises a ValueError if it is invalid."""
    try:
        fits = bool(0 <= strength < math.inf)
    except (TypeError, RuntimeError):  # not a number, or more than one
        fits = False
    if not fits:
        raise ValueError(
            f"strength must be zero or positive, and finite, got {strength}: it is the weight of the penalty |u|_1"
        )
    return strength
