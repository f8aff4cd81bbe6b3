"""The base classes of tasks that judge attention maps."""

from dataclasses import dataclass, field
from typing import Any

from torch import nn

from ..map_choice import RANDOM_WEIGHTS, MapChoice, random_weights
from ..subjects import Subject
from ..task import Task


@dataclass(frozen=True)
class MapTask(Task):
    """A task that judges attention maps.

    Args:
        map_choice: which map.
    """

    map_choice: MapChoice = field(default_factory=MapChoice)

    def describe(self, judge: Any) -> dict:
        return {"kind": self.map_choice.kind, "layer": self.map_choice.layer}

    def protocol(self, judge: Any) -> str:
        return f"; {self.map_choice.describe(judge.layer)}"


@dataclass(frozen=True)
class MapTaskWithBaselines(MapTask):
    """A task that judges attention maps, and those of the same model with random weights.

    Args:
        map_choice: which map.
        baselines: whether to evaluate the model with random weights.
    """

    baselines: bool = True

    def models(self, subject: Subject) -> tuple[nn.Module, nn.Module | None]:
        """The model, and the one with random weights if it is a baseline."""
        return subject.classifier, random_weights(subject) if self.baselines else None

    def model_of(self, judge: Any) -> nn.Module:
        """The model whose maps are judged, by `judge.who`."""
        model = judge.fresh if judge.who == RANDOM_WEIGHTS else judge.model
        assert model is not None  # `models` returns the one with random weights if it is a baseline
        return model
