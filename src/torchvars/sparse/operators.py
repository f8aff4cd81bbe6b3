"""Dictionaries as linear operators.

An operator P maps a code to the signal it explains. All operators share one layout:

    signal (..., N, C)    N positions, for each of C channels
    code   (..., M, C)    M atoms, for each of C channels
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from . import native
from .bounds import largest_eigenvalue, perron_eigenvalue, rounded_up
from .forms import operators_allowed
from .fourier import (
    Spectrum,
    energies,
    filter_spectrum,
    inverse,
    transform,
)


def lazy(find: Callable[[Any], Any]) -> property:
    """A cached property, which is computed on first access.

    It has a graph if gradients were enabled when the object was constructed, as its `grad_enabled` says.
    """
    name = f"_{find.__name__}"

    def get(self):
        if name not in self.__dict__:
            same = self.grad_enabled == torch.is_grad_enabled()
            with nullcontext() if same else torch.set_grad_enabled(self.grad_enabled):
                self.__dict__[name] = find(self)
        return self.__dict__[name]

    return property(get, doc=find.__doc__)


class Operator(ABC):
    """A dictionary P whose columns are atoms."""

    size: int  # M, the number of atoms
    _bound: Tensor | None = None

    @abstractmethod
    def analyze(self, signal: Tensor) -> Tensor:
        """P^T x: signal (..., N, C) -> code (..., M, C)."""

    @abstractmethod
    def synthesize(self, code: Tensor) -> Tensor:
        """P u: code (..., M, C) -> signal (..., N, C)."""

    def gram(self, code: Tensor) -> Tensor:
        """P^T P u: (..., M, C) -> (..., M, C)."""
        return self.analyze(self.synthesize(code))

    def moments(self, direction: Tensor) -> tuple[Tensor, Tensor]:
        """a = v^T P P^T v and |P P^T v - a v| for a unit signal v, (..., N, 1): both (..., 1, C) or (..., 1, 1)."""
        analysis = self.analyze(direction)
        mean = analysis.square().sum(-2, keepdim=True)
        return mean, (self.synthesize(analysis) - mean * direction).norm(dim=-2, keepdim=True)

    def lipschitz(self) -> Tensor:
        """An upper bound on the largest eigenvalue of P^T P, broadcast against a code: (..., 1, C) or (..., 1, 1).

        It sets the step size, and has no gradient. It is computed once.
        """
        if self._bound is None:
            self._bound = self.find_bound()
        return self._bound

    @abstractmethod
    def find_bound(self) -> Tensor:
        """Computes the bound that `lipschitz` returns."""

    def magnitude(self) -> "Operator":
        """|P|, the dictionary of the absolute values of the entries."""
        raise ValueError(f"{type(self).__name__} does not implement magnitude: use step=Spectral()")

    def totals(self) -> Tensor:
        """P 1, the sum of all atoms: (..., N, C) or (..., N, 1)."""
        raise ValueError(f"{type(self).__name__} does not implement totals: use step=Spectral()")

    def row_sums(self) -> Tensor:
        """|P|^T |P| 1, broadcast against a code: (..., M, C) or (..., M, 1).

        The diagonal matrix D of these sums majorises P^T P, since D - P^T P is diagonally dominant. So 1 / D is a step
        size for each atom that needs no eigenvalue. Unlike `lipschitz` it has a gradient.
        """
        magnitude = self.magnitude()
        return rounded_up(magnitude.analyze(magnitude.totals()), self.size)


class Dense(Operator):
    """A dictionary given as a matrix, one for each batch entry and head.

    Args:
        atoms: (..., N, M), one atom in each column.
        nonnegative: whether all entries are nonnegative, which makes the bound cheaper.
    """

    def __init__(self, atoms: Tensor, *, nonnegative: bool = False):
        if atoms.ndim < 2:
            raise ValueError(f"atoms must have shape (..., N, M), got {tuple(atoms.shape)}: add the missing dimensions")
        self.atoms = atoms
        self.nonnegative = nonnegative
        self.size = atoms.shape[-1]
        self.grad_enabled = torch.is_grad_enabled()

    @lazy
    def gram_matrix(self) -> Tensor | None:
        """P^T P, (..., M, M); None if there are more than twice as many atoms as positions."""
        return self.atoms.mT @ self.atoms if self.size <= 2 * self.atoms.shape[-2] else None

    def analyze(self, signal: Tensor) -> Tensor:
        return self.atoms.mT @ signal

    def synthesize(self, code: Tensor) -> Tensor:
        return self.atoms @ code

    def gram(self, code: Tensor) -> Tensor:
        return super().gram(code) if self.gram_matrix is None else self.gram_matrix @ code

    def find_bound(self) -> Tensor:
        """At most 5 % above the largest eigenvalue, for any atoms; for nonnegative atoms see `perron_eigenvalue`."""
        atoms = self.atoms.detach()
        # P P^T and P^T P have the same largest eigenvalue: use the smaller matrix.
        small = atoms @ atoms.mT if atoms.shape[-2] < self.size else self.gram_matrix.detach()
        bound, self._direction = perron_eigenvalue(small) if self.nonnegative else largest_eigenvalue(small)
        return bound[..., None, None]

    def principal(self) -> tuple[Tensor, Tensor]:
        """The principal direction of the atoms, and a bound on the other directions.

        Returns:
            A unit signal v, (..., N, 1), close to the top eigenvector of P P^T, and an upper bound, (..., 1, 1), on the
            eigenvalues of P P^T restricted to signals orthogonal to v.
        """
        self.lipschitz()  # also computes the direction
        atoms, direction = self.atoms.detach(), self._direction
        if direction.shape[-2] == self.size:
            direction = atoms @ direction
        direction = F.normalize(direction, dim=-2)
        # (I - v v^T) P P^T (I - v v^T) has the eigenvalues of P^T P - q q^T with q = P^T v.
        share = direction.mT @ atoms
        gram = atoms.mT @ atoms if self.gram_matrix is None else self.gram_matrix.detach()
        bound, _ = largest_eigenvalue(gram - share.mT @ share, slack=1.0)  # the bound need not be tight
        return direction, bound[..., None, None]

    def magnitude(self) -> Operator:
        return self if self.nonnegative else Dense(self.atoms.abs(), nonnegative=True)

    def totals(self) -> Tensor:
        return self.atoms.sum(-1, keepdim=True)

    def moments(self, direction: Tensor) -> tuple[Tensor, Tensor]:
        share = direction.mT @ self.atoms
        mean = share.square().sum(-1, keepdim=True)
        image = (self.atoms * share).sum(-1, keepdim=True)  # faster than a matrix-vector product
        return mean, (image - mean * direction).norm(dim=-2, keepdim=True)


class Partition(Dense):
    """A dense dictionary in which the entries of each position are shares of one, nonnegative with a sum of 1.

    Then P 1 = 1, and the row sums of P^T P are P^T 1. One step of ISTA from zero without a penalty, with the inverse of
    these sums as step sizes, is (P^T x) / (P^T 1): the code of each atom is the weighted mean of the values, which is
    linear attention with its denominator.

    Args:
        shares: (..., N, M), such as a softmax over the atoms.
    """

    def __init__(self, shares: Tensor):
        super().__init__(shares, nonnegative=True)

    def row_sums(self) -> Tensor:
        return self.atoms.sum(-2).unsqueeze(-1).clamp_min(torch.finfo(self.atoms.dtype).tiny ** 0.5)


class SoftPartition(Partition):
    """P = softmax(k W) along the rows, for keys k and prototypes W. It is computed on first access.

    Args:
        keys: (..., N, d).
        prototypes: (..., d, M).
    """

    def __init__(self, keys: Tensor, prototypes: Tensor):
        self.keys, self.prototypes = keys, prototypes
        self.nonnegative, self.size = True, prototypes.shape[-1]
        self.grad_enabled = torch.is_grad_enabled()

    @lazy
    def atoms(self) -> Tensor:
        """(..., N, M)."""
        if operators_allowed() and self.keys.ndim == 4 and native.takes(self.keys, self.prototypes):
            return native.shares(self.keys, self.prototypes)
        return (self.keys @ self.prototypes).softmax(-1)


class Convolution(Operator):
    """All circular shifts of a few filters for each channel: P is a convolution, P^T a correlation.

    Atom (f, p) is filter f centred at position p, so M = F H W. Since shifts are circular, the adjoint is exact, and
    the Fourier transform block-diagonalises P^T P: at each frequency it is the F x F matrix k* k^T of rank one.

    Args:
        filters: (..., C, F, h, w), no larger than the grid.
        grid: (H, W) with H W = N.
    """

    def __init__(self, filters: Tensor, grid: tuple[int, int]):
        check_filters(filters.shape[-2:], grid)
        self.grid = grid[0], grid[1]
        self.size = filters.shape[-3] * grid[0] * grid[1]
        self.filters = filters.movedim(-4, -1)  # (..., F, h, w, C)
        self.grad_enabled = torch.is_grad_enabled()

    @lazy
    def spectrum(self) -> Spectrum:
        """The spectrum of the filters: (..., F, H, W / 2 + 1, C)."""
        return filter_spectrum(self.filters, self.grid)

    def analyze(self, signal: Tensor) -> Tensor:
        return self._to_code(transform(signal.unflatten(-2, self.grid)))

    def synthesize(self, code: Tensor) -> Tensor:
        return inverse(self._explained(code), self.grid).flatten(-3, -2)

    def gram(self, code: Tensor) -> Tensor:
        return self._to_code(self._explained(code))

    def find_bound(self) -> Tensor:
        """The exact largest eigenvalue: the maximum of sum_f |k_f|^2 over all frequencies, for each channel."""
        return rounded_up(self._power().amax((-3, -2)), self.grid[0] * self.grid[1]).unsqueeze(-2)

    def magnitude(self) -> "Convolution":
        return Convolution(self.filters.abs().movedim(-1, -4), self.grid)

    def totals(self) -> Tensor:
        return self.filters.sum((-4, -3, -2)).unsqueeze(-2).expand(*self.filters.shape[:-4], math.prod(self.grid), -1)

    def moments(self, direction: Tensor) -> tuple[Tensor, Tensor]:
        energy = energies(transform(direction.unflatten(-2, self.grid)), self.grid).flatten(-3).unsqueeze(-2)
        gain = self._power().flatten(-3, -2)
        mean = energy @ gain
        return mean, (energy @ (gain - mean).square()).sqrt()

    def _power(self) -> Tensor:
        """sum_f |k_f|^2, by which P P^T multiplies a spectrum: (..., H, W / 2 + 1, C)."""
        if operators_allowed() and filters_beside_atoms(self) and native.takes(self.filters):
            return native.filter_power(self.filters, self.grid)
        return self.spectrum.detach().power().sum(-4)

    def _explained(self, code: Tensor) -> Spectrum:
        """The spectrum of P u."""
        maps = code.unflatten(-2, (-1, *self.grid))
        return self.spectrum.times(transform(maps)).sum(-4)

    def _to_code(self, spectrum: Spectrum) -> Tensor:
        """The code P^T x of a signal with this spectrum."""
        return inverse(self.spectrum.conj().times(spectrum.unsqueeze(-4)), self.grid).flatten(-4, -2)


class Joint(Operator):
    """The union of two dictionaries, [P1, P2]. Its code is the code of the first, then that of the second."""

    def __init__(self, first: Operator, second: Operator):
        self.first, self.second = first, second
        self.size = first.size + second.size

    def analyze(self, signal: Tensor) -> Tensor:
        return torch.cat([self.first.analyze(signal), self.second.analyze(signal)], dim=-2)

    def synthesize(self, code: Tensor) -> Tensor:
        first, second = code.split([self.first.size, self.second.size], dim=-2)
        return self.first.synthesize(first) + self.second.synthesize(second)

    def magnitude(self) -> "Joint":
        return Joint(self.first.magnitude(), self.second.magnitude())

    def totals(self) -> Tensor:
        return self.first.totals() + self.second.totals()

    def find_bound(self) -> Tensor:
        """A bound at most equal to the sum of both bounds; close if the principal direction is that of a dense part.

        Let A = P1 P1^T + P2 P2^T, v any unit signal, a = v^T A v, b >= |A v - a v|, and d a bound on A restricted to
        signals orthogonal to v. Then the largest eigenvalue of A is at most that of the matrix (a, b; b, d).
        """
        dense = self.second
        if operators_allowed() and isinstance(dense, Dense) and (found := filters_beside_atoms(self)):
            static, atoms = found[0], dense.atoms
            few = dense.nonnegative and atoms.ndim == 4 and 0 < atoms.shape[-1] <= atoms.shape[-2]
            if few and native.takes(static.filters, atoms):
                return native.union_bound(static, atoms)
        first, second = self.first.lipschitz(), self.second.lipschitz()
        bound = first + second
        for part, other, other_bound in ((self.first, self.second, second), (self.second, self.first, first)):
            if isinstance(part, Dense):
                direction, rest = part.principal()
                a, b = 0, 0
                for operator in (part, other):
                    with torch.no_grad():  # torch.jit.trace ignores no_grad, but records detach
                        mean, deviation = (moment.detach() for moment in operator.moments(direction))
                    a, b = a + mean, b + deviation
                d = rest + other_bound
                split = (a + d) / 2 + (((a - d) / 2).square() + b.square()).sqrt()
                bound = torch.minimum(bound, rounded_up(split, self.size))
        return bound


def filters_beside_atoms(operator: Operator) -> tuple[Convolution, Tensor | None] | None:
    """The convolution of an operator and its atoms, if any; None if there is none, or its filters differ in a batch."""
    static, atoms = operator, None
    if type(operator) is Joint and type(operator.second) is Dense:
        static, atoms = operator.first, operator.second.atoms
    return (static, atoms) if type(static) is Convolution and static.filters.ndim <= 5 else None


def check_filters(size: Sequence[int], grid: Sequence[int]) -> None:
    """Raises a ValueError if filters of this size are larger than the grid."""
    if size[0] > grid[0] or size[1] > grid[1]:
        raise ValueError(
            f"filters of {size[0]} x {size[1]} do not fit on a grid of {grid[0]} x {grid[1]}: "
            "crop the filters or use a larger grid"
        )
