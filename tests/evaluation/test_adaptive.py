"""The strength that follows the noise: by its formula, and on a model."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import torchvars
from evaluation.halves import HALVES, picture, save_weights
from torchvars.evaluation.adaptive import AdaptiveStrength, adapt, calibrate, unexplained
from torchvars.evaluation.subjects import open_subject
from torchvars.sparse import FISTA, ISTA, Dense, SparseCoding, Status


def problem(noise: float = 0.0, strength: float | torch.Tensor = 0.3, seed: int = 0) -> SparseCoding:
    """Two pictures with three heads: signals (2, 3, 20, 4) of two atoms each, and noise."""
    generator = torch.Generator().manual_seed(seed)
    atoms = torch.nn.functional.normalize(torch.randn(2, 3, 20, 12, dtype=torch.float64, generator=generator), dim=-2)
    code = torch.zeros(2, 3, 12, 4, dtype=torch.float64)
    code[:, :, :2] = 3
    signal = atoms @ code
    return SparseCoding(Dense(atoms), signal + noise * torch.randn(signal.shape, generator=generator), strength)


def test_unexplained_by_hand():
    here = SparseCoding(Dense(torch.eye(2)), torch.tensor([[3.0, 0.0], [4.0, 5.0]]), 0.1)
    assert float(unexplained(here, torch.tensor([[3.0, 0.0], [0.0, 5.0]]))) == pytest.approx(16 / 50)
    assert float(unexplained(here, torch.zeros(2, 2))) == 1
    silent = SparseCoding(Dense(torch.eye(2)), torch.zeros(2, 2), 0.1)
    assert float(unexplained(silent, torch.zeros(2, 2))) == 0


@given(power=st.floats(0, 2), usual=st.floats(0.01, 0.9), noise=st.floats(0, 3), most=st.floats(1.5, 8))
def test_the_strength_by_its_formula(power, usual, noise, most):
    here, solver = problem(noise), ISTA(5)
    adapted = AdaptiveStrength(solver, usual, power, most).adapted(here)
    code = solver.solve(here)
    for number in range(2):
        for head in range(3):
            rest = here.signal[number, head] - here.operator.atoms[number, head] @ code[number, head]
            share = float(rest.square().sum() / here.signal[number, head].square().sum())
            factor = min(max((share / usual) ** power, 1 / most), most)
            assert float(adapted.strength[number, head]) == pytest.approx(0.3 * factor)
    assert adapted.signal is here.signal
    assert adapted.operator is here.operator


def test_noise_raises_the_strength_and_by_no_more_than_allowed():
    usual = float(unexplained(problem(0.1), ISTA(5).solve(problem(0.1))).log().mean().exp())
    solver = AdaptiveStrength(ISTA(5), usual)
    quiet, same, loud = (solver.adapted(problem(noise)).strength.log().mean().exp() for noise in (0, 0.1, 1.0))
    assert same == pytest.approx(0.3)
    assert quiet < 0.3 < loud
    assert AdaptiveStrength(ISTA(5), 1e-9).adapted(problem(1.0)).strength.unique() == pytest.approx(1.2)


def test_it_solves_the_problem_with_that_strength():
    here = problem(0.5)
    solver = AdaptiveStrength(FISTA(7, "zero"), 0.2)
    strength = solver.adapted(here).strength
    stronger = SparseCoding(here.operator, here.signal, strength)
    torch.testing.assert_close(solver.solve(here), FISTA(7, "zero").solve(stronger), rtol=0, atol=0)
    assert len(list(solver.trajectory(here))) == 8
    # The steps of the second run are to be set, and a tolerance is that of its problem; the first run stays as it was.
    solver.steps = 400
    assert solver.probe_steps == 7
    assert "probe_steps=7" in repr(solver)
    torch.testing.assert_close(solver.solve(here), FISTA(400, "zero").solve(stronger), rtol=0, atol=0)
    solver.tolerance = 1e-6
    assert len(list(solver.trajectory(here))) < 400
    assert stronger.violation(solver.solve(here)).max() <= 1e-6
    assert here.violation(solver.solve(here)).max() > 1e-3
    found = solver.solution(here)
    assert found.steps < 400
    assert found.status == Status.MET
    torch.testing.assert_close(found.violation, stronger.violation(found.code), rtol=0, atol=0)


def test_released_layers_whose_strength_is_a_tensor():
    here = problem(0.5, torch.full((1,), 0.3, dtype=torch.float64))
    expected = AdaptiveStrength(ISTA(3), 0.2).solve(problem(0.5))
    torch.testing.assert_close(AdaptiveStrength(ISTA(3), 0.2).solve(here), expected)


# On a model


@pytest.fixture
def classifier(tmp_path) -> torchvars.Classifier:
    return open_subject(str(save_weights(tmp_path / "tiny"))).classifier


@pytest.fixture
def pixels() -> torch.Tensor:
    pictures = [torch.from_numpy(picture(half, number)[::2, ::2]) for number in range(3) for half in HALVES]
    return torch.stack(pictures).movedim(-1, 1) / 255


def test_usual_is_the_geometric_mean_over_pictures_and_heads(classifier, pixels):
    usual = calibrate(classifier, [pixels])
    assert set(usual) == {"model.blocks.0.attn", "model.blocks.1.attn"}
    logs = {name: [] for name in usual}
    for one in pixels.split(1):
        with torchvars.inspect(classifier) as layers:
            classifier(one)
        for name, layer in layers.items():
            rest = (layer.signal - layer.reconstruction).square().sum((2, 3)) / layer.signal.square().sum((2, 3))
            logs[name] += rest.log().flatten().tolist()
    for name, value in usual.items():
        assert len(logs[name]) == 24
        assert value == pytest.approx(float(torch.tensor(logs[name]).mean().exp()), rel=1e-4)
    # However the pictures come.
    assert calibrate(classifier, pixels.split(5)) == pytest.approx(usual, rel=1e-4)
    with pytest.raises(ValueError, match="no VARS layer ran: there is no strength to adapt"):
        calibrate(torch.nn.Identity(), [pixels])


@torch.no_grad()
def test_a_model_that_adapts(classifier, pixels):
    usual = calibrate(classifier, [pixels])
    plain = classifier(pixels)
    still, following = copy.deepcopy(classifier), copy.deepcopy(classifier)
    adapt(still, usual, 0.0)
    torch.testing.assert_close(still(pixels), plain, rtol=0, atol=1e-5)
    adapt(following, usual, 1.0)
    assert (following(pixels) - plain).abs().max() > 1e-4
    # Each picture on its own.
    torch.testing.assert_close(following(pixels)[3:4], following(pixels[3:4]), rtol=0, atol=1e-5)
    # Twice the usual rest is half the factor.
    adapt(classifier, {name: 2 * value for name, value in usual.items()}, 1.0)
    with torchvars.inspect(classifier) as doubled, torchvars.inspect(following) as single:
        classifier(pixels)
        following(pixels)
    first = "model.blocks.0.attn"
    weaker = classifier.get_submodule(first).solver.adapted(doubled[first].problem).strength
    stronger = following.get_submodule(first).solver.adapted(single[first].problem).strength
    torch.testing.assert_close(2 * weaker, stronger)


def test_gradients_go_through_the_rule(classifier, pixels):
    """An attack knows of it."""
    adapt(classifier, calibrate(classifier, [pixels]), 1.0)
    pixels = pixels[:1].double().requires_grad_()
    classifier.double()
    (slope,) = torch.autograd.grad(classifier(pixels)[0, 0], pixels)
    step = torch.zeros_like(pixels)
    step[0, 1, 5, 7] = 1e-5
    with torch.no_grad():
        difference = (classifier(pixels + step) - classifier(pixels - step))[0, 0] / 2e-5
    assert float(slope[0, 1, 5, 7]) == pytest.approx(float(difference), rel=1e-3, abs=1e-7)
