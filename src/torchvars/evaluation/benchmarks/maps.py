"""What the attention of a model looks at: objects, what people look at, and whether corruptions change it."""

from collections.abc import Mapping
from dataclasses import dataclass

from ...data import Whole, limited, open_fixations, open_segmented
from ..conditions import CLEAN, Condition
from ..looking import RANDOM_WEIGHTS, Looking
from ..results import Outcome
from ..subjects import Subject
from ..tasks import Fixation, MapStability, Segmentation
from ..tasks.fixation import CENTRE_BIAS, CHANCE, ONE_OBSERVER, SIGMA
from ..tasks.segmentation import MASS, THRESHOLD, conditions, curve_rows
from .base import Benchmark, Data, Member, Options, Showing, Summed, centred, each_condition, whole
from .corruptions import Making, groups_of, summarize


@dataclass(frozen=True)
class Looked(Options):
    """What may be chosen where a map is judged."""

    map_kind: str = "implicit"
    """A name of `torchvars.maps.KINDS`."""
    map_layer: str = "-1"
    """An attention by its name or its place in order."""

    @property
    def looking(self) -> Looking:
        return Looking(self.map_kind, str(self.map_layer))


@dataclass(frozen=True)
class Compared(Looked):
    """What may be chosen where there is something that every map must beat."""

    baselines: bool = True
    """Whether that is measured, too."""


def segmentation(data: Data, subject: Subject, options: Compared) -> Benchmark:
    """Foreground from the map of an attention, by the masks of a data set in the layout of PASCAL VOC."""
    source = limited(open_segmented(data.path), options.limit)
    protocol = (
        f"{whole(subject)}; vars: map of the mean token, resized bilinearly to the picture, scaled from its minimum to "
        f"its maximum, foreground above {THRESHOLD}, FP and FN as shares of all pixels that count; dino: map of the "
        f"class token, or of the mean token where there is none, {100 * MASS:.0f} % of the mass, nearest upsampling, "
        "mean over the classes in a picture, with the best head for each class (which uses the masks) or the mean of "
        "the heads; void pixels never count"
    )
    return Benchmark(
        "segmentation",
        protocol,
        data.name,
        [Showing(condition, source) for condition in conditions(options.looking, options.baselines)],
        Segmentation(options.looking, options.baselines),
        shown=Whole,
        summarize=with_curves,
    )


def with_curves(benchmark: Benchmark, outcomes: Mapping[Condition, Outcome]) -> list[Summed]:
    """The figures of each condition, and IoU by threshold where maps were normalised."""
    curves = [
        Summed(*row) for condition in benchmark.conditions for row in curve_rows(condition, outcomes[condition].columns)
    ]
    return each_condition(benchmark, outcomes) + curves


def fixation(data: Data, subject: Subject, options: Compared) -> Benchmark:
    """The map of an attention against where people looked: MIT1003 as published, or a plain layout."""
    source = open_fixations(data.path)
    observed, source = bool(source.observers), limited(source, options.limit)
    showings = [Showing(CLEAN, source)]
    if options.baselines:
        names = [CHANCE, CENTRE_BIAS, RANDOM_WEIGHTS, *([ONE_OBSERVER] if observed else [])]
        showings += [Showing(Condition("baseline", name), source) for name in names]
    protocol = (
        f"{whole(subject)}; map resized bilinearly to the picture; all fixations, repeated ones too; negatives of AUC "
        "are all pixels, of the shuffled AUC the fixations of all other pictures; the centre bias is their density; "
        f"densities are Gaussians of deviation {SIGMA} of the longer side; KL in nats, information gain over the "
        "centre bias, a hundredth of every density uniform"
    )
    return Benchmark(
        "fixation",
        protocol,
        data.name,
        showings,
        Fixation(options.looking, options.baselines),
        shown=Whole,
    )


@dataclass(frozen=True)
class Stability(Making, Looked):
    """What may be chosen where the maps of clean and corrupted pictures are compared."""


def map_stability(data: Data, subject: Subject, options: Stability) -> Benchmark:
    """The maps of clean pictures against those of corrupted ones, and after each recurrent step."""
    source = limited(data.source, options.limit)
    showings = [Showing(CLEAN, source), *(Showing(each, source) for each in steps_of(subject, options.looking))]
    showings += options.corrupting(subject, source)
    done = options.done(subject)
    return Benchmark(
        "map_stability",
        f"{centred(subject)}; then corrupted with {done}; maps on the grid of the tokens; entropy as a share of that "
        "of a uniform map; a step is compared with the last",
        data.name,
        showings,
        MapStability(options.looking),
        change=done,
        not_asked=options.not_asked(),
        summarize=summarize,
        groups=groups_of(showings),
    )


def steps_of(subject: Subject, looking: Looking) -> list[Condition]:
    """The conditions in which a recurrent attention is looked at after each step; none of one that is not."""
    steps = looking.steps(subject)
    numbers = () if steps is None else range(steps + 1)
    return [Condition("step", f"step {step}", parameters=(("steps", step),)) for step in numbers]


MEMBERS = {
    "segmentation": Member(segmentation, Compared),
    "fixation": Member(fixation, Compared),
    "map_stability": Member(map_stability, Stability),
}
