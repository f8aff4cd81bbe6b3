"""The tables of docs/maps.md, from files of `torchvars evaluate --benchmark segmentation,fixation,map_stability`.

    python benchmarks/maps.py FILE ... [--less rvt_micro_softmax.imagenette rvt_micro_performer.imagenette]

Files of one model and one kind of map are taken together. Differences are paired: on the same pictures, with their 95 %
interval over pictures; bold where it excludes 0. A model is held against those of --less of its seed.
"""

import argparse
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from tables import table
from torchvars.evaluation.compare import digits_of, show
from torchvars.evaluation.conditions import CLEAN, Condition
from torchvars.evaluation.metrics import bootstrap
from torchvars.evaluation.results import Outcome, Results
from torchvars.evaluation.tasks.segmentation import ALL_FOREGROUND, BASELINES, CENTRED_GAUSSIAN, PROTOCOLS, condition_of

VARS = condition_of("vars")
Values = np.ndarray  # of each picture


def gathered(paths: Iterable[Path]) -> dict[tuple[str, str], Results]:
    """Results by the kind of map and the model; its benchmarks from however many files."""
    found: dict[tuple[str, str], Results] = {}
    for path in paths:
        result = Results.read(path)
        kinds = {asked["task"]["kind"] for asked in result.asked.values()}
        if len(kinds) != 1:
            raise SystemExit(f"{path} holds maps of {', '.join(sorted(kinds)) or 'no kind'}: give a file for each kind")
        key = (kinds.pop(), result.model["name"])
        if key in found:
            for name in ("asked", "outcomes", "pictures"):
                getattr(found[key], name).update(getattr(result, name))
            found[key].rows += result.rows
        else:
            found[key] = result
    return found


def title(name: str) -> str:
    """A name as tables have it: softmax, seed 1."""
    attention, _, rest = name.removeprefix("rvt_micro_").partition(".")
    return attention + (f", seed {rest.partition('_seed')[2]}" if "_seed" in rest else "")


def outcome(result: Results, benchmark: str, condition: Condition) -> Outcome | None:
    return result.outcomes.get(benchmark, {}).get(condition)


def column(result: Results, benchmark: str, condition: Condition, name: str) -> Values | None:
    """A column of one condition; None if it was not measured."""
    found = outcome(result, benchmark, condition)
    return None if found is None else found.columns[name]


def difference(values: Values | None, others: Values | None, scale: float, digits: int) -> str:
    """By how much values are more than others of the same pictures, bold if that is more than chance."""
    if values is None or others is None or len(values) != len(others):
        return ""
    gained = scale * (values - others)
    value, low, high = bootstrap(gained[~np.isnan(gained)])
    text = f"{value:+.{digits}f} ({low:+.{digits}f} to {high:+.{digits}f})"
    return f"**{text}**" if low > 0 or high < 0 else text


def row_of(result: Results, benchmark: str, condition: Condition, metric: str) -> str:
    rows = [row for row in result.rows if (row.benchmark, row.condition, row.metric) == (benchmark, condition, metric)]
    return show(rows[0], digits_of([result], benchmark, metric)) if rows else ""


def segmentation_rows(results: Sequence[Results]) -> Iterator[list[str]]:
    """Each model, then what must be beaten, as far as one of the files has it."""
    metrics = ("IoU", "pooled IoU", "FP", "FN", "IoU at the best threshold")
    dino = [condition_of(name) for name in PROTOCOLS[1:]]
    for result in results:
        if outcome(result, "segmentation", VARS):
            found = [row_of(result, "segmentation", VARS, metric) for metric in metrics]
            jaccard = [row_of(result, "segmentation", condition, "Jaccard") for condition in dino]
            yield [title(result.model["name"]), *found, *jaccard]
    for name in BASELINES:
        having = [each for each in results if outcome(each, "segmentation", condition_of("vars", name))]
        for result in having if name == BASELINES[-1] else having[:1]:
            conditions = [condition_of(protocol, name) for protocol in PROTOCOLS]
            found = [row_of(result, "segmentation", conditions[0], metric) for metric in metrics]
            jaccard = [row_of(result, "segmentation", condition, "Jaccard") for condition in conditions[1:]]
            whose = f" of {title(result.model['name'])}" if name == BASELINES[-1] else ""
            yield [f"*{name}{whose}*", *found, *jaccard]


def fixation_rows(results: Sequence[Results]) -> Iterator[list[str]]:
    metrics = ("NSS", "AUC-Judd", "shuffled AUC", "CC", "KL", "information gain")
    for result in results:
        if outcome(result, "fixation", CLEAN):
            yield [title(result.model["name"]), *(row_of(result, "fixation", CLEAN, metric) for metric in metrics)]
    for name in ("chance", "centre bias", "random weights", "one observer"):
        condition = Condition("baseline", name)
        having = [each for each in results if outcome(each, "fixation", condition)]
        for result in having if name == "random weights" else having[:1]:
            whose = f" of {title(result.model['name'])}" if name == "random weights" else ""
            found = [row_of(result, "fixation", condition, metric) for metric in metrics]
            yield [f"*{name}{whose}*", *found]


