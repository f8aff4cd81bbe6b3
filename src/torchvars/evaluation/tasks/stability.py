"""The task of comparing attention maps of corrupted pictures with those of clean ones."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ...data import Source
from ...maps import observe
from ...scoring import Asked
from ..conditions import Condition
from ..subjects import Subject
from ..task import Metric
from .maps import MapTask


class Judge(NamedTuple):
    """The model whose maps are judged, and its maps of clean pictures.

    Attributes:
        layer: the name of the attention.
        clean: maps of clean pictures by their index in the source; a cache.
        step: number of recurrent steps; None for all.
    """

    model: nn.Module
    layer: str
    clean: dict[int, Tensor]
    step: int | None = None


@dataclass(frozen=True)
class MapStability(MapTask):
    """The map of a changed picture, compared with that of the clean picture after all recurrent steps."""

    name = "map_stability"
    columns = dict.fromkeys(("correlation", "distance", "entropy", "best_tenth"), torch.nan)
    metrics = (
        Metric("correlation", "higher", "correlation", digits=3),
        Metric("Jensen-Shannon distance", "lower", "distance", digits=3),
        Metric("entropy", "lower", "entropy", digits=3),
        Metric("share of the best tenth", "higher", "best_tenth", 100.0, " %"),
    )

    def prepare(self, subject: Subject, source: Source, device: torch.device) -> Judge:
        return Judge(subject.classifier, self.map_choice.check(subject), {})

    def within(self, judge: Judge, condition: Condition) -> Judge:
        return judge._replace(step=condition["steps"]) if condition.family == "step" else judge

    def score(self, judge: Judge, asked: Asked) -> dict[str, Tensor]:
        seen = observe(judge.model, asked.pixels)
        maps = self.map_choice.maps(seen, **({} if judge.step is None else {"step": judge.step})).flatten(1)
        if not all(index in judge.clean for index in asked.indices):
            known = seen if asked.pixels is asked.clean else observe(judge.model, asked.clean)
            judge.clean.update(zip(asked.indices, self.map_choice.maps(known).flatten(1), strict=True))
        clean = torch.stack([judge.clean[index] for index in asked.indices])
        shares, others = (each / each.sum(1, keepdim=True) for each in (maps, clean))
        return {
            "correlation": correlations(maps, clean),
            "distance": jensen_shannon(shares, others),
            "entropy": entropy(shares) / torch.tensor(shares.shape[1]).log2(),
            "best_tenth": shares.sort(1, descending=True).values[:, : max(round(shares.shape[1] / 10), 1)].sum(1),
        }


def correlations(one: Tensor, other: Tensor) -> Tensor:
    """The correlation of maps (B, N) over positions, (B,); 0 if one of them is constant."""
    one, other = (each - each.mean(1, keepdim=True) for each in (one, other))
    product = one.norm(dim=1) * other.norm(dim=1)
    return torch.where(product > 0, (one * other).sum(1) / product, 0)


def entropy(shares: Tensor) -> Tensor:
    """The entropy of probabilities (B, N) in bits, (B,)."""
    return -torch.special.xlogy(shares, shares).sum(1) / torch.tensor(2.0).log()


def jensen_shannon(one: Tensor, other: Tensor) -> Tensor:
    """The Jensen-Shannon distance of probabilities (B, N), from 0 to 1: the root of the divergence in bits, (B,)."""
    between = entropy((one + other) / 2) - (entropy(one) + entropy(other)) / 2
    return between.clamp_min(0).sqrt()
