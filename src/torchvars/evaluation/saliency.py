"""Measures of how well a map of one picture predicts where people look.

Maps are (H, W) and nonnegative. Places (N, 2) are (x, y) in pixels: the centre of the first pixel is at .5. Repeated
fixations count repeatedly.
"""

import numpy as np

UNIFORM = 0.01  # uniform share of every density, so that its logarithm is finite


def values_at(saliency: np.ndarray, places: np.ndarray) -> np.ndarray:
    """The values of a map at places: (N,)."""
    columns, rows = np.floor(places).astype(int).T
    return saliency[rows.clip(0, saliency.shape[0] - 1), columns.clip(0, saliency.shape[1] - 1)]


def nss(saliency: np.ndarray, places: np.ndarray) -> float:
    """Normalised scanpath saliency: the mean over fixations of (map - mean) / deviation; 0 for a constant map."""
    deviation = saliency.std()
    if deviation <= 1e-12 * abs(saliency).max(initial=0):
        return 0.0
    return float((values_at(saliency, places).mean() - saliency.mean()) / deviation)


def auc(positives: np.ndarray, negatives: np.ndarray) -> float:
    """The probability that a positive is above a negative; ties count half.

    For AUC-Judd the positives are the values at fixations, and the negatives those of all pixels. For the shuffled AUC
    the negatives are the values at the fixations of other pictures.
    """
    negatives = np.sort(negatives)
    below, up_to = (np.searchsorted(negatives, positives, side) for side in ("left", "right"))
    return float((below + up_to).mean() / 2 / len(negatives))


def blurred(places: np.ndarray, height: int, width: int, sigma: float) -> np.ndarray:
    """The sum of Gaussians at all places, cut off at the edges of the picture: (H, W)."""
    from scipy.ndimage import gaussian_filter

    columns, rows = np.floor(places).astype(int).T
    counts = np.zeros((height, width))
    np.add.at(counts, (rows.clip(0, height - 1), columns.clip(0, width - 1)), 1)
    return gaussian_filter(counts, sigma, mode="constant")


def density(saliency: np.ndarray) -> np.ndarray:
    """A map as a probability density over pixels, mixed with a uniform density of weight 0.01."""
    total = saliency.sum()
    shares = saliency / total if total > 0 else 0
    return (1 - UNIFORM * (total > 0)) * shares + (UNIFORM if total > 0 else 1) / saliency.size


def correlation(saliency: np.ndarray, looked: np.ndarray) -> float:
    """CC: the correlation over pixels of a map and the density of fixations; 0 for a constant map."""
    one, other = saliency - saliency.mean(), looked - looked.mean()
    product = np.sqrt((one**2).sum() * (other**2).sum())
    return float((one * other).sum() / product) if product > 1e-12 * abs(saliency).max(initial=0) else 0.0


def divergence(saliency: np.ndarray, looked: np.ndarray) -> float:
    """KL: sum q log(q / p) in nats, for the density q of fixations and the density p of a map."""
    q, p = looked / looked.sum(), density(saliency)
    support = q > 0
    return float((q[support] * np.log(q[support] / p[support])).sum())


def information_gain(saliency: np.ndarray, baseline: np.ndarray, places: np.ndarray) -> float:
    """The mean over fixations of log2(p / b), for the densities p of a map and b of a baseline: bits per fixation."""
    gained = np.log2(density(saliency)) - np.log2(density(baseline))
    return float(values_at(gained, places).mean())
