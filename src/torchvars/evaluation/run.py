"""One loop for every model and every benchmark."""

import os
import tempfile
from collections.abc import Callable, Sequence, Set
from contextlib import nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ..attention.modes import evaluating
from ..data import Draw, Pictures, Source, limited, load, open_source
from ..data.pictures import centre_pixels, check_workers
from ..models.environment import environment
from ..models.lock import held
from ..models.peers import Among
from .adaptive import calibrate
from .attacks import ATTACKS, Attack, AutoAttack, Transferred, masking_signs, zero_gradients
from .benchmarks import Benchmark, Condition, summarize
from .corruptions import PUBLISHED
from .metrics import bootstrap, calibration_error
from .processes import Processes
from .results import LabelSpace, Outcome, Results, Row, digest_of, key_of
from .subjects import Subject


class Progress(NamedTuple):
    """How far an evaluation is."""

    benchmark: str
    condition: str
    number: int  # of the condition, from 1
    count: int  # of all conditions, those that are known already included
    done: int  # pictures of the condition
    total: int
    right: float  # share of those done
    share: float  # done of all that is left to do when it begins, by what is known of how long it takes


Watch = Callable[[Progress], None]


class Answer(NamedTuple):
    """What a model said of one picture."""

    index: int
    right: bool
    named: int  # the class it named, -1 if the picture could not be read
    confidence: float
    loss: float


def evaluate(
    subject: Subject,
    benchmarks: Sequence[Benchmark],
    output: Path,
    *,
    solving: dict | None = None,
    partial_ok: bool = False,
    batch: int = 64,
    workers: int = 1,
    watch: Watch | None = None,
    device: str | None = None,
) -> Results:
    """Tries a model on benchmarks, and keeps what comes out in a file.

    The file is written after each condition. What it holds already, of the same model asked in the same way, is not
    tried again. On several processes each takes every n-th batch; the batches, and so the numbers, are those of one.

    Args:
        solving: how VARS layers were told to solve, if they were told; goes into the file.
        partial_ok: whether to sum up although something is missing.
        watch: called with the progress.
        device: such as "cpu" or "cuda:1"; else the accelerator if there is one.

    Raises:
        ValueError: the file is of another model or of other settings, or another evaluation is writing it; something
            is missing; there is no such device; the model knows other classes than the pictures have.
    """
    if batch < 1:
        raise ValueError(f"batch must be at least 1, got {batch}")
    check_workers(workers)
    processes = Processes(device)
    for benchmark in benchmarks:
        check_missing(benchmark, partial_ok)
    refusal = f"another evaluation is writing {output}: wait for its end, or give another file"
    with held(output, refusal) if processes.rank == 0 else nullcontext():
        return _evaluate(subject, benchmarks, output, solving or {}, processes, batch, workers, watch)


def _evaluate(
    subject: Subject,
    benchmarks: Sequence[Benchmark],
    output: Path,
    solving: dict,
    processes: Processes,
    batch: int,
    workers: int,
    watch: Watch | None,
) -> Results:
    model = {**subject.describe(), "solving": solving}
    results = processes.by_first(lambda: open_results(output, model))
    if subject.classes is None:
        order = "; its classes have no names: logits are taken for the folders in alphabetical order"
        benchmarks = [replace(benchmark, protocol=benchmark.protocol + order) for benchmark in benchmarks]
    matched = []
    for benchmark in benchmarks:
        source = benchmark.conditions[0].source
        columns, labels = match_classes(subject, source, benchmark.among_present)
        space = label_space(subject, source, benchmark.among_present)
        take_up(results, benchmark, source, space)
        matched.append((columns, labels, space))
    if processes.rank == 0:
        check_writable(output)
    tally = Tally(benchmarks, results, watch if processes.rank == 0 else None)
    classifier = subject.classifier.to(processes.device).eval()
    for benchmark, (columns, labels, space) in zip(benchmarks, matched, strict=True):
        source = benchmark.conditions[0].source
        judge = classifier if columns is None else Among(classifier, columns).to(processes.device)
        outcomes = results.outcomes.setdefault(benchmark.name, {})
        for condition in benchmark.conditions:
            key = key_of(condition.name, condition.severity)
            if key not in outcomes and condition.change is None and condition.name == "clean":
                outcomes |= known_clean(results, benchmark)
            if key in outcomes:
                tally.skip(benchmark, condition)
                continue
            said = None if tally.watch is None else partial(tally.tell, benchmark, condition)
            answers, problems = answer(judge, condition, subject.size, labels, processes, batch, workers, said)
            outcomes[key] = judged(answers, outcomes.get("clean"), keep_named=key == "clean")
            results.unreadable |= problems
            if processes.rank == 0:
                results.write(output)
        results.rows = [row for row in results.rows if row.benchmark != benchmark.name]
        results.rows += rows_of(subject.name, benchmark, outcomes, source, space)
        if benchmark.attacks:
            flat = None
            if attacked_by_gradient(results):
                flat = find_flat(judge, benchmark.conditions[0], subject.size, labels, processes.device, batch)
            results.warnings = masking_warnings(results, flat, floor=1 / len(source.classes))
        if processes.rank == 0:
            results.write(output)
    processes.wait()
    return results


