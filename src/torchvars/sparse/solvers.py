"""Solvers of the sparse coding problem, which take a few recurrent steps."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from .checks import is_number, positive_integer, setting
from .problem import SparseCoding
from .steps import Learned, Spectral, StepRule, check_rule

STARTS = {
    "analysis": lambda problem: problem.analysis,  # P^T x, as in the paper
    "zero": lambda problem: torch.zeros_like(problem.analysis),
    "scaled": lambda problem: problem.analysis / problem.operator.lipschitz(),
    "thresholded": lambda problem: problem.shrink(problem.analysis, 1.0),  # as in the authors' code
}


def check_name(setting: str, name: str, names: Iterable[str]) -> str:
    if not isinstance(name, str) or name not in names:
        raise ValueError(f"{setting} must be one of {', '.join(names)}, got {name!r}")
    return name


def check_tolerance(name: str, tolerance: float | None) -> float | None:
    if tolerance is not None and not (is_number(tolerance) and tolerance > 0):
        raise ValueError(f"{name} must be None or a positive bound on the violation, got {tolerance}")
    return tolerance


class Status(StrEnum):
    """The reason why a run of a solver ended."""

    MET = "the tolerance was met"
    UNMET = "all steps were taken and the tolerance was not met"
    NONE = "all steps were taken; no tolerance was asked for"


@dataclass(frozen=True)
class Solution:
    """The result of a solver, and how far it is from the optimum.

    Args:
        code: (..., M, C).
        steps: number of steps taken.
        violation: of the optimality condition, (..., C); see `SparseCoding.violation`.
        status: how the run ended.
    """

    code: Tensor
    steps: int
    violation: Tensor
    status: Status


class Solver(nn.Module, ABC):
    """A solver of `SparseCoding` problems. Its gradient is that of all its steps.

    Subclasses define the infinite sequence of codes, in `iterates`. This class decides how many steps are taken.

    Args:
        steps: largest number of steps.
        start: the initial code, a key of `STARTS`.
        tolerance: the solver stops as soon as no violation of optimality is above it. This reads the code after every
            step, so a layer with a tolerance does not compile to one graph.
    """

    steps = setting("steps", positive_integer)
    start = setting("start", partial(check_name, names=STARTS))
    tolerance = setting("tolerance", check_tolerance)

    def __init__(self, steps: int = 3, start: str = "analysis", tolerance: float | None = None):
        super().__init__()
        self.steps, self.start, self.tolerance = steps, start, tolerance

    @abstractmethod
    def iterates(self, problem: SparseCoding) -> Iterator[Tensor]:
        """The infinite sequence of codes (..., M, C), beginning with the start."""

    def trajectory(self, problem: SparseCoding) -> Iterator[Tensor]:
        """The codes of a run, beginning with the start: at most steps + 1."""
        for _, code in zip(range(self.steps + 1), self.iterates(problem)):  # noqa: B905 (one of the two is endless)
            yield code
            if self.tolerance is not None and bool((problem.violation(code) <= self.tolerance).all()):
                return

    def solve(self, problem: SparseCoding) -> Tensor:
        """The last code of the trajectory."""
        for code in self.trajectory(problem):  # noqa: B007 (the last one is wanted)
            pass
        return code

    @torch.no_grad()
    def solution(self, problem: SparseCoding) -> Solution:
        """The result of `solve`, without its gradient, and how the run ended."""
        for steps, code in enumerate(self.trajectory(problem)):  # noqa: B007 (the last one is wanted)
            pass
        violation = problem.violation(code)
        if self.tolerance is None:
            return Solution(code, steps, violation, Status.NONE)
        met = bool((violation <= self.tolerance).all())
        return Solution(code, steps, violation, Status.MET if met else Status.UNMET)

    def begin(self, problem: SparseCoding) -> Tensor:
        return STARTS[self.start](problem)

    def extra_repr(self) -> str:
        return f"steps={self.steps}, start={self.start!r}, tolerance={self.tolerance}"


class ProximalGradient(Solver):
    """Solvers that alternate a gradient step and a shrinkage, with step sizes for which the objective never rises.

    Args:
        step: the rule for the step sizes; `Spectral()` when None.
    """

    step: StepRule

    def __init__(
        self,
        steps: int = 3,
        start: str = "analysis",
        tolerance: float | None = None,
        step: StepRule | None = None,
    ):
        super().__init__(steps, start, tolerance)
        self.step = Spectral() if step is None else step

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "step":
            check_rule(value)
        super().__setattr__(name, value)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, step={self.step!r}"


class ISTA(ProximalGradient):
    """Iterative shrinkage and thresholding, the paper's solver: u <- S(u - (P^T P u - P^T x) / L, strength / L)."""

    def iterates(self, problem: SparseCoding) -> Iterator[Tensor]:
        code = self.begin(problem)
        for step, weight in self.step.sizes(problem.operator):
            yield code
            code = problem.shrink(code - step * problem.gradient(code), weight)


