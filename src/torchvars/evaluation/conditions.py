"""The conditions of an evaluation, as typed objects. They are converted to text only to be printed or drawn."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .attacks.norms import NORMS

Value = bool | int | float | str | None


@dataclass(frozen=True)
class Condition:
    """The change of the pictures in a condition, and their subset.

    Attributes:
        family: "clean", "shift" (stored pictures of another kind), "corruption", "attack", "map", "baseline" or "step".
        name: the name within the family: "clean", "sketch", "gaussian_noise", "pgd"; "all" for a mean over the
        corruptions. severity: 1 to 5; None if there is none, or for the mean over severities. parameters: all other
        settings of the change, such as the radius and the norm of an attack. subset: the class of the pictures; None
        for all pictures.
    """

    family: str
    name: str
    severity: int | None = None
    parameters: tuple[tuple[str, Value], ...] = ()
    subset: str | None = None

    def __post_init__(self):
        object.__setattr__(self, "parameters", tuple(sorted(self.parameters)))

    def __getitem__(self, parameter: str) -> Value:
        """A parameter; None if there is none of this name."""
        return dict(self.parameters).get(parameter)

    @property
    def label(self) -> str:
        """The text without the severity: "clean", "gaussian_noise", "linf 1/255, 5 steps", "class cat"."""
        words = ball(dict(self.parameters)) if self.family == "attack" else self.name
        if self.subset is None:
            return words
        within = "mean of the corruptions" if (self.family, self.name) == ("corruption", "all") else words
        return f"class {self.subset}" + ("" if self.family in ("clean", "shift") else f", {within}")

    @property
    def key(self) -> str:
        """The condition in words, with the severity: "gaussian_noise 3"."""
        return self.label if self.severity is None else f"{self.label} {self.severity}"

    def to_json(self) -> dict:
        known = {"severity": self.severity, "parameters": dict(self.parameters), "subset": self.subset}
        given = {name: value for name, value in known.items() if value not in (None, {})}
        return {"family": self.family, "name": self.name, **given}

    @classmethod
    def from_json(cls, content: Mapping) -> "Condition":
        return cls(**{**content, "parameters": tuple(content.get("parameters", {}).items())})


CLEAN = Condition("clean", "clean")
ALL_CORRUPTIONS = Condition("corruption", "all")


def ball(parameters: Mapping[str, Any]) -> str:
    """The norm, radius and effort of an attack: "linf 1/255, 5 steps", "l2 0.5, 200 queries"."""
    norm = NORMS[parameters["norm"]]
    effort = "".join(f", {parameters[word]} {word}" for word in ("steps", "queries") if word in parameters)
    return f"{norm.name} {norm.describe(parameters['radius'])}{effort}"
