"""The tables of docs/results/: the weights that ship, side by side.

    python benchmarks/results.py imagenette --data PICTURES --results FOLDER

The first tables are of the results that come with the weights. Measured for the others: no attention, speed, fewer and
more steps, other strengths, a strength that adapts. What takes long is kept in FOLDER, so that this program goes on
where it was stopped. What the codes are like: benchmarks/codes.py.
"""

import argparse
from collections.abc import Collection, Iterator
from pathlib import Path

import numpy as np
import torch

from tables import some, table
from torchvars.attention import Reconstruction
from torchvars.cli.memory import keep_freed_memory
from torchvars.data import Batch
from torchvars.evaluation.adaptive import adapt, usual_rest
from torchvars.evaluation.benchmarks import build
from torchvars.evaluation.benchmarks.corruptions import corruption_errors
from torchvars.evaluation.compare import differences, relative_lines, show, with_interval
from torchvars.evaluation.conditions import CLEAN, Condition
from torchvars.evaluation.corruptions import CORRUPTIONS, PUBLISHED
from torchvars.evaluation.metrics import bootstrap
from torchvars.evaluation.paper import PAPER
from torchvars.evaluation.record import read_results
from torchvars.evaluation.results import Results
from torchvars.evaluation.run import evaluate
from torchvars.evaluation.subjects import Subject, open_subject, set_solving
from torchvars.evaluation.watch import watching
from torchvars.models.embedded import TAGS, embedded
from torchvars.models.registry import trained
from torchvars.models.speed import Contestant, measure

COLUMNS = {
    "clean": ("clean", "accuracy", "clean"),
    "corrupted": ("corruptions", "accuracy", "all"),
    "PGD 1/255, 5 steps": ("pgd", "accuracy", "linf 1/255, 5 steps"),
    "PGD 2/255, 20 steps": ("pgd", "accuracy", "linf 2/255, 20 steps"),
    "Square 2/255": ("square", "accuracy", "linf 2/255, 200 queries"),
    "calibration error": ("clean", "calibration error", "clean"),
}
ACCURACIES = {title: column for title, column in COLUMNS.items() if column[1] == "accuracy"}
KINDS = list(dict.fromkeys(CORRUPTIONS[name].group for name in PUBLISHED))
# A smaller test for what is tried at many settings.
LIMIT, CHOSEN, SEVERITY = 500, ("gaussian_noise", "defocus_blur", "fog", "jpeg_compression"), 3
CORRUPTED = [Condition("corruption", name, SEVERITY) for name in CHOSEN]
CONDITIONS = (("clean", [CLEAN]), ("corruptions", CORRUPTED))


def all_seeds(names: dict[str, str]) -> dict[str, Results]:
    """What came of the weights that ship, by attention, and of repetitions with other seeds."""
    found = {}
    for attention, name in names.items():
        found[attention] = read_results(name)
        for repeated in embedded():
            if repeated.startswith(f"{name}_seed"):
                found[f"{attention}, seed {repeated.rpartition('_seed')[2]}"] = read_results(repeated)
    return found


def main_rows(results: dict[str, Results], baseline: Results) -> Iterator[list[str]]:
    """Figures of each model, and the paper's for RVT-Ti: clean, mCE and PGD on ImageNet."""
    for label, result in results.items():
        relative = next((values[0] for *_, values in relative_lines([result], baseline)), None)
        paper = PAPER[f"rvt_tiny_{label.partition(',')[0]}"]
        yield [
            label,
            f"{result.model['parameters'] / 1e6:.2f}",
            *(show(result.value(*column)) for column in COLUMNS.values()),
            "" if relative is None else with_interval(*relative),
            f"{paper['clean']} / {paper['imagenet_c']} / {paper['pgd']}",
        ]


