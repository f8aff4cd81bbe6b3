"""A convolution in the Fourier basis of its grid is the same operator, in other coordinates."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from torchvars.sparse import ISTA, Convolution, Dense, Joint, SparseCoding
from torchvars.sparse.spectral import Basis, FixedFilters

GRIDS = st.tuples(st.integers(1, 9), st.integers(1, 9))


def draw(*shape):
    return torch.randn(*shape, dtype=torch.double)


def both(grid, size):
    """A convolution, its basis, and the same in it."""
    filters = draw(2, 3, 4, *(min(pair) for pair in zip(size, grid, strict=True)))
    basis = Basis(grid, filters)
    return Convolution(filters, grid), basis, FixedFilters(filters, basis)()


@given(grid=GRIDS)
def test_the_basis_is_orthonormal(grid):
    basis, maps = Basis(grid, draw(1)), draw(2, grid[0] * grid[1], 3)
    torch.testing.assert_close(basis.inverse(basis.transform(maps)), maps)
    torch.testing.assert_close(basis.transform(maps).norm(dim=-2), maps.norm(dim=-2))


@given(grid=GRIDS, size=GRIDS)
def test_it_analyses_and_synthesises_as_the_convolution(grid, size):
    plain, basis, spectral = both(grid, size)
    signal, code = draw(5, 2, grid[0] * grid[1], 3), draw(5, 2, plain.size, 3)
    assert spectral.size == plain.size
    torch.testing.assert_close(spectral.analyze(basis.transform(signal)), plain.analyze(signal))
    torch.testing.assert_close(basis.inverse(spectral.synthesize(code)), plain.synthesize(code))
    torch.testing.assert_close(spectral.gram(code), plain.gram(code))


@given(grid=GRIDS, size=GRIDS)
def test_its_bound_and_moments_are_those_of_the_convolution(grid, size):
    plain, basis, spectral = both(grid, size)
    torch.testing.assert_close(spectral.lipschitz(), plain.lipschitz())
    direction = F.normalize(draw(5, 2, grid[0] * grid[1], 1), dim=-2)
    for found, expected in zip(spectral.moments(basis.transform(direction)), plain.moments(direction), strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("nonnegative", [False, True])
def test_the_same_codes_solve_the_problem_of_both_dictionaries(nonnegative):
    plain, basis, spectral = both((5, 6), (3, 6))
    atoms, signal = draw(4, 2, 30, 7), draw(4, 2, 30, 3)
    atoms = F.normalize(atoms.abs() if nonnegative else atoms, dim=-2)
    joint = Joint(plain, Dense(atoms, nonnegative=nonnegative))
    rotated = Joint(spectral, Dense(basis.transform(atoms), nonnegative=nonnegative))
    torch.testing.assert_close(rotated.lipschitz(), joint.lipschitz())
    codes = [
        ISTA(5).solve(SparseCoding(operator, x, 0.3))
        for operator, x in ((joint, signal), (rotated, basis.transform(signal)))
    ]
    torch.testing.assert_close(codes[1], codes[0])
