"""Comparison of results: tables, and the significance of differences."""

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table

from .benchmarks import BENCHMARKS
from .conditions import Condition
from .metrics import TESTS, bootstrap
from .paper import paper_figure, paper_row
from .record import Measured
from .results import Outcome, Results, Row, shortfall
from .task import Metric

OF_THE_CLASSES = ("metrics", "classes", "among_present", "label_space")


class Difference(NamedTuple):
    """The difference of the second model minus the first, on the same pictures."""

    benchmark: str
    condition: Condition
    metric: str
    value: float
    low: float  # 95 % interval
    high: float
    p: float | None  # p-value of the paired test of the metric, if it has one


def lines_of(results: Sequence[Results]) -> list[tuple[str, Condition, str]]:
    """Benchmark, condition and metric of each line of a table of these results."""
    lines = []
    for result in results:
        for row in result.rows:
            line = (row.benchmark, row.condition, row.metric)
            if line not in lines and is_listed(result, row):
                lines.append(line)
    return lines


def is_listed(result: Results, row: Row) -> bool:
    """Whether a row is a line of the table. Conditions and severities that are part of a mean are not."""
    condition = row.condition
    listed = (
        result.metrics(row.benchmark).get(row.metric, Metric(row.metric, "lower")).listed
    )  # mCE is not a metric of a task
    if condition.subset is not None or not listed:
        return False
    if listed == "clean":
        return all(each.family == "clean" for each in result.conditions(row.benchmark))
    summed = {(each.family, each.name) for over in result.means(row.benchmark).values() for each in over}
    return condition.severity is None and (condition.family, condition.name) not in summed


def relative_lines(
    results: Sequence[Results], baseline: Results
) -> list[tuple[str, Condition, str, list[tuple[float, float, float] | None]]]:
    """Benchmark, condition, metric, and for each model its value relative to a baseline.

    The value is None if a model was not evaluated on the same pictures with the same settings as the baseline.
    """
    lines = []
    for name, member in BENCHMARKS.items():
        if member.relative is not None:
            values = [
                member.relative.value(result, baseline, name) if is_paired(result, baseline, name) else None
                for result in results
            ]
            if any(values):
                lines.append((name, member.relative.condition, member.relative.metric, values))
    return lines


def is_paired(first: Results, second: Results, benchmark: str) -> bool:
    """Whether the results of both models on a benchmark can be compared picture by picture."""
    return benchmark in first.asked and benchmark in second.asked and why_not_paired(first, second, benchmark) is None


def why_not_paired(first: Results, second: Results, benchmark: str) -> str | None:
    """The reason why the results of both models on a benchmark cannot be compared; None if they can.

    They can if the pictures have the same names, were changed in the same way, and the label space is the same.
    """
    both = (first, second)
    ways, pictures = [each.asked[benchmark].get("change") for each in both], [each.pictures[benchmark] for each in both]
    # The label spaces are compared below.
    tasks = [
        {name: fact for name, fact in each.asked[benchmark]["task"].items() if name not in OF_THE_CLASSES}
        for each in both
    ]
    if ways[0] != ways[1]:
        return f"it was done with {ways[0]}, and with {ways[1]}"
    if pictures[0] != pictures[1]:
        alike = len(set(pictures[0]) & set(pictures[1]))
        return (
            f"it was of {len(pictures[0])} pictures, and of {len(pictures[1])}, {alike} of which are the same: "
            "evaluate both on the same ones, with the same --limit"
        )
    if tasks[0] != tasks[1]:
        return f"it was asked in other ways: {tasks[0]}, and {tasks[1]}"
    if not same_label_space(first, second, benchmark):
        spaces = [each.label_space(benchmark) for each in both]
        return f"the label spaces differ, {spaces[0]} and {spaces[1]}: evaluate both with --label-space present"
    return None


def same_label_space(first: Results, second: Results, benchmark: str) -> bool:
    """Whether both have the same label space on a benchmark."""
    one, other = (each.label_space(benchmark) for each in (first, second))
    if one is None or other is None:
        return one is other
    if one.names is not None and other.names is not None:
        return one.names == other.names
    # A file without names has a lower bound on their number, and whether they are more than those of the data set.
    both = (first, one), (second, other)
    more = [space.classes > each.asked[benchmark]["task"]["classes"] for each, space in both]
    within = one.names is None or other.classes <= one.classes
    within &= other.names is None or one.classes <= other.classes
    return within and more[0] == more[1]


def differences(first: Results, second: Results) -> list[Difference]:
    """The differences in all metrics that both have on the same pictures."""
    found = []
    for benchmark, outcomes in first.outcomes.items():
        others = second.outcomes.get(benchmark, {})
        if not is_paired(first, second, benchmark):
            continue
        for condition, outcome in outcomes.items():
            for metric in first.metrics(benchmark).values():
                if metric.column is None:
                    continue
                mine = outcome.columns.get(metric.column)
                theirs = others.get(condition, NOTHING).columns.get(metric.column)
                if mine is not None and theirs is not None:
                    found.append(Difference(benchmark, condition, metric.name, *gained(metric, mine, theirs)))
        for mean, members in first.means(benchmark).items():
            if members == second.means(benchmark).get(mean) and all(
                each in outcomes and each in others for each in members
            ):
                found += mean_differences(first, second, benchmark, mean, members)
    return found


