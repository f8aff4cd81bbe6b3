"""Pixels in, logits out."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Classifier(nn.Module):
    """A model that normalises for itself: pixels in [0, 1] -> logits.

    Args:
        model: normalised images -> logits. Its `pretrained_cfg`, where it has one, says the mean and deviation.
        mean, std: of each channel of the pictures it was trained on.
    """

    def __init__(self, model: nn.Module, mean: Sequence[float] | None = None, std: Sequence[float] | None = None):
        super().__init__()
        cfg = getattr(model, "pretrained_cfg", None) or {}
        self.model = model
        mean = mean if mean is not None else cfg.get("mean", IMAGENET_MEAN)
        std = std if std is not None else cfg.get("std", IMAGENET_STD)
        if len(mean) != len(std) or min(std) <= 0:
            raise ValueError(f"mean and std need one positive deviation for each channel, got {mean} and {std}")
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1))
        self.register_buffer("std", torch.tensor(std).view(-1, 1, 1))

    def forward(self, pixels: Tensor) -> Tensor:
        """Pixels (batch, channels, height, width) in [0, 1] -> logits (batch, classes)."""
        return self.model((pixels - self.mean.to(pixels.dtype)) / self.std.to(pixels.dtype))
