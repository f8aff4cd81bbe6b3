"""Picture sizes and class names of trained models of any library."""

import re
from collections.abc import Sequence
from typing import cast

import timm
import torch
from torch import Tensor, nn

from .classifier import Classifier, own_size
from .origin import Described, count_classes


@torch.no_grad()
def resized(name: str, classifier: Classifier, size: int) -> Classifier:
    """Changes the size of the pictures of a model, and resamples its position embeddings; in place.

    Raises:
        ValueError: the model cannot take this size.
    """
    model, own = cast(Described, classifier.model), own_size(classifier.model)
    try:
        if hasattr(model, "set_input_size"):
            model.set_input_size(img_size=(size, size))
            if origin := getattr(model, "origin", None):
                model.origin = {**origin, "options": {**origin["options"], "img_size": size}}
        classifier.eval()(torch.zeros(1, len(classifier.mean), size, size))
    except (AssertionError, RuntimeError, ValueError) as error:
        raise ValueError(f"{name}, made for {own} pixels, takes no pictures of {size} x {size}: {error}") from error
    return classifier


def takes_size(name: str) -> bool:
    """Whether a model of timm (timm:NAME) is built for one size of pictures, and takes `img_size`."""
    cfg = timm.get_pretrained_cfg(name.removeprefix("timm:"), allow_unregistered=False)
    return cfg is None or cfg.fixed_input_size


def class_names(classifier: Classifier) -> tuple[str, ...] | None:
    """Names of the classes, as folders are named; those of ImageNet if there are 1000. None if they are unknown."""
    if classifier.classes is not None:
        return classifier.classes
    if count_classes(classifier.model) == 1000:
        from timm.data import ImageNetInfo

        return tuple(ImageNetInfo("imagenet-1k").label_names())
    return None


def readable_name(name: str) -> str:
    """The English name of a class of WordNet such as n01440764; any other name as it is."""
    if not re.fullmatch(r"n\d{8}", name):
        return name
    from timm.data import ImageNetInfo

    try:
        return ImageNetInfo("imagenet-1k").label_name_to_description(name).partition(",")[0]
    except KeyError:  # of other classes of ImageNet
        return name


class Among(nn.Module):
    """A classifier reduced to some of its classes."""

    columns: Tensor

    def __init__(self, classifier: nn.Module, columns: Sequence[int]):
        super().__init__()
        self.classifier = classifier
        self.register_buffer("columns", torch.tensor(columns), persistent=False)

    def forward(self, pixels: Tensor) -> Tensor:
        return self.classifier(pixels)[:, self.columns]
