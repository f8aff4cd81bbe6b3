"""The model that is evaluated."""

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
    """A classifier and its description."""

    name: str
    classifier: Classifier  # pixels in [0, 1] -> logits
    size: int  # side of the images that it takes
    classes: tuple[str, ...] | None  # names of the classes of its logits; None if they are unknown
    sha256: str  # hash of its weights
    architecture: str | None = None  # "rvt_tiny_vars_d", "timm:resnet50"
    layers: dict[str, dict] = field(default_factory=dict)  # original strength and solver of its VARS layers
    conversion: dict | None = None  # which layers were converted, and how

    def describe(self) -> dict:
        """The description that identifies the model, for results files."""
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
    """Opens a model.

    Args:
        word: a name or path, as for `open_classifier`.
        size: side of the images; by default that of the model.

    Raises:
        ValueError: if the model does not take images of this size.
    """
    return subject_of(*open_classifier(word), size)


def subject_of(name: str, classifier: Classifier, size: int | None = None) -> Subject:
    """Makes a `Subject` of a classifier.

    Args:
        name: the name in results and tables.
        classifier: its `classes` are those of its logits; without them 1000 classes are taken to be those of ImageNet.
        size: side of the images; by default that of the model, or 224 if it is unknown.

    Raises:
        ValueError: if the model does not take images of this size.
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
    """Raises a ValueError unless a model takes images of this size."""
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
    """Changes the solver settings of all VARS layers of a trained model.

    Raises:
        ValueError: if there is no VARS layer, or a value is invalid. Then no layer is changed.
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
            layer.solver.steps = steps  # an invalid value raises an error at the first layer
        if solver is not None:
            layer.solver = solver_from({"name": solver, "steps": layer.solver.steps, "start": layer.solver.start})
        if strength is not None:
            layer.strength = strength


def digest_weights(model: nn.Module) -> str:
    """A hash of all parameters and buffers with their names, independent of the file."""
    digest = hashlib.sha256()
    for name, tensor in sorted({**model.state_dict(), **dict(model.named_buffers())}.items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
