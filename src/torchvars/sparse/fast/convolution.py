"""ISTA with a convolution, alone or beside a dense dictionary, forward and backward written together.

All but the threshold happens between coefficients in a real Fourier basis (`torus`), where a convolution is a product:
a step takes one transform of the code there and one back. The batch is gone through in portions whose codes stay in the
cache, in buffers that are used again.
"""

import math
from collections.abc import Iterator
from itertools import islice

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..operators import Convolution, Dense
from .torus import Blocks, Torus, add_transposed_, conjugate, multiply, multiply_transposed
from .units import Units

CACHE = 6 * 2**20  # bytes of the codes of a portion, on a CPU


def reconstruct(static: Convolution, dynamic: Dense | None, bound: Tensor, signal: Tensor, units: Units) -> Tensor:
    """P u after ISTA, with a bound on P^T P: signal (batch, heads, N, C) -> (batch, heads, N, C)."""
    batch, heads, positions, channels = signal.shape
    kernel = static.coefficients
    kernel = kernel.expand(heads, *kernel.shape[-4:]).permute(1, 2, 3, 0, 4).flatten(-2)  # (F, H, W, heads C)
    bound = bound.expand(*bound.shape[:-3], heads, 1, channels).reshape(-1, 1, 1, 1, heads * channels)
    atoms = None if dynamic is None else dynamic.atoms.expand(batch, heads, -1, -1)
    image = signal.transpose(1, 2).reshape(batch, 1, *static.grid, heads * channels)
    image = _Convolution.apply(image, kernel, atoms, bound, units, torch.is_grad_enabled())
    return image.view(batch, positions, heads, channels).transpose(1, 2)


class _Convolution(torch.autograd.Function):
    """Images are (batch, 1, H, W, heads C), and so are their coefficients: the signal y and the residual r.

        v = P^T (c y), then    r = (P v - y) / L,    v <- S(v - P^T r, 1)    for each step, then P v
    """

    @staticmethod
    def forward(
        ctx, image: Tensor, kernel: Tensor, atoms: Tensor | None, bound: Tensor, units: Units, grad_enabled: bool
    ) -> Tensor:
        keep = grad_enabled and any(ctx.needs_input_grad)
        torus = Torus(image.shape[2:4], image)
        atoms = None if atoms is None else torus.of_atoms(atoms, torus.transform)
        filters = _Filters(kernel)
        out = torch.empty_like(image)
        buffers = _buffers(image, kernel)
        kept = []
        for portion in _portions(image, kernel):
            length = bound if bound.shape[0] == 1 else bound[portion]
            step = 1 / length
            signal = torus.transform(image[portion]).mul_(length / units.unit)
            origin = signal * (units.start_factor(length) * step)
            parts: list[_Static | _Dynamic] = [_Static(torus, filters, units, buffers, signal.shape[0], keep)]
            if atoms is not None:
                parts.append(_Dynamic(atoms[portion], units))
            residuals = []
            explained = torch.empty_like(signal)
            for part in parts:
                part.begin(origin, explained)
            for index in range(units.steps):
                residual = torch.sub(explained, signal).mul_(step)
                for part in parts:
                    part.step(index, residual, explained)
                residuals.append(residual)
            torus.inverse(explained.mul_(units.unit * step), out=out[portion])
            if keep:
                kept += [signal, *residuals, *parts[0].spectra]
                for part in parts:
                    kept += part.codes
        if keep:
            ctx.save_for_backward(kernel, bound, atoms, *kept)
            ctx.units = units
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, upstream: Tensor):
        kernel, bound, atoms, *kept = ctx.saved_tensors
        kept = iter(kept)
        units = ctx.units
        steps = units.steps
        torus = Torus(upstream.shape[2:4], upstream)
        filters = _Filters(kernel)
        of_image = torch.empty_like(upstream)
        buffers = _buffers(upstream, kernel)
        of_atoms = None if atoms is None else torch.zeros_like(atoms)
        for portion in _portions(upstream, kernel):
            signal, residuals, spectra = next(kept), list(islice(kept, steps)), list(islice(kept, steps))
            length = bound if bound.shape[0] == 1 else bound[portion]
            step = 1 / length
            factor = units.start_factor(length) * step
            origin = signal * factor
            parts: list[_Static | _Dynamic] = [_Static(torus, filters, units, buffers, signal.shape[0], False)]
            parts[0].codes, parts[0].spectra = list(islice(kept, steps)), spectra
            if atoms is not None:
                parts.append(_Dynamic(atoms[portion], units, of_atoms[portion]))
                parts[1].codes = list(islice(kept, steps + 1))
            gradient = torus.transform(upstream[portion].contiguous()).mul_(units.unit * step)
            for part in parts:
                part.receive(steps, gradient, 1)
            of_signal = torch.zeros_like(signal)
            for index in reversed(range(steps)):
                for part in parts:
                    part.through_step(index, residuals[index], origin, gradient)
                gradient.mul_(step)  # that of r is the opposite
                of_signal += gradient
                if index:
                    for part in parts:
                        part.receive(index, gradient, -1)
            of_origin = torch.empty_like(signal)
            for part in parts:
                part.through_begin(origin, gradient, of_origin)
            of_signal += of_origin.mul_(factor)
            torus.inverse(of_signal.mul_(length / units.unit), out=of_image[portion])
        of_atoms = None if atoms is None else torus.of_atoms(of_atoms, torus.inverse)
        return of_image, filters.gradient(), of_atoms, None, None, None


