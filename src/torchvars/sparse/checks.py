"""Settings of solvers, which are checked whenever they are set."""

import math
from collections.abc import Callable
from numbers import Real
from typing import Any


def setting(name: str, check: Callable[[str, Any], Any]) -> property:
    """A property of this name, whose values are passed through check(name, value), which may raise an error."""
    stored = f"_{name}"

    def get(self):
        return getattr(self, stored)

    def put(self, value):
        setattr(self, stored, check(name, value))

    return property(get, put)


def is_number(value) -> bool:
    """Whether a value is a finite number, and not a boolean."""
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def positive_integer(name: str, value: int) -> int:
    """Returns the value as an int; raises a ValueError if it is not a whole number of at least 1."""
    if not is_number(value) or int(value) != value or value < 1:
        raise ValueError(f"{name} must be a whole number of at least 1, got {value}")
    return int(value)


def positive_or_none(name: str, value: float | None) -> float | None:
    if value is not None and not (is_number(value) and value > 0):
        raise ValueError(f"{name} must be None or a positive, finite number, got {value!r}")
    return value


def not_negative(name: str, value: float) -> float:
    if not (is_number(value) and value >= 0):
        raise ValueError(f"{name} must be zero or positive, and finite, got {value!r}")
    return value
