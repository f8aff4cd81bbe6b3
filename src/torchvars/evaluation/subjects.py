"""The model that is evaluated, whoever made it."""

import hashlib
from dataclasses import dataclass, field

import torch
from torch import nn

from ..attention import Reconstruction
from ..models.classifier import Classifier, own_size
from ..models.convert import conversion_of
from ..models.origin import origin_of
from ..models.peers import class_names
from ..models.sources import open_classifier
from ..models.weights import layers_of
from ..sparse import solver_from, solver_names
from ..sparse.problem import check_strength


@dataclass(frozen=True)
class Subject:
    """A classifier and what has to be known of it."""

    name: str
    classifier: Classifier  # pixels in [0, 1] -> logits
    size: int  # side of the pictures it takes
    classes: tuple[str, ...] | None  # what its logits stand for; None if that is not known
    sha256: str  # of its weights
    architecture: str | None = None  # "rvt_tiny_vars_d", "timm:resnet50"
    layers: dict[str, dict] = field(default_factory=dict)  # strength and solver of its VARS layers, as it came
    conversion: dict | None = None  # which layers were converted, and to what

    def describe(self) -> dict:
        """What tells it apart from other models."""
        parameters = sum(parameter.numel() for parameter in self.classifier.parameters())
        known = {"architecture": self.architecture, "layers": self.layers, "conversion": self.conversion}
        return {
            "name": self.name,
            "sha256": self.sha256,
            "size": self.size,
            "parameters": parameters,
            **{name: value for name, value in known.items() if value},
        }


def open_subject(word: str, size: int | None = None) -> Subject:
    """The model that a word stands for.

    Args:
        word: as for `open_classifier`.
        size: side of the pictures; else the model's own.

    Raises:
        ValueError: the model does not take pictures of that size.
    """
    return subject_of(*open_classifier(word), size)


def subject_of(name: str, classifier: Classifier, size: int | None = None) -> Subject:
    """A classifier that is at hand, whatever model is in it, ready to be evaluated.

    Args:
        name: by which results and tables call it.
        classifier: its `classes` say what the logits stand for; a model of 1000 is taken to know those of ImageNet.
        size: side of the pictures; else the model's own, or 224 if it does not say.

    Raises:
        ValueError: the model does not take pictures of that size.
    """
    others = {each.dtype for each in classifier.parameters() if each.is_floating_point()} - {torch.float32}
    if others:
        raise ValueError(
            f"{name} has weights of {', '.join(map(str, others))}: models are evaluated in single precision; "
            "call .float() first"
        )
    if size is not None:
        check_size(name, classifier, size)
    origin = origin_of(classifier.model)
    return Subject(
        name,
        classifier,
        own_size(classifier.model) if size is None else size,
        class_names(classifier),
        digest_weights(classifier),
        None if origin is None else origin["name"],
        layers_of(classifier.model),
        conversion_of(classifier.model),
    )


@torch.no_grad()
def check_size(name: str, classifier: Classifier, size: int) -> None:
    """A ValueError unless a model takes pictures of that size."""
    if size < 1:
        raise ValueError(f"the side of the pictures (--img-size) must be at least 1, got {size}")
    try:
        classifier.eval()(torch.zeros(1, 3, size, size))
    except (AssertionError, RuntimeError, ValueError) as error:
        own = own_size(classifier.model)
        raise ValueError(
            f"{name}, made for {own} pixels, takes no pictures of {size} x {size} (--img-size): {error}"
        ) from error


def set_solving(
    subject: Subject, *, steps: int | None = None, strength: float | None = None, solver: str | None = None
) -> None:
    """Changes how every VARS layer solves its problem, on a model that is trained already.

    Raises:
        ValueError: no layer solves any, or a value is none they take; no layer is changed then.
    """
    layers = [layer for layer in subject.classifier.modules() if isinstance(layer, Reconstruction)]
    if not layers:
        raise ValueError(f"{subject.name} has no VARS layer: steps, strength and solver cannot be set")
    if solver is not None and solver not in solver_names():
        raise ValueError(f"no solver named {solver!r}: there are {', '.join(solver_names())}")
    if strength is not None:
        check_strength(strength)
    for layer in layers:
        if steps is not None:
            layer.solver.steps = steps  # refuses on the first layer or on none
        if solver is not None:
            layer.solver = solver_from({"name": solver, "steps": layer.solver.steps, "start": layer.solver.start})
        if strength is not None:
            layer.strength = strength


def digest_weights(model: nn.Module) -> str:
    """A hash of all weights and statistics by name, whatever file they came from."""
    digest = hashlib.sha256()
    for name, tensor in sorted({**model.state_dict(), **dict(model.named_buffers())}.items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
