"""Evaluation in one call."""

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
    """Evaluates a model on benchmarks, like `torchvars evaluate`.

    Args:
        model: a model as for `torchvars evaluate`: the name of weights that ship, a folder of weights, or timm:NAME;
            or a `Classifier`, whose `classes` are those of its logits. Any other module is treated as a model that
            takes normalised images, and wrapped in a `Classifier`.
        benchmarks: names in `torchvars.evaluation.BENCHMARKS`, as a sequence or a string separated by commas.
        data: the pictures: a folder or tar with val/<class>/<picture>, or a published benchmark. If benchmarks use
            different pictures, a path for each name: {"clean": ..., "segmentation": ...}.
        output: the results file. Conditions that it contains are not evaluated again, so the same call resumes an
            interrupted evaluation, and benchmarks can be added. If None, results are only returned.
        name: the name of the model in results and tables; by default `model`, or the name of its class.
        size: side of the images; by default that of the model.
        partial: whether to report means if a part of the data is missing.
        batch: batch size.
        workers: number of processes that read pictures.
        device: such as "cpu" or "cuda:1"; by default the accelerator if there is one.
        quiet: whether to hide the progress.
        options: options of the benchmarks: limit=100, severities=(1, 3), radii=(1 / 255,), ...

    Raises:
        ValueError: if there is no such model, benchmark or option, the model has other classes, or data is missing.
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
    """A model of any kind as a `Subject`."""
    if isinstance(model, Subject):
        return model
    if isinstance(model, nn.Module):
        classifier = model if isinstance(model, Classifier) else Classifier(model)
        return subject_of(name or type(classifier.model).__name__, classifier, size)
    subject = open_subject(str(model), size)
    return subject if name is None else subject_of(name, subject.classifier, size)
