"""Pictures for training without labels, in any folders."""

from pathlib import Path, PurePosixPath

from .order import derive_seed
from .parts import Part
from .sources import (
    EXTENSIONS,
    Folder,
    Source,
    Tar,
    by_identity,
    is_hidden,
    open_source,
    pictures_below,
    split_words,
    tar_members,
)


class Loose(Folder):
    """All pictures below a folder, without classes: their labels are -1."""

    def __init__(self, folder: Path):
        self.folder = folder
        paths = by_identity(str(folder), {path: path for path in pictures_below(folder)})
        self.paths = {identity: path for identity, path in paths.items() if identity != path}
        identities = sorted(paths)
        Source.__init__(self, str(folder), identities, [], [-1] * len(identities))

    def stores(self) -> set[str]:
        return {str(self.folder.resolve())}


class LooseTar(Tar):
    """All pictures in a tar, without classes."""

    def __init__(self, file: Path):
        members = {name: (begin, size) for name, begin, size in tar_members(file)}
        pictures = {name: place for name, place in members.items() if _is_picture(name)}
        self.file, self.places = file, by_identity(str(file), pictures)
        identities = sorted(self.places)
        Source.__init__(self, str(file), identities, [], [-1] * len(identities))


def open_unlabelled(path: str | Path, split: str) -> Source:
    """Opens training ("train") or validation ("val") pictures, for which no labels are needed.

    If there are splits with classes, as for `open_source`, these are used, with their labels. Otherwise a tenth, at
    least one picture, is for validation: always the same pictures.

    Args:
        path: as for `open_source`, or a folder or a tar with pictures anywhere in it.
        split: "train" or "val".

    Raises:
        FileNotFoundError: the path does not exist.
        ValueError: it holds fewer than two pictures.
    """
    try:
        pictures, held_out = (open_source(path, each) for each in ("train", "val"))
        if not pictures.stores() & held_out.stores():
            return pictures if split == "train" else held_out
        if len(pictures.classes) < 2 and not split_words(path)[0]:  # a folder around all of them
            pictures = _open_loose(path)
    except ValueError:
        if split_words(path)[0]:  # shards and data sets of the hub
            raise
        pictures = _open_loose(path)
    if len(pictures) < 2:
        found = "no picture" if len(pictures) == 0 else "one picture only"
        raise ValueError(
            f"{path} holds {found}: expected two at least, one to learn from and one to judge by, each ending in "
            f"{', '.join(sorted(EXTENSIONS))}"
        )
    by_hash = sorted(pictures.identities, key=lambda identity: derive_seed("held out", identity))
    validation = set(by_hash[: max(1, len(pictures) // 10)])
    return Part(
        pictures, f"{split} part of {pictures.name}", lambda identity: (identity in validation) == (split == "val")
    )


def _open_loose(path: str | Path) -> Source:
    place = Path(split_words(path)[1])
    return Loose(place) if place.is_dir() else LooseTar(place)


def _is_picture(name: str) -> bool:
    return PurePosixPath(name).suffix.lower() in EXTENSIONS and not is_hidden(name.lstrip("/"))