class Tally:
    """Which conditions there are, and how much of the work is done."""

    def __init__(self, benchmarks: Sequence[Benchmark], results: Results, watch: Watch | None):
        self.watch = watch
        every = [(each.name, key_of(one.name, one.severity)) for each in benchmarks for one in each.conditions]
        self.numbers = {place: number for number, place in enumerate(every, 1)}
        self.work = {
            (each.name, key_of(one.name, one.severity)): work_of(each, one)
            for each in benchmarks
            for one in each.conditions
            if key_of(one.name, one.severity) not in results.outcomes.get(each.name, {})
        }
        self.done = 0.0

    def skip(self, benchmark: Benchmark, condition: Condition) -> None:
        """What is known needs no work."""
        self.work.pop((benchmark.name, key_of(condition.name, condition.severity)), None)

    def tell(self, benchmark: Benchmark, condition: Condition, done: int, total: int, right: float) -> None:
        place = benchmark.name, key_of(condition.name, condition.severity)
        share = (self.done + self.work[place] * min(done / total, 1)) / sum(self.work.values())
        if done >= total:
            self.done += self.work[place]
        self.watch(Progress(*place, self.numbers[place], len(self.numbers), done, total, right, share))


def work_of(benchmark: Benchmark, condition: Condition) -> float:
    """About how long a condition takes, in passes of its pictures through the model; one for a gradient takes three."""
    attack = benchmark.attacks.get(condition.name)
    attack = attack.attack if isinstance(attack, Transferred) else attack
    if attack is None:
        passes = 0
    elif isinstance(attack, AutoAttack):
        passes = 5000  # its queries, by far the most if a picture is not found before
    else:
        passes = getattr(attack, "queries", 3 * getattr(attack, "steps", 1) * getattr(attack, "restarts", 1))
    return len(condition.source) * (1 + passes)


def known_clean(results: Results, benchmark: Benchmark) -> dict[str, Outcome]:
    """The outcome on the same pictures as they are, if another benchmark has it."""
    wanted = results.asked[benchmark.name]
    for name, outcomes in results.outcomes.items():
        alike = all(results.asked[name][each] == wanted[each] for each in ("data", "pictures", "among_present"))
        if "clean" in outcomes and alike:
            return {"clean": outcomes["clean"]}
    return {}


def attacks_known(results: Results, pictures: Set[str]) -> dict[Attack | Transferred, float]:
    """Every attack that the results have on all of these pictures, and the share of them that it left right."""
    found = {}
    for name, asked in results.asked.items():
        rule, _, other = name.partition(" of ")
        tried = results.pictures[name]
        if rule == "autoattack" or not pictures <= set(tried):  # that it is the strongest is no sign of anything
            continue
        these = np.array([identity in pictures for identity in tried])
        for key, outcome in results.outcomes.get(name, {}).items():
            if key in asked["attacks"]:
                attack = ATTACKS[rule](**asked["attacks"][key])
                found[Transferred(attack, nn.Identity()) if other else attack] = float(outcome.right[these].mean())
    return found


