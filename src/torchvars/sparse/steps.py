"""Step sizes of a solver: rules for which the objective never rises."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from itertools import repeat

import torch
from torch import Tensor, nn

from .operators import Operator


class StepRule(ABC):
    """A rule for the step sizes of a proximal gradient method: at most the inverse of a matrix that majorises P^T P."""

    @abstractmethod
    def sizes(self, operator: Operator) -> Iterator[tuple[Tensor, Tensor]]:
        """An infinite sequence: for each step its size, and the factor of the strength in its threshold.

        Both broadcast against a code (..., M, C). They are equal except in `Learned`.
        """

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class Spectral(StepRule):
    """1 / L for all atoms, where L is an upper bound on the largest eigenvalue. It is a constant for gradients."""

    def sizes(self, operator: Operator) -> Iterator[tuple[Tensor, Tensor]]:
        size = 1 / operator.lipschitz()
        return repeat((size, size))


class RowSum(StepRule):
    """One over the row sums of |P|^T |P|, a size for each atom. It needs no eigenvalue, and has a gradient."""

    def sizes(self, operator: Operator) -> Iterator[tuple[Tensor, Tensor]]:
        size = 1 / operator.row_sums()
        return repeat((size, size))


class Learned(nn.Module, StepRule):
    """Learned sizes and thresholds, one pair for each step, which are initialised by another rule.

    An unfolded network that converges to the lasso can learn little more than this (Ablin et al. 2019). A step stays
    below twice the size given by that rule, so that no learned value can make the solver diverge. Steps beyond the last
    pair use the last pair.

    Args:
        steps: number of pairs.
        rule: the initial rule.
    """

    __repr__ = nn.Module.__repr__

    def __init__(self, steps: int = 3, rule: StepRule | None = None):
        super().__init__()
        self.rule = rule or Spectral()
        self.size = nn.Parameter(torch.zeros(steps))
        self.threshold = nn.Parameter(torch.zeros(steps))

    def sizes(self, operator: Operator) -> Iterator[tuple[Tensor, Tensor]]:
        index = 0
        for longest, _ in self.rule.sizes(operator):
            size = self.size[index].sigmoid() * (2 * longest)
            yield size, self.threshold[index].exp() * size
            index = min(index + 1, len(self.size) - 1)

    def extra_repr(self) -> str:
        return f"steps={len(self.size)}, rule={self.rule!r}"


STEP_RULES: dict[str, type[StepRule]] = {"spectral": Spectral, "row_sum": RowSum}


def check_rule(rule: StepRule) -> StepRule:
    """Returns the rule; raises a ValueError if it is not a StepRule."""
    if not isinstance(rule, StepRule):
        raise ValueError(f"step must be a rule such as Spectral() or RowSum(), got {rule!r}")
    return rule
