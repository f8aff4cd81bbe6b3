"""The part of a convolution in a run of ISTA, on a large grid: by fast Fourier transforms.

Images are (batch, heads C, 1, H, W) and codes (batch, heads C, F, H, W), as the transforms like them.
"""

import torch
from torch import Tensor

from ..fourier import multiplicity
from ..operators import Convolution
from .units import Units


class ByFFT:
    """The half spectra k of the filters, their power |k|^2 summed over all, and what is gathered of their gradient."""

    def __init__(self, kernel: Tensor, heads: int, grid: tuple[int, int]):
        self.kernel, self.heads, self.grid = kernel, heads, grid
        self.conjugate = kernel.conj().resolve_conj()
        self.power = torch.view_as_real(kernel).square().sum((1, -1)).unsqueeze(1)
        self._by_filters, self._by_power = 0, 0

    @staticmethod
    def kernel_of(static: Convolution, heads: int) -> Tensor:
        """The half spectra of the filters: (heads C, F, H, W / 2 + 1)."""
        kernel = torch.complex(*static.spectrum)
        return kernel.expand(heads, *kernel.shape[-4:]).movedim(-1, 1).flatten(0, 1).contiguous()

    @staticmethod
    def image_of(signal: Tensor, grid: tuple[int, int]) -> Tensor:
        """(batch, heads, N, C) -> (batch, heads C, 1, H, W)."""
        return signal.mT.reshape(signal.shape[0], -1, 1, *grid)

    @staticmethod
    def signal_of(image: Tensor, heads: int) -> Tensor:
        """The way back."""
        return image.flatten(2).unflatten(1, (heads, -1)).mT

    @staticmethod
    def bound_of(bound: Tensor) -> Tensor:
        """(batch or 1, heads, 1, C) -> (batch or 1, heads C, 1, 1, 1)."""
        return bound.reshape(bound.shape[0], -1, 1, 1, 1)

    def enter(self, image: Tensor) -> Tensor:
        """An image as it is worked on: as it is."""
        return image.clone(memory_format=torch.contiguous_format)

    def leave(self, image: Tensor, out: Tensor) -> Tensor:
        return out.copy_(image)

    def enter_atoms(self, atoms: Tensor) -> Tensor:
        return atoms.contiguous()

    def leave_atoms(self, atoms: Tensor) -> Tensor:
        return atoms

    def by_head(self, image: Tensor) -> Tensor:
        """(batch, heads C, 1, H, W) -> (batch heads, N, C)."""
        return self.signal_of(image, self.heads).flatten(0, 1)

    def add_by_head_(self, image: Tensor, atoms: Tensor, code: Tensor) -> None:
        """Adds what atoms of each head explain."""
        by_head = image.view(-1, code.shape[-1], atoms.shape[-2])
        by_head.baddbmm_(code.mT, atoms.mT)

    def spectrum(self, maps: Tensor) -> Tensor:
        return torch.fft.rfft2(maps)

    def maps(self, spectrum: Tensor) -> Tensor:
        return torch.fft.irfft2(spectrum, s=self.grid)

    def gather(self, spectra: Tensor) -> None:
        """Adds what is one of the gradients in each of a batch."""
        self._by_filters += spectra.sum(0)

    def gather_power(self, spectra: Tensor) -> None:
        self._by_power += 2 * spectra.real.sum(0)

    def gradient(self) -> Tensor:
        """Of the half spectra as PyTorch has it: a frequency that stands for two counts twice."""
        height, width = self.grid
        weights = multiplicity(width, self.power) / (height * width)
        return (self._by_filters + self.kernel * self._by_power) * weights

    def buffers(self, size: int) -> None:
        """None: the transforms make their own."""

    def portion(self, units: Units, buffers: None, size: int, keep: bool) -> "StaticByFFT":
        return StaticByFFT(self, units, keep)


class StaticByFFT:
    """The codes of the filters in a portion of the batch, see `StaticByProducts`."""

    def __init__(self, filters: ByFFT, units: Units, keep: bool):
        self.filters, self.units, self.keep = filters, units, keep
        self.codes: list[Tensor] = []
        self.spectra: list[Tensor] = []

    def begin(self, origin: Tensor, explained: Tensor) -> None:
        self.origin = self.filters.spectrum(origin)
        explained.copy_(self.filters.maps(self.origin * self.filters.power))

    def step(self, index: int, residual: Tensor, explained: Tensor) -> None:
        residual = self.filters.spectrum(residual)
        if index == 0:
            moved = self.filters.conjugate * (self.origin - residual)
        else:
            moved = torch.addcmul(self.spectra[-1], self.filters.conjugate, residual, value=-1)
        code = self.units.shrink_(self.filters.maps(moved))
        spectrum = self.filters.spectrum(code)
        if self.keep:
            self.codes.append(code)
            self.spectra.append(spectrum)
        else:
            self.spectra = [spectrum]
        self._explain(spectrum, explained)

    def receive(self, index: int, gradient: Tensor, sign: int) -> None:
        gradient = self.filters.spectrum(gradient).mul_(sign)
        if index == self.units.steps:
            self.of_code = self.filters.conjugate * gradient
        else:
            self.of_code.addcmul_(self.filters.conjugate, gradient)
        self.filters.gather(self.spectra[index - 1].conj() * gradient)

    def through_step(self, index: int, residual: Tensor, origin: Tensor, explained: Tensor) -> None:
        self.of_code = self.filters.spectrum(
            self.units.keep_support_(self.filters.maps(self.of_code), self.codes[index])
        )
        self._explain(self.of_code, explained)
        if index == 0:
            self.of_origin = explained.clone()
        cause = origin - residual if index == 0 else -residual
        self.filters.gather(self.of_code.conj() * self.filters.spectrum(cause))

    def through_begin(self, origin: Tensor, gradient: Tensor, of_origin: Tensor) -> None:
        gradient = self.filters.spectrum(gradient)
        self.filters.gather_power(-self.filters.spectrum(origin).conj() * gradient)
        torch.sub(self.of_origin, self.filters.maps(gradient * self.filters.power), out=of_origin)

    def _explain(self, spectrum: Tensor, explained: Tensor) -> None:
        explained.copy_(self.filters.maps((self.filters.kernel * spectrum).sum(2, keepdim=True)))
