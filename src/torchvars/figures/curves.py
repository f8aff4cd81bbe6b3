"""Plots of results files: accuracy by step and strength, IoU by threshold, stability and concentration of maps."""

from collections.abc import Callable, Sequence
from itertools import cycle
from pathlib import Path

import numpy as np

from ..evaluation.conditions import Condition
from ..evaluation.corruptions import CORRUPTIONS
from ..evaluation.metrics import bootstrap
from ..evaluation.results import Results, Row
from ..evaluation.tasks.segmentation import CENTRED_GAUSSIAN, condition_of
from .speed import COLOURS, MARKERS

GAUSSIAN = condition_of("vars", CENTRED_GAUSSIAN)
Points = Sequence[tuple[float, float, float, float]]  # x, value, and the ends of its interval


def draw_ablation(results: Sequence[Results], path: Path) -> bool:
    """Writes plots of the accuracy of trained VARS models against the number of steps and the strength.

    Each model needs results files for at least two values; a file without changes is that of the trained value. Returns
    False if there is no such model.
    """
    panels = []
    for option, label in (("steps", "recurrent steps"), ("strength", "strength")):
        lines = []
        for model in dict.fromkeys(result.model["name"] for result in results):
            own = [each for each in results if each.model["name"] == model and _value(each, option) is not None]
            for benchmark, condition, title in (("clean", "clean", "clean"), ("corruptions", "all", "corrupted")):
                rows = {_value(each, option): each.value(benchmark, "accuracy", condition) for each in own}
                points = [(value, *_interval(row)) for value, row in sorted(rows.items()) if row is not None]
                if len(points) > 1:
                    lines.append((f"{model}, {title}", points))
        if lines:
            panels.append((label, "accuracy (%)", lines))
    return _draw(panels, path)


def _value(result: Results, option: str) -> float | None:
    """The value of a solver option of a model; None if other options were changed, or the layers differ."""
    changed = result.model.get("solving", {})
    if set(changed) - {option}:
        return None
    if option in changed:
        return changed[option]
    layers = result.model.get("layers", {}).values()
    own = {layer["strength"] if option == "strength" else layer["solver"].get("steps") for layer in layers}
    return own.pop() if len(own) == 1 else None


def draw_thresholds(results: Sequence[Results], path: Path) -> bool:
    """Writes a plot of the IoU of the foreground against the threshold, a line a model. False without results."""
    lines, gaussians = [], []
    for result in results:
        rows = [row for row in result.rows if row.metric == "IoU by threshold"]
        own, gaussian = (
            sorted((row.condition["threshold"], *_interval(row)) for row in rows if chosen(row.condition))
            for chosen in (lambda each: each.family == "map", lambda each: each.name == GAUSSIAN.name)
        )
        lines += [(_label(result), own)] if own else []
        gaussians += [(CENTRED_GAUSSIAN, gaussian)] if gaussian else []
    lines += gaussians[:1]  # the same for all models
    return _draw([("threshold", "IoU of the foreground (%)", lines)] if lines else [], path)


def draw_stability(results: Sequence[Results], path: Path) -> bool:
    """Writes plots of the correlation of maps with clean ones, by severity and corruption. False without results."""
    by_severity, by_corruption = [], []
    for result in results:
        outcomes = result.outcomes.get("map_stability", {})
        corrupted = [each for each in outcomes if each.family == "corruption"]
        if not corrupted:
            continue
        label = _label(result)
        severities = sorted({each.severity for each in corrupted if each.severity is not None})
        names = [name for name in CORRUPTIONS if any(each.name == name for each in corrupted)]
        same = [[each for each in corrupted if each.severity == severity] for severity in severities]
        by_severity.append((label, [(x, *_mean(outcomes, each)) for x, each in zip(severities, same, strict=True)]))
        same = [[each for each in corrupted if each.name == name] for name in names]
        by_corruption.append((label, [(x, *_mean(outcomes, each)) for x, each in enumerate(same)]))
    if not by_severity:
        return False
    panels = [("severity", "correlation with the clean map", by_severity)]
    panels.append(("", "correlation with the clean map", by_corruption))
    ticks = [None, [name.replace("_", " ") for name in names]]
    return _draw(panels, path, ticks)


