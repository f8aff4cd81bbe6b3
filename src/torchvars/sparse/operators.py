"""Dictionaries as linear operators.

An operator P maps a code to the signal it explains. All operators share one layout:

    signal (..., N, C)    N positions, for each of C channels
    code   (..., M, C)    M atoms, for each of C channels
"""

import math
from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor


class Operator(ABC):
    """A dictionary P whose columns are atoms."""

    size: int  # M, the number of atoms

    @abstractmethod
    def analyze(self, signal: Tensor) -> Tensor:
        """P^T x: signal (..., N, C) -> code (..., M, C)."""

    @abstractmethod
    def synthesize(self, code: Tensor) -> Tensor:
        """P u: code (..., M, C) -> signal (..., N, C)."""

    def gram(self, code: Tensor) -> Tensor:
        """P^T P u: how the atoms that are active inhibit each other."""
        return self.analyze(self.synthesize(code))

    @abstractmethod
    def lipschitz(self) -> Tensor:
        """The largest eigenvalue of P^T P, never below it, broadcast against a code: (..., 1, C) or (..., 1, 1).

        It sets a step size and is no part of what is learned: it carries no gradient.
        """


class Dense(Operator):
    """A dictionary given as a matrix, one for each batch entry and head.

    Args:
        atoms: (..., N, M), one atom a column.
    """

    def __init__(self, atoms: Tensor):
        if atoms.ndim < 2:
            raise ValueError(f"atoms must have shape (..., N, M), got {tuple(atoms.shape)}: add the missing dimensions")
        self.atoms = atoms
        positions, self.size = atoms.shape[-2:]
        # P^T P as a matrix pays unless there are far more atoms than positions.
        self.gram_matrix = atoms.mT @ atoms if self.size <= 2 * positions else None

    def analyze(self, signal: Tensor) -> Tensor:
        return self.atoms.mT @ signal

    def synthesize(self, code: Tensor) -> Tensor:
        return self.atoms @ code

    def gram(self, code: Tensor) -> Tensor:
        return super().gram(code) if self.gram_matrix is None else self.gram_matrix @ code

    def lipschitz(self) -> Tensor:
        """At most 5 % above the largest eigenvalue: see `largest_eigenvalue`."""
        atoms = self.atoms.detach()
        # P P^T has the same eigenvalues as P^T P: take the smaller of the two.
        small = atoms @ atoms.mT if atoms.shape[-2] < self.size else self.gram_matrix.detach()
        return largest_eigenvalue(small)[..., None, None]


class Convolution(Operator):
    """Every circular shift of a few filters for each channel: P is a convolution, P^T the correlation with it.

    Atom (f, p) is filter f with its centre at position p, so M = F H W. Circular, so the adjoint is exact and the
    Fourier transform diagonalises it: at each frequency P^T P is the F x F matrix k* k^T of rank one.

    Args:
        filters: (..., C, F, h, w), no larger than the grid.
        grid: (H, W) with H W = N.
    """

    def __init__(self, filters: Tensor, grid: tuple[int, int]):
        self.grid = tuple(grid)
        self.size = filters.shape[-3] * grid[0] * grid[1]
        self.spectrum = filter_spectrum(filters, grid).movedim(-4, -1)  # (..., F, H, W / 2 + 1, C)

    def to_frequencies(self, image: Tensor) -> Tensor:
        """(..., H W, C) -> (..., H, W / 2 + 1, C)."""
        return torch.fft.rfft2(image.unflatten(-2, self.grid), dim=(-3, -2))

    def to_positions(self, frequencies: Tensor) -> Tensor:
        """(..., H, W / 2 + 1, C) -> (..., H W, C)."""
        return torch.fft.irfft2(frequencies, s=self.grid, dim=(-3, -2)).flatten(-3, -2)

    def analyze(self, signal: Tensor) -> Tensor:
        return self._to_code(self.to_frequencies(signal).unsqueeze(-4))

    def synthesize(self, code: Tensor) -> Tensor:
        return self.to_positions(self._explained(code))

    def gram(self, code: Tensor) -> Tensor:
        return self._to_code(self._explained(code).unsqueeze(-4))

    def lipschitz(self) -> Tensor:
        """Exact: the largest of sum_f |k_f|^2 over all frequencies, for each channel."""
        power = self.spectrum.detach().abs().square().sum(-4).amax((-3, -2))
        return rounded_up(power, self.grid[0] * self.grid[1]).unsqueeze(-2)

    def _explained(self, code: Tensor) -> Tensor:
        """The spectrum of P u."""
        filters = self.spectrum.shape[-4]
        maps = code.unflatten(-2, (filters, -1))
        return (self.spectrum * self.to_frequencies(maps)).sum(-4)

    def _to_code(self, frequencies: Tensor) -> Tensor:
        """The code P^T x of a signal with spectrum (..., 1, H, W / 2 + 1, C)."""
        return self.to_positions(self.spectrum.conj() * frequencies).flatten(-3, -2)


