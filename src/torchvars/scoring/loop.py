"""The loop: every picture of a source once, by however many processes, and what was found of each."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..data import Shown, Source, Target
from .memory import Memory
from .processes import Processes


class Asked(NamedTuple):
    """The pictures of a batch, as a model is asked of them."""

    indices: Sequence[int]  # in the source
    pixels: Tensor  # (B, 3, H, W) in [0, 1], on the device of the process
    targets: Sequence[Target]
    identities: Sequence[str]
    clean: Tensor  # the pixels before anything was done to them


class Scores(NamedTuple):
    """What was found of the pictures of a source, in their order."""

    columns: dict[str, Tensor]  # (N,)
    unread: Tensor  # (N,), whether a picture could not be read
    problems: dict[str, str]  # why


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
    """Asks of each picture once. Of several processes each takes every n-th batch: the batches are those of one.

    Args:
        shown: how stored pictures become pixels.
        ask: pictures -> columns (B,), on the CPU. It runs without gradients.
        blank: column -> its value for a picture that cannot be read, whatever was found of the one in its place; None
            to leave that.
        batch: pictures at a time.
        workers: processes that read pictures.
        memory: where pictures are kept between calls.
        change: what is done to the pixels before: pictures -> pixels of the same shape.
        watch: called with how many pictures are done, of how many, and the columns of those of this process.
        together: whether every process asks as often as the others, as a model must that is spread over them: one that
            has no batch left asks of the first again.

    Returns:
        on every process the same.
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
        asked = Asked(indices, clean, read.targets, read.identities, clean)
        if change is not None:
            asked = asked._replace(pixels=change(asked))
        with torch.no_grad():
            columns = ask(asked)
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
    """Columns of some batches as columns of all of them."""
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]} if parts else {}
