"""Metrics, against what is known by hand or by other formulas."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from evaluation.halves import subject
from torchvars.evaluation.conditions import CLEAN, Condition
from torchvars.evaluation.metrics import bootstrap, calibration_error, sign_test
from torchvars.evaluation.tasks import Classification

# Calibration


def test_calibration_error_by_hand():
    # Bins of a fifteenth: (.6, .667] holds .61 and .65, (.867, .933] holds .9, (.933, 1] holds 1.
    confidence = np.array([0.61, 0.65, 0.9, 1.0])
    right = np.array([True, False, False, True])
    by_hand = (2 / 4) * abs(0.5 - 0.63) + (1 / 4) * abs(0 - 0.9) + (1 / 4) * abs(1 - 1)
    assert calibration_error(confidence, right) == pytest.approx(by_hand)


def test_bins_do_not_leave_out_their_ends():
    # A bin has its upper end: two thirds is in (.6, .667], with .61; 0 is in the first.
    assert calibration_error(np.array([0.61, 10 / 15]), np.array([True, False])) == pytest.approx(
        abs(0.5 - (0.61 + 10 / 15) / 2)
    )
    assert calibration_error(np.array([0.0, 1 / 15]), np.array([True, False])) == pytest.approx(0.5 - 1 / 30)


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=40))
def test_calibration_error_by_the_definition(pairs):
    confidence, right = (np.array(each) for each in zip(*pairs, strict=True))
    total = 0.0
    for number in range(15):
        inside = (confidence > number / 15) & (confidence <= (number + 1) / 15)
        if number == 0:
            inside |= confidence == 0
        if inside.any():
            total += inside.mean() * abs(right[inside].mean() - confidence[inside].mean())
    assert calibration_error(confidence, right) == pytest.approx(total)


def test_who_says_how_sure_he_is_has_no_calibration_error():
    generator = np.random.default_rng(0)
    confidence = generator.uniform(0.2, 1, 200_000)
    right = generator.random(200_000) < confidence
    assert calibration_error(confidence, right) < 0.01
    assert calibration_error(confidence, right & (generator.random(200_000) < 0.7)) == pytest.approx(0.18, abs=0.01)


# Intervals


@pytest.mark.parametrize(("count", "share"), [(50, 0.5), (200, 0.9), (1000, 0.2)])
def test_intervals_are_those_of_a_binomial(count, share):
    right = np.arange(count) < share * count
    value, low, high = bootstrap(100.0 * right)
    assert value == pytest.approx(100 * share)
    expected = 100 * stats.binom.ppf([0.025, 0.975], count, share) / count
    assert (low, high) == pytest.approx(tuple(expected), abs=100 * 0.25 * np.sqrt(share * (1 - share) / count))


def test_intervals_hold_the_truth_as_often_as_they_say():
    generator = np.random.default_rng(1)
    held = 0
    for _ in range(200):
        _, low, high = bootstrap(generator.random(100) < 0.7)
        held += low <= 0.7 <= high
    assert 0.89 <= held / 200 <= 0.99


def test_intervals_go_over_pictures_not_over_conditions():
    generator = np.random.default_rng(0)
    hard = (generator.random(400) < 0.5).astype(float)
    mean = lambda means: means.mean(-1)  # noqa: E731
    # The same pictures are hard in all five conditions: there is no more to learn from five than from one.
    one, five = bootstrap(hard), bootstrap(np.repeat(hard[:, None], 5, 1), mean)
    assert five == pytest.approx(one)
    # What one condition wins where the other loses is known without a doubt.
    value, low, high = bootstrap(np.stack([hard, 1 - hard], 1), mean)
    assert (value, low, high) == pytest.approx((0.5, 0.5, 0.5))
    others = bootstrap(generator.random((400, 5)) < 0.5, mean)
    assert others[2] - others[1] < 0.6 * (one[2] - one[1])


def test_a_statistic_is_of_means_and_not_the_mean_of_statistics():
    values = np.random.default_rng(0).random((300, 2)) + np.array([0, 1])
    ratio = lambda means: means[..., 1] / means[..., 0]  # noqa: E731
    value, low, high = bootstrap(values, ratio)
    assert value == pytest.approx(values[:, 1].mean() / values[:, 0].mean())
    # The delta method.
    first, second = values.mean(0)
    spread = np.std(values[:, 1] / first - second * values[:, 0] / first**2) / np.sqrt(300)
    assert (low, high) == pytest.approx((value - 1.96 * spread, value + 1.96 * spread), abs=0.3 * spread)


def test_intervals_are_drawn_by_a_seed():
    values = np.random.default_rng(0).random(50)
    assert bootstrap(values) == bootstrap(values)
    assert bootstrap(values, seed=1) != bootstrap(values)
    assert bootstrap(np.ones(7)) == (1, 1, 1)


# Two models on the same pictures


def outcomes(both: int, first: int, second: int, neither: int) -> tuple[np.ndarray, np.ndarray]:
    return (
        np.repeat([True, True, False, False], [both, first, second, neither]),
        np.repeat([True, False, True, False], [both, first, second, neither]),
    )


@pytest.mark.parametrize(
    ("first", "second", "p"),
    [
        (0, 0, 1.0),
        (1, 0, 1.0),
        (5, 0, 2 / 2**5),
        (0, 6, 2 / 2**6),
        (1, 9, 2 * (1 + 10) / 2**10),
        (2, 8, 2 * (1 + 10 + 45) / 2**10),
        (7, 7, 1.0),
    ],
)
def test_sign_test_by_hand(first, second, p):
    assert sign_test(*outcomes(20, first, second, 30)) == pytest.approx(p)
    # Where both are right, or both wrong, there is nothing to learn.
    assert sign_test(*outcomes(0, first, second, 1)) == pytest.approx(p)


@given(st.integers(0, 40), st.integers(0, 40))
def test_sign_test_is_symmetric_and_that_of_scipy(first, second):
    p = sign_test(*outcomes(3, first, second, 4))
    assert p == pytest.approx(sign_test(*outcomes(3, second, first, 4)))
    if first + second:
        tail = stats.binom.cdf(min(first, second), first + second, 0.5)
        assert p == pytest.approx(min(1, 2 * tail))


# One condition


def columns(named: list[int], labels: list[int], confidence: float = 0.8) -> dict[str, np.ndarray]:
    unread, named = np.array(named) < 0, np.array(named)
    return {
        "right": named == labels,
        "named": named,
        "confidence": np.where(unread, np.nan, confidence),
        "loss": np.where(unread, np.nan, -np.log(confidence)),
    }


def test_consistency_is_with_what_was_said_of_clean_pictures_right_or_wrong():
    labels, task = [0, 1, 2, 3, 0], Classification()
    clean = columns([0, 1, 0, 3, -1], labels)
    assert "consistency" not in task.figures(clean)
    noisy = columns([0, 2, 0, 3, -1], labels)
    kept = task.keep(CLEAN, clean)
    # The same of three: right, wrong, right. The last was seen neither time, which is no agreement.
    assert task.figures(noisy, kept)["consistency"].value == pytest.approx(60)
    assert task.figures(noisy, kept)["accuracy"].value == pytest.approx(40)
    kept = task.keep(Condition("corruption", "fog", 3), noisy)
    assert kept.keys() == {"right"}
    # Without the classes named on clean pictures it cannot be said.
    assert "consistency" not in task.figures(noisy, kept)


def test_loss_and_calibration_are_of_the_pictures_that_were_seen():
    found = Classification().figures(columns([0, 1, -1, -1], [0, 0, 0, 0]))
    assert found["loss"].value == pytest.approx(-np.log(0.8))
    assert found["calibration error"] == (pytest.approx(100 * abs(0.5 - 0.8)), None, None, 2)
    assert found["accuracy"].value == 25
    assert {name: figure.images for name, figure in found.items()} == {
        "accuracy": 4,
        "loss": 2,
        "calibration error": 2,
    }
    assert set(Classification().figures(columns([-1], [0]))) == {"accuracy"}


def test_a_hash_is_of_all_that_a_model_holds():
    first, same, other = subject(), subject(), subject(sign=-1)
    assert first.sha256 == same.sha256 != other.sha256