class _Filters:
    """The filters k, their power k k^T summed over all, and what is gathered of their gradient."""

    def __init__(self, kernel: Tensor):
        self.kernel = Blocks(kernel)
        self.power = Blocks(multiply_transposed(self.kernel, self.kernel, _empty_like(self.kernel)).sum(0))
        self._by_filters, self._by_power = 0, 0

    def gather(self, codes: Blocks, signal: Blocks, room: Blocks, sign: int) -> None:
        """Adds the gradient of sign <signal, k codes>, as it comes: that of the transposed filters."""
        self._by_filters += sign * multiply_transposed(codes, signal, room).sum(0)

    def gather_power(self, origin: Blocks, signal: Blocks, sign: int) -> None:
        """Adds that of sign <signal, k k^T origin>."""
        self._by_power += sign * multiply_transposed(origin, signal, _empty_like(signal)).sum((0, 1))

    def gradient(self) -> Tensor:
        by_power = Blocks(self._by_power + conjugate(self._by_power))
        return conjugate(self._by_filters) + multiply(self.kernel, by_power, _empty_like(self.kernel))


class _Static:
    """The codes of the filters in a portion. It writes what it explains where others may add."""

    def __init__(self, torus: Torus, filters: _Filters, units: Units, buffers: Tensor, size: int, keep: bool):
        self.torus, self.filters, self.units, self.keep = torus, filters, units, keep
        self.work, self.room = (Blocks(buffer[:size]) for buffer in buffers)
        self.codes, self.spectra = [], []

    def begin(self, origin: Tensor, explained: Tensor) -> None:
        """P P^T (c y). The code itself is not needed: the first step knows it by its coefficients."""
        self.origin = origin
        multiply(Blocks(origin), self.filters.power, Blocks(explained))

    def step(self, index: int, residual: Tensor, explained: Tensor) -> None:
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
        """The gradient of what the code after so many steps explains."""
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
        gradient = Blocks(gradient)
        self.filters.gather_power(Blocks(origin), gradient, -1)
        multiply(gradient, self.filters.power, Blocks(of_origin))
        torch.sub(self.of_origin, of_origin, out=of_origin)

    def _explain(self, spectrum: Blocks, explained: Tensor) -> None:
        torch.sum(multiply(spectrum, self.filters.kernel, self.room), 1, keepdim=True, out=explained)


class _Dynamic:
    """The codes of the atoms in a portion, head by head. It adds what it explains."""

    def __init__(self, atoms: Tensor, units: Units, of_atoms: Tensor | None = None):
        self.heads, self.units = atoms.shape[1], units
        self.atoms = atoms.flatten(0, 1)
        self.of_atoms = None if of_atoms is None else of_atoms.flatten(0, 1)
        self.codes = []

    def begin(self, origin: Tensor, explained: Tensor) -> None:
        self.codes.append(torch.bmm(self.atoms.mT, self._by_head(origin)))
        self._explain(self.codes[-1], explained)

    def step(self, index: int, residual: Tensor, explained: Tensor) -> None:
        moved = torch.baddbmm(self.codes[-1], self.atoms.mT, self._by_head(residual), alpha=-1)
        self.codes.append(self.units.shrink_(moved))
        self._explain(moved, explained)

    def receive(self, index: int, gradient: Tensor, sign: int) -> None:
        signal = self._by_head(gradient)
        self.of_atoms.baddbmm_(signal, self.codes[index].mT, alpha=sign)
        if index == self.units.steps:
            self.of_code = torch.bmm(self.atoms.mT, signal)
        else:
            self.of_code.baddbmm_(self.atoms.mT, signal, alpha=sign)

    def through_step(self, index: int, residual: Tensor, origin: Tensor, explained: Tensor) -> None:
        self.units.keep_support_(self.of_code, self.codes[index + 1])
        self.of_atoms.baddbmm_(self._by_head(residual), self.of_code.mT, alpha=-1)
        self._explain(self.of_code, explained)

    def through_begin(self, origin: Tensor, gradient: Tensor, of_origin: Tensor) -> None:
        self.receive(0, gradient, -1)
        self.of_atoms.baddbmm_(self._by_head(origin), self.of_code.mT)
        self._explain(self.of_code, of_origin)

    def _by_head(self, image: Tensor) -> Tensor:
        """(batch, 1, H, W, heads C) -> (batch heads, N, C)."""
        return image.flatten(1, 3).unflatten(-1, (self.heads, -1)).transpose(1, 2).flatten(0, 1)

    def _explain(self, code: Tensor, explained: Tensor) -> None:
        by_head = torch.bmm(self.atoms, code).unflatten(0, (-1, self.heads)).transpose(1, 2)
        explained.flatten(1, 3).unflatten(-1, (self.heads, -1)).add_(by_head)


def _portions(image: Tensor, kernel: Tensor) -> Iterator[slice]:
    """Parts of the batch whose codes fit into the cache."""
    batch, size = image.shape[0], _portion_size(image, kernel)
    for first in range(0, batch, size):
        yield slice(first, min(first + size, batch))


def _portion_size(image: Tensor, kernel: Tensor) -> int:
    batch = image.shape[0]
    if image.device.type != "cpu":
        return batch
    portions = math.ceil(batch * kernel.numel() * kernel.element_size() / CACHE)
    return math.ceil(batch / min(portions, batch))


def _buffers(image: Tensor, kernel: Tensor) -> Tensor:
    """Two rooms for the codes of a portion."""
    return kernel.new_empty(2, _portion_size(image, kernel), *kernel.shape)


def _empty_like(blocks: Blocks) -> Blocks:
    return Blocks(torch.empty_like(blocks.values))
