"""Plots of the time against the number of tokens."""

from collections.abc import Sequence
from pathlib import Path

from ..models.speed import Measurement, exponents

# The colours of Okabe and Ito, which are safe for the colour-blind, and markers for print in grey.
COLOURS = ("#000000", "#E69F00", "#009E73", "#0072B2", "#D55E00", "#CC79A7", "#56B4E9")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")


def draw_time_against_tokens(rows: Sequence[Measurement], path: Path) -> None:
    """Writes a log-log plot of the forward time: one line for each contestant, with its fitted exponent in the legend.

    Args:
        rows: measurements of `measure_scaling`, for at least two numbers of tokens.
        path: a .png file to write.
    """
    from matplotlib.figure import Figure  # an optional dependency; pyplot would need a display

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot()
    for index, (name, powers) in enumerate(exponents(rows).items()):
        mine = [row for row in rows if row.contestant == name]
        own = sorted([(each.tokens or 0, each.forward_seconds) for each in mine], key=lambda point: point[0])
        axes.plot(
            [tokens for tokens, _ in own],
            [1e3 * seconds for _, seconds in own],
            color=COLOURS[index % len(COLOURS)],
            marker=MARKERS[index % len(MARKERS)],
            linewidth=1.8,
            label=f"{name}, exponent {powers['forward']:.2f}",
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    counts = sorted({row.tokens for row in rows if row.tokens is not None})
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.set_xticks([], minor=True)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlabel("tokens", fontsize=12)
    axes.set_ylabel("forward pass of a layer, batch 1 (ms)", fontsize=12)
    axes.tick_params(labelsize=11)
    axes.grid(which="major", color="0.85", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=11, frameon=False)
    figure.savefig(path, dpi=150)
