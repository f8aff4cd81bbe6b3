"""Words of the command line that stand for places, with ~ for the home folder wherever a path may begin."""

import argparse
from os.path import expanduser
from pathlib import Path


def path_of(text: str) -> Path:
    """A file or a folder."""
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
    """Names between commas, each once."""
    return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


class Names(argparse.Action):
    """Stores a list, each name once, of an option with nargs="+": its parts may stand between commas or spaces."""

    def __call__(self, parser, namespace, values, option_string=None) -> None:
        setattr(namespace, self.dest, list(dict.fromkeys(name for text in values for name in names_of(text))))