def stability_rows(results: Sequence[Results]) -> Iterator[list[str]]:
    """Metrics in the mean over corruptions and severities, and how concentrated maps of clean pictures are."""
    every, distance = Condition("corruption", "all"), "Jensen-Shannon distance"
    for result in results:
        if outcome(result, "map_stability", CLEAN):
            yield [
                title(result.model["name"]),
                *(row_of(result, "map_stability", every, metric) for metric in ("correlation", distance)),
                *(row_of(result, "map_stability", CLEAN, metric) for metric in ("entropy", "share of the best tenth")),
            ]


def sharpening_rows(results: Sequence[Results]) -> Iterator[list[str]]:
    """Entropy and the share of the best tenth after each step, and what the last is more than the start."""
    for result in results:
        known = result.outcomes.get("map_stability", {})
        steps = [known[each].columns for each in known if each.family == "step"]
        if steps:
            row = [title(result.model["name"])]
            for name, scale, digits in (("entropy", 1, 4), ("best_tenth", 100, 1)):
                row.append(" / ".join(f"{scale * np.nanmean(step[name]):.{digits}f}" for step in steps))
                row.append(difference(steps[-1][name], steps[0][name], scale, digits))
            yield row


def corrupted(result: Results, name: str) -> Values | None:
    """The mean of a column over all corruptions and severities of each picture."""
    known = result.outcomes.get("map_stability", {})
    same = [known[each].columns[name] for each in known if each.family == "corruption"]
    return np.stack(same).mean(0) if same else None


def paired_rows(results: Sequence[Results], others: Sequence[str]) -> Iterator[list[str]]:
    """Each model less those of its seed."""
    by_name = {result.model["name"]: result for result in results}
    for result in results:
        name = result.model["name"]
        _, sign, seed = name.partition("_seed")
        for less in (f"{other}{sign}{seed}" for other in others):
            if less in by_name and less != name:
                both = (result, by_name[less])
                yield [
                    title(name),
                    title(less),
                    difference(*(column(each, "segmentation", VARS, "iou") for each in both), 100, 1),
                    difference(*(column(each, "fixation", CLEAN, "nss") for each in both), 1, 3),
                    difference(*(column(each, "fixation", CLEAN, "auc_shuffled") for each in both), 1, 3),
                    difference(*(corrupted(each, "correlation") for each in both), 1, 3),
                    difference(*(corrupted(each, "distance") for each in both), 1, 3),
                ]


def beaten_rows(results: Sequence[Results]) -> Iterator[list[str]]:
    """Each model less what must be beaten, on the same pictures; of all that is the same, from any file."""
    found: dict[str, Values] = {}
    wanted = {
        "all foreground": ("segmentation", condition_of("vars", ALL_FOREGROUND), "iou"),
        "centred Gaussian": ("segmentation", condition_of("vars", CENTRED_GAUSSIAN), "iou"),
        "centre bias": ("fixation", Condition("baseline", "centre bias"), "nss"),
    }
    for name, where in wanted.items():
        known = [each for each in (column(result, *where) for result in results) if each is not None]
        if known:
            found[name] = known[0]
    for result in results:
        iou, nss = column(result, "segmentation", VARS, "iou"), column(result, "fixation", CLEAN, "nss")
        fresh = Condition("baseline", "random weights")
        iou_of_fresh = column(result, "segmentation", condition_of("vars", BASELINES[-1]), "iou")
        yield [
            title(result.model["name"]),
            *(difference(iou, found.get(name), 100, 1) for name in ("all foreground", "centred Gaussian")),
            difference(iou, iou_of_fresh, 100, 1),
            difference(nss, np.zeros_like(nss) if nss is not None else None, 1, 3),
            difference(nss, found.get("centre bias"), 1, 3),
            difference(nss, column(result, "fixation", fresh, "nss"), 1, 3),
        ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE", help="results of torchvars evaluate")
    parser.add_argument(
        "--less",
        nargs="*",
        default=["rvt_micro_softmax.imagenette", "rvt_micro_performer.imagenette"],
        metavar="NAME",
        help="models that the others are held against",
    )
    arguments = parser.parse_args()
    found = gathered(arguments.files)
    for kind in dict.fromkeys(kind for kind, _ in found):
        results = [each for (other, _), each in found.items() if other == kind]
        print(f"## {kind} maps\n")
        head = ["IoU", "pooled IoU", "FP", "FN", "IoU at the best threshold", *PROTOCOLS[1:]]
        table(["segmentation", *head], segmentation_rows(results))
        table(
            ["fixation", "NSS", "AUC-Judd", "shuffled AUC", "CC", "KL (nats)", "information gain (bits)"],
            fixation_rows(results),
        )
        head = [
            "correlation under corruption",
            "JS distance under corruption",
            "entropy, clean",
            "best tenth (%), clean",
        ]
        table(["map_stability", *head], stability_rows(results))
        table(["steps", "entropy", "last less start", "best tenth (%)", "last less start"], sharpening_rows(results))
        head = ["IoU", "NSS", "shuffled AUC", "correlation under corruption", "JS distance under corruption"]
        table(["attention", "less", *head], paired_rows(results, arguments.less))
        head = ["IoU less all foreground", "less centred Gaussian", "less its random weights"]
        head += ["NSS less chance", "less centre bias", "less its random weights"]
        table(["attention", *head], beaten_rows(results))


if __name__ == "__main__":
    main()
