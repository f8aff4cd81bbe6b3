"""Pictures without classes, given as files and folders."""

from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from .sources import EXTENSIONS, decode, pictures_below


def find_pictures(places: Sequence[Path]) -> list[Path]:
    """Files in the given order, and pictures in folders and below in the order of their names, each once.

    Names in a folder that begin with a dot are ignored.

    Raises:
        FileNotFoundError: there is no such file or folder.
        ValueError: a folder holds no pictures, or a path is a pipe or a device.
    """
    pictures: dict[Path, None] = {}
    for place in places:
        if place.is_dir():
            inside = pictures_below(place)
            if not inside:
                raise ValueError(f"{place} holds no pictures: a picture ends in {', '.join(sorted(EXTENSIONS))}")
            pictures |= dict.fromkeys(place / name for name in sorted(inside))
        elif place.is_file():
            pictures[place] = None
        elif place.exists():
            raise ValueError(f"{place} is no file, but a pipe or a device: name pictures, or folders of them")
        else:
            raise FileNotFoundError(f"no picture at {place}: there is no such file or folder")
    return list(pictures)


def open_picture(path: Path) -> Image.Image:
    """Opens a picture in RGB. Raises one of `pictures.UNREADABLE` if it cannot be read."""
    return decode(path.read_bytes())