class Joint(Operator):
    """The union of two dictionaries, [P1, P2]: the code holds that of the first, then that of the second."""

    def __init__(self, first: Operator, second: Operator):
        self.first, self.second = first, second
        self.size = first.size + second.size

    def analyze(self, signal: Tensor) -> Tensor:
        return torch.cat([self.first.analyze(signal), self.second.analyze(signal)], dim=-2)

    def synthesize(self, code: Tensor) -> Tensor:
        first, second = code.split([self.first.size, self.second.size], dim=-2)
        return self.first.synthesize(first) + self.second.synthesize(second)

    def lipschitz(self) -> Tensor:
        return self.first.lipschitz() + self.second.lipschitz()


def filter_spectrum(filters: Tensor, grid: tuple[int, int]) -> Tensor:
    """Filters (..., h, w) with their centre at the origin of a grid, transformed: (..., H, W / 2 + 1), complex."""
    height, width = filters.shape[-2:]
    if height > grid[0] or width > grid[1]:
        raise ValueError(
            f"filters of {height} x {width} do not fit on a grid of {grid[0]} x {grid[1]}: "
            "crop the filters or use a larger grid"
        )
    padded = F.pad(filters, (0, grid[1] - width, 0, grid[0] - height))
    return torch.fft.rfft2(padded.roll((-(height // 2), -(width // 2)), dims=(-2, -1)))


def largest_eigenvalue(matrix: Tensor, slack: float = 0.05) -> Tensor:
    """An upper bound on the largest eigenvalue of a symmetric positive semi-definite matrix (..., n, n) -> (...).

    The Frobenius norm of a power brackets it, lambda <= |G^k|_F^(1/k) <= n^(1/2k) lambda, so log2(k) squarings with
    n^(1/2k) <= 1 + slack suffice for any matrix. Products only: no eigenvectors, no iteration that might stop early.
    """
    size = matrix.shape[-1]
    squarings = max(0, math.ceil(math.log2(max(math.log(size), 1e-9) / (2 * math.log1p(slack)))))
    norm, power = _unit(matrix)
    log_bound = norm.log()
    for doubling in range(1, squarings + 1):
        norm, power = _unit(power @ power)  # kept at norm one, so that no power overflows
        log_bound = log_bound + norm.log() / 2**doubling
    return rounded_up(log_bound.exp(), size)


def rounded_up(bound: Tensor, terms: int) -> Tensor:
    """The bound with room for the rounding of sums of that many terms, so that it stays a bound in floating point."""
    return bound * (1 + 4 * terms * torch.finfo(bound.dtype).eps)


def _unit(matrix: Tensor) -> tuple[Tensor, Tensor]:
    norm = torch.linalg.matrix_norm(matrix).clamp_min(torch.finfo(matrix.dtype).tiny)
    return norm, matrix / norm[..., None, None]