def paired_rows(results: dict[str, Results]) -> Iterator[list[str]]:
    """How many points each model has more than another, on the same pictures."""
    for label, other in pairs_of(results):
        found = {(each.benchmark, each.condition.key): each for each in differences(results[other], results[label])}
        pairs = [found.get((benchmark, condition)) for benchmark, _, condition in ACCURACIES.values()]
        yield [label, other, *("" if each is None else points(each.value, each.low, each.high) for each in pairs)]


def pairs_of(labels: Collection[str]) -> Iterator[tuple[str, str]]:
    """Each with softmax and with performer of its seed; then a repetition with what it repeats."""
    for baseline in ("softmax", "performer"):
        for label in labels:
            attention, comma, seed = label.partition(",")
            other = f"{baseline}{comma}{seed}"
            if attention not in ("softmax", baseline) and other in labels:
                yield label, other
    yield from ((label, label.partition(",")[0]) for label in labels if "," in label)


def points(value: float, low: float, high: float) -> str:
    return bold(f"{value:+z.1f} ({low:+z.1f} to {high:+z.1f})", low, high)


def bold(text: str, low: float, high: float) -> str:
    """Where the interval leaves 0 out."""
    return f"**{text}**" if low > 0 or high < 0 else text


def kinds_rows(results: dict[str, Results]) -> Iterator[list[str]]:
    """Accuracy by kind of corruption, over all severities."""
    for label, result in results.items():
        errors = corruption_errors(result)
        yield [
            label,
            *(
                with_interval(*bootstrap(100 - 100 * errors[:, members].mean(1)))
                for members in (
                    [number for number, name in enumerate(PUBLISHED) if CORRUPTIONS[name].group == kind]
                    for kind in KINDS
                )
            ),
        ]


def solving_rows(names: dict[str, str], data: str, folder: Path) -> Iterator[list[str]]:
    """Clean and corrupted accuracy when a trained VARS model is told to solve in other ways.

    Bold where it is not as trained, by the interval of the difference on the same pictures.
    """
    for attention, name in names.items():
        as_trained = None
        for way in ways_of(open_subject(name)):
            result = solved(name, way, data, folder)
            told = ", ".join(f"{key} {value}" for key, value in way.items())
            yield [
                attention,
                told + ("" if as_trained else ", as trained"),
                show(result.value("clean", "accuracy", "clean")),
                *(beside(as_trained, result, condition) for condition in CORRUPTED),
                show(result.value("corruptions", "accuracy", "all")),
                *(points(*gained(as_trained, result, *each)) if as_trained else "" for each in CONDITIONS),
            ]
            as_trained = as_trained or result


def ways_of(subject: Subject) -> list[dict]:
    """Ways to solve, that in which it was trained first; none of a model that solves nothing."""
    own = next((each for each in subject.classifier.modules() if isinstance(each, Reconstruction)), None)
    if own is None:
        return []
    ways = [{"steps": own.solver.steps}, *({"steps": steps} for steps in (1, 3, 5, 7) if steps != own.solver.steps)]
    ways += [{"strength": round(factor * own.strength, 4)} for factor in (0, 0.3, 2, 4)]
    return [*ways, {"solver": "fista", "steps": 50}, {"adapt": 0.5}, {"adapt": 1.0}]


def beside(first: Results | None, second: Results, condition: Condition) -> str:
    """Accuracy of the second under one corruption, bold if it is not that of the first."""
    text = f"{100 * np.mean(second.outcomes['corruptions'][condition].columns['right']):.1f}"
    return bold(text, *gained(first, second, "corruptions", [condition])[1:]) if first else text


def gained(first: Results, second: Results, benchmark: str, conditions: list[Condition]) -> tuple[float, float, float]:
    """Points that the second has more, in the mean over conditions of the same pictures, and their interval."""
    right = [
        np.mean([result.outcomes[benchmark][condition].columns["right"] for condition in conditions], 0)
        for result in (first, second)
    ]
    return bootstrap(100 * (right[1] - right[0]))


