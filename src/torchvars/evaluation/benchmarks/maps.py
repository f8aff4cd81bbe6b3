"""Benchmarks of attention maps: objects, fixations of people, and stability under corruptions."""

from collections.abc import Mapping
from dataclasses import dataclass

from ...data import Whole, limited, open_fixations, open_segmented
from ..conditions import CLEAN, Condition
from ..map_choice import RANDOM_WEIGHTS, MapChoice
from ..results import Outcome
from ..subjects import Subject
from ..tasks import Fixation, MapStability, Segmentation
from ..tasks.fixation import CENTRE_BIAS, CHANCE, ONE_OBSERVER, SIGMA
from ..tasks.segmentation import MASS, THRESHOLD, conditions, curve_rows
from .base import Benchmark, Data, Member, Options, Showing, Summed, centred, each_condition, whole
from .corruptions import SyntheticOptions, groups_of, summarize


@dataclass(frozen=True)
class MapOptions(Options):
    """The options of benchmarks of attention maps."""

    map_kind: str = "implicit"
    """The kind of map, a key of `torchvars.maps.KINDS`."""
    map_layer: str = "-1"
    """The attention, by its name or its index."""

    @property
    def map_choice(self) -> MapChoice:
        return MapChoice(self.map_kind, str(self.map_layer))


@dataclass(frozen=True)
class BaselineOptions(MapOptions):
    """The options of benchmarks of attention maps with baselines."""

    baselines: bool = True
    """Whether to evaluate the baselines."""


def segmentation(data: Data, subject: Subject, options: BaselineOptions) -> Benchmark:
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
        [Showing(condition, source) for condition in conditions(options.map_choice, options.baselines)],
        Segmentation(options.map_choice, options.baselines),
        shown=Whole,
        summarize=with_curves,
    )


def with_curves(benchmark: Benchmark, outcomes: Mapping[Condition, Outcome]) -> list[Summed]:
    """The figures of each condition, and IoU by threshold for the protocol "vars"."""
    curves = [
        Summed(*row) for condition in benchmark.conditions for row in curve_rows(condition, outcomes[condition].columns)
    ]
    return each_condition(benchmark, outcomes) + curves


def fixation(data: Data, subject: Subject, options: BaselineOptions) -> Benchmark:
    """Fixations of people predicted by the map of an attention: MIT1003 as published, or a plain layout."""
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
        Fixation(options.map_choice, options.baselines),
        shown=Whole,
    )


@dataclass(frozen=True)
class StabilityOptions(SyntheticOptions, MapOptions):
    """The options of `map_stability`."""


def map_stability(data: Data, subject: Subject, options: StabilityOptions) -> Benchmark:
    """Attention maps of clean and corrupted pictures compared, and those after each recurrent step."""
    source = limited(data.source, options.limit)
    showings = [Showing(CLEAN, source), *(Showing(each, source) for each in steps_of(subject, options.map_choice))]
    showings += options.corrupting(subject, source)
    done = options.done(subject)
    return Benchmark(
        "map_stability",
        f"{centred(subject)}; then corrupted with {done}; maps on the grid of the tokens; entropy as a share of that "
        "of a uniform map; a step is compared with the last",
        data.name,
        showings,
        MapStability(options.map_choice),
        change=done,
        not_asked=options.not_asked(),
        summarize=summarize,
        groups=groups_of(showings),
    )


def steps_of(subject: Subject, map_choice: MapChoice) -> list[Condition]:
    """The conditions after each recurrent step; empty for an attention that is not recurrent."""
    steps = map_choice.steps(subject)
    numbers = () if steps is None else range(steps + 1)
    return [Condition("step", f"step {step}", parameters=(("steps", step),)) for step in numbers]


MEMBERS = {
    "segmentation": Member(segmentation, BaselineOptions),
    "fixation": Member(fixation, BaselineOptions),
    "map_stability": Member(map_stability, StabilityOptions),
}
