"""What is counted, and how sure it is."""

from collections.abc import Callable

import numpy as np

RESAMPLES = 1000
BINS = 15  # of confidence, for the calibration error


def calibration_error(confidence: np.ndarray, right: np.ndarray) -> float:
    """Expected calibration error: |accuracy - confidence| in each of 15 bins of equal width, weighted by its pictures.

    Args:
        confidence: (N,), the probability of the class that was named.
        right: (N,), whether it was the right one.
    """
    bins = np.clip(np.ceil(confidence * BINS).astype(int) - 1, 0, BINS - 1)
    gaps = np.bincount(bins, weights=right - confidence, minlength=BINS)
    return float(np.abs(gaps).sum() / len(right))


def bootstrap(
    values: np.ndarray, statistic: Callable[[np.ndarray], np.ndarray] = lambda means: means[..., 0], *, seed: int = 0
) -> tuple[float, float, float]:
    """A statistic of means over pictures, and its 95 % interval over pictures drawn anew, each with all its conditions.

    Args:
        values: (pictures, conditions): what was found for each picture in each condition.
        statistic: means (..., conditions) -> (...); else the mean of the only condition.

    Returns:
        its value and the ends of the interval.
    """
    values = np.asarray(values, dtype=np.float64).reshape(len(values), -1)
    count = len(values)
    generator = np.random.default_rng(seed)
    means, at_once = [], max(1, 2**20 // count)
    for first in range(0, RESAMPLES, at_once):
        rows = np.arange(min(at_once, RESAMPLES - first))[:, None]
        drawn = generator.integers(count, size=(len(rows), count)) + rows * count
        times = np.bincount(drawn.ravel(), minlength=len(rows) * count).reshape(-1, count)  # that each was drawn
        means.append(times @ values / count)
    low, high = np.quantile(statistic(np.concatenate(means)), [0.025, 0.975])
    return float(statistic(values.mean(0))), float(low), float(high)


def sign_test(first: np.ndarray, second: np.ndarray) -> float:
    """Exact two-sided p-value that two models are as often right on the same pictures (McNemar's test).

    Args:
        first, second: (N,), whether each model was right.
    """
    from scipy.stats import binomtest

    only_first, only_second = int((first & ~second).sum()), int((~first & second).sum())
    if only_first + only_second == 0:
        return 1.0
    return float(binomtest(only_first, only_first + only_second).pvalue)


TESTS: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {"McNemar": sign_test}
"""Paired tests by the name of who they are of: columns (N,) of two models on the same pictures -> p."""
