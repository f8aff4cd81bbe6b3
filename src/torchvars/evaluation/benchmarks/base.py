"""What a benchmark is: pictures shown in some conditions, a question about them, and what is made of the answers."""

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
    """What is done to pictures before a model is asked.

    Attributes:
        moves: whether things end up elsewhere in the picture.
        passes: about how many passes of the pictures through a model it takes.
    """

    @property
    def moves(self) -> bool: ...

    @property
    def passes(self) -> float: ...

    def __call__(self, judge: Any, asked: Asked) -> Tensor:
        """Pixels of the same shape; chance comes from the identities, so that the batch does not matter."""
        ...


class Showing(NamedTuple):
    """The pictures once, changed in one way."""

    condition: Condition
    source: Source
    change: Change | None = None


class Summed(NamedTuple):
    """A figure of a benchmark."""

    condition: Condition
    metric: str
    figure: Figure


def each_condition(benchmark: "Benchmark", outcomes: Mapping[Condition, Outcome]) -> list[Summed]:
    """The figures of each condition by itself."""
    return [
        Summed(condition, metric, figure)
        for condition in benchmark.conditions
        for metric, figure in outcomes[condition].figures.items()
    ]


@dataclass(frozen=True)
class Benchmark:
    """Pictures in some conditions, and how the answers are summed up.

    Attributes:
        protocol: how it is done, in words.
        data: where the pictures are.
        showings: the pictures are the same in all of them.
        task: what is asked.
        shown: how a model is shown a stored picture.
        change: what decides what is done to a picture, beside its size and the condition.
        missing: what should be there and is not.
        not_asked: what sums lack because it was not chosen.
        summarize: the benchmark, outcomes -> figures, all but those of subsets; else those of each condition.
        groups: conditions over which the figures of subsets are means, by what such a mean is of; else each by itself.
        warn: what is done at the end: results so far, the judge, and a way to ask -> what a reader should know.
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
        """The pictures as they are; those that are stored in several conditions have the same names and targets."""
        return self.showings[0].source

    @property
    def conditions(self) -> list[Condition]:
        return [showing.condition for showing in self.showings]

    def parts(self) -> Mapping[Condition, Sequence[Condition]]:
        """The conditions over which figures of subsets are means."""
        return {condition: [condition] for condition in self.conditions} if self.groups is None else self.groups

    def means(self) -> dict[Condition, Sequence[Condition]]:
        """Conditions that are means over others -> those others."""
        return {mean: members for mean, members in self.parts().items() if mean not in members}


Ask = Callable[[Source, Callable[[Asked], Mapping[str, Tensor]]], Scores]
"""Asks something else of the pictures of a source, by the processes that evaluate."""


# What may be chosen


@dataclass(frozen=True)
class Options:
    """What may be chosen of every benchmark."""

    limit: int | None = None
    """Use so many of the pictures, always the same."""

    def __post_init__(self):
        """Checks what was chosen; each class does so for its own, and calls the next."""


@dataclass(frozen=True)
class Classes(Options):
    """What may be chosen where the class is asked for."""

    label_space: str | None = None
    """Classes among which the answer is looked for: "model" for all of the model, "present" for those of the data set;
    else the latter if they are fewer."""

    def __post_init__(self):
        super().__post_init__()
        if self.label_space not in (None, "model", "present"):
            raise ValueError(f"label_space must be model or present, got {self.label_space!r}")

    def task(self, source: Source, subject: Subject) -> Classification:
        """If the classes of the data set are all of the model, there is no choice."""
        fewer = subject.classes is not None and len(source.classes) < len(subject.classes)
        return Classification(among_present=fewer and self.label_space != "model")


class Data:
    """Stored pictures by their path, of which the index is read once for all benchmarks.

    Args:
        path: as for `open_source`, or a folder as a benchmark is published.
        source: those of the pictures that are judged by; else the validation pictures found there.
    """

    def __init__(self, path: str, source: Source | None = None):
        self.path = str(path)
        if source is not None:
            self.source = source

    @property
    def name(self) -> str:
        """Where they are, whatever the working directory."""
        return absolute(self.path)

    @cached_property
    def source(self) -> Source:
        """The pictures to judge by."""
        return open_source(self.path, "val")


class Relative(NamedTuple):
    """A number of one model in proportion to that of another, the baseline, on the same pictures.

    Attributes:
        metric: its name in tables; the baseline's own value is 100.
        condition: the conditions that it is over.
        value: results, baseline, benchmark -> value and 95 % interval; None if one of the two lacks a condition.
    """

    metric: str
    condition: Condition
    value: Callable[[Results, Results, str], tuple[float, float, float] | None]


@dataclass(frozen=True)
class Member:
    """A benchmark that can be asked for by its name.

    Args:
        build: data, subject, options -> benchmark.
        options: what may be chosen.
        relative: what tables show of several models in proportion to one of them.
    """

    build: Callable[[Data, Subject, Any], Benchmark]
    options: type[Options]
    relative: Relative | None = None

    def __post_init__(self):
        object.__setattr__(self, "__doc__", self.build.__doc__)

    def __call__(self, data: Data | str, subject: Subject, **chosen: Any) -> Benchmark:
        """The benchmark of these pictures for a model; what is not chosen is as it usually is."""
        return self.build(data if isinstance(data, Data) else Data(data), subject, self.options(**chosen))

    def takes(self) -> set[str]:
        """Names of what may be chosen."""
        return {each.name for each in fields(self.options)}


# Pictures


def centred(subject: Subject) -> str:
    size = subject.size
    return f"shorter side to {round(size * 256 / 224)}, centre {size} pixels, or as it is if of that size"


def whole(subject: Subject) -> str:
    """How pictures are shown of which nothing may be cut off."""
    return f"whole pictures, resized to {subject.size} x {subject.size}"


def stored(subject: Subject, source: Source) -> str:
    """How pictures that are published at one size are shown to a model."""
    _, picture, _ = Pictures(source, to_pixels).readable()
    return "as stored" if picture.size == (subject.size, subject.size) else centred(subject)


def check_places(benchmark: Benchmark) -> None:
    """A ValueError if a picture is changed so that a target in it would be elsewhere."""
    if not benchmark.task.placed:
        return
    for showing in benchmark.showings:
        if showing.change is not None and showing.change.moves:
            raise ValueError(
                f"{benchmark.name}: {showing.condition.label} moves what is in a picture, and the targets of "
                f"{benchmark.task.name} have a place in it: leave it out"
            )
