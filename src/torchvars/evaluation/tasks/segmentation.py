"""The task of segmenting the foreground by an attention map."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from ...data import Source
from ...data.segmented import VOID
from ...data.targets import Mask
from ...maps import observe
from ...scoring import Asked
from ..conditions import Condition
from ..map_choice import RANDOM_WEIGHTS, MapChoice, centred_gaussian, resized
from ..metrics import bootstrap
from ..subjects import Subject
from ..task import Figure, Metric
from .maps import MapTaskWithBaselines

PROTOCOLS = ("vars", "dino_best_head", "dino_mean_head")
THRESHOLDS = tuple(round(0.05 * number, 2) for number in range(20))
THRESHOLD, MASS = 0.3, 0.6
ALL_FOREGROUND, CENTRED_GAUSSIAN = "all foreground", "centred Gaussian"
BASELINES = (ALL_FOREGROUND, CENTRED_GAUSSIAN, RANDOM_WEIGHTS)


def condition_of(protocol: str, who: str = "") -> Condition:
    """The condition of a protocol, for the model or for the baseline `who`."""
    return Condition("baseline", f"{protocol}, {who}") if who else Condition("map", protocol)


ASKED = {condition_of(protocol, who): (protocol, who) for protocol in PROTOCOLS for who in ("", *BASELINES)}
"""The protocol and the baseline (or "") of each condition."""


def conditions(map_choice: MapChoice, baselines: bool) -> list[Condition]:
    """The conditions in which a map is judged."""
    return [
        condition
        for condition, (protocol, who) in ASKED.items()
        if (baselines or not who) and (map_choice.by_head or protocol != "dino_best_head")
    ]


class Judge(NamedTuple):
    """The model whose maps are judged, and the protocol.

    Attributes:
        layer: the name of the attention.
        fresh: the model with random weights, if it is a baseline.
        protocol, who: those of the condition; `who` is the name of a baseline, or empty.
    """

    model: nn.Module
    layer: str
    fresh: nn.Module | None
    protocol: str = PROTOCOLS[0]
    who: str = ""


@dataclass(frozen=True)
class Segmentation(MapTaskWithBaselines):
    """Foreground and background from the attention map of a model that was not trained on masks."""

    name, placed = "segmentation", True
    columns = {  # noqa: RUF012
        **dict.fromkeys(("iou", "false_positive", "false_negative", "both", "either", "jaccard"), torch.nan),
        **{f"iou_{threshold:.2f}": torch.nan for threshold in THRESHOLDS},
    }
    metrics = (
        Metric("IoU", "higher", "iou", 100.0, " %"),
        Metric("pooled IoU", "higher", unit=" %"),
        Metric("FP", "lower", "false_positive", 100.0, " %"),
        Metric("FN", "lower", "false_negative", 100.0, " %"),
        Metric("IoU at the best threshold", "higher", unit=" %"),
        Metric("best threshold", "higher", listed=False, digits=2),
        Metric("IoU by threshold", "higher", unit=" %", listed=False),
        Metric("Jaccard", "higher", "jaccard", 100.0, " %"),
    )

    def prepare(self, subject: Subject, source: Source, device: torch.device) -> Judge:
        layer, (model, fresh) = self.map_choice.check(subject), self.models(subject)
        return Judge(model, layer, fresh)

    def within(self, judge: Judge, condition: Condition) -> Judge:
        protocol, who = ASKED[condition]
        return judge._replace(protocol=protocol, who=who)

    def score(self, judge: Judge, asked: Asked) -> dict[str, Tensor]:
        maps = self.maps(judge, asked)
        found = [
            judge_mask(mask.labels, judge.protocol, each, everything=judge.who == ALL_FOREGROUND)
            for mask, each in zip(cast(Sequence[Mask], asked.targets), maps, strict=True)
        ]
        return {name: torch.tensor([each.get(name, np.nan) for each in found]).double() for name in self.columns}

    def maps(self, judge: Judge, asked: Asked) -> list[Tensor]:
        """The map of each picture (h, w), or of each head (heads, h, w), at any size."""
        if judge.who in (ALL_FOREGROUND, CENTRED_GAUSSIAN):
            masks = cast(Sequence[Mask], asked.targets)
            return [torch.from_numpy(centred_gaussian(*mask.labels.shape)) for mask in masks]
        seen = observe(self.model_of(judge), asked.pixels)
        if judge.protocol == "vars":
            return list(self.map_choice.maps(seen))
        has_class_token = seen.run(seen.name(self.map_choice.place)).prefix > 0
        query = {"query": "class"} if has_class_token and self.map_choice.queried else {}
        head = {"head": "all"} if judge.protocol == "dino_best_head" else {}
        return list(self.map_choice.maps(seen, **query, **head))

    def figures(
        self, columns: Mapping[str, np.ndarray], clean: Mapping[str, np.ndarray] | None = None
    ) -> dict[str, Figure]:
        found = super().figures(columns)
        areas = np.stack([columns["both"], columns["either"]], 1)
        areas = areas[~np.isnan(areas).any(1)]
        if len(areas):
            pooled = bootstrap(100 * areas, lambda means: 100 * means[..., 0] / means[..., 1])
            found["pooled IoU"] = Figure(*pooled, len(areas))
        curve = curve_of(columns)
        if len(curve):
            best = bootstrap(100 * curve, lambda means: means.max(-1))
            found["IoU at the best threshold"] = Figure(*best, len(curve))
            chosen = THRESHOLDS[int(curve.mean(0).argmax())]
            found["best threshold"] = Figure(chosen, None, None, len(curve))
        return found


def curve_of(columns: Mapping[str, np.ndarray]) -> np.ndarray:
    """IoU at each of the thresholds: (pictures, thresholds)."""
    curve = np.stack([columns[f"iou_{threshold:.2f}"] for threshold in THRESHOLDS], 1)
    return curve[~np.isnan(curve).any(1)]


def judge_mask(labels: np.ndarray, protocol: str, saliency: Tensor, everything: bool = False) -> dict[str, float]:
    """The measures of one picture.

    Args:
        labels: (H, W), 0 for the background and 255 for pixels that are ignored.
        protocol: one of `PROTOCOLS`.
        saliency: the map (h, w), or those of all heads.
        everything: whether all pixels are foreground, whatever the map.
    """
    valid = labels != VOID
    if not valid.any():
        return {}
    if protocol == "vars":
        return foreground(labels, valid, resized(saliency, *labels.shape), everything)
    heads = saliency if saliency.ndim == 3 else saliency.unsqueeze(0)
    masks = resized(keep_mass(heads).double(), *labels.shape, mode="nearest") > 0.5
    masks = np.ones_like(masks) if everything else masks
    each = [
        max(overlap(labels == label, mask, valid) for mask in masks) for label in np.unique(labels[valid]) if label != 0
    ]
    return {"jaccard": float(np.mean(each))} if each else {}


def foreground(labels: np.ndarray, valid: np.ndarray, saliency: np.ndarray, everything: bool) -> dict[str, float]:
    """IoU of the foreground, false positives and negatives as shares of the valid pixels, and IoU by threshold."""
    objects, low, high = labels != 0, saliency.min(), saliency.max()
    scaled = (saliency - low) / (high - low) if high > low else np.zeros_like(saliency)
    mask = np.ones_like(objects) if everything else scaled > THRESHOLD
    shares = {
        "iou": overlap(objects, mask, valid),
        "false_positive": float((mask & ~objects)[valid].mean()),
        "false_negative": float((objects & ~mask)[valid].mean()),
        "both": float((objects & mask)[valid].mean()),
        "either": float((objects | mask)[valid].mean()),
    }
    if everything:
        return shares
    return shares | {f"iou_{each:.2f}": overlap(objects, scaled > each, valid) for each in THRESHOLDS}


def overlap(objects: np.ndarray, mask: np.ndarray, valid: np.ndarray) -> float:
    """Intersection over union among the valid pixels; NaN if both are empty."""
    either = (objects | mask) & valid
    return float((objects & mask & valid).sum() / either.sum()) if either.any() else np.nan


def keep_mass(heads: Tensor, mass: float = MASS) -> Tensor:
    """Masks of the largest values of each map (heads, h, w) that together are the share `mass` of its sum."""
    flat = heads.flatten(1)
    values, order = flat.sort(1)
    sums = values.cumsum(1)
    kept = sums > (1 - mass) * sums[:, -1:]
    return torch.zeros_like(kept).scatter(1, order, kept).view_as(heads)


def curve_rows(condition: Condition, columns: Mapping[str, np.ndarray]) -> list[tuple[Condition, str, Figure]]:
    """IoU by threshold, as rows whose conditions have the threshold as a parameter."""
    curve, rows = curve_of(columns), []
    for number, threshold in enumerate(THRESHOLDS if len(curve) else ()):
        at = Condition(condition.family, condition.name, parameters=(("threshold", threshold),))
        rows.append((at, "IoU by threshold", Figure(*bootstrap(100 * curve[:, number]), len(curve))))
    return rows
