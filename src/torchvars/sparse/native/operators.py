"""The kernels as operators of PyTorch, `torch.ops.torchvars`, which torch.compile and autograd know."""

import torch
from torch import Tensor

from .library import STARTS, Task, chunks_for, run


@torch.library.custom_op("torchvars::reconstruct", mutates_args=(), device_types="cpu")
def reconstruct(
    signal: Tensor,
    filters: Tensor,
    atoms: Tensor | None,
    bound: Tensor,
    height: int,
    width: int,
    strength: float,
    start: str,
    steps: int,
) -> Tensor:
    """P u after ISTA with a convolution, alone or beside atoms.

    Args:
        signal: (batch, H W, heads C).
        filters: (heads, C, F, h, w).
        atoms: (batch, heads, H W, M), or None.
        bound: L, (batch or 1, heads C).
        strength, start, steps: of the problem and of the solver.
    Returns:
        (batch, H W, heads C).
    """
    # What stands in a task is an address: every tensor has to keep its name until the task is done.
    signal, filters, atoms, bound = _contiguous(signal, filters, atoms, bound)
    output = torch.empty_like(signal)
    task = _task(signal, filters, atoms, bound, height, width, strength, start, steps)
    task.reconstruction = output.data_ptr()
    if signal.numel():
        task.chunks = chunks_for(task)
        run(task)
    return output


@reconstruct.register_fake
def _(signal, filters, atoms, bound, height, width, strength, start, steps):
    return torch.empty_like(signal, memory_format=torch.contiguous_format)


@torch.library.custom_op("torchvars::reconstruct_backward", mutates_args=(), device_types="cpu")
def reconstruct_backward(
    upstream: Tensor,
    signal: Tensor,
    filters: Tensor,
    atoms: Tensor | None,
    bound: Tensor,
    height: int,
    width: int,
    strength: float,
    start: str,
    steps: int,
) -> list[Tensor]:
    """Gradients of the signal, the filters and, if there are any, the atoms."""
    upstream, signal, filters, atoms, bound = _contiguous(upstream, signal, filters, atoms, bound)
    task = _task(signal, filters, atoms, bound, height, width, strength, start, steps)
    task.upstream = upstream.data_ptr()
    of_signal, of_filters = torch.empty_like(signal), torch.zeros_like(filters)
    of_atoms = None if atoms is None else torch.empty_like(atoms)
    if signal.numel():
        task.chunks = chunks_for(task)
        of_chunks = filters.new_empty(task.chunks, *filters.shape)
        task.of_signal, task.of_bank = of_signal.data_ptr(), of_chunks.data_ptr()
        if of_atoms is not None:
            task.of_dictionary = of_atoms.data_ptr()
        run(task)
        of_filters = of_chunks.sum(0) if task.chunks > 1 else of_chunks[0].clone()
    return [of_signal, of_filters] if of_atoms is None else [of_signal, of_filters, of_atoms]


@reconstruct_backward.register_fake
def _(upstream, signal, filters, atoms, bound, height, width, strength, start, steps):
    given = [signal, filters] if atoms is None else [signal, filters, atoms]
    return [torch.empty_like(each, memory_format=torch.contiguous_format) for each in given]


@torch.library.custom_op("torchvars::filter_power", mutates_args=(), device_types="cpu")
def filter_power(filters: Tensor, height: int, width: int) -> Tensor:
    """sum_f |k_f|^2 by half spectra: filters (..., C, F, h, w) -> (..., C, H, W / 2 + 1). It is not differentiated."""
    filters = filters.contiguous()
    channels, (count, *size) = filters[..., 0, 0, 0].numel(), filters.shape[-3:]
    output = filters.new_empty(*filters.shape[:-3], height, width // 2 + 1)
    task = Task(
        heads=1, channels=channels, height=height, width=width, filters=count, filter_height=size[0], chunks=1,
        filter_width=size[1], precise=filters.dtype == torch.float64, bank=filters.data_ptr(), power=output.data_ptr(),
    )  # fmt: skip
    if output.numel():
        run(task)
    return output


@filter_power.register_fake
def _(filters, height, width):
    return filters.new_empty(*filters.shape[:-3], height, width // 2 + 1)


def _contiguous(*tensors: Tensor | None) -> list[Tensor | None]:
    return [None if tensor is None else tensor.contiguous() for tensor in tensors]


def _task(signal, filters, atoms, bound, height, width, strength, start, steps) -> Task:
    heads, channels, count, filter_height, filter_width = filters.shape
    return Task(
        batch=signal.shape[0],
        heads=heads,
        channels=channels,
        height=height,
        width=width,
        filters=count,
        filter_height=filter_height,
        filter_width=filter_width,
        atoms=0 if atoms is None else atoms.shape[-1],
        steps=steps,
        start=STARTS.index(start),
        bounds=bound.shape[0],
        precise=signal.dtype == torch.float64,
        strength=strength,
        signal=signal.data_ptr(),
        bank=filters.data_ptr(),
        dictionary=None if atoms is None else atoms.data_ptr(),
        bound=bound.data_ptr(),
    )


def _keep(ctx, inputs, output) -> None:
    *tensors, ctx.height, ctx.width, ctx.strength, ctx.start, ctx.steps = inputs
    ctx.save_for_backward(*tensors)


def _differentiate(ctx, upstream: Tensor):
    tensors = ctx.saved_tensors
    found = torch.ops.torchvars.reconstruct_backward(
        upstream, *tensors, ctx.height, ctx.width, ctx.strength, ctx.start, ctx.steps
    )
    return *found, *[None] * (9 - len(found))


def _refuse(ctx, *upstream):
    raise RuntimeError(
        "this gradient is written out by hand and cannot be differentiated again: "
        "run all of it inside torchvars.sparse.plain()"
    )


reconstruct.register_autograd(_differentiate, setup_context=_keep)
reconstruct_backward.register_autograd(_refuse, setup_context=lambda ctx, inputs, output: None)