NOTHING = Outcome({}, {})


def mean_differences(
    first: Results, second: Results, benchmark: str, mean: Condition, members: Sequence[Condition]
) -> list[Difference]:
    """The differences in a mean over conditions: over the severities of each name, then names, then pictures."""
    names: dict[str, list[Condition]] = {}
    for each in members:
        names.setdefault(each.name, []).append(each)
    found = []
    for metric in first.metrics(benchmark).values():
        both, column = [result.outcomes[benchmark] for result in (first, second)], metric.column
        if column is not None and all(column in outcomes[each].columns for outcomes in both for each in members):
            lacking, others = (
                np.stack([shortfall([outcomes[each] for each in same], column) for same in names.values()], 1)
                for outcomes in both
            )
            points = metric.scale * (lacking - others).mean(1)
            if not np.isnan(points).all():
                interval = bootstrap(points[~np.isnan(points)])
                found.append(Difference(benchmark, mean, metric.name, *interval, None))
    return found


def gained(metric: Metric, first: np.ndarray, second: np.ndarray) -> tuple[float, float, float, float | None]:
    """The difference of the second model minus the first, its interval, and the p-value of the paired test.

    Args:
        first, second: columns (N,) of the same pictures. Pictures without a value of both models are left out.
    """
    both = ~np.isnan(first.astype(float)) & ~np.isnan(second.astype(float))
    first, second = first[both], second[both]
    points = bootstrap(metric.scale * (second.astype(float) - first))
    # The test of a custom task may not be in TESTS
    test = None if metric.test is None else TESTS.get(metric.test)
    return (*points, None if test is None else test(first, second))


def print_table(results: Sequence[Results], baseline: int = 0, console: Console | None = None) -> None:
    """Prints the results of several models side by side, with those of the paper for its models.

    Models are columns if they fit the width of the console, else rows below each metric.
    """
    console = console or wide_console()
    names = [result.label for result in results]
    papers = {
        row["name"]: row
        for row in (paper_row(result.model) for result in results)
        if row is not None and any(paper_figure(row, results, *line) for line in lines_of(results))
    }
    columns = [*names, *(f"paper: {name}" for name in papers)]
    lines = []
    for benchmark, condition, metric in lines_of(results):
        digits = digits_of(results, benchmark, metric)
        cells = [show(row_of(result, benchmark, condition, metric), digits) for result in results]
        theirs = [paper_figure(each, results, benchmark, condition, metric) for each in papers.values()]
        # A mean over fewer corruptions, severities or classes than its name says.
        some = any(is_partial(each, benchmark) and condition in each.means(benchmark) for each in results)
        lines.append((benchmark, condition.label, f"partial {metric}" if some else metric, [*cells, *theirs]))
    for benchmark, condition, metric, values in relative_lines(results, results[baseline]) if len(results) > 1 else ():
        cells = [with_interval(*each) if each else "" for each in values]
        title = f"{metric}, {names[baseline]} = 100"
        lines.append((benchmark, condition.label, title, [*cells, *[""] * len(papers)]))
    title = "accuracy in percent and its 95 % interval over pictures, unless stated otherwise"
    table = Table(title=title)
    for heading in ("benchmark", "condition", "metric", *columns):
        table.add_column(escape(heading))
    for *what, cells in lines:
        table.add_row(*map(escape, what), *cells)
    if Measurement.get(console, console.options.update(max_width=10_000), table).maximum <= console.width:
        console.print(table)
    else:
        print_by_number(console, title, columns, lines)
    for line in protocols_of(results):
        console.print(line, highlight=False, markup=False)
    for line in label_spaces_of(results):
        console.print(line, highlight=False, markup=False, style="yellow")
    for name, result in zip(names, results, strict=True):
        for warning in result.warnings:
            console.print(f"warning, {name}: {warning}", highlight=False, markup=False, style="yellow")
        if result.unreadable:
            one = next(iter(result.unreadable))
            message = f"{len(result.unreadable)} pictures could not be read and count as not recognised, such as {one}"
            console.print(f"warning, {name}: {message}", highlight=False, markup=False, style="yellow")


def print_by_number(
    console: Console, title: str, columns: Sequence[str], lines: Iterable[tuple[str, str, str, Sequence[str]]]
) -> None:
    """Prints the transposed table: a row for each model below each benchmark, condition and metric."""
    console.print(title, style="italic", markup=False, highlight=False)
    width = max(map(len, columns))
    for benchmark, condition, metric, cells in lines:
        what = f"{', '.join(dict.fromkeys([benchmark, condition]))}: {metric}"
        console.print(what, style="bold", markup=False, highlight=False)
        for name, cell in zip(columns, cells, strict=True):
            if cell:
                console.print(f"  {name:<{width}}  {cell}", markup=False, highlight=False)


