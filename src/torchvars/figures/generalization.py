"""Plots of the accuracy on domains that were left out of training."""

from collections.abc import Sequence
from pathlib import Path

from ..generalization.results import CHOSEN, PROBE, Generalization, Spread
from .speed import COLOURS, MARKERS


def draw_domains(results: Sequence[Generalization], path: Path) -> bool:
    """Writes a plot of the accuracy by target domain and model. Returns False if there is nothing to plot.

    Filled markers are the selected weights, hollow ones linear probes. Error bars are the standard deviation over
    seeds, or the 95 % interval over pictures for one seed. Small dots are the seeds.
    """
    from matplotlib.figure import Figure

    domains = list(dict.fromkeys(target for each in results for target in each.domains))
    if not any(each.scores for each in results):
        return False
    figure = Figure(figsize=(2.2 + 1.6 * len(domains), 4.2), layout="constrained")
    axes = figure.add_subplot()
    for number, result in enumerate(results):
        colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
        for weights, face, behind in ((CHOSEN, colour, ""), (PROBE, "white", ", linear probe")):
            kind = 2 * number + (weights == PROBE)
            shift = 0.7 * ((kind + 0.5) / (2 * len(results)) - 0.5)
            drawn = False
            for place, domain in enumerate(domains):
                spread = result.over_seeds(weights, "target", domain)
                if spread is None:
                    continue
                label = None if drawn else result.model["name"] + behind
                drawn = True
                where = {"color": colour, "markerfacecolor": face, "marker": marker, "markersize": 6, "capsize": 3}
                axes.errorbar(place + shift, spread.value, yerr=bars(spread), linestyle="none", label=label, **where)
                seeds = [
                    s.value for s in result.scores if (s.weights, s.metric, s.target) == (weights, "target", domain)
                ]
                if len(seeds) > 1:
                    axes.plot([place + shift] * len(seeds), seeds, ".", color=colour, markersize=3)
    axes.set_xticks(range(len(domains)), [domain.replace("_", " ") for domain in domains], fontsize=11)
    axes.set_xlim(-0.5, len(domains) - 0.5)
    axes.set_xlabel("domain left out of training", fontsize=12)
    axes.set_ylabel("accuracy on it (%)", fontsize=12)
    axes.grid(axis="y", color="0.85", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    title = "bars: standard deviation over seeds; of one seed, the 95 % interval over pictures"
    figure.legend(loc="outside lower center", fontsize=9, frameon=False, ncols=2, title=title, title_fontsize=9)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    return True


def bars(spread: Spread) -> list[list[float]] | None:
    """The lengths of an error bar, downwards and upwards."""
    if spread.deviation is not None:
        return [[spread.deviation], [spread.deviation]]
    if spread.low is None or spread.high is None:
        return None
    return [[max(spread.value - spread.low, 0.0)], [max(spread.high - spread.value, 0.0)]]  # not -0.0 by rounding
