"""Models as the page takes them: ONNX files with maps, compressed, and a list of them."""

import gzip
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from ..maps import WithMaps
from ..models.classifier import Classifier, own_size
from ..models.embedded import EMBEDDED
from ..models.export import export
from ..models.origin import image_size
from ..models.peers import class_names, readable_name
from ..models.sources import open_classifier

LIST = "models.json"
COMPARED = 2  # models that are side by side at first


@dataclass(frozen=True)
class Packed:
    """Files of the page by their paths in it, and the kind of maps in them."""

    files: dict[str, bytes]
    kind: str


def pack(words: Sequence[str], *, say: Callable[[str], object] = lambda line: None) -> Packed:
    """Models of any words for trained weights, exported with maps of one kind, so that they can be compared.

    That is "implicit" if every model has it in a forward pass, else "energy".

    Args:
        say: told of each step, in a line.

    Raises:
        ValueError: a word stands for no model, or a model is none for the page.
    """
    opened = {}
    for word in words:
        name, classifier = open_classifier(word)
        if name in opened:
            raise ValueError(f"two of the models are called {name}: the page tells them apart by their names")
        check(name, classifier)
        opened[name] = classifier
    kind = common_kind(list(opened.values()))
    files, models = {}, []
    for number, (name, classifier) in enumerate(opened.items()):
        content, difference = exported(classifier, kind, lambda step, name=name: say(f"{name}: {step}"))
        say(f"{name}: logits within {difference:.1e} of the model's")
        file = f"models/{number}_{re.sub(r'[^A-Za-z0-9._-]', '_', name)}.onnx.gz"
        files[file] = gzip.compress(content, 9, mtime=0)
        models.append({**describe(name, classifier, kind), "file": file})
    listed = {"models": models, "shown": [model["name"] for model in models[:COMPARED]]}
    return Packed({LIST: (json.dumps(listed, indent=1, ensure_ascii=False) + "\n").encode(), **files}, kind)


def check(name: str, classifier: Classifier) -> None:
    """A ValueError if the page could not show a model."""
    if len(classifier.mean) != 3:
        raise ValueError(f"{name} takes {len(classifier.mean)} channels: the page shows pictures in RGB")
    size = image_size(classifier.model) or (224, 224)
    if size[0] != size[1]:
        raise ValueError(f"{name} takes pictures of {size[0]} x {size[1]}: the page shows squares")


def common_kind(classifiers: Sequence[Classifier]) -> str:
    """The kind of maps that all models have."""
    for kind in ("implicit", "energy"):
        try:
            for classifier in classifiers:
                WithMaps(classifier, torch.zeros(1, 3, *[own_size(classifier.model)] * 2), kind)
        except ValueError:
            if kind == "energy":
                raise
        else:
            break
    return kind


def exported(classifier: Classifier, kind: str, say: Callable[[str], object]) -> tuple[bytes, float]:
    """The ONNX file of a model with maps, and how far its logits are from the model's."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        size = own_size(classifier.model)
        difference = export(classifier, path, "onnx", size, extend=partial(WithMaps, kind=kind), half=True, report=say)
        return path.read_bytes(), difference


def describe(name: str, classifier: Classifier, kind: str) -> dict[str, object]:
    """What the page has to know of a model beside its file."""
    size = own_size(classifier.model)
    names = class_names(classifier)
    count = classifier(torch.zeros(1, 3, size, size)).shape[-1]
    maps = WithMaps(classifier, torch.zeros(1, 3, size, size), kind)
    return {
        "name": name,
        "label": label_of(name),
        "parameters": sum(parameter.numel() for parameter in classifier.parameters()),
        "size": [size, size],
        "classes": [f"class {index}" for index in range(count)] if names is None else [*map(readable_name, names)],
        "measured": measured(name),
        "maps": maps.metadata,
    }


def label_of(name: str) -> str:
    """A name as a short heading: that of the attention, where a name of ours says it."""
    found = re.fullmatch(r"\w+?_(softmax|performer|hedgehog|global_filter|vars_(?:sd|s|d|p))(?:\.\w+)?", name)
    if found is None:
        return name
    word = found[1]
    return word.replace("_", "-").upper() if word.startswith("vars") else word.replace("_", " ").capitalize()


def measured(name: str) -> str:
    """The accuracy that a model which ships was measured to have, in words."""
    path = EMBEDDED / name / "record.json"
    if not path.exists():
        return ""
    trials = json.loads(path.read_text())["trials"]
    found = {
        word: row[3]
        for word, (benchmark, condition) in MEASURED.items()
        for row in trials.get(benchmark, {"rows": []})["rows"]
        if row[:3] == [condition, None, "accuracy"]
    }
    return ", ".join(f"{word} {value:.1f} %" for word, value in found.items())


MEASURED = {"clean": ("clean", "clean"), "corrupted": ("corruptions", "all")}  # word: benchmark and condition
