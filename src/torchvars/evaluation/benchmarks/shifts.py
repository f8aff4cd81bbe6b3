"""Stored pictures of another distribution than the training data."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ...data import Source, leave_out, limited
from ..conditions import Condition
from ..subjects import Subject
from ..tasks import Classification
from .base import Benchmark, ClassOptions, Data, Member, Options, Showing, centred


def imagenet_a(data: Data, subject: Subject, options: Options) -> Benchmark:
    """Natural adversarial examples (ImageNet-A), 200 classes."""
    return _of_200_classes("imagenet_a", "imagenet-a", data, subject, options)


def imagenet_r(data: Data, subject: Subject, options: Options) -> Benchmark:
    """Renditions such as paintings and toys (ImageNet-R), 200 classes."""
    return _of_200_classes("imagenet_r", "imagenet-r", data, subject, options)


def _of_200_classes(name: str, subset: str, data: Data, subject: Subject, options: Options) -> Benchmark:
    source = limited(data.source, options.limit)
    if unknown := [each for each in source.classes if each not in _synsets(subset)]:
        raise ValueError(
            f"{data.path} has {len(unknown)} classes that are not among the 200 of {name}, such as {unknown[0]}: the "
            "folders are the label space, so there must be no others"
        )
    protocol, task = f"{centred(subject)}; top-1 among the classes of the folders", Classification(among_present=True)
    missing = missing_classes(source, subset)
    return Benchmark(name, protocol, data.name, [Showing(Condition("shift", "clean"), source)], task, missing=missing)


def imagenet_sketch(data: Data, subject: Subject, options: ClassOptions) -> Benchmark:
    """Drawings in black and white (ImageNet-Sketch), 1000 classes."""
    source = limited(data.source, options.limit)
    protocol, missing = f"{centred(subject)}; top-1", missing_classes(source, "imagenet-1k")
    showings, task = [Showing(Condition("shift", "clean"), source)], options.task(source, subject)
    return Benchmark("imagenet_sketch", protocol, data.name, showings, task, missing=missing)


@dataclass(frozen=True)
class DomainOptions(ClassOptions):
    """The options of pictures of several domains."""

    left_out: str = "sketch"
    """The domain that was left out of training."""


def pacs(data: Data, subject: Subject, options: DomainOptions) -> Benchmark:
    """PACS: all pictures of the domain that was left out of training."""
    source = limited(leave_out(data.source, options.left_out, "test"), options.limit)
    showings, task = [Showing(Condition("shift", options.left_out), source)], options.task(source, subject)
    return Benchmark("pacs", f"{centred(subject)}; top-1", data.name, showings, task)


MEMBERS = {
    "imagenet_a": Member(imagenet_a, Options),
    "imagenet_r": Member(imagenet_r, Options),
    "imagenet_sketch": Member(imagenet_sketch, ClassOptions),
    "pacs": Member(pacs, DomainOptions),
}


def missing_classes(source: Source, subset: str) -> tuple[str, ...]:
    """The classes of a subset of ImageNet that have no folder."""
    from timm.data import ImageNetInfo

    expected = ImageNetInfo(subset).label_names() if subset == "imagenet-1k" else _synsets(subset)
    return tuple(f"class {name}" for name in expected if name not in source.classes)


@cache
def _synsets(subset: str) -> list[str]:
    """The classes of a subset, from the lists that timm ships."""
    import timm.data

    file = Path(timm.data.__file__).parent / "_info" / f"{subset.replace('-', '_')}_synsets.txt"
    return file.read_text().split()