def attacked_by_gradient(results: Results) -> bool:
    """Whether the results have an attack that follows this model's own gradient, on whatever pictures."""
    return any(
        key in results.asked[rule]["attacks"] for rule in ("pgd", "fgsm") for key in results.outcomes.get(rule, {})
    )


def masking_warnings(results: Results, flat: Tensor | None, floor: float) -> list[str]:
    """Signs of hidden gradients, from all attacks of the results: they are compared on the pictures they share."""
    attacked = [frozenset(results.pictures[name]) for name, asked in results.asked.items() if asked["attacks"]]
    warnings = [] if flat is None else masking_signs({}, len(flat), zero_gradients=float(flat.float().mean()))
    for pictures in dict.fromkeys(attacked):
        signs = masking_signs(attacks_known(results, pictures), len(pictures), floor=floor)
        warnings += signs if len(set(attacked)) == 1 else [f"{sign} (of {len(pictures)} pictures)" for sign in signs]
    return warnings


def answer(
    judge: nn.Module,
    condition: Condition,
    size: int,
    labels: Sequence[int],
    processes: Processes,
    batch: int,
    workers: int,
    watch: Callable[[int, int, float], None] | None,
) -> tuple[list[Answer], dict[str, str]]:
    """What a model says of each picture of a condition, in order, and the pictures that could not be read."""
    source = condition.source
    starts = range(0, len(source), batch)[processes.rank :: processes.world]
    draws = [[Draw(index, 0) for index in range(first, min(first + batch, len(source)))] for first in starts]
    answers, problems, right = [], {}, 0
    for indices, pictures in zip(draws, load(pictures_of(source, size), draws, workers), strict=True):
        pixels = pictures.pixels.to(processes.device)
        targets = torch.tensor([labels[draw.index] for draw in indices], device=processes.device)
        if condition.change is not None:
            pixels = condition.change(judge, pixels, targets, pictures.identities)
        with torch.no_grad():
            chances = judge(pixels).cpu().double().log_softmax(-1)
        if chances.isnan().any():
            strange = pictures.identities[int(chances.isnan().any(-1).nonzero()[0])]
            raise FloatingPointError(
                f"the logits for {strange} of {source.name} ({key_of(condition.name, condition.severity)}) are no "
                "numbers: the weights are broken, or its layers were told to solve in a way that diverges"
            )
        confidence, named = chances.max(-1)
        for number, draw in enumerate(indices):
            label, broken = labels[draw.index], pictures.identities[number] in pictures.problems
            found = -1 if broken else int(named[number])
            answers.append(
                Answer(
                    draw.index,
                    found == label,
                    found,
                    float(confidence[number].exp()),
                    -float(chances[number, label]),
                )
            )
            right += found == label
        problems |= {f"{source.name}: {identity}": problem for identity, problem in pictures.problems.items()}
        if watch is not None and len(answers) * processes.world < len(source):
            watch(len(answers) * processes.world, len(source), right / len(answers))
    answers, problems = sorted(processes.gather(answers)), dict(processes.gather(list(problems.items())))
    if watch is not None:
        watch(len(answers), len(source), sum(each.right for each in answers) / len(answers))
    return answers, problems


def judged(answers: Sequence[Answer], clean: Outcome | None, *, keep_named: bool) -> Outcome:
    """The outcome of a condition: accuracy in percent, loss, calibration error, consistency with clean pictures."""
    right, named = np.array([each.right for each in answers]), np.array([each.named for each in answers])
    readable = named >= 0
    figures = {"accuracy": bootstrap(100.0 * right)}
    if readable.any():
        confidence = np.array([each.confidence for each in answers])[readable]
        figures["loss"] = bootstrap(np.array([each.loss for each in answers])[readable])
        figures["calibration error"] = (100 * calibration_error(confidence, right[readable]), None, None)
    if clean is not None and clean.named is not None:
        figures["consistency"] = bootstrap(100.0 * (readable & (named == clean.named)))
    return Outcome(right, named if keep_named else None, figures, unread=int((~readable).sum()))