def _mean(outcomes: dict, conditions: Sequence[Condition]) -> tuple[float, float, float]:
    """The mean correlation over conditions, and its interval over pictures."""
    values = np.stack([outcomes[each].columns["correlation"] for each in conditions], 1).mean(1)
    return bootstrap(values[~np.isnan(values)])


def draw_sharpening(results: Sequence[Results], path: Path) -> bool:
    """Writes plots of the concentration of maps after each recurrent step. False without results of such models."""
    panels = []
    for metric, label in (
        ("entropy", "entropy / that of a uniform map"),
        ("share of the best tenth", "best tenth (%)"),
    ):
        lines = []
        for result in results:
            rows = [row for row in result.rows if row.condition.family == "step" and row.metric == metric]
            if rows:
                lines.append((_label(result), sorted((row.condition["steps"], *_interval(row)) for row in rows)))
        if lines:
            panels.append(("recurrent steps", label, lines))
    return _draw(panels, path)


def _label(result: Results) -> str:
    """The model and the kind of its maps."""
    kinds = [asked["task"]["kind"] for asked in result.asked.values() if "kind" in asked["task"]]
    return f"{result.label}, {kinds[0]}" if kinds else result.label


def _interval(row: Row) -> tuple[float, float, float]:
    return row.value, row.value if row.low is None else row.low, row.value if row.high is None else row.high


def _draw(
    panels: Sequence[tuple[str, str, Sequence[tuple[str, Points]]]],
    path: Path,
    ticks: Sequence[Sequence[str] | None] | None = None,
) -> bool:
    """Draws panels side by side, each with the labels of its axes and named lines, which share one legend."""
    from matplotlib.figure import Figure  # an optional dependency; pyplot would need a display

    if not panels:
        return False
    names = list(dict.fromkeys(name for *_, lines in panels for name, _ in lines))
    styles = dict(zip(names, zip(cycle(COLOURS), cycle(MARKERS), strict=False), strict=False))
    columns = 2 if len(panels) > 1 and len(names) > 2 else 1
    figure = Figure(figsize=(4.4 * len(panels), 3.2 + 0.18 * -(-len(names) // columns)), layout="constrained")
    every = figure.subplots(1, len(panels), squeeze=False)[0]
    for number, (axis, (across, up, lines)) in enumerate(zip(every, panels, strict=True)):
        for name, points in lines:
            colour, marker = styles[name]
            x, values, low, high = np.array(points, float).T
            names_here = None if ticks is None else ticks[number]
            if names_here is not None:  # categories: points are not connected
                error = [values - low, high - values]
                axis.errorbar(x, values, error, color=colour, fmt=marker, markersize=4, linewidth=0.8, label=name)
                axis.set_xticks(range(len(names_here)), names_here, rotation=45, ha="right", fontsize=7)
                continue
            axis.plot(x, values, color=colour, marker=marker, markersize=4, label=name)
            axis.fill_between(x, low, high, color=colour, alpha=0.12, linewidth=0)
            if all(each == round(each) for each in x):
                axis.set_xticks(range(int(min(x)), int(max(x)) + 1))
        axis.set_xlabel(across, fontsize=9)
        axis.set_ylabel(up, fontsize=9)
        axis.tick_params(labelsize=8)
        axis.grid(color="0.88", linewidth=0.7)
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
    handles = {text: handle for axis in every for handle, text in zip(*axis.get_legend_handles_labels(), strict=True)}
    where = {"loc": "outside lower center", "ncols": columns}
    figure.legend(handles.values(), handles, fontsize=8, frameon=False, **where)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    return True


Draw = Callable[[Sequence[Results], Path], bool]
CURVES: dict[str, Draw] = {
    "ablation": draw_ablation,
    "thresholds": draw_thresholds,
    "stability": draw_stability,
    "sharpening": draw_sharpening,
}
"""Plots of results files by name."""
