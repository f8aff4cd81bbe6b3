"""Detection of fixations in a recording of gaze."""

import numpy as np

# As in MIT1003: a saccade begins where the velocity of two windows of four samples, a sample apart, rises by
# more than 6 degrees a second, of 34 pixels each; a fixation between two of them lasts more than 50 ms.
THRESHOLD, WINDOW, SHORTEST = 6 * 34.0, 4, 0.05
SEARCH = 25  # samples after its acceleration in which a saccade slows down again


def find_fixations(samples: np.ndarray, rate: float) -> np.ndarray:
    """Places of the fixations of a gaze, in order: medians over the samples between saccades.

    A saccade is a run of three samples or more in which the gaze accelerates, until it has slowed down again. This is
    the published rule of MIT1003, implemented anew; blinks, samples at negative places, are treated as any others.

    Args:
        samples: (N, 2) places in pixels.
        rate: samples per second.

    Returns:
        (fixations, 2), with at least one row.
    """
    count = len(samples)
    moved = np.linalg.norm(np.diff(samples, axis=0, prepend=samples[:1]), axis=1)
    smooth = np.convolve(moved, np.full(WINDOW, 1 / WINDOW))[:count]
    last = max(count - WINDOW - 1, 0)
    gained = np.zeros(count)
    gained[:last] = (smooth[WINDOW + 1 :][:last] - smooth[:last]) * rate / WINDOW
    gained[:1] = 0
    saccades = []
    for first, end in _runs(gained > THRESHOLD):
        slow = gained[end : end + SEARCH] < -THRESHOLD
        if end - first < 3 or not (slow.any() or end >= last):
            continue
        stop = count - 1
        if slow.any():
            begin = int(slow.argmax())
            still = slow[begin:]
            stop = end + begin + (int((~still).argmax()) if not still.all() else len(still)) - 1
        if saccades and first - saccades[-1][1] <= SHORTEST * rate:
            saccades[-1] = (saccades[-1][0], stop)  # the rest is too short for a fixation
        else:
            saccades.append((first, stop))
    if saccades and count - 1 - saccades[-1][1] <= SHORTEST * rate:
        saccades[-1] = (saccades[-1][0], count - 1)
    edges = [0, *(edge for first, stop in saccades for edge in (first, stop + 1)), count]
    rests = [samples[begin:end] for begin, end in zip(edges[::2], edges[1::2], strict=True) if end > begin]
    rests = [rest[~np.isnan(rest).any(1)] for rest in rests]
    return np.array([np.median(rest, 0) for rest in rests if len(rest)]).reshape(-1, 2)


def _runs(flags: np.ndarray) -> list[tuple[int, int]]:
    """Begin and end of each run of true entries."""
    edges = np.diff(flags.astype(int), prepend=0, append=0)
    return list(zip(np.flatnonzero(edges == 1).tolist(), np.flatnonzero(edges == -1).tolist(), strict=True))
