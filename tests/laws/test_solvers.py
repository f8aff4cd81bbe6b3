"""What is true of every solver, on every operator."""

import itertools
import json
import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import Lasso

from laws.members import OPERATORS, columns, explicit, random, signal
from torchvars.sparse import (
    FISTA,
    ISTA,
    LCA,
    SOLVERS,
    Dense,
    Equilibrium,
    Learned,
    LearnedISTA,
    NeuralDynamics,
    RowSum,
    SpaRSA,
    SparseCoding,
    Spectral,
    Status,
    settings_of,
    solver_from,
    solver_names,
)
from torchvars.sparse.solvers import STARTS

STRENGTH = 0.5
MOST_STEPS = 20_000


def lasso(matrix: np.ndarray, x: np.ndarray, strength: float) -> np.ndarray:
    """scikit-learn's answer, whose objective is ours divided by the number of positions."""
    model = Lasso(alpha=strength / len(x), fit_intercept=False, tol=1e-14, max_iter=10**6)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns that the tolerance cannot be reached, having come as near as it can
        return model.fit(matrix, x).coef_


@pytest.fixture(scope="module", params=OPERATORS)
def problem(request):
    return SparseCoding(OPERATORS[request.param](), signal(), STRENGTH)


@pytest.fixture(scope="module")
def as_matrix(problem):
    """The same problem, whose steps are cheap: for what takes thousands of them."""
    return explicit(problem)


@pytest.fixture(scope="module")
def optimum(as_matrix):
    """The reconstruction P u and the objective at scikit-learn's optimum (the code itself need not be unique)."""
    matrix, x = as_matrix.operator.atoms, as_matrix.signal.squeeze(-1)
    code = [lasso(*pair, STRENGTH) for pair in zip(matrix.flatten(0, 1).numpy(), x.flatten(0, 1).numpy(), strict=True)]
    code = torch.from_numpy(np.stack(code)).view(*matrix.shape[:2], -1, 1)
    return as_matrix.operator.synthesize(code), as_matrix.objective(code)


