"""The evaluation loop for all models, tasks and benchmarks."""

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from ..data import Shown, Source
from ..data.pictures import check_workers
from ..models.environment import environment
from ..models.lock import held
from ..scoring import Asked, Memory, Processes, Scores, score
from .benchmarks.base import Benchmark, Showing, check_places
from .conditions import Condition
from .labels import digest_of
from .metrics import bootstrap
from .results import Outcome, Results, Row
from .subjects import Subject


class Progress(NamedTuple):
    """The progress of an evaluation."""

    benchmark: str
    condition: str
    number: int  # number of the condition, from 1
    count: int  # number of all conditions, including known ones
    done: int  # pictures done in this condition
    total: int  # pictures in this condition
    value: float  # the first metric on the pictures done
    unit: str
    share: float  # share of the estimated work that is done


Watch = Callable[[Progress], None]


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
    """Evaluates a model on benchmarks, and writes the results to a file.

    The file is written after each condition. Conditions that it contains already, for the same model and settings, are
    not evaluated again. With n processes each takes every n-th batch; the batches, and so the results, do not change.

    Args:
        solving: changed settings of the solvers of VARS layers, which are written to the file.
        partial_ok: whether to report means if a part of the data is missing.
        watch: called with the progress.
        device: such as "cpu" or "cuda:1"; by default the accelerator if there is one.

    Raises:
        ValueError: if the file is of another model or other settings, or another evaluation is writing it; if data is
            missing; if there is no such device; if the task is not possible for the model.
    """
    if batch < 1:
        raise ValueError(f"batch must be at least 1, got {batch}")
    check_workers(workers)
    processes = Processes(device)
    for benchmark in benchmarks:
        check_missing(benchmark, partial_ok)
        check_places(benchmark)
    refusal = f"another evaluation is writing {output}: wait for its end, or give another file"
    with held(output, refusal) if processes.rank == 0 else nullcontext():
        return Evaluation(subject, output, solving or {}, processes, batch, workers).run(benchmarks, watch)


class Evaluation:
    """The evaluation of a model: its results file, and the settings for reading pictures."""

    def __init__(self, subject: Subject, output: Path, solving: dict, processes: Processes, batch: int, workers: int):
        self.output, self.processes, self.batch, self.workers = output, processes, batch, workers
        model = {**subject.describe(), "solving": solving}
        self.results = processes.by_first(lambda: open_results(output, model))
        self.subject = replace(subject, classifier=subject.classifier.to(processes.device).eval())
        self.memory = Memory()

    def run(self, benchmarks: Sequence[Benchmark], watch: Watch | None) -> Results:
        """Evaluates all conditions that are not known, and summarises them."""
        judges = []
        for benchmark in benchmarks:
            judge = benchmark.task.prepare(self.subject, benchmark.source, self.processes.device)
            register(self.results, benchmark, judge)
            judges.append(judge)
        if self.processes.rank == 0:
            check_writable(self.output)
        tally = Tally(benchmarks, self.results, watch if self.processes.rank == 0 else None)
        for benchmark, judge in zip(benchmarks, judges, strict=True):
            outcomes = self.results.outcomes.setdefault(benchmark.name, {})
            for showing in benchmark.showings:
                if showing.condition not in outcomes and showing.change is None:
                    outcomes |= known_elsewhere(self.results, benchmark.name, showing.condition)
                if showing.condition in outcomes:
                    tally.skip(benchmark, showing)
                    continue
                outcomes[showing.condition] = self.tried(benchmark, judge, showing, tally)
                self.write()
            self.results.rows = [row for row in self.results.rows if row.benchmark != benchmark.name]
            self.results.rows += rows_of(self.subject.name, benchmark, judge, self.results)
            if benchmark.warn is not None:
                self.results.warnings = benchmark.warn(self.results, judge, self.ask)
            self.write()
        self.processes.wait()
        return self.results

    def tried(self, benchmark: Benchmark, judge: Any, showing: Showing, tally: "Tally") -> Outcome:
        """The outcome of one condition."""
        task = benchmark.task
        try:
            scores = self.ask(
                showing.source,
                partial(task.score, task.within(judge, showing.condition)),
                task.columns,
                benchmark.shown,
                change=None if showing.change is None else partial(showing.change, judge),
                watch=None if tally.watch is None else partial(tally.report, benchmark, showing),
            )
        except FloatingPointError as error:
            raise FloatingPointError(f"{showing.source.name} ({showing.condition.key}): {error}") from error
        self.results.unreadable |= scores.problems
        columns = {name: values.numpy() for name, values in scores.columns.items()}
        known = self.results.outcomes[benchmark.name]
        clean = next((known[each.condition] for each in benchmark.showings if is_reference(each, known)), None)
        figures = task.figures(columns, None if clean is None else clean.columns)
        return Outcome(task.keep(showing.condition, columns), figures, int(scores.unread.sum()))

    def ask(
        self,
        source: Source,
        question: Callable[[Asked], Mapping[str, Tensor]],
        blank: Mapping[str, bool | float] | None = None,
        shown: type[Shown] = Shown,
        **how: Any,
    ) -> Scores:
        """Evaluates a function on each picture, by all processes. Without `blank` also on unreadable pictures."""
        reading = {"batch": self.batch, "workers": self.workers, "memory": self.memory}
        return score(source, shown(self.subject.size), question, blank, self.processes, **reading, **how)

    def write(self) -> None:
        if self.processes.rank == 0:
            self.results.write(self.output)


