"""The recurrent equations: where they rest, what never rises along them, and that self-attention is one step."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from laws.members import OPERATORS, explicit, random, signal
from torchvars.sparse import Dense, NeuralDynamics, SparseCoding

STRENGTH = 0.5


def test_signal_neurons_rest_at_reconstruction_plus_input():
    """z = P v + x: the residual connection of a block."""
    problem = SparseCoding(OPERATORS["dense"](), signal(), STRENGTH)
    z, u = next(itertools.islice(NeuralDynamics().states(problem), 20_000, None))
    v = NeuralDynamics().fire(problem, u)
    torch.testing.assert_close(z, problem.operator.synthesize(v) + problem.signal, rtol=0, atol=1e-8)


@pytest.mark.parametrize("start", ["analysis", "zero"])
@pytest.mark.parametrize("name", OPERATORS)
def test_energy_never_rises_and_ends_at_the_objective(name, start):
    problem = explicit(SparseCoding(OPERATORS[name](), signal(), STRENGTH))  # its steps are those on the operator
    dynamics = NeuralDynamics(start=start)
    states = list(itertools.islice(dynamics.states(problem), 4000))
    energies = [dynamics.energy(problem, z, u) for z, u in states]
    for before, after in itertools.pairwise(energies):
        assert (after <= before + 1e-12).all()
    _, u = states[-1]
    objective = problem.objective(dynamics.fire(problem, u)) - problem.signal.square().sum(-2)
    torch.testing.assert_close(energies[-1], objective, rtol=0, atol=1e-3)


@given(alpha=st.floats(0.8, 2), gamma=st.floats(1.6, 4), seed=st.integers(0, 100))
def test_any_equal_beta_and_gamma_solve_a_rescaled_problem(alpha, gamma, seed):
    """With beta = gamma and c = alpha gamma - 1: the signal x / c and the strength alpha beta threshold / c."""
    operator, x = Dense(random(20, 6, seed=seed) / 20**0.5), random(20, 2, seed=seed + 1)
    c = alpha * gamma - 1
    rescaled = SparseCoding(operator, x / c, alpha * gamma * (STRENGTH / 2) / c)
    dynamics = NeuralDynamics(steps=20_000, alpha=alpha, beta=gamma, gamma=gamma)
    codes = dynamics.trajectory(SparseCoding(operator, x, STRENGTH))
    assert any(rescaled.violation(code).max() < 1e-6 for code in codes)


def test_linear_self_attention_is_one_step_without_inhibition_and_sparsity():
    """dz/dt = -z + P P^T z + x from z = x, one Euler step of size one: z = P P^T x + x."""
    operator, x = OPERATORS["dense"](), signal()
    problem = SparseCoding(operator, x, strength=0.0)
    dynamics = NeuralDynamics(steps=1, beta=1.0, gamma=0.0, time_step=1.0)
    _, (z, _) = itertools.islice(dynamics.states(problem), 2)
    attention = (operator.atoms @ operator.atoms.mT) @ x
    torch.testing.assert_close(z, attention + x, rtol=0, atol=1e-12)
    torch.testing.assert_close(operator.synthesize(dynamics.solve(problem)), attention, rtol=0, atol=1e-12)


@pytest.mark.parametrize("option", [{"alpha": 1.5}, {"beta": 3.0}, {"gamma": 3.0}, {"time_step": 0.01}])
def test_every_option_changes_the_course(option):
    problem = SparseCoding(OPERATORS["dense"](), signal(), STRENGTH)
    plain, changed = NeuralDynamics(steps=5).solve(problem), NeuralDynamics(steps=5, **option).solve(problem)
    assert (plain - changed).abs().max() > 1e-3
