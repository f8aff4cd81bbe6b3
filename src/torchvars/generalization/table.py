"""Tables of results: all scores of one model, or several models side by side."""

import math
from collections.abc import Sequence
from textwrap import fill

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..evaluation.metrics import bootstrap
from ..evaluation.paper import PACS
from .results import CHOSEN, PROBE, Generalization, Spread, paired

MEAN = "mean"
LEFT = ("target and weights", "accuracy", "model")  # columns; the others are numbers


def print_generalization(results: Sequence[Generalization], console: Console | None = None) -> None:
    """Prints all scores of one model, in 80 columns; or the accuracy of several models, and their differences."""
    console = console or Console()
    if not console.is_terminal:
        console.width = 80 if len(results) == 1 else 140
    if len(results) == 1:
        print_one(results[0], console)
    else:
        print_several(results, console)


def print_one(result: Generalization, console: Console) -> None:
    theirs, whose = paper_of(result)
    columns = ["target and weights", "accuracy", "80 %", "source", "gap", *(["corr."] if corrupted(result) else [])]
    table = new_table(escape(result.model["name"]), [*columns, *(["paper"] if theirs else [])])
    for target in [*result.targets, *([None] if set(result.targets) == set(result.domains) else [])]:
        table.add_row(escape(target or MEAN))
        for weights in result.weights:
            spread = result.over_seeds(weights, "target", target)
            if spread is None:
                continue
            cells = [f"  {weights}", str(spread)]
            for metric in ("target, DomainBed's 80 %", "source validation", "gap"):
                cells.append(short(result.over_seeds(weights, metric, target)))
            if corrupted(result):
                cells.append(short(result.over_seeds(weights, "corrupted", target)))
            if theirs:
                cells.append(paper_cell(theirs, target) if weights == CHOSEN else "")
            table.add_row(*cells)
        table.add_section()
    console.print(table)
    for line in legend(result, whose):
        console.print(fill(line, 80, subsequent_indent="  "), highlight=False, markup=False)


def legend(result: Generalization, whose: str | None) -> list[str]:
    """Lines that explain the columns."""
    seeds = sorted({score.seed for score in result.scores if score.seed is not None})
    spread = "95 % interval over pictures"
    if len(seeds) > 1:
        spread = (
            f"mean and standard deviation over seeds ({', '.join(map(str, seeds))}), or {spread} where there is one"
        )
    lines = [
        f"accuracy: percent of all pictures of the target; {spread}.",
        "80 %: accuracy on the four fifths of them that DomainBed draws with the same seed.",
        "source: accuracy on held-out pictures of the other domains; gap: source less accuracy.",
    ]
    if corrupted(result):
        lines.append(
            f"corr.: mean accuracy over 15 corruptions at 5 severities, on {result.asked['corrupted_pictures']} "
            f"pictures of {result.asked['corrupted']} that were not trained on."
        )
    if whose:
        lines.append(f"paper: {whose}, pretrained on ImageNet-1K; whole target, 224 pixels.")
    return lines + [f"{note}." for note in result.notes]


def print_several(results: Sequence[Generalization], console: Console) -> None:
    """Prints target accuracy by model and domain, and the differences to the first model on the same pictures."""
    domains = list(results[0].domains)
    if other := next((each for each in results if list(each.domains) != domains), None):
        raise ValueError(
            f"{results[0].model['name']} was evaluated on {', '.join(domains)}, {other.model['name']} on "
            f"{', '.join(other.domains)}: give results of the same domains"
        )
    for weights in (CHOSEN, PROBE):
        if not any(weights in each.weights for each in results):
            continue
        table = new_table(f"Accuracy on the domain left out, {weights}", ["model", *map(escape, domains), MEAN])
        for each in results:
            cells = [each.over_seeds(weights, "target", target) for target in [*domains, None]]
            table.add_row(escape(each.model["name"]), *map(short_spread, cells))
        table.add_section()
        for row in PACS.values() if weights == CHOSEN and set(domains) <= set(PACS["performer"]) else ():
            figures = [row[domain] for domain in domains]
            table.add_row(f"paper, {row['name']}", *(f"{each:.1f}" for each in [*figures, np.mean(figures)]))
        console.print(table)
        title = f"less {escape(results[0].model['name'])}, {weights}: points, 95 % interval over pictures"
        table = new_table(title, ["model", *map(escape, domains), MEAN])
        for each in results[1:]:
            differences = [difference(results[0], each, weights, domain) for domain in domains]
            if any(differences):
                table.add_row(escape(each.model["name"]), *map(signed, [*differences, mean_difference(differences)]))
        if table.row_count:
            console.print(table)


Interval = tuple[float, float, float]
"""A value and the ends of its 95 % interval."""


def difference(first: Generalization, second: Generalization, weights: str, target: str) -> Interval | None:
    """Accuracy of the second model less the first on a target, in points; None unless the pictures are the same."""
    points = paired(first, second, weights, target)
    return None if points is None else bootstrap(points)


def mean_difference(differences: Sequence[Interval | None]) -> Interval | None:
    """Mean difference over domains, whose pictures are independent; None unless all are known."""
    known = [each for each in differences if each is not None]
    if len(known) < len(differences):
        return None
    mean = float(np.mean([value for value, _, _ in known]))
    half = math.hypot(*((high - low) / 2 for _, low, high in known)) / len(known)
    return mean, mean - half, mean + half


def signed(interval: Interval | None) -> str:
    return "" if interval is None else "{:+.1f} ({:+.1f} to {:+.1f})".format(*interval)


def new_table(title: str, columns: Sequence[str]) -> Table:
    table = Table(title=title, box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="left" if column in LEFT else "right")
    return table


def corrupted(result: Generalization) -> bool:
    return any(score.metric == "corrupted" for score in result.scores)


def short(spread: Spread | None) -> str:
    return "" if spread is None else f"{spread.value:.1f}"


def short_spread(spread: Spread | None) -> str:
    if spread is None:
        return ""
    return f"{spread.value:.1f}" + ("" if spread.deviation is None else f" ± {spread.deviation:.1f}")


def paper_of(result: Generalization) -> tuple[dict | None, str | None]:
    """The row of the paper for an attention, else its baseline; None for other domains or without fine-tuning."""
    if not set(result.domains) <= set(PACS["performer"]) or CHOSEN not in result.weights:
        return None, None
    attention = next((name for name in PACS if result.model["architecture"].endswith(f"_{name}")), None)
    row = PACS[attention or "performer"]
    return row, row["name"] + ("" if attention else ", its baseline")


def paper_cell(row: dict, target: str | None) -> str:
    figures = [value for name, value in row.items() if name != "name"]
    return f"{np.mean(figures) if target is None else row[target]:.1f}"
