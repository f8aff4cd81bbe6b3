"""The kernels as PyTorch operators, `torch.ops.torchvars`, with support for torch.compile and autograd."""

from typing import Any

import torch
from torch import Tensor

from .library import STARTS, Atoms, Bound, Features, Filters, System, chunked, run, task


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
    """P u after ISTA with a convolution, alone or with atoms.

    Args:
        signal: (batch, H W, heads C).
        filters: (heads, C, F, h, w).
        atoms: (batch, heads, H W, M), or None.
        bound: L, (batch or 1, heads C).
        strength, start, steps: of the problem and of the solver.
    Returns:
        (batch, H W, heads C).
    """
    signal, filters, atoms, bound = _contiguous(signal, filters, atoms, bound)
    _check_filters(signal, filters, atoms, bound, height * width)
    output = torch.empty_like(signal)
    if signal.numel():
        job = _ista_task(signal, filters, atoms, bound, height, width, strength, start, steps, reconstruction=output)
        chunked(job)
        run(job)
    return output


@reconstruct.register_fake
def _(signal, filters, atoms, bound, height, width, strength, start, steps):
    return _like(signal)


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
    _check_filters(signal, filters, atoms, bound, height * width)
    _check(upstream.shape == signal.shape, upstream, signal)
    grad_signal, grad_filters = torch.empty_like(signal), torch.zeros_like(filters)
    grad_atoms = None if atoms is None else torch.empty_like(atoms)
    if signal.numel():
        job = _ista_task(
            signal, filters, atoms, bound, height, width, strength, start, steps, upstream=upstream,
            grad_signal=grad_signal, grad_dictionary=grad_atoms,
        )  # fmt: skip
        grad_chunks = filters.new_empty(chunked(job), *filters.shape)
        job.grad_bank = grad_chunks.data_ptr()
        run(job)
        grad_filters = _sum(grad_chunks)
    return [grad_signal, grad_filters] if grad_atoms is None else [grad_signal, grad_filters, grad_atoms]


@reconstruct_backward.register_fake
def _(upstream, signal, filters, atoms, bound, height, width, strength, start, steps):
    return [_like(each) for each in (signal, filters, atoms) if each is not None]


