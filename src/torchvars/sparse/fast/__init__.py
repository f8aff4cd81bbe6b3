"""The same answers as the plain solver, faster: forward and backward written together, in place where they can be."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

from ..operators import Convolution, Dense, Joint, Operator
from ..problem import SparseCoding
from ..solvers import ISTA, Solver
from ..threshold import soft
from . import convolution, dense
from .units import STARTS, Units

_plain = ContextVar("plain", default=False)


@contextmanager
def plain() -> Iterator[None]:
    """A context in which everything runs by its definition, which may be differentiated more than once."""
    token = _plain.set(True)
    try:
        yield
    finally:
        _plain.reset(token)


def enabled() -> bool:
    """Whether the fast forms are to be used here: not in `plain`, nor where a compiler, an exporter, `torch.jit.trace`
    or a transform of `torch.func` looks into them."""
    traced = torch.compiler.is_compiling() or torch.jit.is_tracing()
    return not (_plain.get() or traced or torch._C._are_functorch_transforms_active())


def reconstruct(problem: SparseCoding, solver: Solver, reader: Operator | None = None) -> Tensor:
    """P u for the code u of the solver, or R u of a reader R: (..., N, C). Fast where there is a fast form."""
    operator, signal = problem.operator, problem.signal
    if reader is None and enabled() and _has_fast_form(problem, solver):
        units = Units(problem.strength, solver.start, solver.steps)
        match operator:
            case Dense() if operator.gram_matrix is not None:
                return dense.reconstruct(operator, signal, units)
            case Convolution() if signal.ndim == 4:
                return convolution.reconstruct(operator, None, operator.lipschitz(), signal, units)
            case Joint(first=Convolution() as static, second=Dense() as dynamic) if signal.ndim == 4:
                return convolution.reconstruct(static, dynamic, operator.lipschitz(), signal, units)
    return (reader or operator).synthesize(solver.solve(problem))


def _has_fast_form(problem: SparseCoding, solver: Solver) -> bool:
    """Whether it is ISTA as the paper has it, with operators that are what they say and not a variation of it."""
    operators = (problem.operator, *vars(problem.operator).values())
    return (
        type(solver) is ISTA
        and solver.tolerance is None
        and solver.step_size == "spectral"
        and solver.start in STARTS
        and problem.threshold is soft
        and not isinstance(problem.strength, Tensor)
        and problem.signal.numel() > 0
        and all(type(part) in (Dense, Convolution, Joint) for part in operators if isinstance(part, Operator))
        and all(part.filters.ndim <= 5 for part in operators if isinstance(part, Convolution))
    )
