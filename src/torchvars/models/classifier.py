"""The classifier, pixels to logits, which is saved, shared, evaluated and exported."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from huggingface_hub import PyTorchModelHubMixin
from torch import Tensor, nn

from ..attention.base import is_symbolic
from .origin import count_classes, image_size
from .pixels import can_read, centre_pixels, check_range, to_rgb

if TYPE_CHECKING:
    from PIL import Image

HUB_OPTIONS = ("revision", "token", "cache_dir", "force_download", "local_files_only", "subfolder", "endpoint")
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Classifier(nn.Module, PyTorchModelHubMixin):
    """A model with its normalisation: pixels in [0, 1] -> logits.

    `transform` turns a picture into pixels. The first `checks_left` eager calls check the range of the pixels.

    `save_pretrained(folder)`, `from_pretrained(folder or hub name)` and `push_to_hub(name)` are those of
    huggingface_hub; a folder holds config.json, model.safetensors and a model card.

    Args:
        model: normalised images -> logits, or an object with `logits`, as in transformers. Its `pretrained_cfg`, if it
            has one, provides the defaults of mean and std.
        mean, std: mean and standard deviation of each channel of the training pictures.
        classes: names of the classes in the order of the logits, if known: names of folders, such as n01440764.
    """

    mean: Tensor
    std: Tensor
    checks_left = 8  # remaining calls with a check of the range; each check synchronises the device

    def __init__(
        self,
        model: nn.Module,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        classes: Sequence[str] | None = None,
    ):
        super().__init__()
        cfg = getattr(model, "pretrained_cfg", None) or {}
        self.model = model
        mean = tuple(mean if mean is not None else cfg.get("mean", IMAGENET_MEAN))
        std = tuple(std if std is not None else cfg.get("std", IMAGENET_STD))
        if len(mean) != len(std) or not all(map(math.isfinite, (*mean, *std))) or min(std) <= 0:
            raise ValueError(
                f"mean and std need one finite mean and one positive deviation for each channel, got {mean} and {std}"
            )
        channels = getattr(model, "in_chans", len(mean))
        if channels != len(mean):
            raise ValueError(
                f"the model takes {channels} channels, and there are means of {len(mean)}: pass mean and std"
            )
        if classes is not None and (isinstance(classes, str) or not all(isinstance(each, str) for each in classes)):
            raise ValueError(f"classes must be a sequence of names, got {classes!r}")
        self.classes = None if classes is None else tuple(classes)
        if self.classes is not None and len(set(self.classes)) < len(self.classes):
            twice = next(each for each in self.classes if self.classes.count(each) > 1)
            raise ValueError(f"each class needs a name of its own: {twice!r} is there twice")
        count = count_classes(model)
        if self.classes is not None and count not in (None, len(self.classes)):
            raise ValueError(f"the model has {count} classes, but {len(self.classes)} were named")
        if not any(mean) and set(std) == {1}:  # the caller may normalise
            self.checks_left = 0
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(-1, 1, 1), persistent=False)

    def forward(self, pixels: Tensor) -> Tensor:
        """Pixels (batch, channels, height, width) in [0, 1] -> logits (batch, classes)."""
        if not is_symbolic(pixels) and not pixels.is_floating_point():
            raise ValueError(f"pixels must be floating and in [0, 1], got {pixels.dtype}: divide by 255")
        if can_read(pixels) and self.checks_left > 0:
            self.checks_left -= 1
            check_range(pixels)
        return run_model(self.model, (pixels - self.mean.to(pixels.dtype)) / self.std.to(pixels.dtype))

    def transform(self, image: "Image.Image") -> Tensor:
        """The pixels of a picture as in evaluation: (3, size, size) in [0, 1], not normalised.

        The shorter side is resized to 256 / 224 of the model's size, bicubic, and the centre is cropped; a picture that
        has the size is left as it is. For a batch: `torch.stack([classifier.transform(image) for image in images])`.

        Args:
            image: a PIL image of any mode.
        """
        if len(self.mean) != 3:
            raise ValueError(
                f"the model takes {len(self.mean)} channels, but transform makes RGB: make the pixels yourself"
            )
        return centre_pixels(to_rgb(image), own_size(self.model))

    def save_pretrained(
        self, save_directory: str | Path, *, results: list[dict] | None = None, push_to_hub: bool = False, **hub
    ) -> str | None:
        """Writes the folder.

        Args:
            results: measured rows for the model card, with benchmark, metric, value, images and command.
            push_to_hub: upload it as well; `hub` are the arguments of `push_to_hub`.
        """
        from .weights import save

        save(self, Path(save_directory), results)
        return self.push_to_hub(**hub) if push_to_hub else None

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | Path, **options) -> "Classifier":
        """The classifier with some trained weights, named as on the command line, in evaluation mode.

        The name is one whose weights come with the package, a folder of weights or of a run, OWNER/NAME on the hub, a
        checkpoint of the authors (.pth), timm:NAME, or timm:NAME:FILE with weights from a file.

        `options` are those of hf_hub_download (revision, token, cache_dir, ...), and options of the model that replace
        the saved ones: num_classes, with which the head is new, img_size, attention_options, ...
        """
        from .sources import find_weights  # which builds classifiers

        of_hub = {name: options.pop(name) for name in HUB_OPTIONS if name in options}
        return find_weights(pretrained_model_name_or_path, **of_hub).load(**options)


def own_size(model: nn.Module) -> int:
    """Side of the pictures that a model was built for; 224 if it is unknown."""
    return (image_size(model) or (224, 224))[0]


def run_model(model: nn.Module, images: Tensor) -> Tensor:
    """The logits of a model, which may return them in an object, as in transformers."""
    output = model(images)
    if isinstance(output, Tensor) or is_symbolic(output):
        return output
    if not hasattr(output, "logits"):
        raise ValueError(
            f"{type(model).__name__} returns {type(output).__name__} without logits: take a model with a "
            "classification head, such as those of transformers.AutoModelForImageClassification"
        )
    return output.logits
