"""The training curves of a run."""

from collections.abc import Sequence
from pathlib import Path

from .speed import COLOURS


def draw_curves(lines: Sequence[dict], path: Path) -> None:
    """Writes a plot of loss and accuracy against epochs, in training and on held-out pictures.

    Args:
        lines: the lines of metrics.jsonl.
        path: a .png file to write.
    """
    from matplotlib.figure import Figure  # an optional dependency; pyplot would need a display

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    epochs = [line["epoch"] for line in lines]
    for axes, name, factor, label in zip(
        figure.subplots(1, 2), ("loss", "accuracy"), (1, 100), ("loss", "accuracy (%)"), strict=True
    ):
        for key, colour, title in ((name, COLOURS[1], "training"), (f"val_{name}", COLOURS[3], "held out")):
            axes.plot(
                epochs, [factor * line[key] for line in lines], color=colour, label=title, marker="o", markersize=3
            )
        axes.set_xlabel("epoch", fontsize=12)
        axes.set_ylabel(label, fontsize=12)
        axes.tick_params(labelsize=11)
        axes.grid(color="0.85", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(fontsize=11, frameon=False)
    figure.savefig(path, dpi=150)