def rows_of(
    model: str, benchmark: Benchmark, outcomes: dict[str, Outcome], source: Source, space: LabelSpace
) -> list[Row]:
    """All rows of a benchmark, its classes included."""
    protocol = benchmark.protocol
    if not space.is_plain:
        protocol += f"; label space: {space}"
    if absent := benchmark.not_asked + benchmark.missing:
        protocol += f"; partial, without {listed(absent, 3)}"
    rows = []
    for condition, severity, metric, figure in summarize(benchmark, outcomes):
        count = len(source)
        if metric in ("loss", "calibration error"):
            count -= outcomes[key_of(condition, severity)].unread
        rows.append(Row(model, benchmark.name, condition, severity, metric, *figure, count, protocol))
    labels = np.array(source.labels)
    for said, conditions in groups_of_classes(benchmark).items():
        right = np.stack([outcomes[key_of(each.name, each.severity)].right for each in conditions], 1).mean(1)
        for number, name in enumerate(source.classes):
            mine = right[labels == number]
            if len(mine):
                figure, condition = bootstrap(100 * mine), f"class {name}{said}"
                rows.append(Row(model, benchmark.name, condition, None, "accuracy", *figure, len(mine), protocol))
    return rows


def groups_of_classes(benchmark: Benchmark) -> dict[str, list[Condition]]:
    """Conditions over which the accuracy of a class is a mean, and what is said of that: the 15, or each by itself."""
    published = [each for each in benchmark.conditions if each.name in PUBLISHED]
    if published:
        return {", mean of the corruptions": published}
    changed = [each for each in benchmark.conditions if each.change is not None]
    each_by_itself = {f", {key_of(each.name, each.severity)}": [each] for each in changed}
    return each_by_itself or {"": benchmark.conditions}


def pictures_of(source: Source, size: int) -> Pictures:
    return Pictures(source, partial(centre_pixels, size=size))


# Before anything is tried


def open_results(output: Path, model: dict) -> Results:
    """The results of a file that is gone on with, or new ones."""
    if output.is_dir():
        raise IsADirectoryError(f"{output} is a folder: give --output a file in it")
    if output.exists() and not output.is_file():
        raise ValueError(f"{output} is a device, a pipe or a socket: give --output a file, which is written as a whole")
    if not output.exists():
        if output.parent.exists() and not output.parent.is_dir():
            raise ValueError(f"{output.parent} is a file: give --output a path in a folder")
        return Results(model, environment=environment())
    results = Results.read(output)
    if results.model != model:
        told = [
            f"{name} {results.model.get(name)}, now {model[name]}"
            for name in model
            if results.model.get(name) != model[name]
        ]
        raise ValueError(f"{output} holds results of another model ({'; '.join(told)}): give another file")
    here, before = environment(), {name: each for name, each in results.environment.items() if name != "earlier"}
    if before != here:
        results.environment = {**here, "earlier": [*results.environment.get("earlier", []), before]}
    return results


def check_writable(output: Path) -> None:
    """An OSError if the file could not be written, before anything is tried."""
    # A file without a bit for writing is not to be replaced, also not by those to whom no bit matters.
    if output.exists() and not (os.access(output, os.W_OK) and output.stat().st_mode & 0o222):
        raise PermissionError(f"{output} is read-only: make it writable (chmod u+w), or give --output another file")
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=output.parent):
        pass


def take_up(results: Results, benchmark: Benchmark, source: Source, space: LabelSpace) -> None:
    """Notes what is asked, or checks that it is what was asked before."""
    keys = [key_of(condition.name, condition.severity) for condition in benchmark.conditions]
    asked = {
        "protocol": benchmark.protocol,
        "data": benchmark.data,
        "pictures": digest_of(source.identities),
        "images": len(source),
        "classes": len(set(source.labels)),
        "among_present": benchmark.among_present,
        "change": benchmark.change,
        "label_space": asdict(space),
    }
    before = results.asked.get(benchmark.name)
    if before is not None:
        before = {"label_space": asdict(space), **before}  # files written before it was kept have "among_present"
    if before is not None and any(before.get(name) != asked[name] for name in asked):
        told = [f"{name} {before.get(name)!r}, now {now!r}" for name, now in asked.items() if before.get(name) != now]
        raise ValueError(
            f"the file holds {benchmark.name} with other settings: {'; '.join(told)}; give --output another file"
        )
    if lost := [key for key in results.outcomes.get(benchmark.name, {}) if key not in keys]:
        raise ValueError(
            f"the file holds more of {benchmark.name} than is asked for now, such as {lost[0]}: ask for that as well, "
            "which takes no time, or give --output another file"
        )
    attacks = {
        key: asdict(attack.attack if isinstance(attack, Transferred) else attack)
        for key, attack in benchmark.attacks.items()
    }
    asked |= {"conditions": keys, "attacks": attacks, "missing": [*benchmark.not_asked, *benchmark.missing]}
    results.asked[benchmark.name] = asked
    results.pictures[benchmark.name] = list(source.identities)


