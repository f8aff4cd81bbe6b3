"""Objectives without labels for converted models: each layer, or the whole model, learns from the original."""

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from ..attention.modes import evaluating
from ..data import derive_seed
from ..models import Classifier
from ..models.matching import Call, Joining, Matching
from .augment import Mix
from .distill import distillation_loss
from .objectives import Learned, Objective
from .recipe import Recipe


class Unlabelled(Objective):
    """Objective without labels, evaluated by layer errors, agreement with the original and, if possible, accuracy.

    Args:
        matching: the converted layers of the classifier that is trained.
        classifier: the classifier that is trained.
        columns: index of the logit of each class of the pictures; None if they have no labels that it knows.
        recipe: how the pictures of a batch are mixed, and the seed of that.
    """

    def __init__(self, matching: Matching, classifier: Classifier, columns: Sequence[int] | None, recipe: Recipe):
        self.matching, self.classifier = matching, classifier
        self.recipe = recipe
        self.mix = Mix(recipe.mixup, recipe.cutmix, recipe.switch, smoothing=0.0, classes=1)
        self.of_labels = None if columns is None else torch.tensor(columns)
        self.layers = tuple(name.removeprefix("model.") for name in matching.names)
        self.columns = (*self.layers, "loss", "agreed", "right", "right before")

    def begin(self, some_pictures: Callable[[], Tensor]) -> None:
        self.matching.settle(some_pictures())

    def prepare(self, pixels: Tensor, labels: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """Mixed pixels, from which the original model makes the targets; the labels are not used."""
        mixed, _ = self.mix(pixels, torch.zeros_like(labels), derive_seed(self.recipe.seed, "mix", step))
        return mixed, labels

    @torch.no_grad()
    def judge(self, pixels: Tensor, labels: Tensor) -> Tensor:
        before, calls = self.original(pixels)
        with evaluating(self.classifier):
            after = self.classifier(pixels)
            errors = self.matching.errors(calls).cpu().double()
        loss = distillation_loss(after.float(), before.float(), "soft", 1.0).cpu().double()
        known, found = before.argmax(-1).cpu(), after.argmax(-1).cpu()
        right = torch.full_like(known, -1) if self.of_labels is None else self.of_labels[labels]
        means = torch.cat([errors, loss[None]]).expand(len(pixels), -1)  # over the batch
        return torch.cat([means, torch.stack([known == found, found == right, known == right], -1)], -1)

    def original(self, pixels: Tensor) -> tuple[Tensor, dict[str, Call]]:
        """Logits of the original model, and the calls of the attentions that were replaced."""
        return self.matching.run_original(pixels)

    def metrics(self, sums: dict[str, float], read: int, count: int) -> dict[str, float]:
        read = max(read, 1)
        errors = {f"val_error/{name}": sums[name] / read for name in self.layers}
        found = {
            "val_error": sum(errors.values()) / len(errors),
            "val_loss": sums["loss"] / read,
            "val_agreement": sums["agreed"] / read,
        }
        if self.of_labels is not None:
            found |= {"val_accuracy": sums["right"] / count, "val_accuracy_before": sums["right before"] / count}
        return found | errors

    def describe_layers(self, errors: Mapping[str, float]) -> str:
        """Text for the relative errors of layers: the mean, the least and the largest."""
        least, most = min(errors, key=errors.__getitem__), max(errors, key=errors.__getitem__)
        return (
            f"relative error {math.fsum(errors.values()) / len(errors):.4f} "
            f"({errors[least]:.4f} {least} to {errors[most]:.4f} {most})"
        )

    def describe_evaluation(self, line: dict[str, float]) -> str:
        errors = {name: line[f"val_error/{name}"] for name in self.layers}
        text = f"held out: {self.describe_layers(errors)}, agreement {100 * line['val_agreement']:.2f} %"
        if "val_accuracy" in line:
            text += (
                f", accuracy {100 * line['val_accuracy']:.2f} % (original {100 * line['val_accuracy_before']:.2f} %)"
            )
        return text


class Match(Unlabelled):
    """Each converted layer learns the output of the attention that it replaces, on the same inputs."""

    best = ("val_error", -1)

    def __init__(self, classifier: Classifier, columns: Sequence[int] | None, recipe: Recipe):
        self.module = self.trained = matching = Matching(classifier)
        super().__init__(matching, classifier, columns, recipe)

    def learn(self, model: nn.Module, pixels: Tensor, targets: Tensor, step: int, place: Sequence[int]) -> Learned:
        errors = model(pixels)
        return Learned(errors.sum(), errors.new_zeros(()), errors)  # the sum: no layer's gradient depends on another

    def line(self, loss: float, right: float, errors: Sequence[float]) -> dict[str, float]:
        return {
            "loss": loss,
            "error": loss / len(errors),
            **{f"error/{name}": error for name, error in zip(self.layers, errors, strict=True)},
        }

    def describe(self, line: dict[str, float]) -> str:
        text = self.describe_layers({name: line[f"error/{name}"] for name in self.layers})
        return f"{text}, {self.describe_evaluation(line)}" if "val_error" in line else text


class Join(Unlabelled):
    """The converted model learns logits, final features and outputs of the attentions of the original.

    Args:
        teacher: the original.
        steps: of the whole run; the layers are joined during its first half.
    """

    best = ("val_loss", -1)

    def __init__(
        self, classifier: Classifier, teacher: Classifier, columns: Sequence[int] | None, recipe: Recipe, steps: int
    ):
        super().__init__(Matching(classifier), classifier, columns, recipe)
        assert recipe.conversion is not None
        self.conversion, self.steps = recipe.conversion, steps
        self.module = self.joining = Joining(classifier, teacher)
        self.trained = classifier.model
        if self.conversion.trained == "layers":
            self.trained = self.matching
            classifier.requires_grad_(False)
            self.matching.requires_grad_(True)

    def joined(self, step: int) -> tuple[str, ...]:
        """Names of the layers that are joined at a step, the last ones."""
        names, conversion = self.matching.names, self.conversion
        most = len(names) if conversion.joined is None else min(conversion.joined, len(names))
        group = min(conversion.groups, 1 + 2 * step * conversion.groups // max(self.steps, 1))
        return names[len(names) - math.ceil(most * group / conversion.groups) :]

    def learn(self, model: nn.Module, pixels: Tensor, targets: Tensor, step: int, place: Sequence[int]) -> Learned:
        logits, taught, of_features, errors = model(pixels, self.joined(step))
        recipe, conversion = self.recipe, self.conversion
        loss = distillation_loss(logits.float(), taught.float(), recipe.distillation, recipe.temperature)
        loss = loss + conversion.features * of_features + conversion.errors * errors.mean()
        return Learned(loss, (logits.argmax(-1) == taught.argmax(-1)).sum(), errors)

    def original(self, pixels: Tensor) -> tuple[Tensor, dict[str, Call]]:
        logits, _, calls = self.joining.run_teacher(pixels)
        return logits, calls

    def line(self, loss: float, right: float, errors: Sequence[float]) -> dict[str, float]:
        return {
            "loss": loss,
            "agreement": right,
            **{f"error/{name}": error for name, error in zip(self.layers, errors, strict=True)},
        }

    def describe(self, line: dict[str, float]) -> str:
        errors = {name: line[f"error/{name}"] for name in self.layers}
        text = f"loss {line['loss']:.4f}, agreement {100 * line['agreement']:.1f} %, {self.describe_layers(errors)}"
        return f"{text}, {self.describe_evaluation(line)}" if "val_error" in line else text