class FISTA(ProximalGradient):
    """ISTA with Nesterov's momentum (Beck and Teboulle 2009): the step is taken from an extrapolated code."""

    def iterates(self, problem: SparseCoding) -> Iterator[Tensor]:
        code = ahead = self.begin(problem)
        inertia = 1.0
        for step, weight in self.step.sizes(problem.operator):
            yield code
            previous, code = code, problem.shrink(ahead - step * problem.gradient(ahead), weight)
            previous_inertia, inertia = inertia, (1 + (1 + 4 * inertia**2) ** 0.5) / 2
            ahead = code + (previous_inertia - 1) / inertia * (code - previous)


class LearnedISTA(ISTA):
    """ISTA whose step sizes and thresholds are learned, one pair for each step; it starts as ISTA.

    If `steps` is raised after construction, further steps use the last pair.

    Args:
        step: the rule for the initial step sizes.
    """

    def __init__(
        self,
        steps: int = 3,
        start: str = "analysis",
        tolerance: float | None = None,
        step: StepRule | None = None,
    ):
        super().__init__(steps, start, tolerance, step)
        self.step = Learned(self.steps, self.step)


class SpaRSA(Solver):
    """Proximal gradient with step sizes from the local curvature (Wright, Nowak, Figueiredo 2009).

    The step size of each signal is the inverse of the curvature along its last move. A line search then scales the
    move, by 1 at most, so that the objective falls most. From the start P^T x / L, where the strongest direction has
    converged already, three steps come about as close to the optimum as ten of ISTA: see docs/solvers.md. A step takes
    one product with P^T P, and the start two.
    """

    def __init__(self, steps: int = 3, start: str = "scaled", tolerance: float | None = None):
        super().__init__(steps, start, tolerance)

    def iterates(self, problem: SparseCoding) -> Iterator[Tensor]:
        code = self.begin(problem)
        gradient = problem.gradient(code)
        steepest = _ratio(_dot(gradient, gradient), _dot(gradient, problem.operator.gram(gradient)))
        step = steepest
        while True:
            yield code
            move = problem.shrink(code - step * gradient, step) - code
            product = problem.operator.gram(move)
            curvature = _dot(move, product)
            cost = problem.penalty.rise(code, move).unsqueeze(-2)
            share = _ratio(-_dot(gradient, move) - cost, curvature).clamp(0, 1)
            code, gradient = code + share * move, gradient + share * product
            # A move in the null space of the dictionary has no curvature: the step size is bounded to stay finite.
            step = torch.minimum(_ratio(_dot(move, move), curvature), 1000 * steepest)


class SolverWrapper(Solver):
    """A solver that wraps another one, which takes the steps. Settings are read from and written to the wrapped solver.

    Args:
        solver: takes the steps.
    """

    def __init__(self, solver: Solver):
        nn.Module.__init__(self)
        self.solver = solver

    def iterates(self, problem: SparseCoding) -> Iterator[Tensor]:
        return self.solver.iterates(problem)

    @property
    def steps(self) -> int:
        return self.solver.steps

    @steps.setter
    def steps(self, steps: int) -> None:
        self.solver.steps = steps

    @property
    def start(self) -> str:
        return self.solver.start

    @start.setter
    def start(self, start: str) -> None:
        self.solver.start = start

    @property
    def tolerance(self) -> float | None:
        return self.solver.tolerance

    @tolerance.setter
    def tolerance(self, tolerance: float | None) -> None:
        self.solver.tolerance = tolerance

    def __setattr__(self, name: str, value) -> None:
        if name == "solver" and not isinstance(value, Solver):
            raise ValueError(
                f"{type(self).__name__} is of a solver: pass an object such as FISTA(steps=100), got {value!r}"
            )
        super().__setattr__(name, value)


def _dot(first: Tensor, second: Tensor) -> Tensor:
    return (first * second).sum(-2, keepdim=True)


def _ratio(part: Tensor, whole: Tensor) -> Tensor:
    return part / whole.clamp_min(torch.finfo(whole.dtype).tiny)
