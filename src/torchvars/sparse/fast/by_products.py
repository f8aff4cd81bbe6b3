"""The part of a convolution in a run of ISTA, on a small grid: by products with the matrices of a real Fourier basis.

Images are (batch, 1, H, W, heads C) and codes (batch, F, H, W, heads C). All but the threshold happens between their
coefficients, where a convolution is a product: a step takes one transform of the code there and one back.
"""

import torch
from torch import Tensor

from ..operators import Convolution
from .torus import Blocks, Torus, add_transposed_, conjugate, multiply, multiply_transposed
from .units import Units


class ByProducts:
    """The filters k, their power k k^T summed over all, and what is gathered of their gradient."""

    def __init__(self, kernel: Tensor, heads: int, grid: tuple[int, int]):
        self.heads = heads
        self.torus = Torus(grid, kernel)
        self.kernel = Blocks(kernel)
        self.power = Blocks(multiply_transposed(self.kernel, self.kernel, _empty_like(self.kernel)).sum(0))
        self._by_filters, self._by_power = 0, 0

    # How tensors of the layer are held here.

    @staticmethod
    def kernel_of(static: Convolution, heads: int) -> Tensor:
        """Coefficients of the filters: (F, H, W, heads C)."""
        kernel = static.coefficients
        return kernel.expand(heads, *kernel.shape[-4:]).permute(1, 2, 3, 0, 4).flatten(-2)

    @staticmethod
    def image_of(signal: Tensor, grid: tuple[int, int]) -> Tensor:
        """(batch, heads, N, C) -> (batch, 1, H, W, heads C)."""
        return signal.transpose(1, 2).reshape(signal.shape[0], 1, *grid, -1)

    @staticmethod
    def signal_of(image: Tensor, heads: int) -> Tensor:
        """The way back."""
        return image.flatten(1, 3).unflatten(-1, (heads, -1)).transpose(1, 2)

    @staticmethod
    def bound_of(bound: Tensor) -> Tensor:
        """(batch or 1, heads, 1, C) -> (batch or 1, 1, 1, 1, heads C)."""
        return bound.reshape(bound.shape[0], 1, 1, 1, -1)

    def enter(self, image: Tensor) -> Tensor:
        """An image as it is worked on: by its coefficients."""
        return self.torus.transform(image.contiguous())

    def leave(self, image: Tensor, out: Tensor) -> Tensor:
        return self.torus.inverse(image, out=out)

    def enter_atoms(self, atoms: Tensor) -> Tensor:
        return self.torus.of_atoms(atoms, self.torus.transform)

    def leave_atoms(self, atoms: Tensor) -> Tensor:
        return self.torus.of_atoms(atoms, self.torus.inverse)

    def by_head(self, image: Tensor) -> Tensor:
        """(batch, 1, H, W, heads C) -> (batch heads, N, C)."""
        return self.signal_of(image, self.heads).flatten(0, 1)

    def add_by_head_(self, image: Tensor, atoms: Tensor, code: Tensor) -> None:
        """Adds what atoms of each head explain."""
        self.signal_of(image, self.heads).add_(torch.bmm(atoms, code).unflatten(0, (-1, self.heads)))

    # The gradient.

    def gather(self, codes: Blocks, signal: Blocks, room: Blocks, sign: int) -> None:
        """Adds the gradient of sign <signal, k codes>, as it comes: that of the transposed filters."""
        self._by_filters += sign * multiply_transposed(codes, signal, room).sum(0)

    def gather_power(self, origin: Blocks, signal: Blocks, sign: int) -> None:
        """Adds that of sign <signal, k k^T origin>."""
        self._by_power += sign * multiply_transposed(origin, signal, _empty_like(signal)).sum((0, 1))

    def gradient(self) -> Tensor:
        by_power = Blocks(self._by_power + conjugate(self._by_power))
        return conjugate(self._by_filters) + multiply(self.kernel, by_power, _empty_like(self.kernel))

    # Portions.

    def buffers(self, size: int) -> Tensor:
        """Two rooms for the codes of a portion."""
        return self.kernel.values.new_empty(2, size, *self.kernel.values.shape)

    def portion(self, units: Units, buffers: Tensor, size: int, keep: bool) -> "StaticByProducts":
        return StaticByProducts(self, units, buffers, size, keep)


class StaticByProducts:
    """The codes of the filters in a portion of the batch. It writes what it explains where others may add."""

    def __init__(self, filters: ByProducts, units: Units, buffers: Tensor, size: int, keep: bool):
        self.filters, self.units, self.keep = filters, units, keep
        self.torus = filters.torus
        self.work, self.room = (Blocks(buffer[:size]) for buffer in buffers)
        self.codes: list[Tensor] = []
        self.spectra: list[Tensor] = []

    def begin(self, origin: Tensor, explained: Tensor) -> None:
        """P P^T (c y). The code itself is not needed: the first step knows it by its coefficients."""
        self.origin = origin
        multiply(Blocks(origin), self.filters.power, Blocks(explained))

    def step(self, index: int, residual: Tensor, explained: Tensor) -> None:
        """v <- S(v - P^T r, 1), and P v."""
        work, room = self.work, self.room
        if index == 0:
            multiply_transposed(Blocks(self.origin - residual), self.filters.kernel, work)
        else:
            if self.keep:
                work.values.copy_(self.spectra[-1])
            add_transposed_(work, Blocks(residual), self.filters.kernel, -1)
        code = torch.empty_like(work.values) if self.keep else work.values
        self.units.shrink_(self.torus.inverse(work.values, room.values, code))
        spectrum = Blocks(torch.empty_like(code)) if self.keep else work
        self.torus.transform(code, room.values, spectrum.values)
        if self.keep:
            self.codes.append(code)
            self.spectra.append(spectrum.values)
        self._explain(spectrum, explained)

    def receive(self, index: int, gradient: Tensor, sign: int) -> None:
        """The gradient, times sign, of what the code after so many steps explains."""
        gradient = Blocks(gradient)
        if index == self.units.steps:
            multiply_transposed(gradient, self.filters.kernel, self.work)
        else:
            add_transposed_(self.work, gradient, self.filters.kernel, sign)
        self.filters.gather(Blocks(self.spectra[index - 1]), gradient, self.room, sign)

    def through_step(self, index: int, residual: Tensor, origin: Tensor, explained: Tensor) -> None:
        """From the gradient of the code after a step to that before; it explains minus the gradient of the residual."""
        work, room = self.work, self.room
        self.units.keep_support_(self.torus.inverse(work.values, room.values, work.values), self.codes[index])
        self.torus.transform(work.values, room.values, work.values)
        self._explain(work, explained)
        if index == 0:
            self.of_origin = explained.clone()
            self.filters.gather(work, Blocks(origin - residual), room, 1)
        else:
            self.filters.gather(work, Blocks(residual), room, -1)

    def through_begin(self, origin: Tensor, gradient: Tensor, of_origin: Tensor) -> None:
        """The gradient of c y, from that of the first residual."""
        gradient = Blocks(gradient)
        self.filters.gather_power(Blocks(origin), gradient, -1)
        multiply(gradient, self.filters.power, Blocks(of_origin))
        torch.sub(self.of_origin, of_origin, out=of_origin)

    def _explain(self, spectrum: Blocks, explained: Tensor) -> None:
        torch.sum(multiply(spectrum, self.filters.kernel, self.room), 1, keepdim=True, out=explained)


def _empty_like(blocks: Blocks) -> Blocks:
    return Blocks(torch.empty_like(blocks.values))
