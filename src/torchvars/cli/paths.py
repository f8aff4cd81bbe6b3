"""Argument types of the command line: paths, models and names. A ~ at the beginning of a path is the home folder."""

import argparse
import os
from os.path import expanduser
from pathlib import Path
from typing import Any

MODEL_WORDS = (
    "model: a name whose weights ship (torchvars list weights), a folder of weights or of a run, a checkpoint of the "
    "authors (.pth), timm:NAME, timm:NAME:FILE with weights from a file, or OWNER/NAME on the Hugging Face hub"
)


def path_of(text: str) -> Path:
    """Path of a file or a folder."""
    return Path(expanduser(text))


def data_of(text: str) -> str:
    """Pictures, as `open_source` takes them: a path, wds/FOLDER or hfds/NAME."""
    word, slash, place = text.partition("/")
    return f"{word}/{expanduser(place)}" if slash and word in ("wds", "hfds") else expanduser(text)


def model_of(text: str) -> str:
    """A trained model, as `open_classifier` takes it: a name, a path, timm:NAME or timm:NAME:FILE."""
    if text.startswith("timm:"):
        word, name, *file = text.split(":", 2)
        return ":".join([word, name, *map(expanduser, file)])
    return expanduser(text)


def names_of(text: str) -> tuple[str, ...]:
    """Names separated by commas, each once."""
    return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def check_output(path: Path) -> None:
    """Raises a ValueError or an OSError if no file can be written at a path; to be called before the work."""
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder: give --output a file in it")
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is a device, a pipe or a socket: give --output a file, which is written as a whole")
    folder = next(each for each in path.absolute().parents if each.exists())
    if not folder.is_dir():
        raise NotADirectoryError(f"{folder} is a file: give --output a path in a folder")
    for place in (folder, *([path] if path.exists() else [])):
        if not os.access(place, os.W_OK):
            raise PermissionError(f"{place} cannot be written to: give --output another place")


def check_folder(path: Path) -> None:
    """Raises an OSError if no files can be written into a folder, which need not exist yet."""
    if path.exists() and not path.is_dir():
        raise NotADirectoryError(
            f"{path} is not a folder: give --output the name of a folder, which is created if necessary"
        )
    folder = next(each for each in (path.absolute(), *path.absolute().parents) if each.exists())
    if not folder.is_dir():
        raise NotADirectoryError(f"{folder} is a file: give --output a path in a folder")
    if not os.access(folder, os.W_OK):
        raise PermissionError(f"{folder} cannot be written to: give --output another place")


class Names(argparse.Action):
    """Stores the names of an option with nargs="+", each once. They are separated by commas or spaces."""

    def __call__(self, parser, namespace, values: Any, option_string=None) -> None:
        setattr(namespace, self.dest, list(dict.fromkeys(name for text in values for name in names_of(text))))
