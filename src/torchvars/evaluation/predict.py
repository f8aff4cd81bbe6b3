"""Predictions for pictures without labels."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from ..data.loose import open_picture
from ..data.pictures import UNREADABLE
from ..models.classifier import Classifier
from ..models.peers import class_names, readable_name
from ..models.pixels import centre_pixels


class Prediction(NamedTuple):
    """One of the most probable classes."""

    index: int  # index of the logit
    name: str | None  # name of the class, as folders are named; None if it is unknown
    label: str  # readable name
    confidence: float  # its probability, by a softmax over all classes


@torch.no_grad()
def predict(
    classifier: Classifier,
    pictures: Sequence[Path],
    size: int,
    *,
    top: int = 5,
    batch: int = 32,
    device: torch.device | str = "cpu",
) -> Iterator[tuple[Path, list[Prediction] | str]]:
    """Each picture with its top classes, the most probable first, or with the error if it cannot be read.

    Args:
        size: side of the input: the shorter side is resized to 256 / 224 of it, and the centre cropped.
    """
    classifier.eval().to(device)
    names = class_names(classifier)
    for start in range(0, len(pictures), batch):
        shown = {path: _pixels(path, size) for path in pictures[start : start + batch]}
        readable = [pixels for pixels in shown.values() if isinstance(pixels, Tensor)]
        found = iter(_top(classifier(torch.stack(readable).to(device)), top, names) if readable else [])
        for path, pixels in shown.items():
            yield path, next(found) if isinstance(pixels, Tensor) else pixels


def _pixels(path: Path, size: int) -> Tensor | str:
    try:
        return centre_pixels(open_picture(path), size)
    except UNREADABLE as error:
        return f"{type(error).__name__}: {error}"


def _top(logits: Tensor, top: int, names: Sequence[str] | None) -> list[list[Prediction]]:
    confidences, indices = logits.softmax(-1).topk(min(top, logits.shape[-1]))
    return [
        [
            Prediction(index, *_named(index, names), confidence)
            for index, confidence in zip(*(each.tolist() for each in row), strict=True)
        ]
        for row in zip(indices, confidences, strict=True)
    ]


def _named(index: int, names: Sequence[str] | None) -> tuple[str | None, str]:
    if names is None:
        return None, f"class {index}"
    readable = readable_name(names[index])
    return names[index], readable if readable == names[index] else f"{readable} ({names[index]})"
