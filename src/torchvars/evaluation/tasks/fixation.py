"""Is the map of an attention high where people looked?"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from ...data import Points, Source
from ...maps import observe
from ...scoring import Asked
from .. import saliency
from ..conditions import CLEAN, Condition
from ..looking import RANDOM_WEIGHTS, Looking, random_weights, resized
from ..subjects import Subject
from ..task import Metric, Task

SIGMA = 0.035  # deviation of the Gaussians around fixations, of the longer side of a picture: about a degree in MIT1003
CHANCE, CENTRE_BIAS, ONE_OBSERVER = "chance", "centre bias", "one observer"


class Others:
    """Where people looked in all other pictures, as if it had been in this one.

    Args:
        source: of which every target says the size of its picture.
    """

    def __init__(self, source: Source):
        points = [cast(Points, source.target(index)) for index in range(len(source))]
        self.shares = np.concatenate([each.places / size_of(each) for each in points])
        self.numbers = np.repeat(np.arange(len(points)), [len(each.places) for each in points])
        self.observed = all(each.observers is not None for each in points)

    def places(self, index: int, size: Sequence[int]) -> np.ndarray:
        """Those places (N, 2) in a picture of that size."""
        return self.shares[self.numbers != index] * size


def size_of(points: Points) -> tuple[int, int]:
    assert points.size is not None  # a source of fixations says it of every picture
    return points.size


class Judge(NamedTuple):
    """Whose maps are judged: the model's, unless another is named."""

    model: nn.Module
    layer: str
    others: Others
    fresh: nn.Module | None
    who: str = ""


@dataclass(frozen=True)
class Fixation(Task):
    """The map as a prediction of where people look.

    Args:
        looking: which map.
        baselines: whether the model with random weights is asked, too.
    """

    looking: Looking = field(default_factory=Looking)
    baselines: bool = True

    name, placed = "fixation", True
    columns = dict.fromkeys(("nss", "auc_judd", "auc_shuffled", "cc", "kl", "information_gain"), torch.nan)
    metrics = (
        Metric("NSS", "higher", "nss", digits=3),
        Metric("AUC-Judd", "higher", "auc_judd", digits=3),
        Metric("shuffled AUC", "higher", "auc_shuffled", digits=3),
        Metric("CC", "higher", "cc", digits=3),
        Metric("KL", "lower", "kl", digits=3),
        Metric("information gain", "higher", "information_gain", unit=" bit", digits=3),
    )

    def prepare(self, subject: Subject, source: Source, device: torch.device) -> Judge:
        layer, others = self.looking.check(subject), Others(source)
        return Judge(subject.classifier, layer, others, random_weights(subject) if self.baselines else None)

    def within(self, judge: Judge, condition: Condition) -> Judge:
        return judge if condition == CLEAN else judge._replace(who=condition.name)

    def score(self, judge: Judge, asked: Asked) -> dict[str, Tensor]:
        targets, maps = cast(Sequence[Points], asked.targets), [None] * len(asked.targets)
        if judge.who in ("", RANDOM_WEIGHTS):
            model = judge.fresh if judge.who else judge.model
            assert model is not None  # that with random weights is there if it is asked
            maps = self.looking.maps(observe(model, asked.pixels))
        found = [
            judge_points(points, each, judge.others.places(index, size_of(points)), judge.who)
            for index, points, each in zip(asked.indices, targets, maps, strict=True)
        ]
        return {name: torch.tensor([each.get(name, np.nan) for each in found]).double() for name in self.columns}

    def describe(self, judge: Judge) -> dict:
        return {"kind": self.looking.kind, "layer": self.looking.layer, "sigma": SIGMA}

    def protocol(self, judge: Judge) -> str:
        return f"; {self.looking.said(judge.layer)}"


def judge_points(points: Points, found: Tensor | None, others: np.ndarray, who: str) -> dict[str, float]:
    """What comes of one picture; nothing if nobody looked at it.

    Args:
        found: the map of a model, (h, w).
        others: places of the fixations of all other pictures in this one.
        who: `CHANCE`, `CENTRE_BIAS` or `ONE_OBSERVER` in place of a model.
    """
    (width, height), places = size_of(points), points.places
    if not len(places):
        return {}
    sigma = SIGMA * max(width, height)
    centre = saliency.blurred(others, height, width, sigma) if len(others) else np.ones((height, width))
    if who != ONE_OBSERVER:
        if who == CHANCE:
            guess = np.ones((height, width))
        elif who == CENTRE_BIAS:
            guess = centre
        else:
            assert found is not None
            guess = resized(found, height, width)
        return measures(guess, places, others, centre, sigma)
    every = []
    assert points.observers is not None  # where they are not, nobody asks for one
    for observer in np.unique(points.observers):
        own = points.observers == observer
        if not own.all():
            guess = saliency.blurred(places[~own], height, width, sigma)
            every.append(measures(guess, places[own], others, centre, sigma))
    return {name: float(np.mean([each[name] for each in every])) for name in every[0]} if every else {}


def measures(
    guess: np.ndarray, places: np.ndarray, others: np.ndarray, centre: np.ndarray, sigma: float
) -> dict[str, float]:
    """All measures of a map (H, W) of one picture, given the places of its fixations and of those of the others."""
    height, width = guess.shape
    looked, at = saliency.blurred(places, height, width, sigma), saliency.values_at(guess, places)
    return {
        "nss": saliency.nss(guess, places),
        "auc_judd": saliency.auc(at, guess.ravel()),
        "auc_shuffled": saliency.auc(at, saliency.values_at(guess, others)) if len(others) else np.nan,
        "cc": saliency.correlation(guess, looked),
        "kl": saliency.divergence(guess, looked),
        "information_gain": saliency.information_gain(guess, centre, places),
    }
