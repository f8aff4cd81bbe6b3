"""Labelled pictures as they are stored: what any store has to tell, folders, and tars read without unpacking."""

import io
import os
import tarfile
from abc import ABC, abstractmethod
from pathlib import Path, PurePosixPath

import numpy as np
from PIL import Image, UnidentifiedImageError

EXTENSIONS = {".bmp", ".gif", ".jfif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
SPLITS = {"train": ("train", "training"), "val": ("val", "valid", "validation", "eval", "test")}

Member = tuple[str, int, int]
"""A file in a tar: its name, where its bytes begin, and how many they are."""


class Source(ABC):
    """Pictures with a class each, in an order that does not depend on the machine.

    Attributes:
        name: what it is, for messages.
        identities: what each picture is called, no two the same: in folders its path below that of the split,
            <class>/.../<file>.
        classes: their names.
        labels: the class of each picture, an index into `classes`.
    """

    def __init__(self, name: str, identities: list[str], classes: list[str], labels: list[int]):
        self.name, self.identities, self.classes, self.labels = name, identities, classes, labels

    def __len__(self) -> int:
        return len(self.identities)

    def stores(self) -> set[str]:
        """The folders, tars or shards in which the pictures lie: two sources with one in common share pictures."""
        return {self.name}

    @abstractmethod
    def read(self, index: int) -> bytes:
        """The file of one picture."""

    def open(self, index: int) -> Image.Image:
        """One picture, in RGB."""
        content = self.read(index)
        try:
            with Image.open(io.BytesIO(content)) as image:
                return to_rgb(image)
        except UnidentifiedImageError as error:  # whose own words name a place in memory
            raise UnidentifiedImageError(f"its {len(content)} bytes are no picture") from error


def to_rgb(image: Image.Image) -> Image.Image:
    """A picture of any mode as 8 bit of red, green and blue; a ValueError if it is not known what its numbers mean."""
    if image.mode.startswith("I"):  # 16 bit, of which Pillow would keep what is below 256
        numbers = np.asarray(image)
        if numbers.min() < 0 or numbers.max() > 65535:
            raise ValueError(f"its pixels are from {numbers.min()} to {numbers.max()}: expected 8 or 16 bit")
        image = Image.fromarray((numbers >> 8).astype(np.uint8))
    if image.mode == "F":
        raise ValueError("its pixels are floating numbers of unknown range: expected 8 or 16 bit")
    return image.convert("RGB")


class Folder(Source):
    """<folder>/<class>/.../<picture>."""

    def __init__(self, folder: Path):
        self.folder = folder
        found = (Path(root, file) for root, _, files in os.walk(folder, followlinks=True) for file in files)
        pictures = [path.relative_to(folder) for path in found if path.suffix.lower() in EXTENSIONS]
        _check(folder, [path.as_posix() for path in pictures], sorted(path.name for path in folder.iterdir()))
        super().__init__(str(folder), *_classes_by_folder([path.as_posix() for path in pictures]))
        _check_classes(str(folder), {path.name for path in folder.iterdir() if path.is_dir()}, self.classes)

    def stores(self) -> set[str]:
        return {str((self.folder / name).resolve()) for name in self.classes}

    def read(self, index: int) -> bytes:
        return (self.folder / self.identities[index]).read_bytes()


class Tar(Source):
    """The same in a tar that is not compressed; pictures are read where they lie."""

    def __init__(self, file: Path, places: dict[str, tuple[int, int]], name: str):
        self.file, self.places = file, places  # identity -> where its bytes begin, and how many they are
        super().__init__(name, *_classes_by_folder(list(places)))

    def read(self, index: int) -> bytes:
        identity = self.identities[index]
        return read_part(self.file, *self.places[identity], identity)


def open_source(path: str | Path, split: str) -> Source:
    """The pictures of a split, "train" or "val".

    The split may go by its other names (validation, test, ...). Classes without a folder for the split around them are
    taken for all there is, whatever the split.

    Args:
        path: a folder or a tar that holds <split>/<class>/<picture>; or, in timm's words, wds/FOLDER for a folder of
            webdataset shards and hfds/NAME for a data set of Hugging Face, by its name or its folder.
        split: "train" or "val".

    Raises:
        FileNotFoundError: nothing is there.
        ValueError: it holds no pictures with a class each; says what was found.
    """
    if split not in SPLITS:
        raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")
    word, place = _read_words(path)
    if word == "wds":
        from .shards import open_shards  # only now: it builds on what is here

        return open_shards(Path(place), split)
    if word == "hfds":
        from .hub import open_hub

        return open_hub(place, split)
    path = Path(place)
    if not path.exists():
        raise FileNotFoundError(
            f"no pictures at {path}: there is no such file or folder. Shards are read from wds/FOLDER, "
            "a data set of Hugging Face from hfds/NAME"
        )
    if path.is_dir():
        return Folder(_folder_of_split(path, split))
    return _open_tar(path, split)


def absolute(path: str | Path) -> str:
    """The same pictures for `open_source`, whatever the working directory then is."""
    word, place = _read_words(path)
    if word == "hfds" and not Path(place).exists():
        return str(path)  # a name on the hub
    return f"{word}/{Path(place).resolve()}" if word else str(Path(place).resolve())


def _read_words(path: str | Path) -> tuple[str, str]:
    """wds/FOLDER and hfds/NAME in two; the first is empty for what is simply a path, such as ./wds/FOLDER.

    A path that begins with ~ is one in the home folder: shells put it in only where a word begins.
    """
    word, slash, place = str(path).partition("/")
    word, place = (word, place) if slash and word in ("hfds", "wds") else ("", str(path))
    return word, os.path.expanduser(place)


def _folder_of_split(folder: Path, split: str) -> Path:
    present = {child.name for child in folder.iterdir() if child.is_dir()}
    chosen = choose_split(present, split, str(folder))
    return folder if chosen is None else folder / chosen


def choose_split(present: set[str], split: str, where: str, expected: str = "a folder") -> str | None:
    """Which of the names present is that of a split; None if none of them is that of any."""
    chosen = next((name for name in SPLITS[split] if name in present), None)
    others = sorted(present.intersection(all_splits()))
    if chosen is None and others:
        raise ValueError(
            f"{where} has the splits {', '.join(others)}, but none for {split!r}: "
            f"expected {expected} named {' or '.join(SPLITS[split])}"
        )
    return chosen


def tar_members(path: Path) -> list[Member]:
    """The files in a tar that is neither compressed nor cut off; a ValueError if it is."""
    try:
        with tarfile.open(path, "r:") as archive:
            members = [(member.name, member.offset_data, member.size) for member in archive if member.isfile()]
            # A tar that is cut off between two files looks whole, but for the block of zeros that ends one.
            archive.fileobj.seek(archive.offset)
            if archive.fileobj.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
                raise tarfile.ReadError(f"cut off after {len(members)} files")
    except tarfile.ReadError as error:
        raise ValueError(
            f"{path} is no plain and whole tar: {error}. Pictures are read from it at random, so unpack a compressed "
            "one first; copy a broken one again"
        ) from error
    return members


def read_part(path: Path, begin: int, size: int, name: str) -> bytes:
    """So many bytes of a file from there on, which are called so; an OSError if it has fewer."""
    with path.open("rb") as file:
        file.seek(begin)
        content = file.read(size)
    if len(content) < size:
        raise OSError(f"{path} ends after {len(content)} of {size} bytes of {name}")
    return content


def _open_tar(path: Path, split: str) -> Tar:
    members = {PurePosixPath(name.lstrip("/")).as_posix(): (begin, size) for name, begin, size in tar_members(path)}
    pictures = {name: place for name, place in members.items() if PurePosixPath(name).suffix.lower() in EXTENSIONS}
    # One folder around everything is not a class.
    while len(tops := {PurePosixPath(name).parts[0] for name in pictures}) == 1:
        (top,) = tops
        if any(len(PurePosixPath(name).parts) < 3 for name in pictures) or top in all_splits():
            break
        pictures = {name.removeprefix(f"{top}/"): place for name, place in pictures.items()}
        members = {name.removeprefix(f"{top}/"): place for name, place in members.items() if name.startswith(f"{top}/")}
    chosen = choose_split({PurePosixPath(name).parts[0] for name in pictures}, split, str(path))
    if chosen is not None:
        prefix = f"{chosen}/"
        pictures, members = (
            {name.removeprefix(prefix): place for name, place in files.items() if name.startswith(prefix)}
            for files in (pictures, members)
        )
    _check(path, list(pictures), sorted(members))
    source = Tar(path, pictures, f"{path}:{chosen}" if chosen else str(path))
    _check_classes(source.name, {PurePosixPath(name).parts[0] for name in members if "/" in name}, source.classes)
    return source


def _classes_by_folder(identities: list[str]) -> tuple[list[str], list[str], list[int]]:
    """Of <class>/.../<file>: these sorted, the names of the classes sorted, and the class of each."""
    identities = sorted(identities)
    names = [PurePosixPath(identity).parts[0] for identity in identities]
    classes = sorted(set(names))
    numbers = {name: number for number, name in enumerate(classes)}
    return identities, classes, [numbers[name] for name in names]


def all_splits() -> set[str]:
    return {name for names in SPLITS.values() for name in names}


def _check_classes(where: str, folders: set[str], classes: list[str]) -> None:
    """A ValueError if a folder that should be a class has no pictures; one whose name begins with a dot is none."""
    if empty := sorted(name for name in folders.difference(classes) if not name.startswith(".")):
        raise ValueError(
            f"{len(empty)} of the {len(empty) + len(classes)} classes of {where} have no pictures, such as {empty[0]}: "
            f"copy them again, or remove the folders; a picture ends in {', '.join(sorted(EXTENSIONS))}"
        )


def _check(where: Path, pictures: list[str], found: list[str]) -> None:
    shown = ", ".join(found[:5]) + (", ..." if len(found) > 5 else "") if found else "nothing"
    expected = f"expected <class>/<picture>, a picture ending in {', '.join(sorted(EXTENSIONS))}"
    if not pictures:
        if any(name.endswith(".tar") for name in found):
            expected += f". If these are webdataset shards, they are read from wds/{where}"
        raise ValueError(f"{where} holds no pictures: found {shown}; {expected}")
    loose = [name for name in pictures if "/" not in name]
    if loose:
        raise ValueError(f"{len(loose)} pictures in {where} lie in no class, such as {sorted(loose)[0]}: {expected}")
