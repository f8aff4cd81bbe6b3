"""The classification task."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from ...attention.modes import evaluating
from ...data import Source
from ...data.targets import Target
from ...models.peers import Among
from ...scoring import Asked, answers
from ...scoring.answers import UNREAD
from ..conditions import Condition
from ..labels import LabelSpace, digest_of
from ..metrics import bootstrap, calibration_error
from ..subjects import Subject
from ..task import Figure, Metric, Task


class Judge(NamedTuple):
    """A model prepared for the classes of a source."""

    model: nn.Module  # pixels -> logits of the label space
    classes: list[int]  # class of the source -> index of its logit
    space: LabelSpace
    present: int  # number of classes of the pictures
    nameless: bool  # whether the classes of the model have no names

    def labels(self, targets: Sequence[Target]) -> Tensor:
        """The indices of the correct logits, (B,)."""
        return torch.tensor([self.classes[target] for target in cast(Sequence[int], targets)])


@dataclass(frozen=True)
class Classification(Task):
    """Classification by the largest logit, with the confidence of the model.

    Args:
        among_present: whether only the classes of the data set are in the label space.
    """

    among_present: bool = False

    name = "classification"
    columns = UNREAD
    metrics = (
        Metric("accuracy", "higher", "right", 100.0, " %", test="McNemar"),
        Metric("loss", "lower", "loss", summed=False, listed=False),
        Metric("calibration error", "lower", unit=" %", summed=False, listed="clean"),
        Metric("consistency", "higher", unit=" %", listed=False),
    )

    def prepare(self, subject: Subject, source: Source, device: torch.device) -> Judge:
        columns, classes = match_classes(subject, source, self.among_present)
        model = subject.classifier if columns is None else Among(subject.classifier, columns).to(device)
        space = label_space(subject, source, self.among_present)
        return Judge(model, classes, space, len(set(source.labels)), subject.classes is None)

    def score(self, judge: Judge, asked: Asked) -> dict[str, Tensor]:
        found = answers(judge.model(asked.pixels), judge.labels(asked.targets))
        if (invalid := found["loss"].isnan() | found["confidence"].isnan()).any():
            raise FloatingPointError(
                f"the logits for {asked.identities[int(invalid.nonzero()[0])]} are NaN: the weights are broken, "
                "or the settings of the solvers of its layers diverge"
            )
        return found

    def describe(self, judge: Judge) -> dict:
        return {
            "classes": judge.present,
            "among_present": self.among_present,
            "label_space": asdict(judge.space),
        }

    def protocol(self, judge: Judge) -> str:
        order = "; its classes have no names: logits are taken for the folders in alphabetical order"
        return order if judge.nameless else ""

    def remark(self, judge: Judge) -> str:
        return "" if judge.space.is_plain else f"; label space: {judge.space}"

    def keep(self, condition: Condition, columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        kept = {"right": columns["right"]}
        return kept | {"named": columns["named"]} if condition.name == "clean" else kept

    def figures(
        self, columns: Mapping[str, np.ndarray], clean: Mapping[str, np.ndarray] | None = None
    ) -> dict[str, Figure]:
        found, readable = super().figures(columns), columns["named"] >= 0
        if readable.any():
            error = calibration_error(columns["confidence"][readable], columns["right"][readable])
            found["calibration error"] = Figure(100 * error, None, None, int(readable.sum()))
        if clean is not None and "named" in clean:
            alike = readable & (columns["named"] == clean["named"])
            found["consistency"] = Figure(*bootstrap(100.0 * alike), len(alike))
        return found

    def subsets(self, source: Source) -> dict[str, np.ndarray]:
        labels = np.array(source.labels)
        return {name: labels == number for number, name in enumerate(source.classes)}


def match_classes(subject: Subject, source: Source, among_present: bool) -> tuple[list[int] | None, list[int]]:
    """The logits of the label space (None for all), and for each class of the source the index among these.

    Raises:
        ValueError: if the model has other classes.
    """
    known, outputs, own = subject.classes, outputs_of(subject), list(range(len(source.classes)))
    if known is not None and outputs != len(known):
        raise ValueError(f"{subject.name} has {outputs} logits and names {len(known)} classes: name as many")
    if known is None:
        if outputs != len(source.classes):
            raise ValueError(
                f"{subject.name} has {outputs} classes whose names are not known, {source.name} has "
                f"{len(source.classes)}: they cannot be matched"
            )
        return None, own
    unknown = [name for name in source.classes if name not in known]
    if unknown:
        raise ValueError(
            f"{subject.name} does not know {len(unknown)} of the {len(source.classes)} classes of {source.name}: "
            f"{', '.join(unknown[:5])}; it knows {', '.join(known[:5])}, ..."
        )
    column = {name: number for number, name in enumerate(known)}
    places = [column[name] for name in source.classes]
    return (places, own) if among_present else (None, places)


def label_space(subject: Subject, source: Source, among_present: bool) -> LabelSpace:
    """The label space of a model on a source whose classes match."""
    known = source.classes if subject.classes is None else subject.classes
    chosen = source.classes if among_present else known
    return LabelSpace(len(chosen), len(known), len(source.classes), digest_of(sorted(chosen)))


@torch.no_grad()
def outputs_of(subject: Subject) -> int:
    """The number of logits of a model: its `num_classes`, or that of an output."""
    declared = getattr(getattr(subject.classifier, "model", None), "num_classes", None)
    if declared is not None:
        return declared
    like = next(subject.classifier.parameters(), torch.zeros(()))
    with evaluating(subject.classifier):
        return subject.classifier(torch.zeros(1, 3, subject.size, subject.size, device=like.device)).shape[-1]
