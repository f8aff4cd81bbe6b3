"""The gradient at the optimum, by the implicit function theorem."""

import torch
from torch import Tensor

from . import native
from .checks import positive_integer, setting
from .forms import operators_allowed
from .once import once
from .operators import Operator, filters_beside_atoms
from .penalty import Shrinkage
from .precision import precisely
from .problem import SparseCoding
from .solvers import Solver, SolverWrapper


class Equilibrium(SolverWrapper):
    """The result of another solver, differentiated at the optimum instead of through the steps.

    On the support S of the optimal code, P_S^T (P_S u_S - x) + strength sign(u_S) = 0. Differentiating this gives

        du_S = -(P_S^T P_S)^-1 (d[P^T P] u - d[P^T x] + sign(u) d[strength])_S    and du = 0 elsewhere,

    so no step is stored, and memory does not grow with the number of steps. This is the gradient of the optimum: give
    the solver enough steps (or a tolerance) to come close to it. Parameters of the solver itself get no gradient.

    Args:
        solver: finds the optimum; its steps, start and tolerance are read and set through this object.
        iterations: largest number of conjugate gradient iterations in the backward pass.
    """

    iterations = setting("iterations", positive_integer)

    def __init__(self, solver: Solver, iterations: int = 100):
        super().__init__(solver)
        self.iterations = iterations

    def solve(self, problem: SparseCoding) -> Tensor:
        if isinstance(problem.penalty, Shrinkage):
            raise problem.penalty.error()
        with torch.no_grad():
            code = self.solver.solve(problem)
        if torch.jit.is_tracing():  # a trace has no custom gradients
            return code
        # At the optimum it is zero on the support. It connects the graph of the operator, the signal and the strength.
        condition = problem.gradient(code) + problem.penalty.slope(code)
        return _AtOptimum.apply(condition, code, problem.operator, self.iterations)

    def extra_repr(self) -> str:
        return f"iterations={self.iterations}"


class _AtOptimum(torch.autograd.Function):
    """Forward: the code. Backward: -(P_S^T P_S)^-1 applied to the gradient of the code on the support."""

    @staticmethod
    def forward(ctx, condition: Tensor, code: Tensor, operator: Operator, iterations: int) -> Tensor:
        ctx.save_for_backward(code != 0, condition)
        ctx.operator, ctx.iterations = operator, iterations
        return code.clone()

    @staticmethod
    @once("use the solver itself, without Equilibrium, inside torchvars.sparse.plain()")
    @precisely
    def backward(ctx, gradient: Tensor):
        support, _ = ctx.saved_tensors
        return -solve_on_support(ctx.operator, support, gradient, ctx.iterations), None, None, None


def solve_on_support(operator: Operator, support: Tensor, target: Tensor, iterations: int) -> Tensor:
    """w with (P^T P w)_S = target_S and w = 0 outside the support S, by conjugate gradients: (..., M, C).

    Every channel of every signal is a separate system. Its iterations end when it is solved to floating-point
    precision, or at a direction in the null space of the atoms on the support, which exists if they are linearly
    dependent.
    """
    if operators_allowed() and target.ndim == 4 and (found := filters_beside_atoms(operator)):
        static, atoms = found
        if native.takes(target, static.filters, *([] if atoms is None else [atoms])):
            return native.solve_on_support(static, atoms, operator.lipschitz(), support, target, iterations)
    dtype_floor = torch.finfo(target.dtype)
    least_curvature = 10 * dtype_floor.eps * operator.lipschitz()
    residual = target * support
    solution = torch.zeros_like(residual)
    direction = residual
    size = residual.square().sum(-2, keepdim=True)
    tolerance = size * dtype_floor.eps**2
    active = size > tolerance
    for _ in range(iterations):
        if not torch.compiler.is_compiling() and not bool(active.any()):
            break
        product = operator.gram(direction) * support
        curvature = (direction * product).sum(-2, keepdim=True)
        active = active & (curvature > least_curvature * direction.square().sum(-2, keepdim=True))
        step = torch.where(active, size / curvature.clamp_min(dtype_floor.tiny), 0.0)
        solution = solution + step * direction
        residual = residual - step * product
        new_size = residual.square().sum(-2, keepdim=True)
        direction = residual + new_size / size.clamp_min(dtype_floor.tiny) * direction
        size = new_size
        active = active & (size > tolerance)
    return solution
