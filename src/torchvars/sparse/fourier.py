"""The real two-dimensional Fourier transform, on small grids by products with real matrices.

A grid of tokens is mostly small, so that a matrix product along each axis is faster than an FFT. Unlike complex numbers
it can be exported and compiled, and runs on every device. Half spectra are those of `torch.fft.rfft2`, as a pair of
real tensors.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

LONGEST_PRODUCTS = 64  # largest H + W for which products are faster: benchmarks/convolutions.py


def by_products(grid: tuple[int, int]) -> bool:
    """Whether a grid is transformed by products: if it is small, and always in a compiler or an exporter."""
    return sum(grid) <= LONGEST_PRODUCTS or torch.compiler.is_compiling()


class Spectrum(NamedTuple):
    """A half spectrum (..., H, W / 2 + 1, C): its real and imaginary parts."""

    real: Tensor
    imaginary: Tensor

    def conj(self) -> "Spectrum":
        return Spectrum(self.real, -self.imaginary)

    def power(self) -> Tensor:
        return self.real.square() + self.imaginary.square()

    def sum(self, dim: int) -> "Spectrum":
        return Spectrum(self.real.sum(dim), self.imaginary.sum(dim))

    def unsqueeze(self, dim: int) -> "Spectrum":
        return Spectrum(self.real.unsqueeze(dim), self.imaginary.unsqueeze(dim))

    def times(self, other: "Spectrum") -> "Spectrum":
        return Spectrum(
            self.real * other.real - self.imaginary * other.imaginary,
            self.real * other.imaginary + self.imaginary * other.real,
        )

    def detach(self) -> "Spectrum":
        return Spectrum(self.real.detach(), self.imaginary.detach())


def transform(image: Tensor) -> Spectrum:
    """rfft2 over rows and columns: image (..., H, W, C) -> half spectrum (..., H, W / 2 + 1, C)."""
    height, width, channels = image.shape[-3:]
    if not by_products((height, width)):
        return _parts(torch.fft.rfft2(image, dim=(-3, -2)))
    half = width // 2 + 1
    cosine, sine = _waves(width, half, image)
    rows = torch.cat([cosine, -sine]) @ image  # (..., H, 2 half, C): real parts, then imaginary ones
    cosine, sine = _waves(height, height, image)
    both = _complex(cosine, -sine) @ rows.unflatten(-2, (2, half)).flatten(-4, -3).flatten(-2)  # (..., 2 H, half C)
    return Spectrum(*both.unflatten(-1, (half, channels)).unflatten(-3, (height, 2)).unbind(-3))


def inverse(spectrum: Spectrum, grid: tuple[int, int]) -> Tensor:
    """irfft2 over rows and columns: half spectrum (..., H, W / 2 + 1, C) -> image (..., H, W, C)."""
    if not by_products(grid):
        return torch.fft.irfft2(torch.complex(*spectrum), s=grid, dim=(-3, -2))
    height, width = grid
    half, channels = spectrum.real.shape[-2:]
    both = torch.stack(spectrum, dim=-3).flatten(-4, -3).flatten(-2)  # (..., 2 H, half C)
    cosine, sine = _waves(height, height, both)
    rows = _complex(cosine, sine) @ both  # (..., 2 H, half C)
    rows = rows.unflatten(-1, (half, channels)).unflatten(-3, (height, 2)).flatten(-3, -2)  # (..., H, 2 half, C)
    cosine, sine = _waves(width, half, both)
    weights = multiplicity(width, both)[:, None]
    back = torch.cat([weights * cosine, -weights * sine]).mT / (height * width)
    return back @ rows


def energies(spectrum: Spectrum, grid: tuple[int, int]) -> Tensor:
    """The part of the squared norm of an image at each frequency, from its half spectrum: (..., H, W / 2 + 1, C)."""
    return spectrum.power() * (multiplicity(grid[1], spectrum.real) / (grid[0] * grid[1]))[:, None]


def multiplicity(width: int, like: Tensor) -> Tensor:
    """The number of frequencies that each column of a half spectrum represents: 1 or 2."""
    weights = torch.full((width // 2 + 1,), 2.0, dtype=like.dtype, device=like.device)
    weights[0] = 1
    if width % 2 == 0:
        weights[-1] = 1
    return weights


def _complex(real: Tensor, imaginary: Tensor) -> Tensor:
    """A complex matrix as a real one, for interleaved (real, imaginary) vectors: (n, n) -> (2 n, 2 n)."""
    return (
        torch.stack([torch.stack([real, -imaginary], -1), torch.stack([imaginary, real], -1)], -3)
        .flatten(-2)
        .flatten(0, 1)
    )


def filter_spectrum(filters: Tensor, grid: tuple[int, int]) -> Spectrum:
    """The half spectra of filters (..., h, w, C) centred at the origin of a grid: (..., H, W / 2 + 1, C)."""
    if by_products(grid):
        return half_spectrum(coefficients(filters, grid))
    maps = filters.movedim(-1, -3)
    height, width = maps.shape[-2:]
    maps = F.pad(maps, (0, grid[1] - width, 0, grid[0] - height)).roll((-(height // 2), -(width // 2)), dims=(-2, -1))
    return _parts(torch.fft.rfft2(maps).movedim(-3, -1))


def _parts(spectrum: Tensor) -> Spectrum:
    return Spectrum(spectrum.real, spectrum.imag)


def coefficients(filters: Tensor, grid: tuple[int, int]) -> Tensor:
    """The coefficients of filters (..., h, w, C), centred at the origin of a grid, in a real basis: (..., H, W, C).

    Along an axis the basis is cos(2 pi k m / n) for k = 0 ... n / 2, then the sines that are not zero: as many
    functions as there are positions.
    """
    height, width, channels = filters.shape[-3:]
    rows, columns = (
        real_waves(size, torch.arange(extent, device=filters.device) - extent // 2, filters)
        for size, extent in zip(grid, (height, width), strict=True)
    )
    return (rows @ (columns @ filters).flatten(-2)).unflatten(-1, (grid[1], channels))


def half_spectrum(values: Tensor) -> Spectrum:
    """The half spectrum from coefficients in the real basis: (..., H, W, C) -> (..., H, W / 2 + 1, C)."""
    (rows, paired_rows), (columns, paired_columns) = ((size // 2 + 1, (size - 1) // 2) for size in values.shape[-3:-1])
    beside_rows = (0, 0, 0, 0, 1, rows - 1 - paired_rows)  # aligns sines with their cosines
    beside_columns = (0, 0, 1, columns - 1 - paired_columns)
    cosine_cosine = values[..., :rows, :columns, :]
    sine_cosine = F.pad(values[..., rows:, :columns, :], beside_rows)
    cosine_sine = F.pad(values[..., :rows, columns:, :], beside_columns)
    sine_sine = F.pad(F.pad(values[..., rows:, columns:, :], beside_columns), beside_rows)
    # exp(-i (a + b)) = (cos a - i sin a) (cos b - i sin b), and with -a for the mirrored rows.
    real = _with_mirrored(cosine_cosine - sine_sine, cosine_cosine + sine_sine, paired_rows)
    return Spectrum(real, _with_mirrored(-sine_cosine - cosine_sine, sine_cosine - cosine_sine, paired_rows))


def _with_mirrored(above: Tensor, below: Tensor, paired: int) -> Tensor:
    return torch.cat([above, below[..., 1 : 1 + paired, :, :].flip(-3)], dim=-3)


def real_waves(size: int, positions: Tensor, like: Tensor) -> Tensor:
    """The real basis of an axis at the given positions, one function in each row: (size, positions)."""
    frequencies = torch.arange(size // 2 + 1, device=like.device)[:, None]
    angles = (frequencies * positions % size).to(like.dtype) * (2 * math.pi / size)
    return torch.cat([angles.cos(), angles.sin()[1 : 1 + (size - 1) // 2]])


def _waves(size: int, frequencies: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin of 2 pi k n / size, (frequencies, size) each, in the precision and on the device of `like`."""
    positions = torch.arange(size, device=like.device)
    angles = (positions[:frequencies, None] * positions % size).to(like.dtype) * (2 * math.pi / size)
    return angles.cos(), angles.sin()