def is_reference(showing: Showing, known: Mapping[Condition, Outcome]) -> bool:
    """Whether a condition is the known clean condition, with which others of a benchmark are compared."""
    return showing.change is None and showing.condition.name == "clean" and showing.condition in known


class Tally:
    """The conditions of an evaluation, and how much of the work is done."""

    def __init__(self, benchmarks: Sequence[Benchmark], results: Results, watch: Watch | None):
        self.watch = watch
        every = [(each.name, showing) for each in benchmarks for showing in each.showings]
        self.numbers = {(name, showing.condition): number for number, (name, showing) in enumerate(every, 1)}
        self.work = {
            (name, showing.condition): work_of(showing)
            for name, showing in every
            if showing.condition not in results.outcomes.get(name, {})
        }
        self.done = 0.0

    def skip(self, benchmark: Benchmark, showing: Showing) -> None:
        """Removes a condition that is known already from the work."""
        self.work.pop((benchmark.name, showing.condition), None)

    def report(
        self, benchmark: Benchmark, showing: Showing, done: int, total: int, columns: Mapping[str, Tensor]
    ) -> None:
        place = benchmark.name, showing.condition
        share = (self.done + self.work[place] * min(done / total, 1)) / sum(self.work.values())
        if done >= total:
            self.done += self.work[place]
        found = [(each, each.column) for each in benchmark.task.metrics if each.column is not None]
        known = [(each, column) for each, column in found if not columns[column].double().isnan().all()]
        first, column = (known or found)[0]
        value = first.scale * float(columns[column].double().nanmean())
        where = benchmark.name, showing.condition.key, self.numbers[place], len(self.numbers)
        assert self.watch is not None  # else this is not called
        self.watch(Progress(*where, done, total, value, first.unit, share))


def work_of(showing: Showing) -> float:
    """The approximate cost of a condition, in forward passes of the model."""
    return len(showing.source) * (1 + (0 if showing.change is None else showing.change.passes))


def known_elsewhere(results: Results, benchmark: str, condition: Condition) -> dict[Condition, Outcome]:
    """The clean outcome on the same pictures, if another benchmark with the same task has it."""
    wanted = results.asked[benchmark]
    for name, outcomes in results.outcomes.items():
        asked = results.asked[name]
        tasks = [without_metrics(each["task"]) for each in (asked, wanted)]
        alike = all(asked[each] == wanted[each] for each in ("data", "pictures"))
        alike &= all(tasks[0][fact] == tasks[1][fact] for fact in tasks[0].keys() & tasks[1].keys())
        if condition.family == "clean" and condition in outcomes and alike:
            return {condition: outcomes[condition]}
    return {}


