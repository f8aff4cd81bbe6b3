"""Trained models by a word, ours or a peer's, and what their logits stand for."""

import json
import pickle
from collections.abc import Sequence
from pathlib import Path

import timm
import torch
from torch import Tensor, nn

from . import weights as stored
from .classifier import IMAGENET_MEAN, IMAGENET_STD, Classifier
from .embedded import embedded, find_embedded
from .origin import check_timm, count_classes, image_size
from .unfinished import RUN, load_unfinished


def open_classifier(word: str) -> tuple[str, Classifier]:
    """The name and the classifier that a word stands for, in evaluation mode.

    Args:
        word: a name whose weights ship; a folder written by `save_pretrained`, ours or that of transformers, or by a
            training run, which may be unfinished; a checkpoint of the authors (.pth); timm:NAME for a pretrained model
            of timm, or timm:NAME:FILE with weights in a file.
    """
    if word.startswith("timm:"):
        _, name, *file = word.split(":", 2)
        name, classifier = f"timm:{name}", Classifier(_build_timm(name, *file))
    elif Path(word).is_dir():
        folder = Path(word).resolve()  # so that . has a name
        folder = folder / "weights" if (folder / "weights" / stored.CONFIG).exists() else folder
        name = folder.parent.name if folder.name == "weights" else folder.name
        if is_of_transformers(folder):
            classifier = load_from_transformers(folder)
        else:
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


@torch.no_grad()
def resized(name: str, classifier: Classifier, size: int) -> Classifier:
    """Lets a model take pictures of another size, its position embeddings resampled if it has any; in place.

    Raises:
        ValueError: it takes none of that size.
    """
    model, own = classifier.model, own_size(classifier.model)
    try:
        if hasattr(model, "set_input_size"):
            model.set_input_size(img_size=(size, size))
            if origin := getattr(model, "origin", None):
                model.origin = {**origin, "options": {**origin["options"], "img_size": size}}
        classifier.eval()(torch.zeros(1, len(classifier.mean), size, size))
    except (AssertionError, RuntimeError, ValueError) as error:
        raise ValueError(f"{name}, made for {own} pixels, takes no pictures of {size} x {size}: {error}") from error
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


def is_of_transformers(folder: Path) -> bool:
    """Whether a folder was written by `save_pretrained` of transformers, by whose config.json it is known."""
    try:
        config = json.loads((folder / stored.CONFIG).read_text())
    except (OSError, ValueError):  # what is wrong with it is said where it is read
        return False
    return isinstance(config, dict) and "model_type" in config and "architecture" not in config


def load_from_transformers(folder: Path) -> Classifier:
    """The image classifier in such a folder; mean and deviation of its pixels are those of its image processor."""
    try:
        from transformers import AutoModelForImageClassification
    except ModuleNotFoundError as error:
        raise ValueError(f'the model in {folder} needs transformers: pip install "torchvars[hf]"') from error
    try:
        model, told = AutoModelForImageClassification.from_pretrained(folder, output_loading_info=True)
    except (ValueError, RuntimeError) as error:
        raise ValueError(f"{folder} holds no image classifier of transformers that can be loaded: {error}") from error
    if missing := sorted(told["missing_keys"]):
        raise ValueError(f"{folder} has no weights for {missing[0]}, so that it is no trained classifier")
    processor = folder / "preprocessor_config.json"
    if not processor.exists():
        raise ValueError(
            f"{folder} does not say the mean and deviation of its pixels: save the image processor of the model there"
        )
    normal = json.loads(processor.read_text())
    mean, std = normal.get("image_mean", IMAGENET_MEAN), normal.get("image_std", IMAGENET_STD)
    if normal.get("do_normalize") is False:
        mean, std = (0.0,) * len(mean), (1.0,) * len(std)
    # Names such as "tench, Tinca tinca" are for people; of 1000 it is known which they are, see `class_names`.
    names = [model.config.id2label[number] for number in range(model.config.num_labels)]
    generic = len(names) == 1000 or all(name == f"LABEL_{number}" for number, name in enumerate(names))
    return Classifier(model, mean, std, None if generic or len(set(names)) < len(names) else names)


def _build_timm(name: str, file: str | None = None) -> nn.Module:
    check_timm(name)
    if file is not None and not Path(file).exists():
        raise FileNotFoundError(f"no weights at {file} for {name}")
    overlay = None if file is None else {"file": file}
    try:
        return timm.create_model(name, pretrained=True, pretrained_cfg_overlay=overlay)
    except (RuntimeError, pickle.UnpicklingError) as error:
        raise ValueError(f"timm:{name} cannot be had with weights{f' of {file}' if file else ''}: {error}") from error
