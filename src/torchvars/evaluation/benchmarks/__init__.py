"""Benchmarks, one file for each family: pictures, conditions, options, and summary figures."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from ..subjects import Subject
from . import attacks, clean, corruptions, maps, shifts
from .base import Benchmark, Data, Member, Showing

BENCHMARKS: dict[str, Member] = {
    name: member for family in (clean, corruptions, shifts, attacks, maps) for name, member in family.MEMBERS.items()
}


def build(
    names: Sequence[str], data: str | Mapping[str | None, str], subject: Subject, **chosen: Any
) -> list[Benchmark]:
    """Builds benchmarks by their names. Each takes those of the options that it has.

    Args:
        data: the path of the pictures; or a path for each name, with None for all other names.

    Raises:
        ValueError: if there is no benchmark of a name, or no benchmark at all has an option.

    Warns:
        UserWarning: if none of these benchmarks has an option.
    """
    check_names(names)
    for word in chosen:
        takers = [name for name, member in BENCHMARKS.items() if word in member.takes()]
        if not takers:
            known = sorted(set().union(*(member.takes() for member in BENCHMARKS.values())))
            raise ValueError(f"no benchmark takes {word!r}: there are {', '.join(known)}")
        if not set(takers) & set(names):
            warnings.warn(f"{word} changes nothing in {', '.join(names)}: it is for {', '.join(takers)}", stacklevel=2)
    paths: dict[str | None, str] = {**data} if isinstance(data, Mapping) else {None: data}
    check_data(names, paths)
    opened = {path: Data(path) for path in paths.values()}
    return [
        BENCHMARKS[name](
            opened[paths[name if name in paths else None]],
            subject,
            **{word: value for word, value in chosen.items() if word in BENCHMARKS[name].takes()},
        )
        for name in names
    ]


def check_names(names: Sequence[str]) -> None:
    """Raises a ValueError unless there is a benchmark of each name, and at least one name."""
    if not names:
        raise ValueError(f"--benchmark names none: there are {', '.join(BENCHMARKS)}")
    if unknown := [name for name in names if name not in BENCHMARKS]:
        raise ValueError(f"no benchmark named {unknown[0]!r}: there are {', '.join(BENCHMARKS)}")


def check_data(names: Sequence[str], paths: Mapping[str | None, str]) -> None:
    """Raises a ValueError unless there are pictures for each benchmark, and a benchmark for each name."""
    if lost := [name for name in names if name not in paths and None not in paths]:
        raise ValueError(f"no pictures for {', '.join(lost)}: give --data PATH, or --data {lost[0]}=PATH")
    if unknown := [name for name in paths if name is not None and name not in names]:
        raise ValueError(f"there are pictures for {unknown[0]}, which is not among the benchmarks {', '.join(names)}")


__all__ = ["BENCHMARKS", "Benchmark", "Data", "Member", "Showing", "build", "check_names"]
