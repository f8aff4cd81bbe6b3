"""The gradient at the optimum, by the implicit function theorem."""

import torch
from torch import Tensor

from . import native
from .checks import setting, whole
from .forms import operators_allowed
from .once import once
from .operators import Operator, filters_beside_atoms
from .penalty import Shrinkage
from .precision import precisely
from .problem import SparseCoding
from .solvers import Around, Solver


class Equilibrium(Around):
    """The same answer as the solver it is given, differentiated at the optimum instead of through the steps.

    On the support S of the optimal code, P_S^T (P_S u_S - x) + strength sign(u_S) = 0. Differentiating this gives

        du_S = -(P_S^T P_S)^-1 (d[P^T P] u - d[P^T x] + sign(u) d[strength])_S    and du = 0 elsewhere,

    so that no step needs to be remembered: memory does not grow with their number. It is the gradient of the optimum:
    give the solver steps (or a tolerance) enough to come near it. Parameters of the solver itself get no gradient.

    Args:
        solver: finds the optimum; its steps, start and tolerance are read and set through this object.
        iterations: of conjugate gradients on the support, at most, in the backward pass.
    """

    iterations = setting("iterations", whole)

    def __init__(self, solver: Solver, iterations: int = 100):
        super().__init__(solver)
        self.iterations = iterations

    def solve(self, problem: SparseCoding) -> Tensor:
        if isinstance(problem.penalty, Shrinkage):
            raise problem.penalty.refusal()
        with torch.no_grad():
            code = self.solver.solve(problem)
        if torch.jit.is_tracing():  # a trace knows the gradients of its own operations only
            return code
        # Zero on the support, at the optimum; here it carries the graph of the operator, the signal and the strength.
        condition = problem.gradient(code) + problem.penalty.slope(code)
        return _AtOptimum.apply(condition, code, problem.operator, self.iterations)

    def extra_repr(self) -> str:
        return f"iterations={self.iterations}"


class _AtOptimum(torch.autograd.Function):
    """Forward: the code. Backward: -(P_S^T P_S)^-1 on what the code's gradient says of the support."""

    @staticmethod
    def forward(ctx, condition: Tensor, code: Tensor, operator: Operator, iterations: int) -> Tensor:
        ctx.save_for_backward(code != 0, condition)
        ctx.operator, ctx.iterations = operator, iterations
        return code.clone()

    @staticmethod
    @once("take the solver itself, without Equilibrium, inside torchvars.sparse.plain()")
    @precisely
    def backward(ctx, gradient: Tensor):
        support, _ = ctx.saved_tensors
        return -solve_on_support(ctx.operator, support, gradient, ctx.iterations), None, None, None


def solve_on_support(operator: Operator, support: Tensor, target: Tensor, iterations: int) -> Tensor:
    """w with (P^T P w)_S = target_S and w = 0 off the support S, by conjugate gradients: (..., M, C).

    Every channel of every signal is a system of its own. It stops when it is solved to the precision of its numbers, or
    when it meets a direction that the atoms of the support do not see, as there are if they depend on each other.
    """
    if operators_allowed() and target.ndim == 4 and (found := filters_beside_atoms(operator)):
        static, atoms = found
        if native.takes(target, static.filters, *([] if atoms is None else [atoms])):
            return native.solve_on_support(static, atoms, operator.lipschitz(), support, target, iterations)
    dtype_floor = torch.finfo(target.dtype)
    unseen = 10 * dtype_floor.eps * operator.lipschitz()
    residual = target * support
    solution = torch.zeros_like(residual)
    direction = residual
    size = residual.square().sum(-2, keepdim=True)
    solved = size * dtype_floor.eps**2
    going = size > solved
    for _ in range(iterations):
        if not torch.compiler.is_compiling() and not bool(going.any()):
            break
        bent = operator.gram(direction) * support
        curvature = (direction * bent).sum(-2, keepdim=True)
        going = going & (curvature > unseen * direction.square().sum(-2, keepdim=True))
        step = torch.where(going, size / curvature.clamp_min(dtype_floor.tiny), 0.0)
        solution = solution + step * direction
        residual = residual - step * bent
        new_size = residual.square().sum(-2, keepdim=True)
        direction = residual + new_size / size.clamp_min(dtype_floor.tiny) * direction
        size = new_size
        going = going & (size > solved)
    return solution
