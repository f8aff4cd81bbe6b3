"""Metrics, confidence intervals and tests."""

from collections.abc import Callable

import numpy as np

RESAMPLES = 1000
BINS = 15  # bins of confidence of the calibration error


def calibration_error(confidence: np.ndarray, right: np.ndarray) -> float:
    """Expected calibration error: the mean of |accuracy - confidence| over 15 bins, weighted by their pictures.

    Args:
        confidence: (N,), the probability of the predicted class.
        right: (N,), whether the prediction is correct.
    """
    bins = np.clip(np.ceil(confidence * BINS).astype(int) - 1, 0, BINS - 1)
    gaps = np.bincount(bins, weights=right - confidence, minlength=BINS)
    return float(np.abs(gaps).sum() / len(right))


def bootstrap(
    values: np.ndarray, statistic: Callable[[np.ndarray], np.ndarray] = lambda means: means[..., 0], *, seed: int = 0
) -> tuple[float, float, float]:
    """A statistic of means over pictures, and its 95 % bootstrap interval.

    A picture is resampled with its values in all conditions.

    Args:
        values: (pictures, conditions), the values of each picture.
        statistic: means (..., conditions) -> (...); by default the mean of the first condition.

    Returns:
        The value and the ends of the interval.
    """
    values = np.asarray(values, dtype=np.float64).reshape(len(values), -1)
    count = len(values)
    generator = np.random.default_rng(seed)
    means, at_once = [], max(1, 2**20 // count)
    for first in range(0, RESAMPLES, at_once):
        rows = np.arange(min(at_once, RESAMPLES - first))[:, None]
        drawn = generator.integers(count, size=(len(rows), count)) + rows * count
        times = np.bincount(drawn.ravel(), minlength=len(rows) * count).reshape(-1, count)  # how often each is drawn
        means.append(times @ values / count)
    low, high = np.quantile(statistic(np.concatenate(means)), [0.025, 0.975])
    return float(statistic(values.mean(0))), float(low), float(high)


def sign_test(first: np.ndarray, second: np.ndarray) -> float:
    """The exact two-sided p-value that two models are equally accurate on the same pictures (McNemar's test).

    Args:
        first, second: (N,), whether each model is correct.
    """
    from scipy.stats import binomtest

    only_first, only_second = int((first & ~second).sum()), int((~first & second).sum())
    if only_first + only_second == 0:
        return 1.0
    return float(binomtest(only_first, only_first + only_second).pvalue)


TESTS: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {"McNemar": sign_test}
"""Paired tests by name: columns (N,) of two models on the same pictures -> p."""
