"""The units in which ISTA runs fast."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

# The starts that are a multiple of P^T y / L, and the multiple.
STARTS: dict[str, Callable[[Tensor], Tensor | float]] = {
    "analysis": lambda bound: bound,
    "scaled": lambda bound: 1.0,
    "zero": lambda bound: 0.0,
}


@dataclass(frozen=True)
class Units:
    """A run of ISTA in the units of its own threshold.

    With codes v = u L / strength and signals y = x L / strength the step reads

        v <- S(v - P^T (P v - y) / L, 1)

    so that the threshold is one number for all, and its gradient is read off the code: where v is not zero.

    Args:
        strength: of the penalty; at 0 nothing is shrunk, and the units are those of strength 1.
        start: of the solver, a key of `STARTS`.
        steps: how many.
    """

    strength: float
    start: str
    steps: int

    @property
    def unit(self) -> float:
        return self.strength or 1.0

    def start_factor(self, bound: Tensor) -> Tensor | float:
        """The start as a multiple of P^T y / L."""
        return STARTS[self.start](bound)

    def shrink_(self, code: Tensor) -> Tensor:
        """S(v, 1), in place."""
        return torch._C._nn.softshrink(code, 1.0, out=code) if self.strength else code

    def keep_support_(self, gradient: Tensor, code: Tensor) -> Tensor:
        """The gradient before S from the one after it, in place: it passes where the code is not zero."""
        if self.strength:
            torch.ops.aten.softshrink_backward.grad_input(gradient, code, 0.0, grad_input=gradient)
        return gradient