@torch.library.custom_op("torchvars::filter_power", mutates_args=(), device_types="cpu")
def filter_power(filters: Tensor, height: int, width: int) -> Tensor:
    """sum_f |k_f|^2 of the half spectra of filters (heads, C, F, h, w): (heads, C, H, W / 2 + 1). No gradient."""
    filters = filters.contiguous()
    output = filters.new_empty(*filters.shape[:2], height, width // 2 + 1)
    if output.numel():
        run(_filters_task(filters, None, 0, height, width, Bound, power=output))
    return output


@filter_power.register_fake
def _(filters, height, width):
    return filters.new_empty(*filters.shape[:2], height, width // 2 + 1)


@torch.library.custom_op("torchvars::union_bound", mutates_args=(), device_types="cpu")
def union_bound(filters: Tensor, atoms: Tensor, height: int, width: int) -> Tensor:
    """A bound on the eigenvalues of filters (heads, C, F, h, w) with nonnegative atoms (batch, heads, H W, M).

    There may be no more atoms than positions. The bound has no gradient.

    Returns:
        (batch, heads C).
    """
    filters, atoms = _contiguous(filters, atoms)
    _check(atoms.shape[1:3] == (filters.shape[0], height * width), filters, atoms)
    output = filters.new_empty(atoms.shape[0], filters.shape[0] * filters.shape[1])
    if output.numel():
        job = _filters_task(filters, atoms, atoms.shape[0], height, width, Bound, eigenvalue=output)
        chunked(job)
        run(job)
    return output


@union_bound.register_fake
def _(filters, atoms, height, width):
    return filters.new_empty(atoms.shape[0], filters.shape[0] * filters.shape[1])


@torch.library.custom_op("torchvars::solve_on_support", mutates_args=(), device_types="cpu")
def solve_on_support(
    filters: Tensor,
    atoms: Tensor | None,
    bound: Tensor,
    support: Tensor,
    target: Tensor,
    height: int,
    width: int,
    iterations: int,
) -> Tensor:
    """w with P^T P w = target on the support and w = 0 elsewhere, by conjugate gradients. It has no gradient.

    Args:
        filters: (heads, C, F, h, w).
        atoms: (batch, heads, H W, M), or None.
        bound: L, (batch or 1, heads C).
        support: booleans, (batch, F H W + M, heads C).
        target: (batch, F H W + M, heads C).
    Returns:
        (batch, F H W + M, heads C).
    """
    filters, atoms, bound, support, target = _contiguous(filters, atoms, bound, support, target)
    codes = filters.shape[2] * height * width + (0 if atoms is None else atoms.shape[3])
    _check(target.shape[1] == codes and support.shape == target.shape and support.dtype == torch.bool, target)
    _check_filters(target, filters, atoms, bound, height * width, positions=codes)
    output = torch.empty_like(target)
    if target.numel():
        job = _filters_task(
            filters, atoms, target.shape[0], height, width, System, bound=bound, bounds=bound.shape[0],
            iterations=iterations, target=target, support=support, solution=output,
        )  # fmt: skip
        chunked(job)
        run(job)
    return output


@solve_on_support.register_fake
def _(filters, atoms, bound, support, target, height, width, iterations):
    return _like(target)


def _check_filters(signal, filters, atoms, bound, size: int, positions: int | None = None) -> None:
    """Checks the shapes, for a grid of `size` positions; the kernels do not."""
    batch, heads, channels = signal.shape[0], filters.shape[0], filters.shape[0] * filters.shape[1]
    _check(signal.shape[1:] == (positions or size, channels), signal, filters)
    _check(bound.shape in ((1, channels), (batch, channels)), bound, signal)
    _check(atoms is None or atoms.shape[:3] == (batch, heads, size), signal, filters, atoms)


def _filters_task(
    filters: Tensor, atoms: Tensor | None, batch: int, height: int, width: int, kind: type[Filters] = Filters, **rest
) -> Filters:
    heads, channels, count, *size = filters.shape
    return task(
        kind, filters, batch=batch, heads=heads, channels=channels, height=height, width=width, filters=count,
        filter_height=size[0], filter_width=size[1], atoms=0 if atoms is None else atoms.shape[-1], chunks=1,
        bank=filters, dictionary=atoms, **rest,
    )  # fmt: skip


def _ista_task(
    signal, filters, atoms, bound, height: int, width: int, strength: float, start: str, steps: int, **rest
) -> Filters:
    return _filters_task(
        filters, atoms, signal.shape[0], height, width, signal=signal, bound=bound, bounds=bound.shape[0],
        strength=strength, start=STARTS.index(start), steps=steps, **rest,
    )  # fmt: skip


@torch.library.custom_op("torchvars::reconstruct_dense", mutates_args=(), device_types="cpu")
def reconstruct_dense(
    signal: Tensor,
    atoms: Tensor,
    step_size: Tensor | None,
    reader: Tensor | None,
    rule: str,
    strength: float,
    start: str,
    steps: int,
) -> tuple[Tensor, Tensor]:
    """P u after ISTA with a dense dictionary, or R u, and the step sizes.

    Args:
        signal: (batch, N, heads C).
        atoms: (batch, heads, N, M).
        step_size: as `rule` says.
        reader: R, (batch, heads, K, M), or None for P itself.
        rule: "given": step sizes (batch, heads, M), or (batch, heads, 1) as a constant, which is not differentiated;
            "bound": one over a bound on the eigenvalues, for atoms without negative entries; "totals": one over the sum
            of each atom.
        strength, start, steps: of the problem and of the solver.
    Returns:
        (batch, N or K, heads C), and the step sizes.
    """
    signal, atoms, step_size, reader = _contiguous(signal, atoms, step_size, reader)
    _check_atoms(signal, atoms, step_size, reader)
    output, found = _outputs(signal, atoms, step_size, reader, rule)
    if output.numel():
        run(
            _atoms_task(
                signal, atoms, step_size, reader, rule, strength, start, steps, reconstruction=output, found=found
            )
        )
    return output, found


@reconstruct_dense.register_fake
def _(signal, atoms, step_size, reader, rule, strength, start, steps):
    return _outputs(signal, atoms, step_size, reader, rule)


def _outputs(signal, atoms, step_size, reader, rule) -> tuple[Tensor, Tensor]:
    """Empty tensors for the reconstruction and the step sizes; given step sizes are returned as they are."""
    rows = atoms.shape[2] if reader is None else reader.shape[2]
    sizes = {"bound": 1, "totals": atoms.shape[3]}
    found = step_size.clone() if rule == "given" else signal.new_empty(*atoms.shape[:2], sizes[rule])
    return signal.new_empty(signal.shape[0], rows, signal.shape[2]), found


@torch.library.custom_op("torchvars::reconstruct_dense_backward", mutates_args=(), device_types="cpu")
def reconstruct_dense_backward(
    upstream: Tensor,
    signal: Tensor,
    atoms: Tensor,
    step_size: Tensor,
    reader: Tensor | None,
    rule: str,
    strength: float,
    start: str,
    steps: int,
) -> list[Tensor]:
    """Gradients of the signal, the atoms, the step sizes (zero if they are constants), and the reader, if any."""
    upstream, signal, atoms, step_size, reader = _contiguous(upstream, signal, atoms, step_size, reader)
    _check_atoms(signal, atoms, step_size, reader)
    _check(upstream.shape == _outputs(signal, atoms, step_size, reader, "given")[0].shape, upstream, signal)
    given = [signal, atoms, step_size, *([] if reader is None else [reader])]
    gradients = [(torch.empty_like if upstream.numel() else torch.zeros_like)(each) for each in given]
    grad_signal, grad_atoms, grad_step_size, *grad_reader = gradients
    grad_step_size.zero_()
    if upstream.numel():
        differs = rule == "given" and step_size.shape[2] == atoms.shape[3]
        run(
            _atoms_task(
                signal, atoms, step_size, reader, rule, strength, start, steps, upstream=upstream,
                grad_signal=grad_signal, grad_dictionary=grad_atoms, grad_step_size=grad_step_size if differs else None,
                grad_reader=grad_reader[0] if grad_reader else None,
            )
        )  # fmt: skip
    return gradients


@reconstruct_dense_backward.register_fake
def _(upstream, signal, atoms, step_size, reader, rule, strength, start, steps):
    return [_like(each) for each in (signal, atoms, step_size, reader) if each is not None]


def _check_atoms(signal, atoms, step_size, reader) -> None:
    batch, heads, positions, count = atoms.shape
    _check(signal.shape[:2] == (batch, positions) and signal.shape[2] % heads == 0, signal, atoms)
    _check(step_size is None or step_size.shape in ((batch, heads, 1), (batch, heads, count)), atoms, step_size)
    _check(reader is None or (*reader.shape[:2], reader.shape[3]) == (batch, heads, count), atoms, reader)


def _atoms_task(signal, atoms, step_size, reader, rule: str, strength: float, start: str, steps: int, **rest) -> Atoms:
    batch, heads, positions, count = atoms.shape
    return task(
        Atoms, atoms, batch=batch, chunks=batch, heads=heads, channels=signal.shape[2] // heads, positions=positions,
        atoms=count,
        reads=0 if reader is None else reader.shape[2], step_sizes=0 if step_size is None else step_size.shape[2],
        totals=rule == "totals", strength=strength, start=STARTS.index(start), steps=steps, signal=signal,
        dictionary=atoms, reader=reader, step_size=step_size, **rest,
    )  # fmt: skip


@torch.library.custom_op("torchvars::reconstruct_shares", mutates_args=(), device_types="cpu")
def reconstruct_shares(
    signal: Tensor,
    keys: Tensor,
    prototypes: Tensor,
    queries: Tensor | None,
    reader_prototypes: Tensor | None,
    strength: float,
    start: str,
    steps: int,
) -> tuple[Tensor, Tensor]:
    """`reconstruct_dense` with "totals" for P = softmax(k W), computed in parts that are never stored as a whole.

    Args:
        signal: (batch, N, heads C).
        keys: k, (batch, N, heads d).
        prototypes: W, (heads, d, M).
        queries, reader_prototypes: of the reader, (batch, K, heads d) and (heads, d, M), or None for P itself.
        strength, start, steps: of the problem and of the solver.
    Returns:
        (batch, N or K, heads C), and the step sizes, (batch, heads, M).
    """
    signal, keys, prototypes, queries, reader_prototypes = _contiguous(
        signal, keys, prototypes, queries, reader_prototypes
    )
    given = signal, keys, prototypes, queries, reader_prototypes
    _check_shares(*given)
    output, found = _outputs_of_shares(*given)
    if output.numel():
        job = _shares_task(*given, strength, start, steps, reconstruction=output, found=found)
        chunked(job)
        run(job)
    return output, found


@reconstruct_shares.register_fake
def _(signal, keys, prototypes, queries, reader_prototypes, strength, start, steps):
    return _outputs_of_shares(signal, keys, prototypes, queries, reader_prototypes)


def _outputs_of_shares(signal, keys, prototypes, queries, reader_prototypes) -> tuple[Tensor, Tensor]:
    rows = (keys if queries is None else queries).shape[1]
    found = signal.new_empty(signal.shape[0], prototypes.shape[0], prototypes.shape[2])
    return signal.new_empty(signal.shape[0], rows, signal.shape[2]), found


@torch.library.custom_op("torchvars::reconstruct_shares_backward", mutates_args=(), device_types="cpu")
def reconstruct_shares_backward(
    upstream: Tensor,
    signal: Tensor,
    keys: Tensor,
    prototypes: Tensor,
    queries: Tensor | None,
    reader_prototypes: Tensor | None,
    step_size: Tensor,
    strength: float,
    start: str,
    steps: int,
) -> list[Tensor]:
    """Gradients of the signal, the keys, their prototypes and, if there are any, the queries and theirs."""
    upstream, step_size = _contiguous(upstream, step_size)
    signal, keys, prototypes, queries, reader_prototypes = _contiguous(
        signal, keys, prototypes, queries, reader_prototypes
    )
    given = signal, keys, prototypes, queries, reader_prototypes
    _check_shares(*given)
    output, found = _outputs_of_shares(*given)
    _check(upstream.shape == output.shape and step_size.shape == found.shape, upstream, step_size)
    gradients = [torch.zeros_like(each) for each in given if each is not None]
    if upstream.numel():
        grad_signal, grad_keys, _, *grad_reader = gradients
        job = _shares_task(
            *given, strength, start, steps, step_sizes=step_size.shape[2], step_size=step_size, upstream=upstream,
            grad_signal=grad_signal, grad_keys=grad_keys, grad_queries=grad_reader[0] if grad_reader else None,
        )  # fmt: skip
        grad_chunks = prototypes.new_empty(2, chunked(job), *prototypes.shape)
        job.grad_prototypes = grad_chunks[0].data_ptr()
        if grad_reader:
            job.grad_reader_prototypes = grad_chunks[1].data_ptr()
        run(job)
        gradients[2] = _sum(grad_chunks[0])
        if grad_reader:
            gradients[4] = _sum(grad_chunks[1])
    return gradients


@reconstruct_shares_backward.register_fake
def _(upstream, signal, keys, prototypes, queries, reader_prototypes, step_size, strength, start, steps):
    return [_like(each) for each in (signal, keys, prototypes, queries, reader_prototypes) if each is not None]


def _check_shares(signal, keys, prototypes, queries, reader_prototypes) -> None:
    heads, width, _ = prototypes.shape
    _check(keys.shape == (*signal.shape[:2], heads * width) and signal.shape[2] % heads == 0, signal, keys, prototypes)
    if queries is not None:
        fit = queries.shape[0] == signal.shape[0] and queries.shape[2] == heads * width
        _check(fit and reader_prototypes.shape == prototypes.shape, queries, reader_prototypes, prototypes)


def _shares_task(
    signal, keys, prototypes, queries, reader_prototypes, strength: float, start: str, steps: int, **rest
) -> Atoms:
    heads, width, count = prototypes.shape
    return task(
        Atoms, signal, batch=signal.shape[0], chunks=1, heads=heads, channels=signal.shape[2] // heads, width=width,
        positions=keys.shape[1], atoms=count, reads=0 if queries is None else queries.shape[1], totals=True,
        strength=strength, start=STARTS.index(start), steps=steps, signal=signal, keys=keys, prototypes=prototypes,
        queries=queries, reader_prototypes=reader_prototypes, **rest,
    )  # fmt: skip


@torch.library.custom_op("torchvars::features", mutates_args=(), device_types="cpu")
def features(queries: Tensor, directions: Tensor, scale: float, shares: bool) -> Tensor:
    """Atoms of queries (batch, N, heads d) and directions (heads, d, M): (batch, heads, N, M).

    With `shares`, softmax(q W) along the rows; else exp(s q W - s^2 |q|^2 / 2) with columns of unit length.
    """
    queries, directions = _contiguous(queries, directions)
    _check(queries.shape[2] == directions.shape[0] * directions.shape[1], queries, directions)
    output = queries.new_empty(_shape_of_features(queries, directions))
    if output.numel():
        job = _features_task(queries, directions, scale, shares, features=output)
        chunked(job)
        run(job)
    return output


@features.register_fake
def _(queries, directions, scale, shares):
    return queries.new_empty(_shape_of_features(queries, directions))


@torch.library.custom_op("torchvars::features_backward", mutates_args=(), device_types="cpu")
def features_backward(
    upstream: Tensor, queries: Tensor, directions: Tensor, found: Tensor, scale: float, shares: bool
) -> list[Tensor]:
    """Gradients of the queries and, with `shares`, the directions, which are constants otherwise."""
    upstream, queries, directions, found = _contiguous(upstream, queries, directions, found)
    _check(queries.shape[2] == directions.shape[0] * directions.shape[1], queries, directions)
    _check(found.shape == upstream.shape == _shape_of_features(queries, directions), found, upstream)
    grad_queries, grad_directions = torch.empty_like(queries), torch.zeros_like(directions)
    if found.numel():
        job = _features_task(
            queries, directions, scale, shares, features=found, upstream=upstream, grad_queries=grad_queries
        )
        if shares:
            grad_chunks = directions.new_empty(chunked(job), *directions.shape)
            job.grad_directions = grad_chunks.data_ptr()
        else:
            chunked(job)
        run(job)
        grad_directions = _sum(grad_chunks) if shares else grad_directions
    return [grad_queries, grad_directions] if shares else [grad_queries]


@features_backward.register_fake
def _(upstream, queries, directions, found, scale, shares):
    return [_like(queries), _like(directions)] if shares else [_like(queries)]


def _shape_of_features(queries: Tensor, directions: Tensor) -> tuple[int, ...]:
    return queries.shape[0], directions.shape[0], queries.shape[1], directions.shape[2]


def _features_task(queries: Tensor, directions: Tensor, scale: float, shares: bool, **rest) -> Features:
    heads, channels, count = directions.shape
    return task(
        Features, queries, batch=queries.shape[0], heads=heads, channels=channels, positions=queries.shape[1],
        atoms=count, shares=shares, scale=scale, queries=queries, directions=directions, **rest,
    )  # fmt: skip


def _check(fits: bool, *given: Tensor | None) -> None:
    """Raises a ValueError unless `fits` and all tensors are of a supported type; the kernels check nothing."""
    tensors = [each for each in given if each is not None]
    if not fits or any(each.dtype not in (torch.float32, torch.float64) for each in tensors):
        shapes = ", ".join(f"{tuple(each.shape)} of {str(each.dtype).removeprefix('torch.')}" for each in tensors)
        raise ValueError(f"tensors do not belong to one problem, or are neither float32 nor float64: {shapes}")


def _contiguous(*tensors: Tensor | None) -> list[Any]:
    """The tensors, contiguous; None stays None."""
    return [None if tensor is None else tensor.contiguous() for tensor in tensors]


def _like(tensor: Tensor) -> Tensor:
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


def _sum(chunks: Tensor) -> Tensor:
    return chunks.sum(0) if len(chunks) > 1 else chunks[0].clone()


# Gradients


def _refuse(ctx, *upstream):
    raise RuntimeError(
        "this gradient is written out by hand and cannot be differentiated again: "
        "run all of it inside torchvars.sparse.plain()"
    )


def _keep(ctx, inputs, output) -> None:
    ctx.save_for_backward(*inputs[:4])
    ctx.rest = inputs[4:]


def _differentiate(ctx, upstream: Tensor):
    gradients = torch.ops.torchvars.reconstruct_backward(upstream, *ctx.saved_tensors, *ctx.rest)
    return *gradients, *[None] * (9 - len(gradients))


def _keep_dense(ctx, inputs, output) -> None:
    signal, atoms, _, reader, *ctx.rest = inputs
    ctx.save_for_backward(signal, atoms, output[1], reader)


def _differentiate_dense(ctx, upstream: Tensor, _):
    grad_signal, grad_atoms, grad_step_size, *grad_reader = torch.ops.torchvars.reconstruct_dense_backward(
        upstream, *ctx.saved_tensors, *ctx.rest
    )
    given = ctx.rest[0] == "given"
    return (
        grad_signal,
        grad_atoms,
        grad_step_size if given else None,
        grad_reader[0] if grad_reader else None,
        *[None] * 4,
    )


def _keep_shares(ctx, inputs, output) -> None:
    ctx.save_for_backward(*inputs[:5], output[1])
    ctx.rest = inputs[5:]


def _differentiate_shares(ctx, upstream: Tensor, _):
    gradients = torch.ops.torchvars.reconstruct_shares_backward(upstream, *ctx.saved_tensors, *ctx.rest)
    return *gradients, *[None] * (8 - len(gradients))


def _keep_features(ctx, inputs, output) -> None:
    queries, directions, *ctx.rest = inputs
    ctx.save_for_backward(queries, directions, output)


def _differentiate_features(ctx, upstream: Tensor):
    grad_queries, *grad_directions = torch.ops.torchvars.features_backward(upstream, *ctx.saved_tensors, *ctx.rest)
    return grad_queries, grad_directions[0] if grad_directions else None, None, None


reconstruct.register_autograd(_differentiate, setup_context=_keep)
reconstruct_dense.register_autograd(_differentiate_dense, setup_context=_keep_dense)
reconstruct_shares.register_autograd(_differentiate_shares, setup_context=_keep_shares)
features.register_autograd(_differentiate_features, setup_context=_keep_features)
for backward in (
    reconstruct_backward,
    reconstruct_dense_backward,
    reconstruct_shares_backward,
    features_backward,
):
    backward.register_autograd(_refuse, setup_context=lambda ctx, inputs, output: None)
