"""Labelled pictures as they are stored: a folder, or a tar that is read without being unpacked."""

import os
import tarfile
from abc import ABC, abstractmethod
from pathlib import Path, PurePosixPath

EXTENSIONS = {".bmp", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"}
SPLITS = {"train": ("train", "training"), "val": ("val", "valid", "validation", "eval", "test")}


class Source(ABC):
    """Pictures with a class each, in an order that does not depend on the machine.

    Attributes:
        name: what it is, for messages.
        identities: path of each picture below the folder of its split, <class>/.../<file>.
        classes: their names, sorted.
        labels: the class of each picture, an index into `classes`.
    """

    def __init__(self, name: str, identities: list[str]):
        self.name = name
        self.identities = sorted(identities)
        names = [PurePosixPath(identity).parts[0] for identity in self.identities]
        self.classes = sorted(set(names))
        numbers = {name: number for number, name in enumerate(self.classes)}
        self.labels = [numbers[name] for name in names]

    def __len__(self) -> int:
        return len(self.identities)

    @abstractmethod
    def read(self, index: int) -> bytes:
        """The file of one picture."""


class Folder(Source):
    """<folder>/<class>/.../<picture>."""

    def __init__(self, folder: Path):
        self.folder = folder
        found = (Path(root, file) for root, _, files in os.walk(folder, followlinks=True) for file in files)
        pictures = [path.relative_to(folder) for path in found if path.suffix.lower() in EXTENSIONS]
        _check(folder, [path.as_posix() for path in pictures], sorted(path.name for path in folder.iterdir()))
        super().__init__(str(folder), [path.as_posix() for path in pictures])

    def read(self, index: int) -> bytes:
        return (self.folder / self.identities[index]).read_bytes()


class Tar(Source):
    """The same in a tar that is not compressed; pictures are read where they lie."""

    def __init__(self, file: Path, places: dict[str, tuple[int, int]], name: str):
        self.file, self.places = file, places  # identity -> where its bytes begin, and how many they are
        super().__init__(name, list(places))

    def read(self, index: int) -> bytes:
        begin, size = self.places[self.identities[index]]
        with self.file.open("rb") as file:
            file.seek(begin)
            content = file.read(size)
        if len(content) < size:
            raise OSError(f"{self.file} ends after {len(content)} of {size} bytes of {self.identities[index]}")
        return content


def open_source(path: str | Path, split: str) -> Source:
    """The pictures of a split, "train" or "val", in a folder or a tar that holds <split>/<class>/<picture>.

    The split may go by its other names (validation, test, ...). Classes without a folder for the split around them are
    taken for all there is, whatever the split.

    Raises:
        FileNotFoundError: nothing is there.
        ValueError: it holds no pictures in folders of classes; says what was found.
    """
    if split not in SPLITS:
        raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"no pictures at {path}: there is no such file or folder")
    if path.is_dir():
        return Folder(_folder_of_split(path, split))
    return _open_tar(path, split)


def _folder_of_split(folder: Path, split: str) -> Path:
    present = {child.name for child in folder.iterdir() if child.is_dir()}
    chosen = _choose_split(present, split, str(folder))
    return folder if chosen is None else folder / chosen


def _choose_split(present: set[str], split: str, where: str) -> str | None:
    """Which of the folders present holds a split; None if none of them holds any."""
    chosen = next((name for name in SPLITS[split] if name in present), None)
    others = sorted(present.intersection(_all_splits()))
    if chosen is None and others:
        raise ValueError(
            f"{where} has the splits {', '.join(others)}, but none for {split!r}: "
            f"expected a folder named {' or '.join(SPLITS[split])}"
        )
    return chosen


def _open_tar(path: Path, split: str) -> Tar:
    try:
        with tarfile.open(path, "r:") as archive:
            members = {
                PurePosixPath(member.name.lstrip("/")).as_posix(): (member.offset_data, member.size)
                for member in archive
                if member.isfile()
            }
            # A tar that is cut off between two files looks whole, but for the block of zeros that ends one.
            archive.fileobj.seek(archive.offset)
            if archive.fileobj.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
                raise tarfile.ReadError(f"cut off after {len(members)} files")
    except tarfile.ReadError as error:
        raise ValueError(
            f"{path} is no plain and whole tar: {error}. Pictures are read from it at random, so unpack a compressed "
            "one first; copy a broken one again"
        ) from error
    pictures = {name: place for name, place in members.items() if PurePosixPath(name).suffix.lower() in EXTENSIONS}
    # One folder around everything is not a class.
    while len(tops := {PurePosixPath(name).parts[0] for name in pictures}) == 1:
        (top,) = tops
        if any(len(PurePosixPath(name).parts) < 3 for name in pictures) or top in _all_splits():
            break
        pictures = {name.removeprefix(f"{top}/"): place for name, place in pictures.items()}
    chosen = _choose_split({PurePosixPath(name).parts[0] for name in pictures}, split, str(path))
    if chosen is not None:
        prefix = f"{chosen}/"
        pictures = {name.removeprefix(prefix): place for name, place in pictures.items() if name.startswith(prefix)}
    _check(path, list(pictures), sorted(members))
    return Tar(path, pictures, f"{path}:{chosen}" if chosen else str(path))


def _all_splits() -> set[str]:
    return {name for names in SPLITS.values() for name in names}


def _check(where: Path, pictures: list[str], found: list[str]) -> None:
    shown = ", ".join(found[:5]) + (", ..." if len(found) > 5 else "") if found else "nothing"
    expected = f"expected <class>/<picture>, a picture ending in {', '.join(sorted(EXTENSIONS))}"
    if not pictures:
        raise ValueError(f"{where} holds no pictures: found {shown}; {expected}")
    loose = [name for name in pictures if "/" not in name]
    if loose:
        raise ValueError(f"{len(loose)} pictures in {where} lie in no class, such as {sorted(loose)[0]}: {expected}")
