"""Trained weights by name, path or address.

| name | weights |
|---|---|
| rvt_micro_vars_d.cifar10, or without the dot | weights that come with the package |
| a folder | written by `save_pretrained`, ours or that of transformers, or a training run, which may be unfinished |
| OWNER/NAME | a folder on the Hugging Face hub |
| a file | a checkpoint of the authors (.pth, .safetensors) |
| timm:NAME, timm:NAME:FILE | a pretrained model of timm, or one with weights from a file |
"""

import difflib
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import timm
from huggingface_hub import hf_hub_download
from torch import nn

from . import weights as stored
from .classifier import Classifier
from .embedded import embedded, find_embedded
from .origin import check_timm, origin_of
from .saved_by_transformers import architecture_in, load_from_transformers
from .unfinished import RUN, config_of_run, load_unfinished


@dataclass(frozen=True)
class Weights:
    """Trained weights before they are loaded."""

    name: str  # in results and tables
    architecture: str  # "rvt_tiny_vars_d", "timm:resnet50"
    classes: tuple[str, ...] | None  # names of the classes, if they are stored
    load: Callable[..., Classifier]  # options of the model to change (num_classes, img_size, ...) -> in evaluation mode


def open_classifier(word: str) -> tuple[str, Classifier]:
    """The name and the classifier of some weights, in evaluation mode."""
    found = find_weights(word)
    return found.name, found.load()


def find_weights(word: str | Path, **hub) -> Weights:
    """Finds weights by a name, see above.

    Args:
        hub: arguments of `hf_hub_download`, for a name on the hub.

    Raises:
        ValueError: there are no such weights; the message names those that exist.
    """
    word = str(word)
    if word.startswith("timm:"):
        _, name, *file = word.split(":", 2)
        check_timm(name)
        return Weights(f"timm:{name}", f"timm:{name.partition('.')[0]}", None, partial(_load_timm, name, *file))
    path = Path(word)
    if path.is_dir():
        return _of_folder(path.resolve())  # for the name of "."
    if path.is_file():
        classifier = Classifier(stored.load_released(path)).eval()
        origin = origin_of(classifier.model)
        assert origin is not None  # it was built by a name
        return Weights(path.stem, origin["name"], None, partial(_changed, classifier, path))
    if path.suffix in (".pth", ".safetensors"):
        raise FileNotFoundError(f"no file {word}")
    if "/" in word:  # a name on the hub has an owner
        return _of_folder(_download(word, **hub), name=path.name)
    try:
        return _of_folder(find_embedded(word))
    except ValueError as error:
        close = difflib.get_close_matches(word, embedded(), n=3)
        hint = f"did you mean {', '.join(close)}? " if close else ""
        raise ValueError(
            f"{word!r} is no trained model: {hint}expected a folder of weights or of a run, a checkpoint of the "
            "authors (.pth), timm:NAME, timm:NAME:FILE, OWNER/NAME on the hub, or a name whose weights ship "
            f"({', '.join(embedded()) or 'none yet'})"
        ) from error


def _of_folder(folder: Path, name: str | None = None) -> Weights:
    folder = folder / "weights" if (folder / "weights" / stored.CONFIG).exists() else folder
    name = name or (folder.parent.name if folder.name == "weights" else folder.name)
    if architecture := architecture_in(folder):
        return Weights(name, architecture, None, partial(load_from_transformers, folder))
    if (folder / RUN).exists():
        config, load = config_of_run(folder), partial(load_unfinished, folder)
    else:
        config, load = stored.read_config(folder), partial(stored.load, folder)
    classes = config.get("classes")
    return Weights(name, config["architecture"], None if classes is None else tuple(classes), load)


def _download(name: str, **hub) -> Path:
    """The local folder of the files of a name on the hub."""
    try:
        files = [hf_hub_download(name, file, **hub) for file in (stored.CONFIG, stored.WEIGHTS)]
    except (OSError, ValueError) as error:
        raise ValueError(f"no folder {name} here, nor could it be downloaded from the hub: {error}") from error
    return Path(files[0]).parent


def _changed(classifier: Classifier, path: Path, **changed) -> Classifier:
    """The classifier, built again if there are options to change."""
    if not changed:
        return classifier
    return stored.rebuild(stored.describe(classifier), classifier.model.state_dict(), path.parent, **changed)


def _load_timm(name: str, file: str | None = None, **changed) -> Classifier:
    return Classifier(_build_timm(name, file, **changed)).eval()


def _build_timm(name: str, file: str | None, **changed) -> nn.Module:
    if file is not None and not Path(file).exists():
        raise FileNotFoundError(f"no weights at {file} for {name}")
    overlay = None if file is None else {"file": file}
    try:
        return timm.create_model(name, pretrained=True, pretrained_cfg_overlay=overlay, **changed)
    except (RuntimeError, pickle.UnpicklingError) as error:
        raise ValueError(
            f"timm:{name} cannot be loaded with weights{f' of {file}' if file else ''}: {error}"
        ) from error
