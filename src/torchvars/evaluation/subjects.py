"""The model that is evaluated, whoever made it."""

import hashlib
import pickle
from dataclasses import dataclass
from pathlib import Path

import timm
import torch
from torch import nn

from ..attention import Reconstruction
from ..models import Classifier
from ..models import weights as stored
from ..models.registry import EMBEDDED, embedded
from ..sparse import SOLVERS


@dataclass(frozen=True)
class Subject:
    """A classifier and what has to be known of it."""

    name: str
    classifier: nn.Module  # pixels in [0, 1] -> logits
    size: int  # side of the pictures it takes
    classes: tuple[str, ...] | None  # what its logits stand for; None if that is not known
    sha256: str  # of its weights

    def describe(self) -> dict:
        parameters = sum(parameter.numel() for parameter in self.classifier.parameters())
        return {"name": self.name, "sha256": self.sha256, "size": self.size, "parameters": parameters}


def open_subject(word: str, size: int | None = None) -> Subject:
    """The model that a word stands for.

    Args:
        word: a name whose weights ship; a folder written by `save_pretrained` or a training run; a checkpoint of the
            authors (.pth); timm:NAME for a pretrained model of timm, or timm:NAME:FILE with weights in a file.
        size: side of the pictures; else the model's own.
    """
    if word.startswith("timm:"):
        _, name, *file = word.split(":", 2)
        name, classifier = word if not file else f"timm:{name}", Classifier(_build_timm(name, *file))
    elif Path(word).is_dir():
        folder = Path(word).resolve()  # so that . has a name
        folder = folder / "weights" if (folder / "weights" / stored.CONFIG).exists() else folder
        classifier = stored.load(folder)
        name = folder.parent.name if folder.name == "weights" else folder.name
    elif Path(word).is_file():
        name, classifier = Path(word).stem, Classifier(stored.load_released(Path(word)))
    elif word in embedded():
        name, classifier = word, stored.load(EMBEDDED / word)
    else:
        raise ValueError(
            f"{word!r} is no model to evaluate: expected a folder of weights, a checkpoint of the authors (.pth), "
            f"timm:NAME, or a name whose weights ship ({', '.join(embedded()) or 'none yet'})"
        )
    classifier = classifier.eval()
    own = _own_size(classifier.model)
    return Subject(name, classifier, size or own, _classes(classifier), digest_weights(classifier))


def set_solving(
    subject: Subject, *, steps: int | None = None, strength: float | None = None, solver: str | None = None
) -> None:
    """Changes how every VARS layer solves its problem, on a model that is trained already.

    Raises:
        ValueError: no layer solves any.
    """
    layers = [layer for layer in subject.classifier.modules() if isinstance(layer, Reconstruction)]
    if not layers:
        raise ValueError(f"{subject.name} has no VARS layer: steps, strength and solver cannot be set")
    if solver is not None and solver not in SOLVERS:
        raise ValueError(f"no solver named {solver!r}: there are {', '.join(SOLVERS)}")
    for layer in layers:
        if solver is not None:
            layer.solver = SOLVERS[solver](steps=layer.solver.steps, start=layer.solver.start)
        if steps is not None:
            layer.solver.steps = steps
        if strength is not None:
            layer.strength = strength


def digest_weights(model: nn.Module) -> str:
    """A hash of all weights and statistics by name, whatever file they came from."""
    digest = hashlib.sha256()
    for name, tensor in sorted({**model.state_dict(), **dict(model.named_buffers())}.items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _build_timm(name: str, file: str | None = None) -> nn.Module:
    if not timm.is_model(name):
        close = timm.list_models(f"*{name.split('.')[0]}*")[:3]
        raise ValueError(f"timm knows no model {name!r}" + (f"; did you mean {', '.join(close)}?" if close else ""))
    if file is not None and not Path(file).exists():
        raise FileNotFoundError(f"no weights at {file} for {name}")
    overlay = None if file is None else {"file": file}
    try:
        return timm.create_model(name, pretrained=True, pretrained_cfg_overlay=overlay)
    except (RuntimeError, pickle.UnpicklingError) as error:
        raise ValueError(f"timm:{name} cannot be had with weights{f' of {file}' if file else ''}: {error}") from error


def _own_size(model: nn.Module) -> int:
    origin = getattr(model, "origin", None)
    if origin is not None and "img_size" in origin["options"]:
        size = origin["options"]["img_size"]
        return size if isinstance(size, int) else size[0]
    config = getattr(model, "pretrained_cfg", None) or {}
    return config.get("input_size", (3, 224, 224))[-1]


def _classes(classifier: Classifier) -> tuple[str, ...] | None:
    if classifier.classes is not None:
        return classifier.classes
    if getattr(classifier.model, "num_classes", None) == 1000:
        from timm.data import ImageNetInfo

        return tuple(ImageNetInfo("imagenet-1k").label_names())
    return None
