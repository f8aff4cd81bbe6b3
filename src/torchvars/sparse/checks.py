"""Settings of solvers that are checked whenever they are set."""

import math
from collections.abc import Callable
from numbers import Real
from typing import Any


def setting(name: str, check: Callable[[str, Any], Any]) -> property:
    """An attribute of that name, which refuses what the check (name, value) -> value refuses."""
    stored = f"_{name}"

    def get(self):
        return getattr(self, stored)

    def put(self, value):
        setattr(self, stored, check(name, value))

    return property(get, put)


def is_number(value) -> bool:
    """Whether it is a finite number, and no truth value."""
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def whole(name: str, value: int) -> int:
    """A count of at least one, or a ValueError."""
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