@pytest.mark.parametrize("solver", [*SOLVERS.values(), lambda steps: ISTA(steps, step=RowSum())])
def test_steps_on_an_operator_are_those_on_its_matrix(problem, as_matrix, solver):
    """So that what holds of a solver in the long run on the matrices below holds on every operator."""
    for code, expected in zip(solver(20).trajectory(problem), solver(20).trajectory(as_matrix), strict=True):
        torch.testing.assert_close(columns(code), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", SOLVERS)
def test_an_equilibrium_is_where_its_solver_ends(problem, name):
    solver = SOLVERS[name](steps=10)
    torch.testing.assert_close(Equilibrium(solver).solve(problem), solver.solve(problem), rtol=0, atol=0)


@pytest.mark.parametrize("name", SOLVERS)
@torch.no_grad()  # of thousands of steps that learned_ista could be differentiated through
def test_every_solver_ends_at_the_optimum_of_scikit_learn(as_matrix, optimum, name):
    code = SOLVERS[name](steps=MOST_STEPS, tolerance=1e-6).solve(as_matrix)
    assert as_matrix.violation(code).max() < 1e-5
    reconstruction, objective = optimum
    torch.testing.assert_close(as_matrix.operator.synthesize(code), reconstruction, rtol=0, atol=1e-4)
    torch.testing.assert_close(as_matrix.objective(code), objective, rtol=0, atol=1e-7)


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("solver", [ISTA, SpaRSA])
def test_objective_never_rises(problem, solver, start):
    objectives = [problem.objective(code) for code in solver(steps=50, start=start).trajectory(problem)]
    for before, after in itertools.pairwise(objectives):
        assert (after <= before + 1e-12).all()


def test_objective_never_rises_with_a_step_size_for_each_atom(problem):
    objectives = [problem.objective(code) for code in ISTA(30, step=RowSum()).trajectory(problem)]
    for before, after in itertools.pairwise(objectives):
        assert (after <= before + 1e-12).all()


def test_the_optimum_does_not_depend_on_the_step_size(as_matrix, optimum):
    code = FISTA(MOST_STEPS, "zero", tolerance=1e-6, step=RowSum()).solve(as_matrix)
    reconstruction, objective = optimum
    torch.testing.assert_close(as_matrix.operator.synthesize(code), reconstruction, rtol=0, atol=1e-4)
    torch.testing.assert_close(as_matrix.objective(code), objective, rtol=0, atol=1e-7)


def test_one_step_on_a_partition_is_normalised_linear_attention():
    operator, x = OPERATORS["partition"](), signal()
    shares = operator.atoms.requires_grad_()
    code = ISTA(1, "zero", step=RowSum()).solve(SparseCoding(operator, x, 0.0))
    expected = shares.mT @ x / shares.sum(-2).unsqueeze(-1)
    torch.testing.assert_close(code, expected, rtol=1e-14, atol=0)
    weights = torch.randn_like(code)
    gradients = [torch.autograd.grad((each * weights).sum(), shares)[0] for each in (code, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", OPERATORS)
def test_fista_needs_fewer_steps_than_ista(name):
    # Little sparsity makes the problem as badly conditioned as its dictionary: this is what momentum is for.
    problem = explicit(SparseCoding(OPERATORS[name](), signal(), 0.1))
    steps = sum(1 for _ in FISTA(MOST_STEPS, "zero", tolerance=1e-3).trajectory(problem)) - 1
    assert problem.violation(ISTA(steps, "zero", tolerance=1e-3).solve(problem)).max() > 1e-3


def test_starts(problem):
    analysis = problem.operator.analyze(problem.signal)
    first = {start: next(ISTA(start=start).trajectory(problem)) for start in STARTS}
    torch.testing.assert_close(first["analysis"], analysis)
    torch.testing.assert_close(first["zero"], torch.zeros_like(analysis))
    torch.testing.assert_close(first["scaled"], analysis / problem.operator.lipschitz())
    torch.testing.assert_close(first["thresholded"], torch.sign(analysis) * (analysis.abs() - STRENGTH).clamp_min(0))


@pytest.mark.parametrize("name", SOLVERS)
def test_trajectory_begins_at_the_start_and_ends_at_the_solution(name):
    problem = SparseCoding(OPERATORS["dense"](), signal(), STRENGTH)
    solver = SOLVERS[name](steps=4)
    codes = list(solver.trajectory(problem))
    assert len(codes) == 5
    torch.testing.assert_close(codes[-1], solver.solve(problem), rtol=0, atol=0)
    for before, after in itertools.pairwise(codes):
        assert not torch.equal(before, after)


@pytest.mark.parametrize("name", SOLVERS)
def test_tolerance_stops_at_the_first_code_within_it(name):
    problem = SparseCoding(OPERATORS["dense"](), signal(), STRENGTH)
    codes = list(SOLVERS[name](steps=MOST_STEPS, tolerance=1e-3).trajectory(problem))
    assert len(codes) < MOST_STEPS
    assert problem.violation(codes[-1]).max() <= 1e-3
    assert all(problem.violation(code).max() > 1e-3 for code in codes[:-1])


@pytest.mark.parametrize("name", SOLVERS)
def test_nan_passes_through_and_does_not_hang(name):
    x = signal()
    x[0, 0, 0] = torch.nan
    problem = SparseCoding(OPERATORS["dense"](), x, STRENGTH)
    codes = list(SOLVERS[name](steps=10, tolerance=1e-3).trajectory(problem))
    assert len(codes) == 11
    assert codes[-1][0, :, 0].isnan().all()
    assert not codes[-1][1].isnan().any()


@pytest.mark.parametrize("name", SOLVERS)
def test_nothing_to_explain_gives_the_zero_code(name):
    for operator, x in ((OPERATORS["dense"](), torch.zeros_like(signal())), (Dense(torch.zeros(20, 4)), signal())):
        code = SOLVERS[name](steps=5).solve(SparseCoding(operator, x.to(operator.atoms.dtype), STRENGTH))
        torch.testing.assert_close(code, torch.zeros_like(code), rtol=0, atol=0)


@pytest.mark.parametrize("name", SOLVERS)
def test_twice_the_same_atom_is_no_obstacle(name):
    """A dictionary that does not see some moves at all."""
    atoms = random(20, 4).repeat(1, 3) / 20**0.5
    problem = SparseCoding(Dense(atoms), random(20, 2, seed=1), STRENGTH)
    code = SOLVERS[name](steps=3000, tolerance=1e-7).solve(problem)
    assert problem.violation(code).max() < 1e-6


@given(
    positions=st.integers(1, 12),
    atoms=st.integers(1, 16),
    channels=st.integers(1, 3),
    strength=st.floats(0.01, 3),
    scale=st.sampled_from([1e-3, 1.0, 1e3]),
    seed=st.integers(0, 10**6),
)
def test_violation_is_zero_exactly_at_the_optimum(positions, atoms, channels, strength, scale, seed):
    """Any shape, any scale of the signal: violation falls with the objective gap, and is large for a wrong code."""
    matrix = random(positions, atoms, seed=seed)
    x = scale * random(positions, channels, seed=seed + 1)
    problem = SparseCoding(Dense(matrix), x, strength * scale)
    best = np.stack([lasso(matrix.numpy(), x[:, c].numpy(), strength * scale) for c in range(channels)], axis=-1)
    best = torch.from_numpy(best)
    assert problem.violation(best).max() <= 1e-5 * scale * (1 + matrix.square().sum())
    wrong = best + scale
    assert (problem.objective(wrong) > problem.objective(best)).all()
    assert (problem.violation(wrong) > 0).all()


def test_problem_above_the_largest_correlation_is_answered_by_zero():
    operator, x = OPERATORS["dense"](), signal()
    strength = operator.analyze(x).abs().max().item()
    assert torch.count_nonzero(ISTA(200, tolerance=1e-9).solve(SparseCoding(operator, x, strength * 1.001))) == 0
    assert torch.count_nonzero(ISTA(200, tolerance=1e-9).solve(SparseCoding(operator, x, strength * 0.99))) > 0


def test_learned_ista_starts_as_ista_and_serves_more_steps_than_it_learned():
    problem = SparseCoding(OPERATORS["dense"](), signal(), STRENGTH)
    learned = LearnedISTA(steps=3).double()
    torch.testing.assert_close(learned.solve(problem), ISTA(3).solve(problem), rtol=0, atol=1e-14)
    learned.steps = 9
    torch.testing.assert_close(learned.solve(problem), ISTA(9).solve(problem), rtol=0, atol=1e-14)


def test_learned_ista_has_a_pair_for_each_step_and_the_last_serves_the_rest():
    operator, x = OPERATORS["dense"](), signal()
    problem, bound = SparseCoding(operator, x, STRENGTH), operator.lipschitz()
    learned = LearnedISTA(steps=3).double()
    with torch.no_grad():
        learned.step.size.copy_(torch.tensor([-1.0, 0.5, 2.0], dtype=torch.float64))
        learned.step.threshold.copy_(torch.tensor([0.7, -0.4, 0.2], dtype=torch.float64))
    learned.steps = 5
    code = operator.analyze(x)
    for step, threshold in ((-1.0, 0.7), (0.5, -0.4), (2.0, 0.2), (2.0, 0.2), (2.0, 0.2)):
        length = 2 / (1 + math.exp(-step)) / bound
        moved = code - length * operator.analyze(operator.synthesize(code) - x)
        code = moved.sign() * (moved.abs() - STRENGTH * math.exp(threshold) * length).clamp_min(0)
    torch.testing.assert_close(learned.solve(problem), code, rtol=0, atol=1e-12)


def test_learned_ista_learns_to_be_nearer_in_three_steps():
    problem = SparseCoding(OPERATORS["dense"](), signal(), STRENGTH)
    solver = LearnedISTA(steps=3).double()
    optimizer = torch.optim.Adam(solver.parameters(), lr=0.05)
    before = problem.objective(ISTA(3).solve(problem)).sum().item()
    for _ in range(60):
        optimizer.zero_grad()
        loss = problem.objective(solver.solve(problem)).sum()
        loss.backward()
        optimizer.step()
    best = problem.objective(ISTA(5000, tolerance=1e-9).solve(problem)).sum().item()
    assert loss.item() - best < 0.5 * (before - best)


def test_no_learned_step_can_diverge(problem):
    solver = LearnedISTA(steps=400).double()
    with torch.no_grad():
        solver.step.size.fill_(20)  # as long as they get
    start, *_, end = (problem.objective(code) for code in solver.trajectory(problem))
    assert (end <= start).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"steps": 0}, "steps must be a whole number of at least 1, got 0"),
        ({"steps": -3}, "steps must be a whole number of at least 1, got -3"),
        ({"steps": 2.5}, "steps must be a whole number of at least 1, got 2.5"),
        ({"tolerance": 0.0}, "tolerance must be None or a positive bound on the violation, got 0.0"),
        ({"tolerance": float("nan")}, "tolerance must be None or a positive bound on the violation, got nan"),
        ({"steps": float("nan")}, "steps must be a whole number of at least 1, got nan"),
        ({"steps": float("inf")}, "steps must be a whole number of at least 1, got inf"),
        ({"steps": "many"}, "steps must be a whole number of at least 1, got many"),
        ({"tolerance": float("inf")}, "tolerance must be None or a positive bound on the violation, got inf"),
        ({"tolerance": "small"}, "tolerance must be None or a positive bound on the violation, got small"),
        ({"start": ["zero"]}, r"start must be one of .*, got \['zero'\]"),
        ({"start": "random"}, "start must be one of analysis, zero, scaled, thresholded, got 'random'"),
    ],
)
@pytest.mark.parametrize("name", SOLVERS)
def test_bad_settings_are_refused_when_built_and_when_changed(name, arguments, message):
    with pytest.raises(ValueError, match=message):
        SOLVERS[name](**arguments)
    for solver in (SOLVERS[name](), Equilibrium(SOLVERS[name]())):
        ((attribute, value),) = arguments.items()
        with pytest.raises(ValueError, match=message):
            setattr(solver, attribute, value)


