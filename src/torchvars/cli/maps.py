"""Draws attention maps: each picture beside its maps, with one column for each model.

For each picture and each requested view a figure is written, as .png, .pdf and .npz (the maps as numbers): NAME.png,
NAME_corruptions.png, NAME_steps.png, NAME_layers.png, NAME_heads.png, NAME_atoms_MODEL.png. Pictures are preprocessed
as in evaluation. Exits with 1 if pictures could not be read.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from .extras import missing_extra
from .options import add_img_size
from .paths import MODEL_WORDS, check_folder, model_of, names_of, path_of


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("models", type=model_of, nargs="+", metavar="MODEL", help=MODEL_WORDS)
    parser.add_argument(
        "--pictures", type=path_of, nargs="+", required=True, metavar="FILE", help="pictures, or folders of them"
    )
    parser.add_argument("--output", type=path_of, required=True, metavar="FOLDER", help="folder of the figures")
    group = parser.add_argument_group("which map")
    group.add_argument(
        "--kind", default="implicit", help="kind: implicit, kernel, energy, rollout or gradient (default: implicit)"
    )
    group.add_argument("--layer", default="-1", help="name or index of an attention (default: -1, the last)")
    group.add_argument("--head", default="mean", help="index of a head (default: the mean over heads)")
    group.add_argument("--step", type=int, metavar="N", help="number of recurrent steps (default: all of them)")
    group.add_argument(
        "--query",
        default="mean",
        metavar="QUERY",
        help="mean or class for the mean or the class token, or ROW,COLUMN of a place in the picture, from 0,0 at the "
        "top left to 1,1 (default: mean)",
    )
    group.add_argument(
        "--target", metavar="CLASS", help="class of a gradient map: its number or name (default: the top class)"
    )
    group = parser.add_argument_group("views", "default: maps of the unchanged picture")
    group.add_argument(
        "--corruptions",
        type=names_of,
        nargs="?",
        const=(),
        metavar="NAME,NAME",
        help="rows for corruptions of torchvars list corruptions (default: one of each group)",
    )
    group.add_argument(
        "--severity", type=int, default=3, metavar="N", help="severity of the corruptions, 1 to 5 (default: 3)"
    )
    group.add_argument("--steps", action="store_true", help="a column for each recurrent step of VARS models")
    group.add_argument("--layers", action="store_true", help="a column for each attention")
    group.add_argument("--heads", action="store_true", help="a column for each head")
    group.add_argument(
        "--atoms", action="store_true", help="the most used atoms of a VARS layer; one figure for each model"
    )
    group.add_argument(
        "--one-scale",
        action="store_true",
        help="one scale of colours for all maps of a figure (default: one scale for each model)",
    )
    add_img_size(parser)


def run(arguments: argparse.Namespace) -> None:
    check_folder(arguments.output)
    try:
        from ..data.loose import find_pictures, open_picture
        from ..data.pictures import UNREADABLE
        from ..data.sources import printable
        from ..evaluation.corruptions import CORRUPTIONS
        from ..evaluation.subjects import open_subject
        from ..figures import maps
        from ..maps import KINDS
    except ModuleNotFoundError as error:
        raise missing_extra(error, "eval", "drawing maps") from error
    try:
        import matplotlib  # noqa: F401
    except ModuleNotFoundError as error:
        raise missing_extra(error, "figures", "drawing maps") from error

    if arguments.kind not in KINDS:
        raise ValueError(f"no kind of map named {arguments.kind!r}: there are {', '.join(KINDS)}")
    asking = maps.MapRequest(
        arguments.kind,
        _number(arguments.layer),
        _number(arguments.head),
        arguments.step,
        _query(arguments.query),
        None if arguments.target is None else _number(arguments.target),
    )
    chosen = arguments.corruptions or maps.CORRUPTIONS
    if unknown := [name for name in chosen if name not in CORRUPTIONS]:
        raise ValueError(f"no corruption named {unknown[0]!r}: there are {', '.join(CORRUPTIONS)}")
    if not 1 <= arguments.severity <= 5:
        raise ValueError(f"--severity must be from 1 to 5, got {arguments.severity}")
    pictures = find_pictures(arguments.pictures)
    subjects = [open_subject(word, arguments.img_size) for word in arguments.models]
    repeated = [name for name, count in Counter(each.name for each in subjects).items() if count > 1]
    if repeated:
        raise ValueError(f"{repeated[0]} is named twice: name each model once")
    views = [name for name in maps.VIEWS if name != "maps" and getattr(arguments, name) not in (None, False)]
    views = views or ([] if arguments.atoms else ["maps"])
    for view, option, default in (("steps", "step", None), ("layers", "layer", "-1"), ("heads", "head", "mean")):
        if views == [view] and getattr(arguments, option) != default:
            raise ValueError(f"--{option} changes nothing where --{view} draws all of them: leave it out")
    unreadable = {}
    names = figure_names(pictures, arguments.output)
    with _watching(len(pictures)) as report:
        for path in pictures:
            try:
                image = open_picture(path)
            except UNREADABLE as error:
                unreadable[printable(str(path))] = f"{type(error).__name__}: {error}"
                continue
            report(_draw(views, subjects, image, asking, arguments, names[path]))
    if unreadable:
        sys.stdout.flush()
        listed = "".join(f"\n  {path}: {problem}" for path, problem in unreadable.items())
        raise SystemExit(f"{len(unreadable)} of {len(pictures)} pictures could not be read:{listed}")


def _draw(views, subjects, image, asking, arguments: argparse.Namespace, name: str) -> list[Path]:
    """Draws the figures of one picture, and returns their paths."""
    from ..figures import maps

    written = []
    for view in views:
        more = {}
        if view == "corruptions":
            more = {"severity": arguments.severity, "identity": name}
            more |= {"names": arguments.corruptions} if arguments.corruptions else {}
        sheet = maps.VIEWS[view](subjects, image, asking, **more)
        sheet = replace(sheet, scale="all") if arguments.one_scale else sheet
        stem = name if view == "maps" else f"{name}_{view}"
        written += maps.draw(sheet, arguments.output / f"{stem}.png")
    if arguments.atoms:
        reconstructing = [each for each in subjects if maps.reconstructs(each)]
        if not reconstructing:
            names = ", ".join(each.name for each in subjects)
            raise ValueError(f"none of {names} has a VARS layer, so that --atoms has nothing to draw")
        for subject in reconstructing:
            atoms = maps.find_atoms(subject, image, asking.layer)
            written += maps.draw_atoms(atoms, arguments.output / f"{name}_atoms_{subject.name.replace(':', '_')}.png")
    return written


def figure_names(pictures: list[Path], folder: Path) -> dict[Path, str]:
    """Names of the figures of each picture: the name of the picture, with a number if it is not unique.

    Raises:
        ValueError: a figure would take the place of a picture.
    """
    from ..data.sources import printable

    names, seen = {}, Counter()
    for path in pictures:
        stem = printable(path.stem)
        seen[stem] += 1
        names[path] = stem if seen[stem] == 1 else f"{stem}_{seen[stem]}"
    for path in pictures:
        if path.suffix == ".png" and path.resolve().parent == folder.resolve():
            raise ValueError(
                f"{path} is in the folder of the figures, and could be replaced by one: give --output another folder"
            )
    return names


def _number(text: str) -> int | str:
    return int(text) if text.lstrip("-").isdigit() else text


def _query(text: str) -> str | tuple[float, float]:
    if text in ("mean", "class"):
        return text
    try:
        row, column = (float(part) for part in text.split(","))
    except ValueError as error:
        raise ValueError(f"--query must be mean, class, or ROW,COLUMN such as .5,.25, got {text!r}") from error
    if not (0 <= row <= 1 and 0 <= column <= 1):
        raise ValueError(f"--query ROW,COLUMN must be from 0 to 1, from the top and the left, got {text!r}")
    return row, column


@contextmanager
def _watching(count: int) -> Iterator[Callable[[list[Path]], None]]:
    """Yields a function that reports written files: on a bar in a terminal for several pictures, else as lines."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    if count == 1 or not console.is_terminal:
        yield lambda written: print("\n".join(map(str, written)), flush=True)
        return
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("pictures", total=count)
        yield lambda written: bar.advance(task)
