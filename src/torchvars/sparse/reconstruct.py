"""P u for the code u of a solver, by the fastest available implementation."""

from typing import TypeGuard

import torch
from torch import Tensor

from . import native
from .forms import operators_allowed
from .operators import Dense, Operator, Partition, SoftPartition, filters_beside_atoms
from .penalty import L1
from .problem import SparseCoding
from .solvers import ISTA, Solver
from .steps import RowSum, Spectral


def reconstruct(problem: SparseCoding, solver: Solver, reader: Operator | None = None) -> Tensor:
    """P u for the code u of the solver, or R u for a reader R: (..., N, C). Uses a kernel if there is one."""
    if operators_allowed() and _has_kernel(solver, problem):
        fast = _with_atoms if _is_dense(problem.operator) else _with_filters
        output = fast(problem, solver, reader)
        if output is not None:
            return output
    return (reader or problem.operator).synthesize(solver.solve(problem))


def _has_kernel(solver: Solver, problem: SparseCoding) -> TypeGuard[ISTA]:
    """Whether the kernels implement the solver: ISTA with the soft threshold and a fixed number of steps."""
    return (
        type(solver) is ISTA
        and type(solver.step) in (Spectral, RowSum)
        and solver.tolerance is None
        and type(problem.penalty) is L1
        and not isinstance(problem.strength, Tensor)
        and problem.signal.ndim == 4
        and problem.signal.numel() > 0
    )


def _is_dense(operator: Operator | None) -> TypeGuard[Dense]:
    return type(operator) in (Dense, Partition, SoftPartition)


def _with_filters(problem: SparseCoding, solver: ISTA, reader: Operator | None) -> Tensor | None:
    """The reconstruction by a convolution, alone or with a dense dictionary; None if the operator is neither."""
    found = filters_beside_atoms(problem.operator)
    if reader is not None or type(solver.step) is not Spectral or found is None:
        return None
    (static, atoms), strength = found, problem.strength
    assert not isinstance(strength, Tensor)
    if not native.takes(problem.signal, static.filters, *([] if atoms is None else [atoms])):
        return None
    bound = problem.operator.lipschitz()
    return native.reconstruct(static, atoms, bound, problem.signal, strength, solver.start, solver.steps)


def _with_atoms(problem: SparseCoding, solver: ISTA, reader: Operator | None) -> Tensor | None:
    """The reconstruction by a dense dictionary, with or without a reader; None if no kernel computes it."""
    operator, signal, strength = problem.operator, problem.signal, problem.strength
    if (output := _with_shares(problem, solver, reader)) is not None:
        return output
    assert isinstance(operator, Dense)
    assert not isinstance(strength, Tensor)
    read = None if reader is None else reader.atoms if _is_dense(reader) else False
    if read is False or operator.size > 2 * operator.atoms.shape[-2] or operator.size == 0:
        return None
    if not native.takes(signal, operator.atoms, *([] if read is None else [read])):
        return None
    if torch.broadcast_shapes(operator.atoms.shape[:-2], signal.shape[:2]) != signal.shape[:2]:
        return None  # one signal for several dictionaries
    if type(solver.step) is RowSum:
        if solver.start == "scaled":
            return None
        step_size = "totals" if isinstance(operator, Partition) else 1 / operator.row_sums()
    elif operator.nonnegative and operator.size <= operator.atoms.shape[-2]:
        step_size = "bound"
    else:
        step_size = 1 / operator.lipschitz()
    return native.reconstruct_dense(operator.atoms, step_size, read, signal, strength, solver.start, solver.steps)


def _with_shares(problem: SparseCoding, solver: ISTA, reader: Operator | None) -> Tensor | None:
    """The reconstruction by soft partitions, whose atoms are not stored; None if no kernel computes it."""
    parts = [problem.operator] if reader is None else [problem.operator, reader]
    if type(solver.step) is not RowSum or solver.start == "scaled":
        return None
    shares = [part for part in parts if type(part) is SoftPartition and part.keys.ndim == 4 and part.size > 0]
    if len(shares) < len(parts):
        return None
    tensors, strength = [(part.keys, part.prototypes) for part in shares], problem.strength
    assert not isinstance(strength, Tensor)
    if not native.takes(problem.signal, *(tensor for pair in tensors for tensor in pair)):
        return None
    if shares[0].size > 2 * shares[0].keys.shape[-2]:
        return None
    read = None if reader is None else tensors[1]
    return native.reconstruct_shares(tensors[0], read, problem.signal, strength, solver.start, solver.steps)
