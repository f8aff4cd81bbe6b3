"""Commands whose options are the fields of a plan, which is stored in the output folder: convert and generalize."""

import argparse
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from .paths import path_of

if TYPE_CHECKING:
    from ..generalization.plan import Plan as GeneralizationPlan
    from ..training.conversion import Plan as ConversionPlan

P = TypeVar("P", "ConversionPlan", "GeneralizationPlan")

REQUIRED = {"model": "MODEL", "data": "--data PATH", "output": "--output FOLDER"}


def add_resume(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--resume", type=path_of, default=None, metavar="FOLDER", help="folder to resume; takes no other option"
    )


def plan_of(arguments: argparse.Namespace, kind: type[P], read: Callable[[Path], P], hint: str = "") -> P:
    """The plan of the options of a command, or the stored plan of the folder to resume.

    Args:
        arguments: only options that were given, and `resume`.
        kind: class of the plan.
        read: reads the plan of a folder.
        hint: text to add to the error if options are given with --resume.

    Raises:
        ValueError: a required option is missing, or options are given with --resume.
    """
    from ..data import most_workers

    fields = {field.name for field in dataclasses.fields(kind)}
    options = {name: value for name, value in vars(arguments).items() if name in fields}
    if arguments.resume is None:
        if missing := [word for name, word in REQUIRED.items() if name not in options]:
            raise ValueError(f"give {', '.join(missing)}, or a folder to --resume")
        return kind(**options)
    if options:
        listed = ", ".join(f"{name} {value}" for name, value in options.items())
        raise ValueError(f"--resume takes no other option, got {listed}{hint}")
    plan = read(arguments.resume)
    return dataclasses.replace(plan, workers=min(plan.workers, most_workers()))  # this machine may be smaller