def rows_of(model: str, benchmark: Benchmark, judge: Any, results: Results) -> list[Row]:
    """All rows of a benchmark, including its subsets."""
    outcomes, task = results.outcomes[benchmark.name], benchmark.task
    protocol = results.asked[benchmark.name]["protocol"] + task.remark(judge)
    if absent := benchmark.not_asked + benchmark.missing:
        protocol += f"; partial, without {listed(absent, 3)}"
    rows = [
        Row(model, benchmark.name, condition, metric, *figure, protocol)
        for condition, metric, figure in benchmark.summarize(benchmark, outcomes)
    ]
    first, subsets = task.metrics[0], task.subsets(benchmark.source)
    for group, conditions in benchmark.parts().items() if subsets else ():
        assert first.column is not None  # the first metric is a mean over pictures
        means = np.stack([outcomes[each].columns[first.column] for each in conditions], 1).mean(1)
        for name, inside in subsets.items():
            if len(mine := means[inside & ~np.isnan(means)]):
                figure, condition = bootstrap(first.scale * mine), replace(group, subset=name)
                rows.append(Row(model, benchmark.name, condition, first.name, *figure, len(mine), protocol))
    return rows


# Checks before the evaluation


def open_results(output: Path, model: dict) -> Results:
    """The results of a file to resume, or new ones."""
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
        changes = [
            f"{name} {results.model.get(name)}, now {model[name]}"
            for name in model
            if results.model.get(name) != model[name]
        ]
        raise ValueError(f"{output} holds results of another model ({'; '.join(changes)}): give another file")
    here, before = environment(), {name: each for name, each in results.environment.items() if name != "earlier"}
    if before != here:
        results.environment = {**here, "earlier": [*results.environment.get("earlier", []), before]}
    return results


def check_writable(output: Path) -> None:
    """Raises an OSError if the file cannot be written."""
    # A read-only file must not be replaced, even by a user who could write it.
    if output.exists() and not (os.access(output, os.W_OK) and output.stat().st_mode & 0o222):
        raise PermissionError(f"{output} is read-only: make it writable (chmod u+w), or give --output another file")
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=output.parent):
        pass


def register(results: Results, benchmark: Benchmark, judge: Any) -> None:
    """Stores the settings of a benchmark in the results, or checks that they are the stored ones."""
    source, task = benchmark.source, benchmark.task
    facts = {"name": task.name, "metrics": [asdict(metric) for metric in task.metrics], **task.describe(judge)}
    asked = {
        "protocol": benchmark.protocol + task.protocol(judge),
        "data": benchmark.data,
        "pictures": digest_of(source.identities),
        "images": len(source),
        "change": benchmark.change,
    }
    if (before := results.asked.get(benchmark.name)) is not None:
        # Older files have fewer settings of the task.
        known = {name: before.get(name) for name in asked} | without_metrics(before["task"])
        now = asked | {name: facts.get(name) for name in without_metrics(before["task"])}
        if changes := [f"{name} {known[name]!r}, now {now[name]!r}" for name in now if known[name] != now[name]]:
            raise ValueError(
                f"the file holds {benchmark.name} with other settings: {'; '.join(changes)}; give --output another file"
            )
    if lost := [each for each in results.outcomes.get(benchmark.name, {}) if each not in benchmark.conditions]:
        raise ValueError(
            f"the file holds more of {benchmark.name} than is asked for now, such as {lost[0].key}: ask for that as "
            "well, which takes no time, or give --output another file"
        )
    conditions = [condition.to_json() for condition in benchmark.conditions]
    means = [
        {"condition": mean.to_json(), "over": [each.to_json() for each in members]}
        for mean, members in benchmark.means().items()
    ]
    missing = [*benchmark.not_asked, *benchmark.missing]
    asked |= {"task": facts, "conditions": conditions, "means": means, "missing": missing}
    results.asked[benchmark.name] = asked
    results.pictures[benchmark.name] = list(source.identities)


def without_metrics(task: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that decide the outcomes of a task, without its metrics."""
    return {name: fact for name, fact in task.items() if name != "metrics"}


def check_missing(benchmark: Benchmark, partial_ok: bool) -> None:
    if benchmark.missing and not partial_ok:
        raise ValueError(
            f"{benchmark.name} is not complete: there is no {listed(benchmark.missing, 100)}. Sums over the rest mean "
            "something else; --partial computes them anyway, and marks each row and lists what is missing in the file"
        )


def listed(names: Sequence[str], most: int) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
