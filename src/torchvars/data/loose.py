"""Pictures without classes, as they are named on a command line."""

from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from .sources import EXTENSIONS, decode, pictures_below


def find_pictures(places: Sequence[Path]) -> list[Path]:
    """Files as they are named, and those in folders and below by their names, each once.

    Names in a folder that begin with a dot are passed over.

    Raises:
        FileNotFoundError: there is no such file or folder.
        ValueError: a folder holds no pictures, or a name is that of a pipe or device.
    """
    found: dict[Path, None] = {}
    for place in places:
        if place.is_dir():
            inside = pictures_below(place)
            if not inside:
                raise ValueError(f"{place} holds no pictures: a picture ends in {', '.join(sorted(EXTENSIONS))}")
            found |= dict.fromkeys(place / name for name in sorted(inside))
        elif place.is_file():
            found[place] = None
        elif place.exists():
            raise ValueError(f"{place} is no file, but a pipe or a device: name pictures, or folders of them")
        else:
            raise FileNotFoundError(f"no picture at {place}: there is no such file or folder")
    return list(found)


def open_picture(path: Path) -> Image.Image:
    """A picture in RGB; raises one of `pictures.UNREADABLE` if it cannot be read."""
    return decode(path.read_bytes())
