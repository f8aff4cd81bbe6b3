"""What is asked of a model on pictures, and what is made of the answers."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..data import Source
from ..scoring import Asked
from .conditions import Condition
from .metrics import bootstrap
from .subjects import Subject


class Figure(NamedTuple):
    """A value, the ends of its 95 % interval over pictures where it has one, and of how many pictures it is."""

    value: float
    low: float | None
    high: float | None
    images: int


@dataclass(frozen=True)
class Metric:
    """A number of every condition.

    Attributes:
        name: "accuracy".
        better: the direction of improvement.
        column: of which it is the mean over pictures; None if it is made of the columns in another way.
        scale: what that mean is multiplied by: 100 for percent.
        unit: what is printed behind the value.
        test: name of the paired test of a difference, in `metrics.TESTS`; None for none.
        summed: whether means over severities and corruptions are reported.
        listed: whether tables of `torchvars compare` show it; "clean" for only where all pictures are as they are.
        digits: how many are printed behind the point.
    """

    name: str
    better: Literal["higher", "lower"]
    column: str | None = None
    scale: float = 1.0
    unit: str = ""
    test: str | None = None
    summed: bool = True
    listed: bool | Literal["clean"] = True
    digits: int = 1


class Task(ABC):
    """A question. The loop, resumption, several processes, rows and comparison are the same for all.

    Attributes:
        name: by which files call it.
        metrics: the first is what a model is mostly judged by.
        columns: what is found of each picture -> its value for one that cannot be read: the worst, or NaN to leave it
            out.
        placed: whether the targets have a place in the picture, so that nothing may move in it.
    """

    name: str
    metrics: tuple[Metric, ...]
    columns: Mapping[str, bool | float]
    placed: bool = False

    @abstractmethod
    def prepare(self, subject: Subject, source: Source, device: torch.device) -> Any:
        """The judge: whatever `score` needs of a model, whose classifier is on the device, and of a source.

        Raises:
            ValueError: the question cannot be put to this model, or about these pictures.
        """

    def within(self, judge: Any, condition: Condition) -> Any:
        """The judge that `score` is given in a condition; the same in all, unless that is what they differ by."""
        return judge

    @abstractmethod
    def score(self, judge: Any, asked: Asked) -> Mapping[str, Tensor]:
        """The columns (B,) of a batch, on the CPU. What is found of a picture does not depend on its batch."""

    def describe(self, judge: Any) -> dict:
        """What decides the numbers beside the pictures and what is done to them, as JSON."""
        return {}

    def protocol(self, judge: Any) -> str:
        """What is added to the protocol of a benchmark; it begins with a semicolon, or is empty."""
        return ""

    def remark(self, judge: Any) -> str:
        """What every row says behind its protocol: of `describe`, what a reader of one number has to know."""
        return ""

    def keep(self, condition: Condition, columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The columns that a file keeps of a condition."""
        return dict(columns)

    def figures(
        self, columns: Mapping[str, np.ndarray], clean: Mapping[str, np.ndarray] | None = None
    ) -> dict[str, Figure]:
        """Each metric of a condition, by its name; those are left out that have no pictures.

        Args:
            columns: (N,) each.
            clean: those that were kept of the same pictures as they are, if there are any.
        """
        found = {}
        for metric in self.metrics:
            if metric.column is not None:
                values = columns[metric.column]
                values = values[~np.isnan(values)] if values.dtype.kind == "f" else values
                if len(values):
                    found[metric.name] = Figure(*bootstrap(metric.scale * values), len(values))
        return found

    def subsets(self, source: Source) -> dict[str, np.ndarray]:
        """Names of parts of the pictures of which the first metric is also reported -> (N,) which they are."""
        return {}
