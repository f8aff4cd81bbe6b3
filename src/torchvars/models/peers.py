"""Trained models by a word, ours or a peer's, and what their logits stand for."""

import pickle
from collections.abc import Sequence
from pathlib import Path

import timm
import torch
from torch import Tensor, nn

from . import weights as stored
from .classifier import Classifier
from .embedded import embedded, find_embedded
from .origin import check_timm, count_classes, image_size
from .unfinished import RUN, load_unfinished


def open_classifier(word: str) -> tuple[str, Classifier]:
    """The name and the classifier that a word stands for, in evaluation mode.

    Args:
        word: a name whose weights ship; a folder written by `save_pretrained` or a training run, which may be
            unfinished; a checkpoint of the authors (.pth); timm:NAME for a pretrained model of timm, or
            timm:NAME:FILE with weights in a file.
    """
    if word.startswith("timm:"):
        _, name, *file = word.split(":", 2)
        name, classifier = f"timm:{name}", Classifier(_build_timm(name, *file))
    elif Path(word).is_dir():
        folder = Path(word).resolve()  # so that . has a name
        folder = folder / "weights" if (folder / "weights" / stored.CONFIG).exists() else folder
        name = folder.parent.name if folder.name == "weights" else folder.name
        classifier = load_unfinished(folder) if (folder / RUN).exists() else stored.load(folder)
    elif Path(word).is_file():
        name, classifier = Path(word).stem, Classifier(stored.load_released(Path(word)))
    else:
        try:
            folder = find_embedded(word)
        except ValueError as error:
            raise ValueError(
                f"{word!r} is no trained model: expected a folder of weights, a checkpoint of the authors (.pth), "
                f"timm:NAME, or a name whose weights ship ({', '.join(embedded()) or 'none yet'})"
            ) from error
        name, classifier = folder.name, stored.load(folder)
    return name, classifier.eval()


def own_size(model: nn.Module) -> int:
    """Side of the pictures that a model was made for."""
    return (image_size(model) or (224, 224))[0]


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


class Among(nn.Module):
    """A classifier that is asked about some of its classes only."""

    def __init__(self, classifier: nn.Module, columns: Sequence[int]):
        super().__init__()
        self.classifier = classifier
        self.register_buffer("columns", torch.tensor(columns), persistent=False)

    def forward(self, pixels: Tensor) -> Tensor:
        return self.classifier(pixels)[:, self.columns]


def _build_timm(name: str, file: str | None = None) -> nn.Module:
    check_timm(name)
    if file is not None and not Path(file).exists():
        raise FileNotFoundError(f"no weights at {file} for {name}")
    overlay = None if file is None else {"file": file}
    try:
        return timm.create_model(name, pretrained=True, pretrained_cfg_overlay=overlay)
    except (RuntimeError, pickle.UnpicklingError) as error:
        raise ValueError(f"timm:{name} cannot be had with weights{f' of {file}' if file else ''}: {error}") from error
