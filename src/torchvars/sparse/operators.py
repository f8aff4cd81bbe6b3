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


def found_once(find: Callable[[Any], Any]) -> property:
    """A property that is found when it is first asked for, and then kept.

    It has a graph if gradients were on when its object was made, which notes so in `grad_enabled`: as if found then.
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
        """P^T P u: how the atoms that are active inhibit each other."""
        return self.analyze(self.synthesize(code))

    def moments(self, direction: Tensor) -> tuple[Tensor, Tensor]:
        """a = v^T P P^T v and |P P^T v - a v| of a unit signal v: (..., N, 1) -> (..., 1, C) or (..., 1, 1), both."""
        analysis = self.analyze(direction)
        mean = analysis.square().sum(-2, keepdim=True)
        return mean, (self.synthesize(analysis) - mean * direction).norm(dim=-2, keepdim=True)

    def lipschitz(self) -> Tensor:
        """The largest eigenvalue of P^T P, never below it, broadcast against a code: (..., 1, C) or (..., 1, 1).

        It sets a step size and is no part of what is learned: it carries no gradient. Found once.
        """
        if self._bound is None:
            self._bound = self.find_bound()
        return self._bound

    @abstractmethod
    def find_bound(self) -> Tensor:
        """What `lipschitz` returns."""

    def magnitude(self) -> "Operator":
        """|P|: the dictionary of the absolute values of the entries."""
        raise ValueError(f"{type(self).__name__} does not say its magnitude: take step=Spectral()")

    def totals(self) -> Tensor:
        """P 1, the sum of all atoms: (..., N, C) or (..., N, 1)."""
        raise ValueError(f"{type(self).__name__} does not say its totals: take step=Spectral()")

    def row_sums(self) -> Tensor:
        """|P|^T |P| 1, broadcast against a code: (..., M, C) or (..., M, 1).

        The diagonal matrix D of it majorises P^T P, since D - P^T P is diagonally dominant: one number for each atom,
        without an eigenvalue. Unlike `lipschitz` it is differentiated.
        """
        magnitude = self.magnitude()
        return rounded_up(magnitude.analyze(magnitude.totals()), self.size)


class Dense(Operator):
    """A dictionary given as a matrix, one for each batch entry and head.

    Args:
        atoms: (..., N, M), one atom a column.
        nonnegative: whether no atom has a negative entry, which makes the bound cheaper to find.
    """

    def __init__(self, atoms: Tensor, *, nonnegative: bool = False):
        if atoms.ndim < 2:
            raise ValueError(f"atoms must have shape (..., N, M), got {tuple(atoms.shape)}: add the missing dimensions")
        self.atoms = atoms
        self.nonnegative = nonnegative
        self.size = atoms.shape[-1]
        self.grad_enabled = torch.is_grad_enabled()

    @found_once
    def gram_matrix(self) -> Tensor | None:
        """P^T P, (..., M, M): it pays unless there are far more atoms than positions."""
        return self.atoms.mT @ self.atoms if self.size <= 2 * self.atoms.shape[-2] else None

    def analyze(self, signal: Tensor) -> Tensor:
        return self.atoms.mT @ signal

    def synthesize(self, code: Tensor) -> Tensor:
        return self.atoms @ code

    def gram(self, code: Tensor) -> Tensor:
        return super().gram(code) if self.gram_matrix is None else self.gram_matrix @ code

    def find_bound(self) -> Tensor:
        """At most 5 % above the largest eigenvalue, for any atoms; nonnegative ones: see `perron_eigenvalue`."""
        atoms = self.atoms.detach()
        # P P^T and P^T P have the same largest eigenvalue: take the smaller matrix.
        small = atoms @ atoms.mT if atoms.shape[-2] < self.size else self.gram_matrix.detach()
        bound, self._direction = perron_eigenvalue(small) if self.nonnegative else largest_eigenvalue(small)
        return bound[..., None, None]

    def principal(self) -> tuple[Tensor, Tensor]:
        """The direction that the atoms share most, and what is left without it.

        Returns:
            A unit signal v, (..., N, 1), near the top eigenvector of P P^T, and an upper bound, (..., 1, 1), on P P^T
            between signals orthogonal to v.
        """
        self.lipschitz()  # finds the direction, too
        atoms, direction = self.atoms.detach(), self._direction
        if direction.shape[-2] == self.size:
            direction = atoms @ direction
        direction = F.normalize(direction, dim=-2)
        # (I - v v^T) P P^T (I - v v^T) has the eigenvalues of P^T P - q q^T with q = P^T v.
        share = direction.mT @ atoms
        gram = atoms.mT @ atoms if self.gram_matrix is None else self.gram_matrix.detach()
        bound, _ = largest_eigenvalue(gram - share.mT @ share, slack=1.0)  # it need not be tight to be of use
        return direction, bound[..., None, None]

    def magnitude(self) -> Operator:
        return self if self.nonnegative else Dense(self.atoms.abs(), nonnegative=True)

    def totals(self) -> Tensor:
        return self.atoms.sum(-1, keepdim=True)

    def moments(self, direction: Tensor) -> tuple[Tensor, Tensor]:
        share = direction.mT @ self.atoms
        mean = share.square().sum(-1, keepdim=True)
        image = (self.atoms * share).sum(-1, keepdim=True)  # faster than a product with one column
        return mean, (image - mean * direction).norm(dim=-2, keepdim=True)


class Partition(Dense):
    """A dense dictionary in which every position shares itself out among the atoms.

    No entry is negative and each row sums to one, so that P 1 = 1 and the row sums of P^T P are P^T 1. One step of ISTA
    from zero with these as step sizes, without a penalty, is (P^T x) / (P^T 1): each atom holds the mean of the values
    that are shared with it, which is linear attention with its denominator.

    Args:
        shares: (..., N, M), such as a softmax over the atoms.
    """

    def __init__(self, shares: Tensor):
        super().__init__(shares, nonnegative=True)

    def row_sums(self) -> Tensor:
        return self.atoms.sum(-2).unsqueeze(-1).clamp_min(torch.finfo(self.atoms.dtype).tiny ** 0.5)


class SoftPartition(Partition):
    """P = softmax(k W) along its rows, of keys k and prototypes W. It is computed when it is first asked for.

    Args:
        keys: (..., N, d).
        prototypes: (..., d, M).
    """

    def __init__(self, keys: Tensor, prototypes: Tensor):
        self.keys, self.prototypes = keys, prototypes
        self.nonnegative, self.size = True, prototypes.shape[-1]
        self.grad_enabled = torch.is_grad_enabled()

    @found_once
    def atoms(self) -> Tensor:
        """(..., N, M)."""
        if operators_allowed() and self.keys.ndim == 4 and native.takes(self.keys, self.prototypes):
            return native.shares(self.keys, self.prototypes)
        return (self.keys @ self.prototypes).softmax(-1)


class Convolution(Operator):
    """Every circular shift of a few filters for each channel: P is a convolution, P^T the correlation with it.

    Atom (f, p) is filter f with its centre at position p, so M = F H W. Circular, so the adjoint is exact and the
    Fourier transform diagonalises it: at each frequency P^T P is the F x F matrix k* k^T of rank one.

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

    @found_once
    def spectrum(self) -> Spectrum:
        """Of the filters: (..., F, H, W / 2 + 1, C)."""
        return filter_spectrum(self.filters, self.grid)

    def analyze(self, signal: Tensor) -> Tensor:
        return self._to_code(transform(signal.unflatten(-2, self.grid)))

    def synthesize(self, code: Tensor) -> Tensor:
        return inverse(self._explained(code), self.grid).flatten(-3, -2)

    def gram(self, code: Tensor) -> Tensor:
        return self._to_code(self._explained(code))

    def find_bound(self) -> Tensor:
        """Exact: the largest of sum_f |k_f|^2 over all frequencies, for each channel."""
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
    """The union of two dictionaries, [P1, P2]: the code holds that of the first, then that of the second."""

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
        """Within a few per cent where the strongest direction is that of a dense part; never above the sum of the two.

        Let A = P1 P1^T + P2 P2^T, v any unit signal, a = v^T A v, b no less than |A v - a v|, and d a bound on A
        between signals orthogonal to v. Then no eigenvalue of A is above the larger one of the matrix (a, b; b, d).
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
                    with torch.no_grad():  # which torch.jit.trace does not see, but it sees detach
                        mean, deviation = (moment.detach() for moment in operator.moments(direction))
                    a, b = a + mean, b + deviation
                d = rest + other_bound
                split = (a + d) / 2 + (((a - d) / 2).square() + b.square()).sqrt()
                bound = torch.minimum(bound, rounded_up(split, self.size))
        return bound


def filters_beside_atoms(operator: Operator) -> tuple[Convolution, Tensor | None] | None:
    """The convolution that an operator is, alone or beside atoms, if its filters are the same for all of a batch."""
    static, atoms = operator, None
    if type(operator) is Joint and type(operator.second) is Dense:
        static, atoms = operator.first, operator.second.atoms
    return (static, atoms) if type(static) is Convolution and static.filters.ndim <= 5 else None


def check_filters(size: Sequence[int], grid: Sequence[int]) -> None:
    """A ValueError if filters of this size are larger than the grid."""
    if size[0] > grid[0] or size[1] > grid[1]:
        raise ValueError(
            f"filters of {size[0]} x {size[1]} do not fit on a grid of {grid[0]} x {grid[1]}: "
            "crop the filters or use a larger grid"
        )
