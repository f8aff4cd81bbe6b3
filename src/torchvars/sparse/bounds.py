"""Upper bounds on the largest eigenvalue of a Gram matrix, by a fixed number of matrix products."""

import math

import torch
from torch import Tensor


def largest_eigenvalue(matrix: Tensor, slack: float = 0.05) -> tuple[Tensor, Tensor]:
    """An upper bound on the largest eigenvalue of a symmetric positive semi-definite matrix G, and its direction.

    The Frobenius norm of a power bounds it, lambda <= |G^k|_F^(1/k) <= n^(1/2k) lambda, so log2(k) squarings with
    n^(1/2k) <= 1 + slack suffice for any matrix. There is no iteration until convergence.

    Args:
        matrix: (..., n, n).
    Returns:
        The bound, (...), and the largest column of G^k, (..., n, 1), close to the top eigenvector; not normalised.
    """
    size = matrix.shape[-1]
    power_needed = math.log(size) / (2 * math.log1p(slack))
    norm, power = _unit(matrix)
    log_bound = norm.log()
    for doubling in range(1, 1 + max(0, math.ceil(math.log2(max(power_needed, 1))))):
        norm, power = _unit(power @ power)  # normalised, so that no power overflows
        log_bound = log_bound + norm.log() / 2**doubling
    strongest = power.diagonal(dim1=-2, dim2=-1).argmax(-1)[..., None, None].expand(*power.shape[:-1], 1)
    return rounded_up(log_bound.exp(), size), power.gather(-1, strongest)


def perron_eigenvalue(matrix: Tensor, iterations: int = 8) -> tuple[Tensor, Tensor]:
    """An upper bound on the largest eigenvalue of a symmetric matrix G without negative entries, and its direction.

    For any positive vector v the eigenvalue is at most max_i (G v)_i / v_i (Collatz and Wielandt). The bound of v = 1
    is the largest row sum. It decreases from v to G v, and is exact at the top eigenvector. A few matrix-vector
    products bring it within 5 % for Gram matrices of positive features, at a fraction of the cost of
    `largest_eigenvalue`.

    Args:
        matrix: (..., n, n).
    Returns:
        The bound, (...), and the direction, (..., n, 1), not normalised.
    """
    floor = torch.finfo(matrix.dtype).tiny
    image = matrix.sum(-2, keepdim=True)
    scale = 1 / image.amax(-1, keepdim=True).clamp_min(floor**0.5)  # no entry grows, and few shrink much
    for _ in range(iterations):
        direction = image * scale
        image = direction @ matrix  # the product with a row vector is faster
    ratio = image / direction.clamp_min(floor)  # 0 / floor for an atom of zeros, which does not contribute
    return rounded_up(ratio.amax((-2, -1)), matrix.shape[-1]), direction.mT


def rounded_up(bound: Tensor, terms: int) -> Tensor:
    """The bound plus a margin for the rounding of sums of `terms` terms, so that it is a bound in floating point.

    It is never zero, so that its inverse is finite also for a dictionary of zeros.
    """
    precision = torch.finfo(bound.dtype)
    return (bound * (1 + 4 * terms * precision.eps)).clamp_min(precision.tiny**0.5)


def _unit(matrix: Tensor) -> tuple[Tensor, Tensor]:
    norm = torch.linalg.matrix_norm(matrix).clamp_min(torch.finfo(matrix.dtype).tiny)
    return norm, matrix / norm[..., None, None]
