"""A strength that adapts to the noise in a picture, for trained models."""

import copy
import math
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

from ..attention import Reconstruction, inspect
from ..data import Shown, limited, open_source
from ..scoring import Memory
from ..sparse import Solution, Solver, SparseCoding
from ..sparse.solvers import SolverWrapper
from .subjects import Subject


class AdaptiveStrength(SolverWrapper):
    """A solver that solves twice: the residual of the first code measures the noise, and sets the strength.

        rest = |x - P u|^2 / |x|^2 for each picture and head
        strength' = strength (rest / usual)^power, within a factor of `most`

    If `rest` is as usual, the strength does not change. The first run takes `probe_steps` steps, the number with which
    `usual` was measured, whatever is set later. Steps, start and tolerance of this object are those of the second run,
    which begins at its own start; the trajectory and the solution are also those of the second run.

    Args:
        solver: the solver of both runs.
        usual: the rest of clean pictures in this layer: see `calibrate`.
        power: how strongly the strength adapts; 0 for a constant strength.
        most: largest factor of the strength, and of its inverse.
    """

    probe: Solver

    def __init__(self, solver: Solver, usual: float, power: float = 1.0, most: float = 4.0):
        super().__init__(solver)
        vars(self)["probe"] = copy.copy(solver)  # not a submodule: it shares the parameters of the solver
        self.usual, self.power, self.most = usual, power, most

    @property
    def probe_steps(self) -> int:
        """The number of steps of the first run."""
        return self.probe.steps

    def trajectory(self, problem: SparseCoding) -> Iterator[Tensor]:
        return self.solver.trajectory(self.adapted(problem))

    def solve(self, problem: SparseCoding) -> Tensor:
        return self.solver.solve(self.adapted(problem))

    def solution(self, problem: SparseCoding) -> Solution:
        return self.solver.solution(self.adapted(problem))

    def adapted(self, problem: SparseCoding) -> SparseCoding:
        """The same problem with the adapted strength."""
        rest = unexplained(problem, self.probe.solve(problem))[..., None, None]
        factor = (rest / self.usual).clamp_min(1e-12).pow(self.power).clamp(1 / self.most, self.most)
        return SparseCoding(problem.operator, problem.signal, problem.strength * factor, problem.threshold)

    def extra_repr(self) -> str:
        return f"probe_steps={self.probe_steps}, usual={self.usual:.3g}, power={self.power}, most={self.most}"


def unexplained(problem: SparseCoding, code: Tensor) -> Tensor:
    """The share of the squared norm of a signal (..., N, C) that a code does not explain: (...)."""
    rest = problem.signal - problem.operator.synthesize(code)
    return rest.square().sum((-2, -1)) / problem.signal.square().sum((-2, -1)).clamp_min(1e-12)


@torch.no_grad()
def calibrate(classifier: nn.Module, batches: Iterable[Tensor]) -> dict[str, float]:
    """The usual rest of each VARS layer: the geometric mean over clean pictures (B, 3, H, W) and heads."""
    rests: dict[str, list[Tensor]] = {}
    for pixels in batches:
        with inspect(classifier) as layers:
            classifier(pixels)
        for name, layer in layers.items():
            rests.setdefault(name, []).append(unexplained(layer.problem, layer.code).clamp_min(1e-12))
    if not rests:
        raise ValueError("no VARS layer ran: there is no strength to adapt")
    return {name: float(torch.cat(found).double().log().mean().exp()) for name, found in rests.items()}


def usual_rest(subject: Subject, data: str, count: int = 64) -> dict[str, float]:
    """The usual rest of each VARS layer on clean pictures of a data set."""
    source = limited(open_source(data, "val"), count)
    (batch,) = Memory().batches(source, Shown(subject.size), [range(len(source))])
    return calibrate(subject.classifier, [batch.pixels.float() / 255])


def adapt(classifier: nn.Module, usual: dict[str, float], power: float = 1.0) -> None:
    """Makes the strength of every VARS layer adaptive, in place."""
    if not math.isfinite(power):
        raise ValueError(f"the power by which a strength adapts must be a finite number, got {power}")
    for name, layer in classifier.named_modules():
        if isinstance(layer, Reconstruction):
            layer.solver = AdaptiveStrength(layer.solver, usual[name], power)
