"""Circular convolution on a grid in a real, orthonormal Fourier basis, in place.

Along an axis of n positions the basis is cos(2 pi k m / n) for k = 0 ... n / 2, then sin for those k that have one: n
numbers for n positions, by one product with a matrix along each axis. On a grid they are four blocks, cc, sc, cs and
ss: (cos, sin) of the rows times (cos, sin) of the columns.

Convolution along one axis multiplies c - i s as complex numbers. Along both there is a unit i for the rows and another,
j, for the columns: x = cc - i sc - j cs + i j ss, and a product of two such numbers has sixteen terms. The transposed
operator has k with both units conjugated: sc and cs change their sign.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from ..fourier import real_waves

Grid = tuple[int, int]


def basis(size: int, like: Tensor) -> Tensor:
    """The real basis of an axis, orthonormal: (size, size)."""
    waves = real_waves(size, torch.arange(size, device=like.device), like)
    return waves / waves.norm(dim=1, keepdim=True)


class Torus:
    """Transforms of maps (batch, F, H, W, C) on a grid."""

    def __init__(self, grid: Grid, like: Tensor):
        self.rows, self.columns = basis(grid[0], like), basis(grid[1], like)

    def transform(self, maps: Tensor, room: Tensor | None = None, out: Tensor | None = None) -> Tensor:
        """Maps to coefficients; `out` may be the maps themselves."""
        return _along_both(self.rows, self.columns, maps, room, out)

    def inverse(self, maps: Tensor, room: Tensor | None = None, out: Tensor | None = None) -> Tensor:
        """Coefficients to maps; `out` may be the coefficients themselves."""
        return _along_both(self.rows.mT, self.columns.mT, maps, room, out)

    def of_atoms(self, atoms: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
        """One of the two for atoms (batch, heads, N, M), each a map."""
        maps = atoms.reshape(-1, 1, self.rows.shape[0], self.columns.shape[0], atoms.shape[-1])
        return change(maps).view(atoms.shape)


class Blocks:
    """Coefficients (..., H, W, C) by their blocks: (cos, sin) of the rows times (cos, sin) of the columns.

    Frequencies 0 and, on an even axis, n / 2 have no sine: `cc_rows` and so on are what has a partner.
    """

    def __init__(self, values: Tensor):
        self.values = values
        (rows, sine_rows), (columns, sine_columns) = (
            (slice(1, 1 + _paired(size)), slice(size // 2 + 1, size)) for size in values.shape[-3:-1]
        )
        cosine_rows, cosine_columns = (slice(size // 2 + 1) for size in values.shape[-3:-1])
        self.cc = values[..., cosine_rows, cosine_columns, :]
        self.cc_rows, self.cc_columns = self.cc[..., rows, :, :], self.cc[..., columns, :]
        self.cc_both = self.cc_rows[..., columns, :]
        self.sc = values[..., sine_rows, cosine_columns, :]
        self.sc_columns = self.sc[..., columns, :]
        self.cs = values[..., cosine_rows, sine_columns, :]
        self.cs_rows = self.cs[..., rows, :, :]
        self.ss = values[..., sine_rows, sine_columns, :]


def multiply(x: Blocks, k: Blocks, out: Blocks) -> Tensor:
    """k x."""
    return _multiply(x, k, out, 1)


def multiply_transposed(x: Blocks, k: Blocks, out: Blocks) -> Tensor:
    """k^T x."""
    return _multiply(x, k, out, -1)


def _multiply(x: Blocks, k: Blocks, out: Blocks, single: int) -> Tensor:
    torch.mul(x.cc, k.cc, out=out.cc)
    torch.mul(x.sc, k.cc_rows, out=out.sc)
    torch.mul(x.cs, k.cc_columns, out=out.cs)
    torch.mul(x.ss, k.cc_both, out=out.ss)
    return _add_exchanged_(out, x, k, single, 1)


def add_transposed_(out: Blocks, x: Blocks, k: Blocks, sign: int) -> Tensor:
    """out + sign k^T x, in place."""
    out.cc.addcmul_(x.cc, k.cc, value=sign)
    out.sc.addcmul_(x.sc, k.cc_rows, value=sign)
    out.cs.addcmul_(x.cs, k.cc_columns, value=sign)
    out.ss.addcmul_(x.ss, k.cc_both, value=sign)
    return _add_exchanged_(out, x, k, -sign, sign)


def _add_exchanged_(out: Blocks, x: Blocks, k: Blocks, single: int, double: int) -> Tensor:
    """The terms of k with one sine, and with two."""
    out.cc_rows.addcmul_(x.sc, k.sc, value=-single)
    out.sc.addcmul_(x.cc_rows, k.sc, value=single)
    out.cs_rows.addcmul_(x.ss, k.sc_columns, value=-single)
    out.ss.addcmul_(x.cs_rows, k.sc_columns, value=single)
    out.cc_columns.addcmul_(x.cs, k.cs, value=-single)
    out.cs.addcmul_(x.cc_columns, k.cs, value=single)
    out.sc_columns.addcmul_(x.ss, k.cs_rows, value=-single)
    out.ss.addcmul_(x.sc_columns, k.cs_rows, value=single)
    out.cc_both.addcmul_(x.ss, k.ss, value=double)
    out.ss.addcmul_(x.cc_both, k.ss, value=double)
    out.sc_columns.addcmul_(x.cs_rows, k.ss, value=-double)
    out.cs_rows.addcmul_(x.sc_columns, k.ss, value=-double)
    return out.values


def conjugate(values: Tensor) -> Tensor:
    """The coefficients of the transposed factor: those with one sine change sign."""
    rows, columns = (size // 2 + 1 for size in values.shape[-3:-1])
    result = values.clone()
    result[..., rows:, :columns, :] *= -1
    result[..., :rows, columns:, :] *= -1
    return result


def _paired(size: int) -> int:
    """How many frequencies of an axis have a sine."""
    return (size - 1) // 2


def _along_both(rows: Tensor, columns: Tensor, maps: Tensor, room: Tensor | None, out: Tensor | None) -> Tensor:
    """rows X columns^T for maps X of each channel."""
    batch, count, height, width, channels = maps.shape
    room = torch.empty_like(maps) if room is None else room
    out = torch.empty_like(maps) if out is None else out
    wide, narrow = (batch * count, height, width * channels), (batch * count * height, width, channels)
    torch.bmm(rows.expand(wide[0], -1, -1), maps.view(wide), out=room.view(wide))
    torch.bmm(columns.expand(narrow[0], -1, -1), room.view(narrow), out=out.view(narrow))
    return out
