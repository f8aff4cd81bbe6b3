"""In what way pictures are shown: typed, and put into words only where it is printed or drawn."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .attacks.norms import NORMS

Value = bool | int | float | str | None


@dataclass(frozen=True)
class Condition:
    """What was done to pictures, and of which of them a number is.

    Attributes:
        family: "clean", "shift" (stored pictures of another kind), "corruption" or "attack".
        name: within the family: "clean", "sketch", "gaussian_noise", "pgd"; "all" for a mean over the corruptions.
        severity: 1 to 5; None where there is none, or for the mean over them.
        parameters: all else that decides what is done, such as the radius and the norm of an attack.
        subset: the class whose pictures these are; None for all pictures.
    """

    family: str
    name: str
    severity: int | None = None
    parameters: tuple[tuple[str, Value], ...] = ()
    subset: str | None = None

    def __post_init__(self):
        object.__setattr__(self, "parameters", tuple(sorted(self.parameters)))

    def __getitem__(self, parameter: str) -> Value:
        """A parameter; None if there is no such."""
        return dict(self.parameters).get(parameter)

    @property
    def label(self) -> str:
        """In words, without the severity: "clean", "gaussian_noise", "linf 1/255, 5 steps", "class cat"."""
        said = ball(dict(self.parameters)) if self.family == "attack" else self.name
        if self.subset is None:
            return said
        within = "mean of the corruptions" if (self.family, self.name) == ("corruption", "all") else said
        return f"class {self.subset}" + ("" if self.family in ("clean", "shift") else f", {within}")

    @property
    def key(self) -> str:
        """In words, with the severity: "gaussian_noise 3"."""
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
    """The ball of an attack, and how hard it tries: "linf 1/255, 5 steps", "l2 0.5, 200 queries"."""
    norm = NORMS[parameters["norm"]]
    effort = "".join(f", {parameters[word]} {word}" for word in ("steps", "queries") if word in parameters)
    return f"{norm.name} {norm.say(parameters['radius'])}{effort}"
