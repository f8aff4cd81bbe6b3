"""The base class of tasks: what a model does with pictures, and its metrics."""

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
    """A value, the ends of its 95 % interval over pictures if it has one, and the number of pictures."""

    value: float
    low: float | None
    high: float | None
    images: int


@dataclass(frozen=True)
class Metric:
    """A metric, which has a value in every condition.

    Attributes:
        name: such as "accuracy".
        better: the direction of improvement.
        column: the column whose mean over pictures it is; None if it is computed in another way.
        scale: the factor of that mean: 100 for percent.
        unit: the unit, printed after the value.
        test: the paired test of a difference, a key of `metrics.TESTS`; None for no test.
        summed: whether means over severities and corruptions are reported.
        listed: whether tables of `torchvars compare` show it; "clean": only for benchmarks of clean pictures.
        digits: number of digits after the decimal point.
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
    """A task. The loop, resuming, several processes, rows and comparison are the same for all tasks.

    Attributes:
        name: the name in files.
        metrics: the metrics; the first is the main one.
        columns: the names of the values of each picture -> their value for an unreadable picture: the worst value, or
            NaN to leave it out.
        placed: whether targets are positions in the picture, so that changes that move its content are not allowed.
    """

    name: str
    metrics: tuple[Metric, ...]
    columns: Mapping[str, bool | float]
    placed: bool = False

    @abstractmethod
    def prepare(self, subject: Subject, source: Source, device: torch.device) -> Any:
        """The judge: an object with all that `score` needs of a model, which is on the device, and of a source.

        Raises:
            ValueError: if the task is not possible for this model or these pictures.
        """

    def within(self, judge: Any, condition: Condition) -> Any:
        """The judge for a condition. By default it is the same in all conditions."""
        return judge

    @abstractmethod
    def score(self, judge: Any, asked: Asked) -> Mapping[str, Tensor]:
        """The columns (B,) of a batch, on the CPU. The values of a picture must not depend on its batch."""

    def describe(self, judge: Any) -> dict:
        """The settings that decide the values, other than the pictures and their changes, as JSON."""
        return {}

    def protocol(self, judge: Any) -> str:
        """A text to append to the protocol of a benchmark; it begins with a semicolon, or is empty."""
        return ""

    def remark(self, judge: Any) -> str:
        """A text to append to the protocol of every row: what a reader of a single number has to know of `describe`."""
        return ""

    def keep(self, condition: Condition, columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The columns of a condition that are stored in the file."""
        return dict(columns)

    def figures(
        self, columns: Mapping[str, np.ndarray], clean: Mapping[str, np.ndarray] | None = None
    ) -> dict[str, Figure]:
        """The metrics of a condition, by name, without those that have no pictures.

        Args:
            columns: (N,) each.
            clean: the stored columns of the same pictures in the clean condition, if any.
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
        """Names of subsets for which the first metric is also reported -> (N,) booleans."""
        return {}
