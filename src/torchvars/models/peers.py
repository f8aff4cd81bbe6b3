"""What has to be known of a trained model, ours or a peer's: its pictures, and what its logits stand for."""

import re
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from .classifier import Classifier, own_size
from .origin import count_classes


def resized(name: str, classifier: Classifier, size: int) -> Classifier:
    """Lets a model take pictures of another size, its position embeddings resampled; in place.

    Raises:
        ValueError: its library has no way to.
    """
    if not hasattr(classifier.model, "set_input_size"):
        own = own_size(classifier.model)
        raise ValueError(f"{name} was made for {own} pixels, and {type(classifier.model).__name__} has no other size")
    classifier.model.set_input_size(img_size=(size, size))
    return classifier


def class_names(classifier: Classifier) -> tuple[str, ...] | None:
    """What its logits stand for, as folders are named; those of ImageNet if there are 1000. None if it is not known."""
    if classifier.classes is not None:
        return classifier.classes
    if count_classes(classifier.model) == 1000:
        from timm.data import ImageNetInfo

        return tuple(ImageNetInfo("imagenet-1k").label_names())
    return None


def readable_name(name: str) -> str:
    """The name of a class in English, where it is one of WordNet such as n01440764; else as it is."""
    if not re.fullmatch(r"n\d{8}", name):
        return name
    from timm.data import ImageNetInfo

    try:
        return ImageNetInfo("imagenet-1k").label_name_to_description(name).partition(",")[0]
    except KeyError:  # of other classes of ImageNet
        return name


class Among(nn.Module):
    """A classifier that is asked about some of its classes only."""

    def __init__(self, classifier: nn.Module, columns: Sequence[int]):
        super().__init__()
        self.classifier = classifier
        self.register_buffer("columns", torch.tensor(columns), persistent=False)

    def forward(self, pixels: Tensor) -> Tensor:
        return self.classifier(pixels)[:, self.columns]
