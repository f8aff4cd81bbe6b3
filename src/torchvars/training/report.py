"""Progress of a run: a bar in a terminal, else a line for each epoch, and TensorBoard."""

import sys
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from torch import Tensor
from torch.nn import functional

from ..attention import Views


def make_bar(console: Console) -> Bar:
    """A progress bar whose rows have a description, a count, a bar, a text and times."""
    return Bar(
        TextColumn("{task.description}"),
        MofNCompleteColumn(),
        BarColumn(),
        TextColumn("{task.fields[text]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
    )


class Report:
    """Reports the progress of a run, from one process.

    Args:
        folder: folder of the run; TensorBoard files go to its folder "tensorboard".
        first, last: number of steps that are done, and of all steps.
        epochs: number of epochs of the recipe.
        bar: started progress bar, in which the run gets a row; by default it has its own.
    """

    def __init__(self, folder: Path, first: int, last: int, epochs: int, bar: Bar | None = None):
        self.epochs = epochs
        self.console = Console() if bar is None else bar.console
        self.bar, self.board, self.own = bar, None, None
        if bar is None and self.console.is_terminal:
            self.bar = self.own = make_bar(self.console)
            self.own.start()
        if self.bar is not None:
            self.task = self.bar.add_task("step", total=last, completed=first, text="")
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ModuleNotFoundError:
            print("TensorBoard is not installed: nothing is written for it", file=sys.stderr)
        else:
            # Drops all from this step on, which was written after the checkpoint that the run resumes from.
            self.board = SummaryWriter(folder / "tensorboard", purge_step=first + 1)

    def step(self, step: int, described: str, images_per_second: float) -> None:
        """Shows the step, and the means since the beginning of the epoch as text."""
        if self.bar is not None:
            self.bar.update(self.task, completed=step, text=f"{described}, {images_per_second:.0f} images/s")

    def epoch(self, line: dict, described: str, times: dict, shown: Tensor, views: Views) -> None:
        """Reports the metrics of an epoch, also as text, its times, and the views of layers on some pictures."""
        text = (
            f"epoch {line['epoch']:.4g} of {self.epochs}, step {line['step']}: {described}, "
            f"{times['images_per_second']:.0f} images/s, waiting for data {100 * times['waiting_share']:.1f} %"
        )
        if self.bar is None:
            print(text, flush=True)
        else:
            self.console.print(text, highlight=False)
        if self.board is not None:
            scalars = {**line, **times, **{f"zeros/{name}": share for name, share in views.sparsity.items()}}
            for name, value in scalars.items():
                if name != "step":
                    self.board.add_scalar(name, value, line["step"])
            for name, energy in views.energy.items():
                self.board.add_image(f"energy/{name}", draw_maps(shown.cpu(), energy.cpu()), line["step"])
            self.board.flush()

    def log(self, text: str) -> None:
        self.console.print(text, highlight=False, soft_wrap=True)

    def close(self) -> None:
        if self.own is not None:
            self.own.stop()
        elif self.bar is not None:
            self.bar.remove_task(self.task)
        if self.board is not None:
            self.board.close()


def draw_maps(pixels: Tensor, maps: Tensor) -> Tensor:
    """One image: pictures (batch, 3, H, W) above their maps (batch, h, w), which are scaled to [0, 1]."""
    low, high = maps.amin((1, 2), keepdim=True), maps.amax((1, 2), keepdim=True)
    levels = ((maps - low) / (high - low).clamp_min(1e-12))[:, None]
    levels = functional.interpolate(levels, size=pixels.shape[-2:], mode="nearest").expand_as(pixels)
    return torch.cat([torch.cat(row.unbind(0), -1) for row in (pixels, levels)], -2)