@pytest.mark.parametrize("kind", [ISTA, FISTA])
@pytest.mark.parametrize("rule", [Spectral(), RowSum(), Learned(2), Learned(4, RowSum())], ids=repr)
def test_a_step_rule_is_kept_in_a_file(kind, rule):
    settings = settings_of(kind(step=rule))
    again = solver_from(json.loads(json.dumps(settings)))
    assert type(again) is kind
    assert repr(again.step) == repr(rule)
    assert ("step_size" in settings) == ("RowSum" in repr(rule))  # files from before there was a choice do not name it
    assert settings_of(again) == settings


@pytest.mark.parametrize("kind", [ISTA, FISTA, LearnedISTA])
def test_a_step_rule_is_an_object(kind):
    solver = kind(step=RowSum())
    for refused in (lambda: kind(step="row_sum"), lambda: setattr(solver, "step", "row_sum")):
        with pytest.raises(ValueError, match=r"step must be a rule such as Spectral\(\) or RowSum\(\), got 'row_sum'"):
            refused()
    with pytest.raises(ValueError, match="step_size must be one of spectral, row_sum, got 'long'"):
        solver_from({"name": "ista", "step_size": "long"})


def test_learned_steps_with_momentum_begin_as_those_of_their_rule():
    problem = SparseCoding(OPERATORS["partition"](), signal(), 0.1)
    for rule in (Spectral(), RowSum()):
        learned = FISTA(4, "zero", step=Learned(2, rule)).double()
        torch.testing.assert_close(
            learned.solve(problem), FISTA(4, "zero", step=rule).solve(problem), rtol=0, atol=1e-14
        )
    learned.solve(problem).sum().backward()
    assert all(parameter.grad.abs().min() > 0 for parameter in learned.parameters())


