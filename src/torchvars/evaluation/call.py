"""An evaluation in one call."""

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from torch import nn

from ..models.classifier import Classifier
from . import run
from .benchmarks import build
from .results import Results
from .subjects import Subject, open_subject, subject_of
from .watch import watching


def evaluate(
    model: str | Path | Subject | nn.Module,
    benchmarks: str | Sequence[str],
    data: str | Path | Mapping[str, str | Path],
    *,
    output: str | Path | None = None,
    name: str | None = None,
    size: int | None = None,
    partial: bool = False,
    batch: int = 64,
    workers: int = 0,
    device: str | None = None,
    quiet: bool = False,
    **options: Any,
) -> Results:
    """Tries a model on benchmarks: what `torchvars evaluate` does, from Python.

    Args:
        model: a word as for `torchvars evaluate`, such as a name whose weights ship, a folder of weights or timm:NAME;
            or a `Classifier`, whose `classes` say what its logits stand for. Any other module is taken to be a model of
            normalised images, and wrapped in one.
        benchmarks: names of `torchvars.evaluation.BENCHMARKS`, in one string with commas or one by one.
        data: the pictures: a folder or tar with val/<class>/<picture>, or as a benchmark is published. Where benchmarks
            are of other pictures, those of each by its name: {"clean": ..., "segmentation": ...}.
        output: file of results. What it holds already is not tried again, so that the same call goes on where one was
            stopped, and other benchmarks can be added. Without it nothing is kept but what is returned.
        name: by which results and tables call the model; else the word, or the name of its class.
        size: side of the pictures; else the model's own.
        partial: whether to sum up although something is missing in the data.
        batch: pictures at a time.
        workers: processes that read pictures.
        device: such as "cpu" or "cuda:1"; else the accelerator if there is one.
        quiet: whether nothing is shown of the progress.
        options: what may be chosen of these benchmarks: limit=100, severities=(1, 3), radii=(1 / 255,), ...

    Raises:
        ValueError: there is no such model, benchmark or option; the model knows other classes; something is missing.
    """
    subject = as_subject(model, name, size)
    names = benchmarks.split(",") if isinstance(benchmarks, str) else benchmarks
    places: str | Mapping[str | None, str] = str(data)
    if isinstance(data, Mapping):
        places = {name: str(path) for name, path in data.items()}
    chosen = build([each.strip() for each in names if each.strip()], places, subject, **options)
    how = {"partial_ok": partial, "batch": batch, "workers": workers, "device": device}
    with tempfile.TemporaryDirectory() as aside, nullcontext() if quiet else watching() as watch:
        return run.evaluate(subject, chosen, Path(output or Path(aside) / "results.json"), watch=watch, **how)


def as_subject(model: str | Path | Subject | nn.Module, name: str | None, size: int | None) -> Subject:
    """A model of any kind, ready to be evaluated."""
    if isinstance(model, Subject):
        return model
    if isinstance(model, nn.Module):
        classifier = model if isinstance(model, Classifier) else Classifier(model)
        return subject_of(name or type(classifier.model).__name__, classifier, size)
    subject = open_subject(str(model), size)
    return subject if name is None else subject_of(name, subject.classifier, size)