def row_of(result: Results, benchmark: str, condition: Condition, metric: str) -> Row | None:
    """A row of results; None if there is none."""
    wanted = (benchmark, condition, metric)
    return next((row for row in result.rows if (row.benchmark, row.condition, row.metric) == wanted), None)


def protocols_of(results: Sequence[Results]) -> list[str]:
    """The protocol and the number of pictures of each benchmark; several lines if they differ between models."""
    lines: dict[str, list[str]] = {}
    for result in results:
        for benchmark in {row.benchmark: None for row in result.rows}:
            row = next(row for row in result.rows if row.benchmark == benchmark)
            space = result.label_space(benchmark)
            # the protocol of a row contains the label space if there is a choice, except in older files
            classes = f"; {space}" if space is not None and (space.is_plain or space.of is None) else ""
            lines.setdefault(f"{benchmark}: {row.protocol}{classes}; {row.images} pictures", []).append(result.label)
    ways = Counter(line.partition(":")[0] for line in lines)
    return [
        line if ways[line.partition(":")[0]] == 1 else f"{line} ({', '.join(labels)})" for line, labels in lines.items()
    ]


def label_spaces_of(results: Sequence[Results]) -> list[str]:
    """A warning for each benchmark on which models have different label spaces for the same pictures."""
    lines = []
    for benchmark in dict.fromkeys(name for result in results for name in result.outcomes):
        having = [result for result in results if benchmark in result.outcomes]
        pictures = [set(result.pictures[benchmark]) for result in having]
        if any(
            not pictures[0].isdisjoint(some) and not same_label_space(having[0], each, benchmark)
            for each, some in zip(having[1:], pictures[1:], strict=True)
        ):
            spaces = "; ".join(f"{each.label}, {each.label_space(benchmark)}" for each in having)
            lines.append(
                f"warning, {benchmark}: the label spaces differ ({spaces}), so that the numbers cannot be compared: "
                "evaluate all with --label-space present"
            )
    return lines


def is_partial(result: Results, benchmark: str) -> bool:
    """Whether conditions or classes of the means of a benchmark are missing."""
    return bool(result.asked.get(benchmark, {}).get("missing"))


def print_differences(first: Results, second: Results, console: Console | None = None) -> None:
    """Prints the differences of the second model minus the first, with intervals and p-values."""
    console = console or wide_console()
    found = differences(first, second)
    names = first.label, second.label
    shared = [benchmark for benchmark in first.outcomes if benchmark in second.outcomes]
    for benchmark in shared:
        if (reason := why_not_paired(first, second, benchmark)) is not None:
            console.print(f"{benchmark}: not paired, for {reason}", markup=False)
    if not found:
        console.print(f"{names[0]} and {names[1]} have nothing in common that could be paired", markup=False)
        return
    what = escape(f"{names[1]} less {names[0]}")
    metrics = {metric.name: metric for name in shared for metric in first.metrics(name).values()}
    tests = " or ".join(dict.fromkeys(f"{metric.test}'s" for metric in metrics.values() if metric.test is not None))
    title = f"{what}, on the same pictures: points, 95 % interval" + (f", p of {tests} test" if tests else "")
    table, several = Table(title=title), len({each.metric for each in found}) > 1
    for title in ("benchmark", "condition", *(["metric"] if several else []), "difference", "p"):
        table.add_column(title)
    whole = [name for name in shared if not is_partial(first, name) and not is_partial(second, name)]
    means = {(name, mean) for name in shared for mean in first.means(name)}
    given = {(each.benchmark, each.condition) for each in found} & means
    # A complete mean replaces the conditions of its family.
    families = {(name, mean.family) for name, mean in given if name in whole}
    for each in found:
        if (each.benchmark, each.condition.family) in families and (each.benchmark, each.condition) not in given:
            continue
        if each.condition.family == "baseline":  # not a condition of the model
            continue
        partial = "partial " if (each.benchmark, each.condition) in given and each.benchmark not in whole else ""
        p = "" if each.p is None else f"{each.p:.2g}"
        digits = digits_of([first, second], each.benchmark, each.metric) + 1
        points = f"{each.value:+.{digits}f} ({each.low:+.{digits}f} to {each.high:+.{digits}f})"
        which = [each.benchmark, f"{partial}{each.condition.key}", *([each.metric] if several else [])]
        table.add_row(*map(escape, which), points, p)
    console.print(table)


def wide_console() -> Console:
    """A console as wide as the terminal or COLUMNS; 200 columns if there is neither."""
    console = Console()
    return console if console.is_terminal or os.environ.get("COLUMNS") else Console(width=200)


def digits_of(results: Sequence[Results], benchmark: str, metric: str) -> int:
    """The number of digits of a metric after the decimal point."""
    known = [result.metrics(benchmark).get(metric) for result in results if benchmark in result.asked]
    return max((each.digits for each in known if each is not None), default=1)


def show(row: Row | Measured | None, digits: int = 1) -> str:
    """A number and its interval, if it has one."""
    if row is None:
        return ""
    if row.low is None or row.high is None:
        return f"{row.value:.{digits}f}"
    return with_interval(row.value, row.low, row.high, digits)


def with_interval(value: float, low: float, high: float, digits: int = 1) -> str:
    return f"{value:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"