def solved(name: str, way: dict, data: str, folder: Path) -> Results:
    """The smaller test of a model that solves in some way."""
    subject = open_subject(name)
    if "adapt" in way:
        adapt(subject.classifier, usual_rest(subject, data), way["adapt"])
    else:
        set_solving(subject, **way)
    chosen = {"limit": LIMIT, "corruptions": CHOSEN, "severities": (SEVERITY,)}
    benchmarks = build(("clean", "corruptions"), data, subject, **chosen)
    output = folder / f"{name} {' '.join(f'{key} {value}' for key, value in way.items())}.json"
    with watching() as watch:
        return evaluate(subject, benchmarks, output, solving=way, partial_ok=True, watch=watch)


def without_rows(names: dict[str, str], data: str) -> Iterator[list[str]]:
    """Accuracy on clean pictures, and the points gained when attention adds nothing, in all blocks or in one."""
    subjects = {attention: open_subject(name) for attention, name in names.items()}
    pictures = some(next(iter(subjects.values())), data, LIMIT)
    for attention, subject in subjects.items():
        blocks, right = subject.classifier.model.blocks, recognised(subject, pictures)
        row = [attention, with_interval(*bootstrap(100 * right))]
        for chosen in (blocks, *([block] for block in blocks)):
            hooks = [block.attn.register_forward_hook(lambda *called: torch.zeros_like(called[-1])) for block in chosen]
            row.append(points(*bootstrap(100 * (recognised(subject, pictures) - right))))
            for hook in hooks:
                hook.remove()
        yield row


@torch.no_grad()
def recognised(subject: Subject, pictures: Batch) -> np.ndarray:
    """1 for each picture that is, 0 for the others. The classes of data and model are the same."""
    found = torch.cat([subject.classifier(part).argmax(-1) for part in pictures.pixels.split(100)])
    return (found == pictures.labels).double().numpy()


def speed_rows(names: dict[str, str], data: str, rounds: int = 7) -> Iterator[list[str]]:
    """Pictures a second in evaluation and training; with memory of training, ratios to softmax, in turns."""
    subjects = {attention: open_subject(name) for attention, name in names.items()}
    pixels = some(next(iter(subjects.values())), data, 64).pixels
    contestants = {attention: Contestant(subject.classifier, (pixels,)) for attention, subject in subjects.items()}
    for row in measure("weights", contestants, None, len(pixels), rounds):
        yield [
            row.contestant,
            *(f"{len(pixels) / seconds:.0f}" for seconds in (row.forward_seconds, row.training_seconds)),
            *(f"{ratio:.2f}" for ratio in (row.forward_ratio, row.training_ratio, row.peak_ratio)),
        ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pictures", choices=TAGS, help="that the weights were trained on")
    parser.add_argument("--data", required=True, help="the same pictures, with val")
    parser.add_argument("--results", type=Path, required=True, help="folder of results")
    arguments = parser.parse_args()
    names = trained("rvt_micro", arguments.pictures)

    results = all_seeds(names)
    head = ["attention", "M params", *COLUMNS, "CE, softmax = 100", "paper, RVT-Ti: clean / mCE / PGD 1/255"]
    table(head, main_rows(results, results["softmax"]))
    table(["attention", "less", *ACCURACIES], paired_rows(results))
    table(["attention", *KINDS], kinds_rows(results))
    head = ["attention", "clean", "without any attention", *(f"that of block {number}" for number in range(6))]
    table(head, without_rows(names, arguments.data))
    head = ["attention", "evaluation, img/s", "training, img/s", "time: evaluation", "training", "memory of training"]
    table(head, speed_rows(names, arguments.data))
    head = ["attention", "solved by", "clean", *CHOSEN, "mean", "more than as trained: clean", "corrupted"]
    table(head, solving_rows(names, arguments.data, arguments.results))


if __name__ == "__main__":
    keep_freed_memory()
    main()
