"""Each way of differentiating against another, and against finite differences."""

import pytest
import torch

from laws.members import CHANNELS, GRID, POSITIONS, random
from torchvars.attention import create
from torchvars.sparse import (
    FISTA,
    ISTA,
    L1,
    SOLVERS,
    Convolution,
    Dense,
    Equilibrium,
    Joint,
    SpaRSA,
    SparseCoding,
    gelu,
)
from torchvars.sparse.equilibrium import solve_on_support

ATOMS, FILTERS = (POSITIONS, 10), (CHANNELS, 1, 3, 2)


def atoms():
    return random(*ATOMS) / POSITIONS**0.5


def filters():
    return random(*FILTERS, seed=1) / 6**0.5


DICTIONARIES = {
    "dense": ((atoms,), Dense),
    "convolution": ((filters,), lambda bank: Convolution(bank, GRID)),
    "joint": ((filters, atoms), lambda bank, matrix: Joint(Convolution(bank, GRID), Dense(matrix))),
}


def inputs(dictionary):
    """Parameters of the dictionary, the signal and the strength, all with gradients."""
    makers, build = DICTIONARIES[dictionary]
    parameters = [make() for make in makers]
    x, strength = random(POSITIONS, CHANNELS, seed=2), torch.tensor(0.5, dtype=torch.float64)
    return [tensor.requires_grad_() for tensor in (*parameters, x, strength)], build


def reconstruct(solver, build):
    def run(*tensors):
        *parameters, x, strength = tensors
        operator = build(*parameters)
        return operator.synthesize(solver.solve(SparseCoding(operator, x, strength)))

    return run


def gradients(solver, dictionary):
    tensors, build = inputs(dictionary)
    output = reconstruct(solver, build)(*tensors)
    return torch.autograd.grad((output * random(*output.shape, seed=5)).sum(), tensors)


@pytest.mark.parametrize("dictionary", DICTIONARIES)
def test_implicit_and_unrolled_gradients_agree_at_the_equilibrium(dictionary):
    unrolled = gradients(ISTA(3000), dictionary)
    implicit = gradients(Equilibrium(SpaRSA(20_000, tolerance=1e-12)), dictionary)
    for one, other in zip(unrolled, implicit, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-7)


@pytest.mark.parametrize("dictionary", DICTIONARIES)
def test_implicit_gradient_against_finite_differences(dictionary):
    tensors, build = inputs(dictionary)
    solver = Equilibrium(SpaRSA(20_000, tolerance=1e-13))  # which comes there in the fewest steps
    assert torch.autograd.gradcheck(reconstruct(solver, build), tensors, eps=1e-5, atol=1e-5, rtol=1e-4, fast_mode=True)


class FixedStep(Dense):
    """A dictionary whose bound does not depend on its atoms, as the gradient assumes."""

    def find_bound(self):
        return torch.full((1, 1), 4.0, dtype=torch.float64)


@pytest.mark.parametrize("name", SOLVERS)
def test_unrolled_gradient_of_a_few_steps_against_finite_differences(name):
    """In the signal, the atoms, the strength and the solver's own parameters."""
    solver = SOLVERS[name](steps=3).double()
    parameters = list(solver.parameters())
    tensors = [tensor.requires_grad_() for tensor in (atoms(), random(POSITIONS, 2), torch.tensor(0.3).double())]

    def run(matrix, x, strength, *_):
        return solver.solve(SparseCoding(FixedStep(matrix), x, strength))

    assert torch.autograd.gradcheck(run, (*tensors, *parameters), eps=1e-7, atol=1e-5)


def test_gradient_is_zero_off_the_support():
    """A signal that no atom explains well enough moves nothing."""
    x = (0.01 * random(POSITIONS, 2)).requires_grad_()
    problem = SparseCoding(Dense(atoms()), x, 0.5)
    code = Equilibrium(ISTA(100)).solve(problem)
    assert torch.count_nonzero(code) == 0
    (gradient,) = torch.autograd.grad(code.sum(), x)
    assert torch.count_nonzero(gradient) == 0


def saved_bytes(solver):
    """What autograd keeps for the backward pass."""
    kept = {}

    def pack(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    tensors, build = inputs("dense")
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = reconstruct(solver, build)(*tensors)
    output.sum().backward()
    return sum(kept.values())


@pytest.mark.parametrize("solver", [ISTA, FISTA, SpaRSA])
def test_memory_of_the_implicit_gradient_does_not_grow_with_steps(solver):
    assert saved_bytes(Equilibrium(solver(3))) == saved_bytes(Equilibrium(solver(60)))
    assert saved_bytes(solver(60)) > 5 * saved_bytes(solver(3))


def test_equilibrium_answers_as_its_solver_and_shares_its_settings():
    tensors, build = inputs("dense")
    plain, implicit = ISTA(7), Equilibrium(ISTA(7))
    torch.testing.assert_close(reconstruct(implicit, build)(*tensors), reconstruct(plain, build)(*tensors))
    implicit.steps, implicit.start, implicit.tolerance = 9, "zero", 1e-3
    assert (implicit.solver.steps, implicit.solver.start, implicit.solver.tolerance) == (9, "zero", 1e-3)
    assert (implicit.steps, implicit.start, implicit.tolerance) == (9, "zero", 1e-3)


def test_linear_system_on_the_support_against_a_direct_solution():
    operator = Dense(random(30, 8))
    support = torch.rand(8, 4) > 0.4
    support[:, 0] = False  # nothing active: nothing to solve
    target = random(8, 4, seed=3)
    solution = solve_on_support(operator, support, target, iterations=50)
    assert torch.count_nonzero(solution[~support]) == 0
    for channel in range(4):
        active = support[:, channel]
        direct = torch.linalg.solve(operator.gram_matrix[active][:, active], target[active, channel])
        torch.testing.assert_close(solution[active, channel], direct, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("solver", [Equilibrium(ISTA(3)), SpaRSA(3)], ids=lambda solver: type(solver).__name__)
def test_a_threshold_without_a_penalty_has_no_optimum(solver):
    """As that of the released code, where the gradient of an optimum would be wrong without a word."""
    problem = SparseCoding(Dense(random(6, 4)), random(6, CHANNELS), 0.3, gelu)
    with pytest.raises(ValueError, match="the threshold gelu belongs to no penalty, so there is no objective"):
        solver.solve(problem)
    with pytest.raises(ValueError, match="belongs to no penalty"):
        problem.objective(problem.analysis)
    layer = create("vars_d_released", 8, heads=2, solver=solver)
    with pytest.raises(ValueError, match="belongs to no penalty"):
        layer(torch.randn(1, 9, 8))
    assert create("vars_d_released", 8, heads=2, solver=FISTA(3))(torch.randn(1, 9, 8)).isfinite().all()


def test_the_slope_of_the_penalty_is_that_of_its_value():
    penalty, code = L1(torch.tensor([[0.3], [0.5]], dtype=torch.float64)), random(2, CHANNELS).requires_grad_()
    (slope,) = torch.autograd.grad(penalty.value(code).sum(), code)
    torch.testing.assert_close(penalty.slope(code), slope)
    move = random(2, CHANNELS, seed=1)
    torch.testing.assert_close(penalty.rise(code, move), penalty.value(code + move) - penalty.value(code))
