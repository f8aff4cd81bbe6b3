"""How long the steps of a solver are: rules with which the objective never rises."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from itertools import repeat

import torch
from torch import Tensor, nn

from .operators import Operator


class StepRule(ABC):
    """Gives each step of a proximal gradient method its size, no larger than one over what majorises P^T P."""

    @abstractmethod
    def sizes(self, operator: Operator) -> Iterator[tuple[Tensor, Tensor]]:
        """For each step, without end, its size and by what the strength is multiplied in its threshold.

        Both broadcast against a code (..., M, C). Outside `Learned` they are the same.
        """

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class Spectral(StepRule):
    """1 / L for all atoms, L an upper bound on the largest eigenvalue; gradients take it for a constant."""

    def sizes(self, operator: Operator) -> Iterator[tuple[Tensor, Tensor]]:
        size = 1 / operator.lipschitz()
        return repeat((size, size))


class RowSum(StepRule):
    """One over the row sums of |P|^T |P|, a size for each atom: it takes no eigenvalue, and is differentiated."""

    def sizes(self, operator: Operator) -> Iterator[tuple[Tensor, Tensor]]:
        size = 1 / operator.row_sums()
        return repeat((size, size))


class Learned(nn.Module, StepRule):
    """Sizes and thresholds that are learned, one pair for each step; at first they are those of another rule.

    What an unfolded network that converges to the lasso may learn is little more than this (Ablin et al. 2019). A step
    stays below twice the size of that rule, so that no learned value can make the steps diverge. Further steps than
    there are pairs take the last pair.

    Args:
        steps: pairs to learn.
        rule: where they begin.
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
    """The rule, or a ValueError if it is none."""
    if not isinstance(rule, StepRule):
        raise ValueError(f"step must be a rule such as Spectral() or RowSum(), got {rule!r}")
    return rule
