"""The scoring loop: runs a function on every picture of a source once, on any number of processes."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..data import Shown, Source, Target
from .memory import Memory
from .processes import Processes


class Asked(NamedTuple):
    """A batch of pictures, as it is passed to a model."""

    indices: Sequence[int]  # in the source
    pixels: Tensor  # (B, 3, H, W) in [0, 1], on the device of the process
    targets: Sequence[Target]
    identities: Sequence[str]
    clean: Tensor  # the pixels before any change


class Scores(NamedTuple):
    """Values for the pictures of a source, in their order."""

    columns: dict[str, Tensor]  # (N,)
    unread: Tensor  # (N,), whether a picture could not be read
    problems: dict[str, str]  # picture -> why it could not be read


def score(
    source: Source,
    shown: Shown,
    ask: Callable[[Asked], Mapping[str, Tensor]],
    blank: Mapping[str, bool | float] | None,
    processes: Processes,
    *,
    batch: int,
    workers: int = 0,
    memory: Memory | None = None,
    change: Callable[[Asked], Tensor] | None = None,
    watch: Callable[[int, int, Mapping[str, Tensor]], None] | None = None,
    together: bool = False,
) -> Scores:
    """Runs a function on each picture once. Of n processes each takes every n-th batch.

    Args:
        shown: how stored pictures become pixels.
        ask: function: batch -> columns (B,) on the CPU. It runs without gradients.
        blank: values of the columns for pictures that cannot be read; None to keep the values of the pictures that take
            their place.
        batch: batch size.
        workers: number of data loading processes.
        memory: cache of pictures between calls.
        change: function that changes the pixels first: batch -> pixels of the same shape.
        watch: called with the number of pictures done, the number of all, and the columns of this process so far.
        together: whether all processes run the same number of batches, as a sharded model must: a process without a
            batch repeats the first.

    Returns:
        The same scores on every process.
    """
    starts = range(0, len(source), batch)
    mine = list(starts[processes.rank :: processes.world])
    again = -(-len(starts) // processes.world) - len(mine) if together else 0
    batches = [range(first, min(first + batch, len(source))) for first in [*mine, *[0] * again]]
    memory = Memory(0) if memory is None else memory
    parts, problems, done = [], {}, 0
    for number, (indices, read) in enumerate(
        zip(batches, memory.batches(source, shown, batches, workers), strict=True)
    ):
        clean = (read.pixels.float() / 255).to(processes.device)
        request = Asked(indices, clean, read.targets, read.identities, clean)
        if change is not None:
            request = request._replace(pixels=change(request))
        with torch.no_grad():
            columns = ask(request)
        if number >= len(mine):
            continue
        unread = torch.tensor([identity in read.problems for identity in read.identities])
        if blank is not None:
            columns = {name: torch.where(unread, blank[name], values) for name, values in columns.items()}
        parts.append((indices[0], columns, unread))
        problems |= {f"{source.name}: {identity}": problem for identity, problem in read.problems.items()}
        done += len(indices)
        if watch is not None and done * processes.world < len(source):
            watch(done * processes.world, len(source), joined([columns for _, columns, _ in parts]))
    parts = sorted(processes.gather(parts), key=lambda part: part[0])
    problems = dict(processes.gather(list(problems.items())))
    columns = joined([columns for _, columns, _ in parts])
    if watch is not None:
        watch(len(source), len(source), columns)
    return Scores(columns, torch.cat([unread for *_, unread in parts]), problems)


def joined(parts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Concatenated columns of several batches."""
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]} if parts else {}
