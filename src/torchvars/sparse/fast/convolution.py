"""ISTA with a convolution, alone or beside a dense dictionary, forward and backward written together.

The batch is gone through in portions whose codes stay in the cache.
"""

import math
from collections.abc import Iterator
from functools import partial
from itertools import islice

import torch
from torch import Tensor

from ..fourier import by_products
from ..once import once
from ..operators import Convolution, Dense
from ..precision import precisely
from .by_fft import ByFFT
from .by_products import ByProducts
from .dynamic import Dynamic
from .units import Units

CACHE = 6 * 2**20  # bytes of the codes of a portion, on a CPU


def reconstruct(static: Convolution, dynamic: Dense | None, bound: Tensor, signal: Tensor, units: Units) -> Tensor:
    """P u after ISTA, with a bound on P^T P: signal (batch, heads, N, C) -> (batch, heads, N, C)."""
    batch, heads, _, channels = signal.shape
    form = ByProducts if by_products(static.grid) else ByFFT
    atoms = None if dynamic is None else dynamic.atoms.expand(batch, heads, -1, -1)
    bound = bound.expand(*bound.shape[:-3], heads, 1, channels).reshape(-1, heads, 1, channels)
    image = _Convolution.apply(
        form.image_of(signal, static.grid),
        form.kernel_of(static, heads),
        atoms,
        form.bound_of(bound),
        units,
        partial(form, heads=heads, grid=static.grid),
        static.size * signal[0, :, 0].numel() * signal.element_size(),
        torch.is_grad_enabled(),
    )
    return form.signal_of(image, heads)


class _Convolution(torch.autograd.Function):
    """A run in the units of `Units`, for signals y:

    v = P^T (c y), then    r = (P v - y) / L,    v <- S(v - P^T r, 1)    for each step, then P v
    """

    @staticmethod
    def forward(ctx, image, kernel, atoms, bound, units, prepare, bytes_of_a_code, grad_enabled) -> Tensor:
        keep = grad_enabled and any(ctx.needs_input_grad)
        filters, origins = prepare(kernel), (image, atoms)
        atoms = None if atoms is None else filters.enter_atoms(atoms)
        size = _portion_size(image, bytes_of_a_code)
        buffers = filters.buffers(size)
        out = torch.empty_like(image, memory_format=torch.contiguous_format)
        kept = []
        for portion in _portions(image, size):
            length = bound if bound.shape[0] == 1 else bound[portion]
            step = 1 / length
            signal = filters.enter(image[portion]).mul_(length / units.unit)
            origin = signal * (units.start_factor(length) * step)
            parts = [filters.portion(units, buffers, signal.shape[0], keep)]
            if atoms is not None:
                parts.append(Dynamic(filters, atoms[portion].flatten(0, 1), units))
            explained = torch.empty_like(signal)
            for part in parts:
                part.begin(origin, explained)
            residuals = []
            for index in range(units.steps):
                residual = torch.sub(explained, signal).mul_(step)
                for part in parts:
                    part.step(index, residual, explained)
                residuals.append(residual)
            filters.leave(explained.mul_(units.unit * step), out[portion])
            if keep:
                kept += [signal, *residuals, *parts[0].spectra]
                for part in parts:
                    kept += part.codes
        if keep:
            ctx.save_for_backward(*origins, kernel, bound, atoms, *kept)
            ctx.units, ctx.prepare, ctx.size = units, prepare, size
        return out

    @staticmethod
    @once()
    @precisely
    def backward(ctx, upstream: Tensor):
        _, _, kernel, bound, atoms, *kept = ctx.saved_tensors
        kept, units, steps = iter(kept), ctx.units, ctx.units.steps
        filters = ctx.prepare(kernel)
        buffers = filters.buffers(ctx.size)
        of_image = torch.empty_like(upstream, memory_format=torch.contiguous_format)
        of_atoms = None if atoms is None else torch.zeros_like(atoms)
        for portion in _portions(upstream, ctx.size):
            signal, residuals, spectra = next(kept), list(islice(kept, steps)), list(islice(kept, steps))
            length = bound if bound.shape[0] == 1 else bound[portion]
            step = 1 / length
            start = units.start_factor(length) * step
            origin = signal * start
            parts = [filters.portion(units, buffers, signal.shape[0], keep=False)]
            parts[0].codes, parts[0].spectra = list(islice(kept, steps)), spectra
            if atoms is not None:
                parts.append(Dynamic(filters, atoms[portion].flatten(0, 1), units, of_atoms[portion].flatten(0, 1)))
                parts[1].codes = list(islice(kept, steps + 1))
            gradient = filters.enter(upstream[portion]).mul_(units.unit * step)
            for part in parts:
                part.receive(steps, gradient, 1)
            of_signal = torch.zeros_like(signal)
            for index in reversed(range(steps)):
                for part in parts:
                    part.through_step(index, residuals[index], origin, gradient)
                gradient.mul_(step)  # that of P v is the opposite
                of_signal += gradient
                if index:
                    for part in parts:
                        part.receive(index, gradient, -1)
            of_origin = torch.empty_like(signal)
            for part in parts:
                part.through_begin(origin, gradient, of_origin)
            of_signal += of_origin.mul_(start)
            filters.leave(of_signal.mul_(length / units.unit), of_image[portion])
        of_atoms = None if atoms is None else filters.leave_atoms(of_atoms)
        return of_image, filters.gradient(), of_atoms, None, None, None, None, None


def _portion_size(image: Tensor, bytes_of_a_code: int) -> int:
    """As many as fit into the cache of a CPU, but portions as even as can be; elsewhere all."""
    batch = image.shape[0]
    if image.device.type != "cpu":
        return batch
    portions = math.ceil(batch * bytes_of_a_code / CACHE)
    return math.ceil(batch / min(portions, batch))


def _portions(image: Tensor, size: int) -> Iterator[slice]:
    batch = image.shape[0]
    for first in range(0, batch, size):
        yield slice(first, min(first + size, batch))
