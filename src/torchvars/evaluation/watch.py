"""What a person sees of an evaluation while it goes on."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from .processes import is_first
from .run import Watch


@contextmanager
def watching() -> Iterator[Watch]:
    """A bar in a terminal; elsewhere one line for each condition that is done. Of several processes, by the first."""
    if not is_first():
        yield lambda *_: None
        return
    console = Console(stderr=True)
    if not console.is_terminal:

        def line(benchmark: str, condition: str, done: int, total: int, right: float) -> None:
            if done >= total:
                print(f"{benchmark}, {condition}: {100 * right:.2f} %", file=sys.stderr, flush=True)

        yield line
        return
    columns = [
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[right]:.1f} %"),
        TimeRemainingColumn(),
    ]
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", right=0.0)

        def update(benchmark: str, condition: str, done: int, total: int, right: float) -> None:
            bar.update(
                task,
                description=f"{benchmark}, {condition}",
                completed=min(done, total),
                total=total,
                right=100 * right,
            )

        yield update