def check_missing(benchmark: Benchmark, partial_ok: bool) -> None:
    if benchmark.missing and not partial_ok:
        raise ValueError(
            f"{benchmark.name} is not complete: there is no {listed(benchmark.missing, 100)}. Sums over the rest mean "
            "something else; --partial makes them all the same, and says so in each row and what is missing in the file"
        )


def listed(names: Sequence[str], most: int) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def match_classes(subject: Subject, source: Source, among_present: bool) -> tuple[list[int] | None, list[int]]:
    """Which logits to look at (None for all), and for each picture the one among these that is right.

    Raises:
        ValueError: the model knows other classes.
    """
    known, outputs = subject.classes, outputs_of(subject)
    if known is not None and outputs != len(known):
        raise ValueError(f"{subject.name} has {outputs} logits and names {len(known)} classes: name as many")
    if known is None:
        if outputs != len(source.classes):
            raise ValueError(
                f"{subject.name} has {outputs} classes whose names are not known, {source.name} has "
                f"{len(source.classes)}: they cannot be matched"
            )
        return None, list(source.labels)
    strange = [name for name in source.classes if name not in known]
    if strange:
        raise ValueError(
            f"{subject.name} does not know {len(strange)} of the {len(source.classes)} classes of {source.name}: "
            f"{', '.join(strange[:5])}; it knows {', '.join(known[:5])}, ..."
        )
    column = {name: number for number, name in enumerate(known)}
    if among_present:
        return [column[name] for name in source.classes], list(source.labels)
    return None, [column[source.classes[label]] for label in source.labels]


def label_space(subject: Subject, source: Source, among_present: bool) -> LabelSpace:
    """Of classes that are matched."""
    known = source.classes if subject.classes is None else subject.classes
    chosen = source.classes if among_present else known
    return LabelSpace(len(chosen), len(known), len(source.classes), digest_of(sorted(chosen)))


@torch.no_grad()
def outputs_of(subject: Subject) -> int:
    """How many logits a model gives: as it says, or as it does."""
    said = getattr(getattr(subject.classifier, "model", None), "num_classes", None)
    if said is not None:
        return said
    like = next(subject.classifier.parameters(), torch.zeros(()))
    with evaluating(subject.classifier):
        return subject.classifier(torch.zeros(1, 3, subject.size, subject.size, device=like.device)).shape[-1]


def find_flat(
    judge: nn.Module,
    condition: Condition,
    size: int,
    labels: Sequence[int],
    device: torch.device,
    batch: int,
    count: int = 64,
) -> Tensor:
    """For some pictures, whether the gradient of the loss is exactly zero."""
    source = condition.source
    chosen = set(limited(source, count).identities)
    draws = [Draw(index, 0) for index, identity in enumerate(source.identities) if identity in chosen]
    batches = [draws[first : first + batch] for first in range(0, len(draws), batch)]
    found = []
    for some, pictures in zip(batches, load(pictures_of(source, size), batches), strict=True):
        targets = torch.tensor([labels[draw.index] for draw in some], device=device)
        found.append(zero_gradients(judge, pictures.pixels.to(device), targets))
    return torch.cat(found)


def usual_rest(subject: Subject, data: str, count: int = 64) -> dict[str, float]:
    """What VARS layers leave unexplained of clean pictures, for a strength that adapts: see `adaptive.calibrate`."""
    source = limited(open_source(data, "val"), count)
    draws = [[Draw(index, 0) for index in range(len(source))]]
    return calibrate(
        subject.classifier, (pictures.pixels for pictures in load(pictures_of(source, subject.size), draws))
    )
