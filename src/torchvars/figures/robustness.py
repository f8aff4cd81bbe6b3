"""Plots of the robustness of models."""

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from textwrap import fill
from typing import cast

import numpy as np

from ..evaluation.conditions import Condition
from ..evaluation.corruptions import CORRUPTIONS
from ..evaluation.results import Results
from .speed import COLOURS, MARKERS

STYLES = {"pgd": "-", "square": "--", "fgsm": ":", "autoattack": "-."}


def draw_corruptions(results: Sequence[Results], path: Path) -> bool:
    """Writes heat maps of the accuracy by corruption and severity, one for each model. False without results."""
    from matplotlib.figure import Figure

    tables = []
    for result in results:
        for benchmark in result.outcomes:
            values = {
                (row.condition.name, row.severity): row.value
                for row in result.rows
                if row.benchmark == benchmark and row.metric == "accuracy" and is_corrupted(row.condition)
            }
            if values:
                title = f"{fill(result.label, 30)}\n{benchmark}{_among(result, benchmark)}"
                tables.append((title, values))
    if not tables:
        return False
    names = [name for name in CORRUPTIONS if any((name, s) in t for _, t in tables for s in range(1, 6))]
    figure = Figure(figsize=(1.8 + 2.6 * len(tables), 1.8 + 0.3 * len(names)), layout="constrained")
    every = figure.subplots(1, len(tables), sharey=True, squeeze=False)[0]
    for axes, (title, values) in zip(every, tables, strict=True):
        heat = np.array([[values.get((name, severity), np.nan) for severity in range(1, 6)] for name in names])
        drawn = axes.imshow(heat, vmin=0, vmax=100, cmap="viridis", aspect="auto")
        for (row, column), value in np.ndenumerate(heat):
            if np.isfinite(value):
                axes.text(column, row, f"{value:.0f}", ha="center", va="center", fontsize=9, color=_ink(value))
        axes.set_title(title, fontsize=9)
        axes.set_xticks(range(5), range(1, 6), fontsize=10)
        axes.set_yticks(range(len(names)), [name.replace("_", " ") for name in names], fontsize=10)
        axes.set_xlabel("severity", fontsize=11)
    figure.colorbar(drawn, ax=every, label="accuracy (%)")
    return _save(figure, path)


def draw_attacks(results: Sequence[Results], path: Path) -> bool:
    """Writes a plot of the accuracy against the radius, a line for each model and attack. False without results."""
    from matplotlib.figure import Figure

    measures = {"linf": "largest change of a pixel, of 255", "l2": "root of the sum of squared changes of pixels"}
    present = {row.condition["norm"] for result in results for row in result.rows}
    norms = [norm for norm in measures if norm in present]
    if not norms:
        return False
    figure = Figure(layout="constrained")
    every = figure.subplots(1, len(norms), sharey=True, squeeze=False)[0]
    drawn = [_draw_balls(results, norm, axes) for norm, axes in zip(norms, every, strict=True)]
    for norm, axes in zip(norms, every, strict=True):
        axes.set_xlabel(measures[norm], fontsize=12)
        axes.set_ylim(0, 100)
        axes.grid(color="0.85", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    every[0].set_ylabel("accuracy (%)", fontsize=12)
    figure.legend(loc="outside lower center", fontsize=9, frameon=False)
    figure.set_size_inches(6.4 * len(norms), 4.2 + 0.2 * sum(drawn))
    return _save(figure, path)


def _draw_balls(results: Sequence[Results], norm: str, axes) -> int:
    """Plots the lines of one norm, and returns their number."""
    drawn = 0
    for number, result in enumerate(results):
        for benchmark in result.outcomes:
            rules = _by_effort(result, benchmark, norm).items()
            for marker, ((rule, effort), points) in zip(cycle(MARKERS), rules):
                radii, values, low, high = np.array(sorted(points)).T
                label = f"{result.label}, {benchmark}{effort}" + (", l2" if norm == "l2" else "")
                label += _among(result, benchmark)
                colour = COLOURS[number % len(COLOURS)]
                axes.plot(radii, values, STYLES[rule], color=colour, marker=marker, markersize=4, label=label)
                axes.fill_between(radii, low, high, color=colour, alpha=0.1, linewidth=0)
                drawn += 1
    return drawn


def _by_effort(
    result: Results, benchmark: str, norm: str
) -> dict[tuple[str, str], list[tuple[float, float, float, float]]]:
    """Radius, accuracy and its interval of the attacks in a norm, by attack and effort."""
    found, clean = {}, []
    for row in result.rows:
        if row.benchmark != benchmark or row.metric != "accuracy" or row.condition.subset is not None:
            continue
        if row.condition.family == "clean":
            clean.append((0.0, row.value, row.low, row.high))
        elif row.condition["norm"] == norm:
            effort = "".join(
                f", {row.condition[word]} {word}" for word in ("steps", "queries") if row.condition[word] is not None
            )
            radius = cast(float, row.condition["radius"]) * (255 if norm == "linf" else 1)
            found.setdefault((row.condition.name, effort), []).append((radius, row.value, row.low, row.high))
    return {rule: clean + points for rule, points in found.items()}


def is_corrupted(condition: Condition) -> bool:
    """Whether a condition is a corruption at one severity, for all pictures."""
    return condition.family == "corruption" and condition.severity is not None and condition.subset is None


def _among(result: Results, benchmark: str) -> str:
    """The label space, if the model has other classes than the data set."""
    space = result.label_space(benchmark)
    return "" if space is None or space.is_plain else f", {space}"


def _ink(value: float) -> str:
    return "white" if value < 60 else "black"


def _save(figure, path: Path) -> bool:
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    return True
