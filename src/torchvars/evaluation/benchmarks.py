"""What a model is tried on: each benchmark is a list of conditions, and what is made of their outcomes."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from torch import Tensor, nn

from ..data import Source, leave_out, limited, open_source
from ..data.arrays import Arrays
from ..data.pictures import Pictures, to_pixels
from ..data.sources import Folder, absolute
from ..models.peers import Among
from .attacks import ATTACKS, PGD, Attack, Square, Transferred
from .chance import generators_of
from .corruptions import EXTRA, PUBLISHED, corrupt
from .corruptions.frost import official
from .metrics import bootstrap
from .results import Figure, Outcome, key_of
from .subjects import Subject

SEVERITIES = (1, 2, 3, 4, 5)

# Mean errors of AlexNet over the severities, to which the errors on ImageNet-C are put in relation.
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

Change = Callable[
    [nn.Module, Tensor, Tensor, Sequence[str]], Tensor
]  # classifier, pixels, labels, identities -> pixels


class Condition(NamedTuple):
    """The pictures once, changed in one way."""

    name: str
    severity: int | None
    source: Source
    change: Change | None = None


@dataclass(frozen=True)
class Benchmark:
    """Conditions on the same pictures, and how they are summed up."""

    name: str
    protocol: str
    data: str  # where the pictures are
    conditions: list[Condition]
    among_present: bool = False  # whether the answer is looked for among the classes of the pictures only
    attacks: dict[str, Attack | Transferred] = field(default_factory=dict)  # condition -> attack
    reference: Mapping[str, float] | None = None  # mean errors to which those of the corruptions are put in relation
    missing: tuple[str, ...] = ()  # what should be there and is not
    not_asked: tuple[str, ...] = ()  # what sums lack because it was not chosen
    change: str = ""  # what decides what is done to a picture, beside its size and the condition


@dataclass(frozen=True)
class Options:
    """What may be chosen of a benchmark."""

    seed: int = 0
    """Of everything that is left to chance."""
    limit: int | None = None
    """Use so many of the pictures, always the same."""
    label_space: str | None = None
    """Classes among which the answer is looked for: "model" for all of the model, "present" for those of the data set;
    else the latter if they are fewer. ImageNet-A and ImageNet-R are always judged among those present."""
    corruptions: tuple[str, ...] = PUBLISHED + EXTRA
    """Which of them."""
    severities: tuple[int, ...] = SEVERITIES
    """Of the corruptions."""
    strengths: str | None = None
    """Of the corruptions: "imagenet" or "cifar"; else the one nearer in size."""
    frost: Path | None = None
    """Folder of the published frost pictures; else ice is made up."""
    radii: tuple[float, ...] | None = None
    """Of attacks, with pixels in [0, 1]; 1, 2, 4 and 8 of 255 for linf, and to be given for l2."""
    norm: str = "linf"
    """Of attacks: linf or l2."""
    attack_steps: tuple[int, ...] = (5, 20)
    """Of PGD; more than one number makes more conditions."""
    queries: int = 200
    """Of Square."""
    transfer: Subject | None = None
    """Attack this model instead, and try the pictures on the other."""
    left_out: str = "sketch"
    """Domain of PACS that was not trained on."""

    def __post_init__(self):
        every = PUBLISHED + EXTRA
        if strange := [name for name in self.corruptions if name not in every]:
            raise ValueError(f"no corruption named {strange[0]!r}: there are {', '.join(every)}")
        if strange := [severity for severity in self.severities if severity not in SEVERITIES]:
            raise ValueError(f"severities are 1, 2, 3, 4 and 5, got {strange[0]}")
        if self.label_space not in (None, "model", "present"):
            raise ValueError(f"label_space must be model or present, got {self.label_space!r}")
        for name in ("corruptions", "severities"):
            object.__setattr__(self, name, tuple(dict.fromkeys(getattr(self, name))))  # each once
        if self.norm not in ("linf", "l2"):
            raise ValueError(f"norm must be linf or l2, got {self.norm!r}")
        if self.frost is not None:
            object.__setattr__(self, "frost", Path(self.frost))
            if not self.frost.is_dir():
                raise FileNotFoundError(
                    f"no folder of frost pictures at {self.frost}: leave it out for ice that is made up"
                )
            official(str(self.frost))
        if self.radii is None and self.norm == "linf":
            object.__setattr__(self, "radii", (1 / 255, 2 / 255, 4 / 255, 8 / 255))
        if self.norm == "linf" and max(self.radii) > 1:
            raise ValueError(
                f"pixels are in [0, 1], and no linf radius is above 1, got {max(self.radii):g}: did you mean "
                f"{max(self.radii):g}/255?"
            )

    def not_asked(self) -> tuple[str, ...]:
        """What sums over the 15 corruptions and 5 severities lack because it was not chosen."""
        missing = [name for name in PUBLISHED if name not in self.corruptions]
        return (*missing, *(f"severity {severity}" for severity in SEVERITIES if severity not in self.severities))


def clean(path: str, subject: Subject, options: Options) -> Benchmark:
    """Clean pictures."""
    source = limited(open_source(path, "val"), options.limit)
    conditions, among = [Condition("clean", None, source)], among_present(source, subject, options)
    return Benchmark("clean", f"{centred(subject)}; top-1", absolute(path), conditions, among)


def corruptions(path: str, subject: Subject, options: Options) -> Benchmark:
    """Corruptions of clean pictures, made on the fly: 15 and 4 extra, at 5 severities."""
    source = limited(open_source(path, "val"), options.limit)
    strengths = options.strengths or ("imagenet" if subject.size > 85 else "cifar")

    def change(name: str, severity: int) -> Change:
        def corrupted(classifier: nn.Module, pixels: Tensor, labels: Tensor, identities: Sequence[str]) -> Tensor:
            return corrupt(
                pixels, name, severity, identities, seed=options.seed, strengths=strengths, frost=options.frost
            )

        return corrupted

    conditions = [Condition("clean", None, source)]
    for name in options.corruptions:
        conditions += [Condition(name, severity, source, change(name, severity)) for severity in options.severities]
    done = f"the strengths for {strengths}, 8 bit, seed {options.seed}"
    done += ", frost made up" if options.frost is None else f", frost of {options.frost.resolve()}"
    protocol, among = f"{centred(subject)}; then corrupted with {done}", among_present(source, subject, options)
    not_asked = options.not_asked()
    return Benchmark("corruptions", protocol, absolute(path), conditions, among, change=done, not_asked=not_asked)


def imagenet_c(path: str, subject: Subject, options: Options) -> Benchmark:
    """The published files of ImageNet-C, <corruption>/<severity>/<class>/<picture>."""
    found, missing = {}, []
    for name in options.corruptions:
        for severity in options.severities:
            folder = Path(path) / name / str(severity)
            if folder.is_dir():
                found[name, severity] = limited(Folder(folder), options.limit)
            elif name in PUBLISHED or (Path(path) / name).is_dir():  # the extra ones may be left out as a whole
                missing.append(f"{name}/{severity}")
    if not found:
        raise ValueError(f"{path} holds nothing of ImageNet-C: expected folders <corruption>/<severity>/<class>")
    first = next(iter(found.values()))
    for (name, severity), source in found.items():
        if source.identities != first.identities:
            differing = sorted(set(source.identities) ^ set(first.identities))
            raise ValueError(
                f"{name}/{severity} has other pictures than the rest: {len(source)} for {len(first)}, "
                f"such as {', '.join(differing[:3])}; copy it again, or leave it out with --corruptions"
            )
    conditions = [Condition(name, severity, source) for (name, severity), source in found.items()]
    missing += missing_classes(first, "imagenet-1k")
    return Benchmark(
        "imagenet_c",
        f"published files, {stored(subject, first)}; CE relative to AlexNet",
        absolute(path),
        conditions,
        among_present(first, subject, options),
        reference=ALEXNET,
        missing=tuple(missing),
        not_asked=options.not_asked(),
    )


def cifar10_c(path: str, subject: Subject, options: Options) -> Benchmark:
    """The published arrays of CIFAR-10-C, <corruption>.npy and labels.npy."""
    folder = Path(path)
    if not (folder / "labels.npy").exists():
        raise ValueError(f"{path} holds nothing of CIFAR-10-C: expected labels.npy and <corruption>.npy")
    labels = np.load(folder / "labels.npy")
    count = len(labels) // len(SEVERITIES)
    if count == 0 or not np.array_equal(labels, np.tile(labels[:count], len(SEVERITIES))):
        raise ValueError(
            f"{folder / 'labels.npy'} has {len(labels)} labels that are not those of the same pictures at 5 "
            "severities, one after the other: copy the published file"
        )
    conditions = [
        Condition(
            name,
            severity,
            limited(Arrays(folder / f"{name}.npy", labels, (severity - 1) * count, count, CIFAR10), options.limit),
        )
        for name in options.corruptions
        for severity in options.severities
        if (folder / f"{name}.npy").exists()
    ]
    asked = [name for name in PUBLISHED if name in options.corruptions]
    missing = tuple(f"{name}.npy" for name in asked if not (folder / f"{name}.npy").exists())
    if not conditions:
        raise ValueError(f"{path} holds none of {', '.join(f'{name}.npy' for name in options.corruptions[:3])}, ...")
    source = conditions[0].source
    protocol, among = f"published arrays, {stored(subject, source)}", among_present(source, subject, options)
    not_asked = options.not_asked()
    return Benchmark("cifar10_c", protocol, absolute(path), conditions, among, missing=missing, not_asked=not_asked)


def imagenet_a(path: str, subject: Subject, options: Options) -> Benchmark:
    """Natural adversarial examples (ImageNet-A), 200 classes."""
    return _of_200_classes("imagenet_a", "imagenet-a", path, subject, options)


def imagenet_r(path: str, subject: Subject, options: Options) -> Benchmark:
    """Renditions such as paintings and toys (ImageNet-R), 200 classes."""
    return _of_200_classes("imagenet_r", "imagenet-r", path, subject, options)


def _of_200_classes(name: str, subset: str, path: str, subject: Subject, options: Options) -> Benchmark:
    source = limited(open_source(path, "val"), options.limit)
    if strange := [each for each in source.classes if each not in _synsets(subset)]:
        raise ValueError(
            f"{path} has {len(strange)} classes that are not among the 200 of {name}, such as {strange[0]}: the answer "
            "is looked for among the folders, so that others must not be there"
        )
    return Benchmark(
        name,
        f"{centred(subject)}; top-1 among the classes of the folders",
        absolute(path),
        [Condition("clean", None, source)],
        among_present=True,
        missing=missing_classes(source, subset),
    )


def imagenet_sketch(path: str, subject: Subject, options: Options) -> Benchmark:
    """Drawings in black and white (ImageNet-Sketch), 1000 classes."""
    source = limited(open_source(path, "val"), options.limit)
    protocol, missing = f"{centred(subject)}; top-1", missing_classes(source, "imagenet-1k")
    conditions, among = [Condition("clean", None, source)], among_present(source, subject, options)
    return Benchmark("imagenet_sketch", protocol, absolute(path), conditions, among, missing=missing)


def pacs(path: str, subject: Subject, options: Options) -> Benchmark:
    """PACS: all pictures of the domain that was not trained on."""
    source = limited(leave_out(open_source(path, "val"), options.left_out, "test"), options.limit)
    conditions, among = [Condition(options.left_out, None, source)], among_present(source, subject, options)
    return Benchmark("pacs", f"{centred(subject)}; top-1", absolute(path), conditions, among)


def pgd(path: str, subject: Subject, options: Options) -> Benchmark:
    """Attacked by projected gradient descent."""
    attacks = [
        PGD(radius, norm=options.norm, steps=steps) for steps in options.attack_steps for radius in radii_of(options)
    ]
    return _attacked("pgd", attacks, path, subject, options)


def fgsm(path: str, subject: Subject, options: Options) -> Benchmark:
    """Attacked by one step along the sign of the gradient."""
    attacks = [ATTACKS["fgsm"](radius, norm=options.norm) for radius in radii_of(options)]
    return _attacked("fgsm", attacks, path, subject, options)


def square(path: str, subject: Subject, options: Options) -> Benchmark:
    """Attacked by random squares, without gradients."""
    attacks = [Square(radius, norm=options.norm, queries=options.queries) for radius in radii_of(options)]
    return _attacked("square", attacks, path, subject, options)


def autoattack(path: str, subject: Subject, options: Options) -> Benchmark:
    """Attacked by the ensemble AutoAttack, with the package of its authors."""
    attacks = [ATTACKS["autoattack"](radius, norm=options.norm) for radius in radii_of(options)]
    return _attacked("autoattack", attacks, path, subject, options)


def _attacked(name: str, attacks: Iterable[Attack], path: str, subject: Subject, options: Options) -> Benchmark:
    source = limited(open_source(path, "val"), options.limit)
    done = f"pixels in [0, 1], seed {options.seed}"
    if options.transfer is not None:
        check_same_classes(subject, options.transfer)
        attacks = [Transferred(attack, options.transfer.classifier) for attack in attacks]
        name = f"{name} of {options.transfer.name}"
        done += f"; made against {options.transfer.name}, sha256 {options.transfer.sha256[:12]}"
    named = {describe(attack): attack for attack in attacks}

    def change(attack: Attack | Transferred) -> Change:
        def attacked(classifier: nn.Module, pixels: Tensor, labels: Tensor, identities: Sequence[str]) -> Tensor:
            generators = generators_of(identities, name, describe(attack), options.seed)
            if not isinstance(attack, Transferred):
                return attack(classifier, pixels, labels, generators)
            source = attack.source.to(pixels.device)
            if isinstance(classifier, Among):  # labels count these classes, and both models have the same
                source = Among(source, classifier.columns.tolist()).to(pixels.device)
            return replace(attack, source=source)(classifier, pixels, labels, generators)

        return attacked

    conditions = [Condition("clean", None, source)]
    conditions += [Condition(each, None, source, change(attack)) for each, attack in named.items()]
    protocol, among = f"{centred(subject)}; {done}", among_present(source, subject, options)
    return Benchmark(name, protocol, absolute(path), conditions, among, attacks=named, change=done)


BENCHMARKS: dict[str, Callable[[str, Subject, Options], Benchmark]] = {
    benchmark.__name__: benchmark
    for benchmark in (
        clean,
        corruptions,
        imagenet_c,
        imagenet_a,
        imagenet_r,
        imagenet_sketch,
        cifar10_c,
        pacs,
        pgd,
        fgsm,
        square,
        autoattack,
    )
}


def among_present(source: Source, subject: Subject, options: Options) -> bool:
    """Whether the answer is looked for among the classes of the data set only; if these are all, there is no choice."""
    fewer = subject.classes is not None and len(source.classes) < len(subject.classes)
    return fewer and options.label_space != "model"


def radii_of(options: Options) -> tuple[float, ...]:
    if options.radii is None:
        raise ValueError("l2 radii have no usual sizes: give --radii, such as .5 for 32 pixels or 3 for 224")
    return options.radii


def describe(attack: Attack | Transferred) -> str:
    """The ball of an attack, and how hard it tries: "linf 1/255, 5 steps", "l2 0.5, 200 queries"."""
    rule = attack.attack if isinstance(attack, Transferred) else attack
    ball = f"linf {rule.radius * 255:.6g}/255" if rule.norm == "linf" else f"l2 {rule.radius:.6g}"
    return ball + "".join(f", {getattr(rule, word)} {word}" for word in ("steps", "queries") if hasattr(rule, word))


def centred(subject: Subject) -> str:
    size = subject.size
    return f"shorter side to {round(size * 256 / 224)}, centre {size} pixels, or as it is if of that size"


def stored(subject: Subject, source: Source) -> str:
    """How pictures that are published at one size are shown to a model."""
    _, picture, _ = Pictures(source, to_pixels).readable()
    return "as stored" if picture.size == (subject.size, subject.size) else centred(subject)


def check_same_classes(subject: Subject, other: Subject) -> None:
    """An attack on another model is told the same labels."""
    if subject.classes != other.classes:
        told = [
            "unknown classes"
            if each.classes is None
            else f"{len(each.classes)} classes, {', '.join(each.classes[:3])}, ..."
            for each in (subject, other)
        ]
        raise ValueError(
            f"{other.name} has {told[1]} and {subject.name} has {told[0]}: an attack can only be carried over between "
            "models of the same classes in the same order"
        )


def missing_classes(source: Source, subset: str) -> tuple[str, ...]:
    """Classes of a part of ImageNet that have no folder."""
    from timm.data import ImageNetInfo

    expected = ImageNetInfo(subset).label_names() if subset == "imagenet-1k" else _synsets(subset)
    return tuple(f"class {name}" for name in expected if name not in source.classes)


@cache
def _synsets(subset: str) -> list[str]:
    """Timm ships the lists, but not as subsets of its own."""
    import timm.data

    file = Path(timm.data.__file__).parent / "_info" / f"{subset.replace('-', '_')}_synsets.txt"
    return file.read_text().split()


# What is made of the outcomes


def summarize(benchmark: Benchmark, outcomes: Mapping[str, Outcome]) -> list[tuple[str, int | None, str, Figure]]:
    """Rows without their model: condition, severity, metric, figure. Accuracies and errors are in percent."""
    rows = []
    for condition in benchmark.conditions:
        outcome = outcomes[key_of(condition.name, condition.severity)]
        rows += [(condition.name, condition.severity, metric, figure) for metric, figure in outcome.figures.items()]
    by_name = {}
    for condition in benchmark.conditions:
        if condition.severity is not None:
            by_name.setdefault(condition.name, []).append(outcomes[key_of(condition.name, condition.severity)])
    consistencies = {}
    errors = {name: np.stack([~outcome.right for outcome in found], 1).mean(1) for name, found in by_name.items()}
    for name, error in errors.items():
        rows.append((name, None, "accuracy", bootstrap(100 * (1 - error))))
        if benchmark.reference and name in benchmark.reference:
            rows.append((name, None, "CE", bootstrap(100 * error / benchmark.reference[name])))
        if all("consistency" in outcome.figures for outcome in by_name[name]):
            shares = [outcome.figures["consistency"][0] for outcome in by_name[name]]
            rows.append((name, None, "consistency", (float(np.mean(shares)), None, None)))
            consistencies[name] = float(np.mean(shares))
    published = [name for name in PUBLISHED if name in errors]
    if published:
        together = np.stack([errors[name] for name in published], 1)
        mean = lambda means: means.mean(-1)  # noqa: E731
        rows.append(("all", None, "accuracy", bootstrap(100 * (1 - together), mean)))
        if all(name in consistencies for name in published):
            share = float(np.mean([consistencies[name] for name in published]))
            rows.append(("all", None, "consistency", (share, None, None)))
        if benchmark.reference:
            rows.append(("all", None, "mCE", bootstrap(100 * relative(errors, benchmark.reference, published), mean)))
    return rows


def relative(
    errors: Mapping[str, np.ndarray], reference: Mapping[str, float], names: Sequence[str] = PUBLISHED
) -> np.ndarray:
    """Errors of corruptions (N,), each divided by that of a reference: (N, corruptions). Their mean is the mCE."""
    return np.stack([np.asarray(errors[name]) / reference[name] for name in names], -1)
