"""Solvers of the sparse coding problem by a few recurrent steps."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from .checks import is_number, setting, whole
from .problem import SparseCoding
from .steps import Learned, Spectral, StepRule, check_rule

STARTS = {
    "analysis": lambda problem: problem.analysis,  # P^T x, the paper's
    "zero": lambda problem: torch.zeros_like(problem.analysis),
    "scaled": lambda problem: problem.analysis / problem.operator.lipschitz(),
    "thresholded": lambda problem: problem.shrink(problem.analysis, 1.0),  # the released code's
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
    """How a run ended, in words."""

    MET = "the tolerance was met"
    UNMET = "all steps were taken and the tolerance was not met"
    NONE = "all steps were taken; no tolerance was asked for"


@dataclass(frozen=True)
class Solution:
    """What a solver found, and how far that is from optimal.

    Args:
        code: (..., M, C).
        steps: how many were taken.
        violation: of optimality, (..., C); see `SparseCoding.violation`.
        status: how the run ended.
    """

    code: Tensor
    steps: int
    violation: Tensor
    status: Status


class Solver(nn.Module, ABC):
    """Solves a `SparseCoding` problem; differentiating through it differentiates every step.

    A solver is written as the endless sequence of its codes, in `iterates`; how many are taken is decided here, once.

    Args:
        steps: how many steps to take, at most.
        start: the code to start from, a key of `STARTS`.
        tolerance: stop as soon as no code violates optimality by more than this. It reads the code at every step, so
            a layer with a tolerance does not compile to one graph.
    """

    steps = setting("steps", whole)
    start = setting("start", partial(check_name, names=STARTS))
    tolerance = setting("tolerance", check_tolerance)

    def __init__(self, steps: int = 3, start: str = "analysis", tolerance: float | None = None):
        super().__init__()
        self.steps, self.start, self.tolerance = steps, start, tolerance

    @abstractmethod
    def iterates(self, problem: SparseCoding) -> Iterator[Tensor]:
        """Codes (..., M, C) without end, the start first."""

    def trajectory(self, problem: SparseCoding) -> Iterator[Tensor]:
        """The codes of a run, the start first: at most steps + 1 of them."""
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
        """What `solve` finds, without its gradient, and how the run went."""
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
    """Solvers that move down the gradient by a step that never leads up, and shrink.

    Args:
        step: how long the steps are; `Spectral()` when None.
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

    When `steps` is raised after construction, the last pair serves the steps added.

    Args:
        step: the rule where they begin.
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
    """Shrinkage that steps by the curvature it meets, not by the largest there is (Wright, Nowak, Figueiredo 2009).

    Each signal steps by the inverse of the curvature along its last move, then goes along the new move as far as the
    objective falls, at most the whole of it. From P^T x / L, where the strongest direction is settled already, three
    steps come about as near to the optimum as ten of ISTA: docs/solvers.md. One P^T P a step, and two to begin.
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
            bent = problem.operator.gram(move)
            curvature = _dot(move, bent)
            cost = problem.penalty.rise(code, move).unsqueeze(-2)
            share = _ratio(-_dot(gradient, move) - cost, curvature).clamp(0, 1)
            code, gradient = code + share * move, gradient + share * bent
            # Along a move that the dictionary does not see there is no curvature: bounded, so that it stays a number.
            step = torch.minimum(_ratio(_dot(move, move), curvature), 1000 * steepest)


class Around(Solver):
    """A solver around another one, which takes the steps: its settings are read and set through this one.

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