@pytest.mark.parametrize("name", SOLVERS)
def test_a_solution_tells_how_the_run_went(name):
    problem = SparseCoding(OPERATORS["dense"](), signal().requires_grad_(), STRENGTH)
    for solver in (SOLVERS[name](steps=4), Equilibrium(SOLVERS[name](steps=4))):
        plain = solver.solution(problem)
        assert (plain.steps, plain.status) == (4, Status.NONE)
        torch.testing.assert_close(plain.code, solver.solve(problem), rtol=0, atol=0)
        assert not plain.code.requires_grad
        solver.tolerance = 1e-9
        unmet = solver.solution(problem)
        assert (unmet.steps, unmet.status) == (4, "all steps were taken and the tolerance was not met")
        solver.tolerance = 2 * unmet.violation.max().item()
        met = solver.solution(problem)
        assert met.status == Status.MET
        assert met.steps <= 4
        torch.testing.assert_close(met.violation, problem.violation(met.code), rtol=0, atol=0)
        assert met.violation.max() <= solver.tolerance


@pytest.mark.parametrize("name", SOLVERS)
def test_an_equilibrium_has_a_name(name):
    solver = solver_from({"name": f"equilibrium_{name}", "steps": 7})
    assert type(solver) is Equilibrium
    assert type(solver.solver) is SOLVERS[name]
    assert solver.steps == 7
    assert f"equilibrium_{name}" in solver_names()
    with pytest.raises(ValueError, match=r"no solver named 'equilibrium_nothing': there are ista, .*equilibrium_fista"):
        solver_from({"name": "equilibrium_nothing"})


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf"), "1", True])
@pytest.mark.parametrize(
    ("kind", "setting"),
    [(LCA, "time_step"), *((NeuralDynamics, name) for name in ("alpha", "beta", "gamma", "time_step"))],
)
def test_rates_and_time_steps_are_finite_and_not_negative(kind, setting, value):
    with pytest.raises(ValueError, match=f"{setting} must be .*, got {value!r}"):
        kind(**{setting: value})
    with pytest.raises(ValueError, match=f"{setting} must be .*, got {value!r}"):
        setattr(kind(), setting, value)


def test_an_equilibrium_is_of_a_solver():
    with pytest.raises(ValueError, match=r"pass an object such as FISTA\(steps=100\), got None"):
        Equilibrium(None)
    equilibrium = Equilibrium(FISTA(3))
    with pytest.raises(ValueError, match="got 'fista'"):
        equilibrium.solver = "fista"
    for iterations in (0, 1.5, float("nan")):
        with pytest.raises(ValueError, match=f"iterations must be a whole number of at least 1, got {iterations}"):
            equilibrium.iterations = iterations
        with pytest.raises(ValueError, match=f"iterations must be a whole number of at least 1, got {iterations}"):
            Equilibrium(FISTA(3), iterations)


@pytest.mark.parametrize("strength", [-0.1, float("nan"), float("inf"), "strong", None])
def test_a_strength_that_is_no_penalty_is_refused(strength):
    with pytest.raises(ValueError, match=f"strength must be zero or positive, and finite, got {strength}"):
        SparseCoding(OPERATORS["dense"](), signal(), strength)
