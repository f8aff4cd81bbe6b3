"""Corrupted pictures, generated or published, and means over corruptions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from ...data import Source, limited
from ...data.arrays import Arrays
from ...data.sources import Folder
from ...scoring import Asked
from ..conditions import ALL_CORRUPTIONS, CLEAN, Condition
from ..corruptions import CORRUPTIONS, PUBLISHED, corrupt
from ..corruptions.frost import official
from ..corruptions.means import means_of_corruptions
from ..metrics import bootstrap
from ..results import Outcome, Results, shortfall
from ..subjects import Subject
from ..task import Figure
from .base import (
    Benchmark,
    ClassOptions,
    Data,
    Member,
    Options,
    Relative,
    Showing,
    Summed,
    centred,
    each_condition,
    stored,
)
from .shifts import missing_classes

SEVERITIES = (1, 2, 3, 4, 5)

# Mean errors of AlexNet over the severities, relative to which errors on ImageNet-C are reported.
ALEXNET = {
    "gaussian_noise": 0.886428,
    "shot_noise": 0.894468,
    "impulse_noise": 0.922640,
    "defocus_blur": 0.819880,
    "glass_blur": 0.826268,
    "motion_blur": 0.785948,
    "zoom_blur": 0.798360,
    "snow": 0.866816,
    "frost": 0.826572,
    "fog": 0.819324,
    "brightness": 0.564592,
    "contrast": 0.853204,
    "elastic_transform": 0.646056,
    "pixelate": 0.717840,
    "jpeg_compression": 0.606500,
}
CIFAR10 = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


@dataclass(frozen=True)
class CorruptionOptions(Options):
    """The options of corrupted pictures."""

    corruptions: tuple[str, ...] = tuple(CORRUPTIONS)
    """The corruptions to evaluate."""
    severities: tuple[int, ...] = SEVERITIES

    def __post_init__(self):
        super().__post_init__()
        if unknown := [name for name in self.corruptions if name not in CORRUPTIONS]:
            raise ValueError(f"no corruption named {unknown[0]!r}: there are {', '.join(CORRUPTIONS)}")
        if unknown := [severity for severity in self.severities if severity not in SEVERITIES]:
            raise ValueError(f"severities are 1, 2, 3, 4 and 5, got {unknown[0]}")
        for name in ("corruptions", "severities"):
            object.__setattr__(self, name, tuple(dict.fromkeys(getattr(self, name))))  # each once

    def chosen(self) -> list[Condition]:
        """The chosen conditions."""
        return [Condition("corruption", name, each) for name in self.corruptions for each in self.severities]

    def not_asked(self) -> tuple[str, ...]:
        """The parts of the mean over 15 corruptions and 5 severities that were not chosen."""
        missing = [name for name in PUBLISHED if name not in self.corruptions]
        return (*missing, *(f"severity {severity}" for severity in SEVERITIES if severity not in self.severities))


@dataclass(frozen=True)
class PublishedOptions(CorruptionOptions, ClassOptions):
    """The options of published corrupted pictures."""


@dataclass(frozen=True)
class SyntheticOptions(CorruptionOptions):
    """The options of corruptions that are applied on the fly."""

    seed: int = 0
    """The random seed."""
    strengths: str | None = None
    """The table of strengths, "imagenet" or "cifar"; by default the one for the nearer image size."""
    frost: Path | None = None
    """Folder of the published frost pictures; by default ice is generated."""

    def __post_init__(self):
        super().__post_init__()
        if self.frost is not None:
            object.__setattr__(self, "frost", Path(self.frost))
            if not self.frost.is_dir():
                raise FileNotFoundError(
                    f"no folder of frost pictures at {self.frost}: leave it out for ice that is made up"
                )
            official(str(self.frost))

    def table(self, subject: Subject) -> str:
        """The table of strengths for the image size of a model."""
        return self.strengths or ("imagenet" if subject.size > 85 else "cifar")

    def corrupting(self, subject: Subject, source: Source) -> list[Showing]:
        """The pictures of a source under each of the corruptions."""
        how = (self.seed, self.table(subject), self.frost)
        return [
            Showing(Condition("corruption", name, each), source, CorruptionChange(name, each, *how))
            for name in self.corruptions
            for each in self.severities
        ]

    def done(self, subject: Subject) -> str:
        """The settings of the corruptions, in words."""
        frost = ", frost made up" if self.frost is None else f", frost of {self.frost.resolve()}"
        return f"the strengths for {self.table(subject)}, 8 bit, seed {self.seed}{frost}"


@dataclass(frozen=True)
class CorruptionBenchmarkOptions(SyntheticOptions, ClassOptions):
    """The options of the benchmark `corruptions`."""


@dataclass(frozen=True)
class CorruptionChange:
    """A corruption as a change of pictures."""

    name: str
    severity: int
    seed: int
    strengths: str
    frost: Path | None
    passes = 0.0

    @property
    def moves(self) -> bool:
        return CORRUPTIONS[self.name].moves

    def __call__(self, judge: Any, asked: Asked) -> Tensor:
        how = {"seed": self.seed, "strengths": self.strengths, "frost": self.frost}
        return corrupt(asked.pixels, self.name, self.severity, asked.identities, **how)


def corruptions(data: Data, subject: Subject, options: CorruptionBenchmarkOptions) -> Benchmark:
    """Corruptions of clean pictures, applied on the fly: 15 and 4 extra, at 5 severities."""
    source = limited(data.source, options.limit)
    showings, done = [Showing(CLEAN, source), *options.corrupting(subject, source)], options.done(subject)
    return Benchmark(
        "corruptions",
        f"{centred(subject)}; then corrupted with {done}",
        data.name,
        showings,
        options.task(source, subject),
        change=done,
        not_asked=options.not_asked(),
        summarize=summarize,
        groups=groups_of(showings),
    )


def imagenet_c(data: Data, subject: Subject, options: PublishedOptions) -> Benchmark:
    """The published files of ImageNet-C, <corruption>/<severity>/<class>/<picture>."""
    path, found, missing = Path(data.path), {}, []
    for condition in options.chosen():
        name, severity = condition.name, condition.severity
        folder = path / name / str(severity)
        if folder.is_dir():
            found[condition] = limited(Folder(folder), options.limit)
        elif name in PUBLISHED or (path / name).is_dir():  # the extra ones may be left out as a whole
            missing.append(f"{name}/{severity}")
    if not found:
        raise ValueError(f"{path} holds nothing of ImageNet-C: expected folders <corruption>/<severity>/<class>")
    first = next(iter(found.values()))
    for condition, source in found.items():
        if source.identities != first.identities:
            differing = sorted(set(source.identities) ^ set(first.identities))
            raise ValueError(
                f"{condition.name}/{condition.severity} has other pictures than the rest: {len(source)} for "
                f"{len(first)}, such as {', '.join(differing[:3])}; copy it again, or leave it out with --corruptions"
            )
    showings = [Showing(condition, source) for condition, source in found.items()]
    missing += missing_classes(first, "imagenet-1k")
    return Benchmark(
        "imagenet_c",
        f"published files, {stored(subject, first)}; CE relative to AlexNet",
        data.name,
        showings,
        options.task(first, subject),
        missing=tuple(missing),
        not_asked=options.not_asked(),
        summarize=partial(summarize, reference=ALEXNET),
        groups=groups_of(showings),
    )


def cifar10_c(data: Data, subject: Subject, options: PublishedOptions) -> Benchmark:
    """The published arrays of CIFAR-10-C, <corruption>.npy and labels.npy."""
    folder = Path(data.path)
    if not (folder / "labels.npy").exists():
        raise ValueError(f"{folder} holds nothing of CIFAR-10-C: expected labels.npy and <corruption>.npy")
    labels = np.load(folder / "labels.npy")
    count = len(labels) // len(SEVERITIES)
    if count == 0 or not np.array_equal(labels, np.tile(labels[:count], len(SEVERITIES))):
        raise ValueError(
            f"{folder / 'labels.npy'} has {len(labels)} labels that are not those of the same pictures at 5 "
            "severities, one after the other: copy the published file"
        )

    def pictures(condition: Condition) -> Arrays:
        assert condition.severity is not None
        return Arrays(folder / f"{condition.name}.npy", labels, (condition.severity - 1) * count, count, CIFAR10)

    showings = [
        Showing(condition, limited(pictures(condition), options.limit))
        for condition in options.chosen()
        if (folder / f"{condition.name}.npy").exists()
    ]
    asked = [name for name in PUBLISHED if name in options.corruptions]
    if not showings:
        raise ValueError(f"{folder} holds none of {', '.join(f'{name}.npy' for name in options.corruptions[:3])}, ...")
    source = showings[0].source
    return Benchmark(
        "cifar10_c",
        f"published arrays, {stored(subject, source)}",
        data.name,
        showings,
        options.task(source, subject),
        missing=tuple(f"{name}.npy" for name in asked if not (folder / f"{name}.npy").exists()),
        not_asked=options.not_asked(),
        summarize=summarize,
        groups=groups_of(showings),
    )


def groups_of(showings: Sequence[Showing]) -> dict[Condition, list[Condition]]:
    """Groups for subsets: the mean over the 15 corruptions; if none of them is present, each condition."""
    corrupted = [showing.condition for showing in showings if showing.condition.family == "corruption"]
    return means_of_corruptions(corrupted) or {condition: [condition] for condition in corrupted}


# Summary


def summarize(
    benchmark: Benchmark, outcomes: Mapping[Condition, Outcome], reference: Mapping[str, float] | None = None
) -> list[Summed]:
    """The figures of each condition, their means over severities, and the means of these over the 15 corruptions.

    Args:
        reference: mean errors of a reference classifier, for relative errors.
    """
    rows, by_name = each_condition(benchmark, outcomes), {}
    for condition in benchmark.conditions:
        if condition.family == "corruption":
            by_name.setdefault(condition.name, []).append(outcomes[condition])
    summed = [name for name in PUBLISHED if name in by_name]
    for metric in benchmark.task.metrics:
        column = metric.column
        if not metric.summed or not by_name:
            continue
        if column is not None and all(column in each.columns for several in by_name.values() for each in several):
            lacking = {name: shortfall(several, column) for name, several in by_name.items()}
            for name, less in lacking.items():
                known = 1 - less[~np.isnan(less)]  # pictures that could not be read may be left out
                if not len(known):
                    continue
                figure = Figure(*bootstrap(metric.scale * known), len(known))
                rows.append(Summed(Condition("corruption", name), metric.name, figure))
            if summed:
                together = np.stack([lacking[name] for name in summed], 1)
                together = together[~np.isnan(together).any(1)]
                if not len(together):
                    continue
                figure = Figure(*bootstrap(metric.scale * (1 - together), _mean), len(together))
                rows.append(Summed(ALL_CORRUPTIONS, metric.name, figure))
            continue
        means = {
            name: float(np.mean([each.figures[metric.name].value for each in several]))
            for name, several in by_name.items()
            if all(metric.name in each.figures for each in several)
        }
        images = len(next(iter(by_name.values()))[0])
        rows += [
            Summed(Condition("corruption", name), metric.name, Figure(mean, None, None, images))
            for name, mean in means.items()
        ]
        if summed and all(name in means for name in summed):
            mean = float(np.mean([means[name] for name in summed]))
            rows.append(Summed(ALL_CORRUPTIONS, metric.name, Figure(mean, None, None, images)))
    if reference is not None:
        errors = {name: shortfall(several, "right") for name, several in by_name.items()}
        for name in (name for name in errors if name in reference):
            figure = Figure(*bootstrap(100 * errors[name] / reference[name]), len(errors[name]))
            rows.append(Summed(Condition("corruption", name), "CE", figure))
        if summed:
            relative = np.stack([errors[name] / reference[name] for name in summed], 1)
            rows.append(Summed(ALL_CORRUPTIONS, "mCE", Figure(*bootstrap(100 * relative, _mean), len(relative))))
    return rows


def _mean(means: np.ndarray) -> np.ndarray:
    return means.mean(-1)


# Comparison with a baseline


def corruption_errors(result: Results, benchmark: str = "corruptions") -> np.ndarray | None:
    """The error of each picture under each of the 15 corruptions, averaged over severities: (pictures, 15).

    None if the results lack one of them.
    """
    outcomes = result.outcomes.get(benchmark, {})
    every = [[Condition("corruption", name, severity) for severity in SEVERITIES] for name in PUBLISHED]
    if any(each not in outcomes or "right" not in outcomes[each].columns for several in every for each in several):
        return None
    return np.stack([shortfall([outcomes[each] for each in several], "right") for several in every], 1)


def relative_error(
    result: Results, baseline: Results, benchmark: str = "corruptions"
) -> tuple[float, float, float] | None:
    """The mean over 15 corruptions of the error relative to a baseline, in percent, with its interval.

    None if one of the two lacks a corruption. Both must be on the same pictures.
    """
    mine, others = corruption_errors(result, benchmark), corruption_errors(baseline, benchmark)
    if mine is None or others is None:
        return None
    both = np.concatenate([mine, others], 1)
    count = mine.shape[1]
    least = 1 / (len(SEVERITIES) * len(both))  # the error of one picture at one severity, to avoid division by 0

    def statistic(means: np.ndarray) -> np.ndarray:
        own, other = means[..., :count], means[..., count:]
        return 100 * np.where(own == other, 1.0, own / np.maximum(other, least)).mean(-1)

    return bootstrap(both, statistic)


MEMBERS = {
    "corruptions": Member(corruptions, CorruptionBenchmarkOptions, Relative("CE", ALL_CORRUPTIONS, relative_error)),
    "imagenet_c": Member(imagenet_c, PublishedOptions),
    "cifar10_c": Member(cifar10_c, PublishedOptions),
}
