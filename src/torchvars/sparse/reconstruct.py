"""P u for the code u of a solver, by the fastest form there is."""

from torch import Tensor

from . import dense, native
from .forms import handwritten_allowed, operators_allowed
from .operators import Convolution, Dense, Joint, Operator
from .penalty import L1
from .problem import SparseCoding
from .solvers import ISTA, Solver


def reconstruct(problem: SparseCoding, solver: Solver, reader: Operator | None = None) -> Tensor:
    """P u for the code u of the solver, or R u of a reader R: (..., N, C). Fast where there is a fast form."""
    operator = problem.operator
    if reader is None and operators_allowed() and _is_papers(problem, solver):
        run = problem.strength, solver.start, solver.steps
        if type(operator) is Convolution and native.takes(operator, problem.signal):
            return native.reconstruct(operator, None, operator.lipschitz(), problem.signal, *run)
        if _is_union(operator) and native.takes(operator.first, problem.signal):
            return native.reconstruct(operator.first, operator.second.atoms, operator.lipschitz(), problem.signal, *run)
        if type(operator) is Dense and handwritten_allowed() and dense.takes(operator, solver.start):
            return dense.reconstruct(operator, problem.signal, *run)
    return (reader or operator).synthesize(solver.solve(problem))


def _is_papers(problem: SparseCoding, solver: Solver) -> bool:
    """Whether it is ISTA as the paper has it."""
    return (
        type(solver) is ISTA
        and solver.tolerance is None
        and solver.step_size == "spectral"
        and type(problem.penalty) is L1
        and not isinstance(problem.strength, Tensor)
        and problem.signal.numel() > 0
    )


def _is_union(operator: Operator) -> bool:
    """Whether it is a convolution beside a dense dictionary, and neither is a variation of it."""
    return type(operator) is Joint and type(operator.first) is Convolution and type(operator.second) is Dense
