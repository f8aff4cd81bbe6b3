"""Time against tokens."""

from collections.abc import Sequence
from pathlib import Path

from ..models.speed import Measurement, exponents

# Okabe and Ito's colours, which the colour-blind tell apart; markers for those who print in grey.
COLOURS = ("#000000", "#E69F00", "#009E73", "#0072B2", "#D55E00", "#CC79A7", "#56B4E9")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")


def draw_time_against_tokens(rows: Sequence[Measurement], path: Path) -> None:
    """Writes a log-log plot of the forward time, a line for each contestant with its fitted exponent in the legend.

    Args:
        rows: of `measure_scaling`, on two numbers of tokens at least.
        path: a .png file to write.
    """
    from matplotlib.figure import Figure  # an extra; and no pyplot, which would want a display

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
