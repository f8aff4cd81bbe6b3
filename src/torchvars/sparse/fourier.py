"""The real two-dimensional Fourier transform as products with small real matrices.

A grid of tokens is small, so that a product along each axis costs little; and unlike complex numbers it exports,
compiles and runs everywhere. Half spectra are those of `torch.fft.rfft2`, as a pair of real tensors.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor


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
    half = width // 2 + 1
    cosine, sine = _waves(width, half, image)
    rows = torch.cat([cosine, -sine]) @ image  # (..., H, 2 half, C)
    cosine, sine = _waves(height, height, image)
    columns = torch.cat([cosine, sine]) @ rows.flatten(-2)  # (..., 2 H, 2 half C)
    (cosine_real, cosine_imaginary), (sine_real, sine_imaginary) = (
        part.unflatten(-1, (2, half, channels)).unbind(-3) for part in columns.split(height, dim=-2)
    )
    return Spectrum(cosine_real + sine_imaginary, cosine_imaginary - sine_real)


def inverse(spectrum: Spectrum, grid: tuple[int, int]) -> Tensor:
    """irfft2 over rows and columns: half spectrum (..., H, W / 2 + 1, C) -> image (..., H, W, C)."""
    height, width = grid
    half, channels = spectrum.real.shape[-2:]
    stacked = torch.stack(spectrum, dim=-3)  # (..., H, 2, half, C)
    cosine, sine = _waves(height, height, spectrum.real)
    columns = torch.cat([cosine, sine]) @ stacked.flatten(-3)  # (..., 2 H, 2 half C)
    (cosine_real, cosine_imaginary), (sine_real, sine_imaginary) = (
        part.unflatten(-1, (2, half, channels)).unbind(-3) for part in columns.split(height, dim=-2)
    )
    rows = torch.cat([cosine_real - sine_imaginary, cosine_imaginary + sine_real], dim=-2)  # (..., H, 2 half, C)
    cosine, sine = _waves(width, half, spectrum.real)
    # All frequencies but the first, and the middle one of an even width, stand for two.
    weights = torch.full((half, 1), 2.0, dtype=cosine.dtype, device=cosine.device)
    weights[0] = 1
    if width % 2 == 0:
        weights[-1] = 1
    back = torch.cat([weights * cosine, -weights * sine]).mT / (height * width)
    return back @ rows


def _waves(size: int, frequencies: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin of 2 pi k n / size: (frequencies, size) each, in the precision and on the device of a tensor."""
    positions = torch.arange(size, device=like.device)
    angles = (positions[:frequencies, None] * positions % size).to(like.dtype) * (2 * math.pi / size)
    return angles.cos(), angles.sin()
