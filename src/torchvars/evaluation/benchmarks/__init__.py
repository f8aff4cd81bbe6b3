"""What a model is tried on, one file a family: pictures, conditions, what may be chosen, and what is summed up."""

import warnings
from collections.abc import Sequence
from typing import Any

from ..subjects import Subject
from . import attacks, clean, corruptions, shifts
from .base import Benchmark, Data, Member, Showing

BENCHMARKS: dict[str, Member] = {
    name: member for family in (clean, corruptions, shifts, attacks) for name, member in family.MEMBERS.items()
}


def build(names: Sequence[str], data: str, subject: Subject, **chosen: Any) -> list[Benchmark]:
    """Benchmarks by their names, of the same pictures; each takes of what is chosen what it knows.

    Raises:
        ValueError: there is no benchmark of a name, or none at all takes what is chosen.

    Warns:
        UserWarning: none of these takes what is chosen.
    """
    check_names(names)
    for word in chosen:
        takers = [name for name, member in BENCHMARKS.items() if word in member.takes()]
        if not takers:
            known = sorted(set().union(*(member.takes() for member in BENCHMARKS.values())))
            raise ValueError(f"no benchmark takes {word!r}: there are {', '.join(known)}")
        if not set(takers) & set(names):
            warnings.warn(f"{word} changes nothing in {', '.join(names)}: it is for {', '.join(takers)}", stacklevel=2)
    opened = Data(data)
    return [
        BENCHMARKS[name](
            opened,
            subject,
            **{word: value for word, value in chosen.items() if word in BENCHMARKS[name].takes()},
        )
        for name in names
    ]


def check_names(names: Sequence[str]) -> None:
    """A ValueError unless there is a benchmark of each name, and one at least."""
    if not names:
        raise ValueError(f"--benchmark names none: there are {', '.join(BENCHMARKS)}")
    if unknown := [name for name in names if name not in BENCHMARKS]:
        raise ValueError(f"no benchmark named {unknown[0]!r}: there are {', '.join(BENCHMARKS)}")


__all__ = ["BENCHMARKS", "Benchmark", "Data", "Member", "Showing", "build", "check_names"]
