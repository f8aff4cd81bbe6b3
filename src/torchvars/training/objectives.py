"""Objectives: what a model learns from a batch, and how it is evaluated."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..data import derive_seed
from ..scoring import answers
from .augment import Mix, augment_patches
from .distill import distillation_loss, soft_cross_entropy
from .recipe import Recipe


class Learned(NamedTuple):
    """Loss and figures of a portion of a batch."""

    loss: Tensor
    """Mean over the pictures, to be differentiated."""
    right: Tensor
    """Number of pictures that were classified as the objective demands."""
    errors: Tensor
    """Relative error of each layer that is matched, (layers); empty where none is."""


class Objective(ABC):
    """What is learned from pictures, and how it is evaluated.

    Attributes:
        module: the module whose forward a step runs. Processes add up their gradients
            for it as a whole, so that whatever has a gradient has to come from its forward.
        trained: the part of it whose parameters are optimized.
        columns: names of the columns that `judge` returns.
        layers: names of the layers of `Learned.errors`.
        best: metric by which checkpoints are compared, and 1 if more of it is better, -1 if less.
    """

    module: nn.Module
    trained: nn.Module
    columns: tuple[str, ...]
    layers: tuple[str, ...] = ()
    best: tuple[str, int] = ("val_accuracy", 1)

    def begin(self, some_pictures: Callable[[], Tensor]) -> None:  # noqa: B027 (most have nothing to do)
        """Called before the first step of a run without initial weights.

        Args:
            some_pictures: reads some of the pictures to learn from, (batch, 3, H, W).
        """

    def prepare(self, pixels: Tensor, labels: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """Pixels and labels of a batch -> pixels and targets to learn from at this step."""
        return pixels, labels

    @abstractmethod
    def learn(self, model: nn.Module, pixels: Tensor, targets: Tensor, step: int, place: Sequence[int]) -> Learned:
        """Loss and figures of a portion of a batch.

        Args:
            model: `module` as it was prepared for several processes and precisions.
            place: index of the process and of the portion, for random seeds.
        """

    @abstractmethod
    def judge(self, pixels: Tensor, labels: Tensor) -> Tensor:
        """Figures of held-out pictures in evaluation mode: (batch, columns), in double precision on the CPU."""

    @abstractmethod
    def metrics(self, sums: dict[str, float], read: int, count: int) -> dict[str, float]:
        """Metrics from the sums of the columns over the `read` of `count` pictures that could be read."""

    @abstractmethod
    def line(self, loss: float, right: float, errors: Sequence[float]) -> dict[str, float]:
        """Training metrics of an epoch for metrics.jsonl, from means over its pictures."""

    @abstractmethod
    def describe(self, line: dict[str, float]) -> str:
        """Text for a line of metrics: of a whole epoch, or as `line` returns them for its steps so far."""


class Labels(Objective):
    """Learns the labels of the pictures, and the logits of a teacher if there is one."""

    columns = ("loss", "right")

    def __init__(self, classifier: nn.Module, mix: Mix, teacher: nn.Module | None, recipe: Recipe):
        self.module, self.trained = classifier, getattr(classifier, "model", classifier)
        self.mix, self.teacher, self.recipe = mix, teacher, recipe

    def prepare(self, pixels: Tensor, labels: Tensor, step: int) -> tuple[Tensor, Tensor]:
        return self.mix(pixels, labels, derive_seed(self.recipe.seed, "mix", step))

    def learn(self, model: nn.Module, pixels: Tensor, targets: Tensor, step: int, place: Sequence[int]) -> Learned:
        recipe = self.recipe
        logits = model(pixels)
        loss = soft_cross_entropy(logits.float(), targets)
        if recipe.patches:
            seed = derive_seed(recipe.seed, "patches", step, *place)
            changed = augment_patches(pixels, probability=recipe.patches, seed=seed)
            loss = loss + soft_cross_entropy(model(changed).float(), targets)
        if self.teacher is not None:
            with torch.no_grad():
                taught = self.teacher(pixels)
            distilled = distillation_loss(logits.float(), taught.float(), recipe.distillation, recipe.temperature)
            loss = torch.lerp(loss, distilled, recipe.distillation_weight)
        # A mixed picture counts for the label of its larger share.
        right = (logits.argmax(-1) == targets.argmax(-1)).sum()
        return Learned(loss, right, loss.new_empty(0))

    def judge(self, pixels: Tensor, labels: Tensor) -> Tensor:
        columns = answers(self.module(pixels), labels)
        return torch.stack([columns[column] for column in self.columns], -1)

    def metrics(self, sums: dict[str, float], read: int, count: int) -> dict[str, float]:
        return {"val_loss": sums["loss"] / max(read, 1), "val_accuracy": sums["right"] / count}

    def line(self, loss: float, right: float, errors: Sequence[float]) -> dict[str, float]:
        return {"loss": loss, "accuracy": right}

    def describe(self, line: dict[str, float]) -> str:
        text = f"loss {line['loss']:.4f}, accuracy {100 * line['accuracy']:.{2 if 'val_loss' in line else 1}f} %"
        if "val_loss" not in line:
            return text
        return f"{text}, validation loss {line['val_loss']:.4f}, validation accuracy {100 * line['val_accuracy']:.2f} %"
