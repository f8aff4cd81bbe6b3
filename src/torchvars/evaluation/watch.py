"""The progress bar of an evaluation."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from ..scoring import is_first
from .run import Progress, Watch


@contextmanager
def watching() -> Iterator[Watch]:
    """Shows a progress bar in a terminal, else prints a line for each finished condition; only in the first process."""
    if not is_first():
        yield lambda *_: None
        return
    console = Console(stderr=True)
    if not console.is_terminal:

        def line(now: Progress) -> None:
            if now.done >= now.total:
                place = f"{now.number}/{now.count} {now.benchmark}, {now.condition}"
                print(f"{place}: {now.value:.2f}{now.unit}", file=sys.stderr, flush=True)

        yield line
        return
    columns = [TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[now]}"), TimeRemainingColumn()]
    # The bar and the remaining time are those of the whole evaluation.
    with Bar(*columns, console=console, transient=True, speed_estimate_period=600) as bar:
        task = bar.add_task("", total=1.0, now="")

        def update(now: Progress) -> None:
            bar.update(
                task,
                description=f"{now.number}/{now.count} {now.benchmark}, {now.condition}",
                completed=now.share,
                now=f"{min(now.done, now.total)}/{now.total} pictures, {now.value:.1f}{now.unit}",
            )

        yield update
