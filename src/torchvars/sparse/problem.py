"""The problem a VARS layer solves."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from .operators import Operator, found_once
from .threshold import soft


class SparseCoding:
    """minimise over u    1/2 |P u - x|^2 + strength |u|_1, for each channel of each signal on its own.

    Args:
        operator: the dictionary P.
        signal: x, (..., N, C).
        strength: the paper's lambda; a number, or a tensor that broadcasts against a code.
        threshold: the shrinkage of a step; `soft` is the one that belongs to |u|_1.
    """

    def __init__(
        self,
        operator: Operator,
        signal: Tensor,
        strength: Tensor | float,
        threshold: Callable[[Tensor, Tensor | float], Tensor] = soft,
    ):
        if not isinstance(strength, Tensor):
            check_strength(strength)
        self.operator = operator
        self.signal = signal
        self.strength = strength
        self.threshold = threshold
        self.grad_enabled = torch.is_grad_enabled()

    @found_once
    def analysis(self) -> Tensor:
        """P^T x, all that the iterations need of the signal: (..., M, C)."""
        return self.operator.analyze(self.signal)

    def objective(self, code: Tensor) -> Tensor:
        """1/2 |P u - x|^2 + strength |u|_1: code (..., M, C) -> (..., C)."""
        error = self.operator.synthesize(code) - self.signal
        return error.square().sum(-2) / 2 + (self.strength * code.abs()).sum(-2)

    def gradient(self, code: Tensor) -> Tensor:
        """P^T P u - P^T x, the gradient of the smooth half."""
        return self.operator.gram(code) - self.analysis

    def shrink(self, code: Tensor, step: Tensor | float) -> Tensor:
        """S(u, strength * step), the other half of a step of that size."""
        return self.threshold(code, self.strength * step)

    def violation(self, code: Tensor) -> Tensor:
        """How far a code is from optimal, max |u - S(u - gradient(u), strength)|: (..., M, C) -> (..., C)."""
        return (code - self.shrink(code - self.gradient(code), 1.0)).abs().amax(-2)


def check_strength(strength: float) -> float:
    """The strength, or a ValueError if it is no penalty."""
    try:
        fits = bool(0 <= strength < math.inf)
    except (TypeError, RuntimeError):  # no number, or more than one
        fits = False
    if not fits:
        raise ValueError(f"strength must be zero or positive, and finite, got {strength}: it weighs the penalty |u|_1")
    return strength
