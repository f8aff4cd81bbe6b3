"""The class of benchmarks: pictures in several conditions, a task, and a summary of its metrics."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from ...data import Pictures, Shown, Source, absolute, open_source
from ...models.pixels import to_pixels
from ...scoring import Asked, Scores
from ..conditions import Condition
from ..results import Outcome, Results
from ..subjects import Subject
from ..task import Figure, Task
from ..tasks import Classification


class Change(Protocol):
    """A change of pictures before they are passed to a model.

    Attributes:
        moves: whether it moves the content of the picture.
        passes: approximate cost, in forward passes of the model.
    """

    @property
    def moves(self) -> bool: ...

    @property
    def passes(self) -> float: ...

    def __call__(self, judge: Any, asked: Asked) -> Tensor:
        """Changed pixels of the same shape. Random numbers depend on the identities, not on the batch."""
        ...


class Showing(NamedTuple):
    """The pictures in one condition."""

    condition: Condition
    source: Source
    change: Change | None = None


class Summed(NamedTuple):
    """A summary figure of a benchmark."""

    condition: Condition
    metric: str
    figure: Figure


def each_condition(benchmark: "Benchmark", outcomes: Mapping[Condition, Outcome]) -> list[Summed]:
    """The figures of each condition."""
    return [
        Summed(condition, metric, figure)
        for condition in benchmark.conditions
        for metric, figure in outcomes[condition].figures.items()
    ]


@dataclass(frozen=True)
class Benchmark:
    """A benchmark: pictures in several conditions, a task, and a summary.

    Attributes:
        protocol: the procedure, in words.
        data: the path of the pictures.
        showings: the conditions, with the same pictures in each.
        task: the task.
        shown: the preprocessing of stored pictures.
        change: all settings of the change of pictures other than their size and the condition.
        missing: expected parts of the data that are missing.
        not_asked: parts of the means that were not chosen.
        summarize: the benchmark, outcomes -> figures, except those of subsets; by default those of each condition.
        groups: the conditions over which figures of subsets are means, by the condition of the mean; by default each
            condition.
        warn: called at the end with the results, the judge and an `Ask` function; returns warnings for the reader.
    """

    name: str
    protocol: str
    data: str
    showings: Sequence[Showing]
    task: Task = field(default_factory=Classification)
    shown: type[Shown] = Shown
    change: str = ""
    missing: tuple[str, ...] = ()
    not_asked: tuple[str, ...] = ()
    summarize: Callable[["Benchmark", Mapping[Condition, Outcome]], list[Summed]] = each_condition
    groups: Mapping[Condition, Sequence[Condition]] | None = None
    warn: Callable[[Results, Any, "Ask"], list[str]] | None = None

    @property
    def source(self) -> Source:
        """The pictures of the first condition. Names and targets are the same in all conditions."""
        return self.showings[0].source

    @property
    def conditions(self) -> list[Condition]:
        return [showing.condition for showing in self.showings]

    def parts(self) -> Mapping[Condition, Sequence[Condition]]:
        """The conditions over which figures of subsets are means, by the condition of the mean."""
        return {condition: [condition] for condition in self.conditions} if self.groups is None else self.groups

    def means(self) -> dict[Condition, Sequence[Condition]]:
        """Conditions that are means over several conditions -> these conditions."""
        return {mean: members for mean, members in self.parts().items() if mean not in members}


Ask = Callable[[Source, Callable[[Asked], Mapping[str, Tensor]]], Scores]
"""Evaluates another function on the pictures of a source, by the same processes."""


# Options


@dataclass(frozen=True)
class Options:
    """The options of all benchmarks."""

    limit: int | None = None
    """Largest number of pictures; always the same ones."""

    def __post_init__(self):
        """Checks the options. Each class checks its own, and calls the next."""


@dataclass(frozen=True)
class ClassOptions(Options):
    """The options of classification benchmarks."""

    label_space: str | None = None
    """The classes among which the model chooses: "model" for all its classes, "present" for those of the data set; by
    default the latter if they are fewer."""

    def __post_init__(self):
        super().__post_init__()
        if self.label_space not in (None, "model", "present"):
            raise ValueError(f"label_space must be model or present, got {self.label_space!r}")

    def task(self, source: Source, subject: Subject) -> Classification:
        """The task. If the model has only the classes of the data set, `label_space` changes nothing."""
        fewer = subject.classes is not None and len(source.classes) < len(subject.classes)
        return Classification(among_present=fewer and self.label_space != "model")


class Data:
    """Stored pictures, whose index is read once for all benchmarks.

    Args:
        path: as for `open_source`, or the folder of a published benchmark.
        source: the pictures to evaluate; by default the validation pictures of the path.
    """

    def __init__(self, path: str, source: Source | None = None):
        self.path = str(path)
        if source is not None:
            self.source = source

    @property
    def name(self) -> str:
        """The absolute path."""
        return absolute(self.path)

    @cached_property
    def source(self) -> Source:
        """The pictures to evaluate."""
        return open_source(self.path, "val")


class Relative(NamedTuple):
    """A metric of one model relative to another, the baseline, on the same pictures.

    Attributes:
        metric: its name in tables; the value of the baseline is 100.
        condition: the condition of the mean that it is.
        value: results, baseline, benchmark -> value and 95 % interval; None if one of the two lacks a condition.
    """

    metric: str
    condition: Condition
    value: Callable[[Results, Results, str], tuple[float, float, float] | None]


@dataclass(frozen=True)
class Member:
    """A benchmark that can be built by its name.

    Args:
        build: data, subject, options -> benchmark.
        options: the class of its options.
        relative: the relative metric in tables of several models, if any.
    """

    build: Callable[[Data, Subject, Any], Benchmark]
    options: type[Options]
    relative: Relative | None = None

    def __post_init__(self):
        object.__setattr__(self, "__doc__", self.build.__doc__)

    def __call__(self, data: Data | str, subject: Subject, **chosen: Any) -> Benchmark:
        """The benchmark on these pictures for a model. Other options have their defaults."""
        return self.build(data if isinstance(data, Data) else Data(data), subject, self.options(**chosen))

    def takes(self) -> set[str]:
        """The names of the options."""
        return {each.name for each in fields(self.options)}


# Pictures


def centred(subject: Subject) -> str:
    """The preprocessing by resizing and a central crop, in words."""
    size = subject.size
    return f"shorter side to {round(size * 256 / 224)}, centre {size} pixels, or as it is if of that size"


def whole(subject: Subject) -> str:
    """The preprocessing without cropping, in words."""
    return f"whole pictures, resized to {subject.size} x {subject.size}"


def stored(subject: Subject, source: Source) -> str:
    """The preprocessing of pictures that are published at one size, in words."""
    _, picture, _ = Pictures(source, to_pixels).readable()
    return "as stored" if picture.size == (subject.size, subject.size) else centred(subject)


def check_places(benchmark: Benchmark) -> None:
    """Raises a ValueError if a condition moves the content of pictures whose targets are positions."""
    if not benchmark.task.placed:
        return
    for showing in benchmark.showings:
        if showing.change is not None and showing.change.moves:
            raise ValueError(
                f"{benchmark.name}: {showing.condition.label} moves the content of pictures, and the targets of "
                f"{benchmark.task.name} are positions in them: leave it out"
            )
