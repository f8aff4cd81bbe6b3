"""The task of predicting where people look from an attention map."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from ...data import Points, Source
from ...maps import observe
from ...scoring import Asked
from .. import saliency
from ..conditions import CLEAN, Condition
from ..map_choice import RANDOM_WEIGHTS, resized
from ..subjects import Subject
from ..task import Metric
from .maps import MapTaskWithBaselines

SIGMA = 0.035  # deviation of the Gaussians around fixations, in longer sides of a picture: about 1 degree in MIT1003
CHANCE, CENTRE_BIAS, ONE_OBSERVER = "chance", "centre bias", "one observer"


class Others:
    """The fixations of all other pictures, scaled to a picture.

    Args:
        source: a source whose targets have the size of their picture.
    """

    def __init__(self, source: Source):
        points = [cast(Points, source.target(index)) for index in range(len(source))]
        self.shares = np.concatenate([each.places / size_of(each) for each in points])
        self.numbers = np.repeat(np.arange(len(points)), [len(each.places) for each in points])
        self.observed = all(each.observers is not None for each in points)

    def places(self, index: int, size: Sequence[int]) -> np.ndarray:
        """The places (N, 2) of all fixations except those of picture `index`, in a picture of this size."""
        return self.shares[self.numbers != index] * size


def size_of(points: Points) -> tuple[int, int]:
    assert points.size is not None  # sources of fixations provide it
    return points.size


class Judge(NamedTuple):
    """The model whose maps are judged; `who` is the name of a baseline, or empty."""

    model: nn.Module
    layer: str
    others: Others
    fresh: nn.Module | None
    who: str = ""


@dataclass(frozen=True)
class Fixation(MapTaskWithBaselines):
    """The attention map as a prediction of where people look."""

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
        layer, (model, fresh) = self.map_choice.check(subject), self.models(subject)
        return Judge(model, layer, Others(source), fresh)

    def within(self, judge: Judge, condition: Condition) -> Judge:
        return judge if condition == CLEAN else judge._replace(who=condition.name)

    def score(self, judge: Judge, asked: Asked) -> dict[str, Tensor]:
        targets, maps = cast(Sequence[Points], asked.targets), [None] * len(asked.targets)
        if judge.who in ("", RANDOM_WEIGHTS):
            maps = self.map_choice.maps(observe(self.model_of(judge), asked.pixels))
        found = [
            judge_points(points, each, judge.others.places(index, size_of(points)), judge.who)
            for index, points, each in zip(asked.indices, targets, maps, strict=True)
        ]
        return {name: torch.tensor([each.get(name, np.nan) for each in found]).double() for name in self.columns}

    def describe(self, judge: Judge) -> dict:
        return {**super().describe(judge), "sigma": SIGMA}


def judge_points(points: Points, found: Tensor | None, others: np.ndarray, who: str) -> dict[str, float]:
    """The measures of one picture; empty if it has no fixations.

    Args:
        found: the map of a model, (h, w).
        others: the places of the fixations of all other pictures, scaled to this one.
        who: `CHANCE`, `CENTRE_BIAS` or `ONE_OBSERVER` instead of a model.
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
    assert points.observers is not None  # without observers there is no such condition
    for observer in np.unique(points.observers):
        own = points.observers == observer
        if not own.all():
            guess = saliency.blurred(places[~own], height, width, sigma)
            every.append(measures(guess, places[own], others, centre, sigma))
    return {name: float(np.mean([each[name] for each in every])) for name in every[0]} if every else {}


def measures(
    guess: np.ndarray, places: np.ndarray, others: np.ndarray, centre: np.ndarray, sigma: float
) -> dict[str, float]:
    """All measures of a map (H, W), from the places of the fixations of its picture and of all others."""
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
