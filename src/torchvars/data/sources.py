"""Sources of labelled pictures: the base class, folders, and tars, which are read without unpacking."""

import io
import os
import posixpath
import tarfile
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import TypeVar

from PIL import Image, UnidentifiedImageError

from ..models.pixels import to_rgb
from .targets import Target

EXTENSIONS = {".bmp", ".gif", ".jfif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
SPLITS = {"train": ("train", "training"), "val": ("val", "valid", "validation", "eval", "test")}

Member = tuple[str, int, int]
"""A file in a tar: name, offset and number of bytes."""

T = TypeVar("T")


class Source(ABC):
    """Pictures with a class each, in an order that does not depend on the machine.

    Attributes:
        name: name for messages.
        identities: unique printable name of each picture: in folders its path below that of the split,
            <class>/.../<file>.
        classes: names of the classes.
        labels: class of each picture, an index into `classes`.
    """

    def __init__(self, name: str, identities: list[str], classes: list[str], labels: list[int]):
        self.name, self.identities, self.classes, self.labels = name, identities, classes, labels

    def __len__(self) -> int:
        return len(self.identities)

    def stores(self) -> set[str]:
        """Folders, tars or shards of the pictures: two sources with one in common share pictures."""
        return {self.name}

    def target(self, index: int) -> Target:
        """The target of one picture: its class, unless the source has other targets."""
        return int(self.labels[index])

    def origin(self, index: int) -> tuple["Source", int]:
        """The source that stores a picture and its target, and its index there: for a part, the whole source."""
        return self, index

    @abstractmethod
    def read(self, index: int) -> bytes:
        """The bytes of the file of one picture."""

    def open(self, index: int) -> Image.Image:
        """One picture, in RGB."""
        return decode(self.read(index))


def decode(content: bytes) -> Image.Image:
    """Decodes the bytes of a file to a picture in RGB."""
    try:
        with Image.open(io.BytesIO(content)) as image:
            return to_rgb(image)
    except UnidentifiedImageError as error:  # whose message contains a memory address
        raise UnidentifiedImageError(f"its {len(content)} bytes are no picture") from error


class Folder(Source):
    """Pictures in <folder>/<class>/.../<picture>. Names that begin with a dot are ignored."""

    def __init__(self, folder: Path):
        self.folder = folder
        found = Found(folder)
        _check(folder, found.pictures, sorted(path.name for path in folder.iterdir()))
        paths = by_identity(str(folder), {path: path for path in found.pictures})
        self.paths = {identity: path for identity, path in paths.items() if identity != path}
        super().__init__(str(folder), *_classes_by_folder(list(paths)))
        _check_classes(str(folder), {printable(name) for name in found.folders}, self.classes)
        _warn_of_links(folder, found)

    def stores(self) -> set[str]:
        return {str((self.folder / name).resolve()) for name in self.classes}

    def read(self, index: int) -> bytes:
        identity = self.identities[index]
        return (self.folder / self.paths.get(identity, identity)).read_bytes()


class Found:
    """Paths below a folder, with links followed.

    Attributes:
        pictures: files with the extension of a picture, also if they cannot be read.
        folders: folders that may be classes.
        special: pipes and devices with the extension of a picture: opening a pipe would block.
        loops: links to a folder around them.
    """

    def __init__(self, folder: Path):
        self.pictures: list[str] = []
        self.folders: list[str] = []
        self.special: list[str] = []
        self.loops: list[str] = []
        self._walk(str(folder), "", [_inode(each) for each in folder.resolve().parents])

    def _walk(self, folder: str, prefix: str, around: list[tuple[int, int]]) -> None:
        here = _inode(folder)
        if here in around:
            self.loops.append(prefix.removesuffix("/"))
            return
        if prefix.count("/") == 1:
            self.folders.append(prefix.removesuffix("/"))
        with os.scandir(folder) as entries:
            entries = [entry for entry in entries if not entry.name.startswith(".")]
        for entry in entries:
            if entry.is_dir():
                self._walk(entry.path, f"{prefix}{entry.name}/", [*around, here])
            elif PurePosixPath(entry.name).suffix.lower() in EXTENSIONS:
                is_picture = entry.is_file() or not os.path.exists(entry.path)  # a broken link is a missing picture
                (self.pictures if is_picture else self.special).append(prefix + entry.name)


def pictures_below(folder: Path) -> list[str]:
    """Paths of the pictures below a folder, at any depth; warns of those that are left out."""
    return _warn_of_links(folder, Found(folder)).pictures


def _warn_of_links(folder: Path, found: Found) -> Found:
    warn_of(str(folder), "are neither pictures nor links to any (pipes, sockets or devices)", found.special)
    warn_of(str(folder), "lead back to a folder around them", found.loops)
    return found


def _inode(path: str | Path) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_dev, status.st_ino


def printable(name: str) -> str:
    """A name in which bytes that are not UTF-8 are escaped, such as caf\\xe9.png."""
    return name if name.isascii() else name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def by_identity(where: str, pictures: dict[str, T]) -> dict[str, T]:
    """A dict by identities from a dict by paths of pictures. Raises a ValueError if two have the same identity."""
    named = {printable(path): value for path, value in pictures.items()}
    if len(named) < len(pictures):
        raise ValueError(f"two pictures in {where} differ only in bytes that are not UTF-8: rename one of them")
    return named


def is_hidden(path: str) -> bool:
    """Whether a file or a folder around it begins with a dot, as files of the system do: ._1.jpg, .Trash."""
    return any(part.startswith(".") for part in PurePosixPath(path).parts)


def warn_of(where: str, what: str, names: Iterable[str]) -> None:
    """Warns of pictures that are left out."""
    if names := sorted(map(printable, names)):
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        warnings.warn(f"left out of {where} because they {what}: {', '.join(names[:3])}{more}", stacklevel=2)


class Tar(Source):
    """Pictures in an uncompressed tar, which are read without unpacking."""

    def __init__(self, file: Path, places: dict[str, tuple[int, int]], name: str):
        self.file, self.places = file, places  # identity -> offset and number of bytes
        super().__init__(name, *_classes_by_folder(list(places)))

    def read(self, index: int) -> bytes:
        identity = self.identities[index]
        return read_part(self.file, *self.places[identity], identity)


def open_source(path: str | Path, split: str) -> Source:
    """Opens the pictures of a split, "train" or "val".

    The folder of the split may have another usual name (validation, test, ...). Without folders of splits, all pictures
    are in each split.

    Args:
        path: a folder or a tar of <split>/<class>/<picture>; or, in timm's notation, wds/FOLDER for a folder of
            webdataset shards and hfds/NAME for a data set of Hugging Face, by its name or its folder.
        split: "train" or "val".

    Raises:
        FileNotFoundError: the path does not exist.
        ValueError: it holds no pictures with classes; the message says what was found.
    """
    if split not in SPLITS:
        raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")
    word, place = split_words(path)
    if word == "wds":
        from .shards import open_shards  # here, since it imports this module

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
    """The absolute path of pictures, as `open_source` takes it."""
    word, place = split_words(path)
    if word == "hfds" and not Path(place).exists():
        return str(path)  # a name on the hub
    return f"{word}/{Path(place).resolve()}" if word else str(Path(place).resolve())


def split_words(path: str | Path) -> tuple[str, str]:
    """wds/FOLDER or hfds/NAME split in two; the first part is empty for an ordinary path, such as ./wds/FOLDER.

    A ~ at the beginning of the path is the home folder: shells expand it only at the beginning of a word.
    """
    word, slash, place = str(path).partition("/")
    word, place = (word, place) if slash and word in ("hfds", "wds") else ("", str(path))
    return word, os.path.expanduser(place)


def _folder_of_split(folder: Path, split: str) -> Path:
    present = {child.name for child in folder.iterdir() if child.is_dir() and not is_hidden(child.name)}
    chosen = choose_split(present, split, str(folder))
    return folder if chosen is None else folder / chosen


def choose_split(present: set[str], split: str, where: str, expected: str = "a folder") -> str | None:
    """The name of a split among those present; None if none is the name of any split."""
    chosen = next((name for name in SPLITS[split] if name in present), None)
    others = sorted(present.intersection(all_splits()))
    if chosen is None and others:
        raise ValueError(
            f"{where} has the splits {', '.join(others)}, but none for {split!r}: "
            f"expected {expected} named {' or '.join(SPLITS[split])}"
        )
    return chosen


def tar_members(path: Path) -> list[Member]:
    """The files in a tar. Raises a ValueError if it is compressed or truncated.

    Links are files with the bytes of their targets.
    """
    members, links, special = [], {}, []
    try:
        with tarfile.open(path, "r:") as archive:
            for member in archive:
                if member.isfile():
                    members.append((member.name, member.offset_data, member.size))
                elif member.islnk():
                    links[member.name] = member.linkname
                elif member.issym():
                    links[member.name] = posixpath.join(posixpath.dirname(member.name), member.linkname)
                elif not member.isdir():
                    special.append(member.name)
            # A tar that is truncated between two files only lacks the block of zeros at the end.
            archive.fileobj.seek(archive.offset)
            if archive.fileobj.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
                raise tarfile.ReadError(f"cut off after {len(members)} files")
    except tarfile.ReadError as error:
        raise ValueError(
            f"{path} is no plain and whole tar: {error}. Pictures are read from it at random, so unpack a compressed "
            "one first; copy a broken one again"
        ) from error
    followed, lost = _follow(links, members)
    left_out = [name for name in (*special, *lost) if PurePosixPath(name).suffix.lower() in EXTENSIONS]
    warn_of(str(path), "are neither files nor links to files in it", [name for name in left_out if not is_hidden(name)])
    return members + followed


def _follow(links: dict[str, str], members: list[Member]) -> tuple[list[Member], list[str]]:
    """Links in a tar as files, and those without a target."""
    targets = {posixpath.normpath(name): posixpath.normpath(target) for name, target in links.items()}
    places = {posixpath.normpath(name): (begin, size) for name, begin, size in members}
    found, lost = [], []
    for name in links:
        target = posixpath.normpath(name)
        for _ in links:  # at most as many steps as there are links
            if target not in targets:
                break
            target = targets[target]
        if target in places:
            found.append((name, *places[target]))
        else:
            lost.append(name)
    return found, lost


def read_part(path: Path, begin: int, size: int, name: str) -> bytes:
    """Bytes of a file from an offset on, with a name for messages. Raises an OSError if the file is too short."""
    with path.open("rb") as file:
        file.seek(begin)
        content = file.read(size)
    if len(content) < size:
        raise OSError(f"{path} ends after {len(content)} of {size} bytes of {name}")
    return content


def _open_tar(path: Path, split: str) -> Tar:
    members = {PurePosixPath(name.lstrip("/")).as_posix(): (begin, size) for name, begin, size in tar_members(path)}
    members = by_identity(str(path), {name: place for name, place in members.items() if not is_hidden(name)})
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
    """Sorted identities <class>/.../<file>, sorted names of classes, and the class of each identity."""
    identities = sorted(identities)
    names = [PurePosixPath(identity).parts[0] for identity in identities]
    classes = sorted(set(names))
    numbers = {name: number for number, name in enumerate(classes)}
    return identities, classes, [numbers[name] for name in names]


def all_splits() -> set[str]:
    return {name for names in SPLITS.values() for name in names}


def _check_classes(where: str, folders: set[str], classes: list[str]) -> None:
    """Raises a ValueError if a folder that should be a class has no pictures."""
    if empty := sorted(folders.difference(classes)):
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
