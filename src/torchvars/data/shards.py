"""Webdataset shards: tars of <key>.jpg and <key>.cls, read in random order without unpacking.

The headers of each shard are read once, when it is opened. Then it is a source like any other: a run on it can be
distributed, interrupted and resumed exactly.
"""

import json
import re
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tarfile import BLOCKSIZE
from typing import NamedTuple

import numpy as np

from .sources import (
    EXTENSIONS,
    SPLITS,
    Member,
    Source,
    all_splits,
    choose_split,
    is_hidden,
    printable,
    read_part,
    tar_members,
)

# If a sample has several pictures, such as a photograph and its mask, the first of these is used, as in timm.
PICTURES = list(dict.fromkeys(["jpg", "png", "webp", *(extension[1:] for extension in sorted(EXTENSIONS))]))
INFO = ("_info.json", "info.json")  # timm's list of shards
CLASS_NAMES = "classnames.txt"  # a line each, that of label 0 first
OCTAL = re.compile(rb"[0-7]+").fullmatch
THREADS = 4  # they wait for the disk; more would not be faster


class Shards(Source):
    """Pictures in shards, in the order of the shards and of their members.

    Args:
        folder: folder of the shards.
        shards: paths of the shards below it. A picture is identified by <shard>/<member>.
        class_names: names of the labels 0, 1, ...; if None, the labels that occur are named by their numbers.
    """

    def __init__(self, folder: Path, shards: list[str], class_names: list[str] | None):
        self.shards = [folder / shard for shard in shards]
        with ThreadPoolExecutor(THREADS) as threads:
            indices = list(threads.map(index_shard, self.shards))
        identities = [
            printable(f"{shard}/{name}") for shard, index in zip(shards, indices, strict=True) for name in index.names
        ]
        name = f"{folder} ({len(shards)} shards, {shards[0]} the first)"
        if not identities:
            raise ValueError(f"{name} holds no pictures: expected <key>.jpg and <key>.cls for each")
        numbers = [number for index in indices for number in index.labels]
        super().__init__(name, identities, *_name_classes(numbers, class_names, identities, name))
        # Arrays, not lists, since worker processes share their memory.
        self.places = np.concatenate([index.places for index in indices])
        self.shard_of = np.repeat(np.arange(len(shards)), [len(index.names) for index in indices])

    def stores(self) -> set[str]:
        return {str(shard.resolve()) for shard in self.shards}

    def read(self, index: int) -> bytes:
        # Keeping shards open would save 10 us per picture, but need an open file for each shard.
        begin, size = self.places[index].tolist()
        return read_part(self.shards[self.shard_of[index]], begin, size, self.identities[index])


def open_shards(folder: Path, split: str) -> Shards:
    """Opens the shards of a split in a folder, with names of classes if there is a classnames.txt."""
    if not folder.is_dir():
        found = "it is a file" if folder.exists() else "there is none"
        raise FileNotFoundError(f"no folder of shards at {folder}: {found}. Name the folder that holds the tars")
    names = folder / CLASS_NAMES
    return Shards(folder, find_shards(folder, split), names.read_text().splitlines() if names.is_file() else None)


# Which shards


def find_shards(folder: Path, split: str) -> list[str]:
    """The shards of a split, sorted, as paths below the folder.

    They are those listed in an _info.json; without one, those with a name of the split as a word in their own name or
    in that of their folder: imagenet-train-0001.tar, val/0001.tar. If none has such a word, all shards are used.
    """
    if listed := [folder / name for name in INFO if (folder / name).is_file()]:
        shards = _listed(listed[0], split)
    else:
        shards = _named(folder, split)
    if compressed := [shard for shard in shards if not shard.endswith(".tar")]:
        raise ValueError(
            f"{len(compressed)} of the shards in {folder} are compressed, such as {compressed[0]}: pictures are read "
            "at random, which needs plain .tar files. Unpack them first (gunzip), pictures would not get smaller"
        )
    if missing := [shard for shard in shards if not (folder / shard).is_file()]:
        raise FileNotFoundError(
            f"{len(missing)} of {len(shards)} shards listed in {listed[0]} are not there, such as {missing[0]}: "
            "copy them, or take them off the list"
        )
    return sorted(shards)


def _listed(info: Path, split: str) -> list[str]:
    try:
        splits = json.loads(info.read_text())["splits"]
        chosen = choose_split(set(splits), split, str(info), "one")
        shards, alternative = splits[chosen]["filenames"], splits[chosen].get("alt_label")
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(
            f"{info} does not list the shards of {split!r} ({type(error).__name__}: {error}): expected "
            f'{{"splits": {{"{split}": {{"filenames": [...]}}}}}}; correct it, or remove it to go by names'
        ) from error
    if not shards:
        raise ValueError(f"{info} lists no shards for {split!r}: add them, or remove the file to go by names")
    if alternative:
        raise ValueError(f"{info} asks for the labels {alternative!r} (alt_label): only those in .cls files are read")
    return shards


def _named(folder: Path, split: str) -> list[str]:
    shards = [
        path.relative_to(folder).as_posix()
        for pattern in ("*", "*/*")
        for path in folder.glob(pattern)
        if re.search(r"\.(tar(\.\w+)?|tgz)$", path.name) and not is_hidden(path.relative_to(folder).as_posix())
    ]
    if not shards:
        found = sorted(path.name for path in folder.iterdir())
        shown = ", ".join(found[:5]) + (", ..." if len(found) > 5 else "") if found else "nothing"
        raise ValueError(f"{folder} holds no shards: found {shown}; expected files ending in .tar")
    words = {shard: _words(shard) & all_splits() for shard in shards}
    for shard, present in words.items():
        if sum(not present.isdisjoint(names) for names in SPLITS.values()) > 1:
            raise ValueError(
                f"the shard {shard} in {folder} could be of any split, {' or '.join(sorted(present))}: rename it, or "
                f"list the shards in {INFO[0]}"
            )
    chosen = choose_split(set().union(*words.values()), split, str(folder), "shards")
    return [shard for shard in shards if chosen is None or chosen in words[shard]]


def _words(name: str) -> set[str]:
    """Words of a name: cifarTrain_012/a-1.tar -> cifar, train, a, tar."""
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name)}


# Contents of a shard


class Index(NamedTuple):
    """The pictures of a shard, in the order of its members."""

    names: list[str]
    places: np.ndarray  # (pictures, 2): offset and number of bytes of each
    labels: list[int]


def index_shard(path: Path) -> Index:
    """The places and labels of the pictures in a shard.

    A sample is all files of one key: their path up to the first dot of the file's name. Files that are neither pictures
    nor labels are ignored.
    """
    samples: dict[str, dict[str, Member]] = {}
    for member in scan(path):
        if is_hidden(member[0]):
            continue
        folder, slash, file = member[0].rpartition("/")
        stem, _, kind = file.partition(".")
        kind = kind.lower()
        if stem and (kind == "cls" or kind in PICTURES):
            parts = samples.setdefault(folder + slash + stem, {})
            if kind in parts:
                raise ValueError(f"{path} has {member[0]} twice: a key is to be that of one sample; write it anew")
            parts[kind] = member
    chosen = [next((parts[kind] for kind in PICTURES if kind in parts), None) for parts in samples.values()]
    for what, lacking in (
        (".cls with its label", [key for key, parts in samples.items() if "cls" not in parts]),
        ("picture", [key for key, picture in zip(samples, chosen, strict=True) if picture is None]),
    ):
        if lacking:
            raise ValueError(
                f"{len(lacking)} of {len(samples)} samples in {path} have no {what}, such as {lacking[0]}: "
                f"expected <key>.cls and <key>.jpg, or another of {', '.join(PICTURES)}"
            )
    labels = _read_labels(path, [parts["cls"] for parts in samples.values()])
    pictures = [picture for picture in chosen if picture is not None]
    places = np.array([picture[1:] for picture in pictures], dtype=np.int64).reshape(-1, 2)
    return Index([picture[0] for picture in pictures], places, labels)


def scan(path: Path) -> list[Member]:
    """The same as `tar_members`, several times as fast for simple tars, of which only the headers are read.

    All others are passed to `tar_members`: long names, files beyond 8 GiB, links, other formats, and broken tars.
    """
    members, headers, position = [], [], 0
    with path.open("rb", buffering=0) as file:
        while (header := _read(file, position, BLOCKSIZE)) != bytes(BLOCKSIZE):
            kind, size = header[156:157], header[124:136].strip(b"\0 ")
            if len(header) < BLOCKSIZE or header[257:262] != b"ustar" or not OCTAL(size):
                return tar_members(path)
            headers.append(header)
            size, position = int(size, 8), position + BLOCKSIZE
            if kind == b"0":
                name = header[:100].partition(b"\0")[0]
                if header[345]:
                    name = header[345:500].partition(b"\0")[0] + b"/" + name
                members.append((name.decode("utf-8", "surrogateescape"), position, size))
            elif kind == b"5":  # a folder
                continue
            elif kind != b"x" or not _idle(_read(file, position, size)):
                return tar_members(path)
            position += -(-size // BLOCKSIZE) * BLOCKSIZE
    return members if _sums_are_right(headers) else tar_members(path)


def _sums_are_right(headers: list[bytes]) -> bool:
    """Whether the checksum of each header is right; bytes of the checksum count as blanks. Computed all at once."""
    stated = [header[148:156].strip(b"\0 ") for header in headers]
    if not all(map(OCTAL, stated)):
        return False
    blocks = np.frombuffer(b"".join(headers), dtype=np.uint8).reshape(-1, BLOCKSIZE)
    sums = blocks.sum(1, dtype=np.int64) - blocks[:, 148:156].sum(1, dtype=np.int64) + 8 * ord(" ")
    return sums.tolist() == [int(digits, 8) for digits in stated]


def _read(file, position: int, size: int) -> bytes:
    file.seek(position)
    return file.read(size)


def _idle(records: bytes) -> bool:
    """Whether a pax header, lines of "<length> <key>=<value>", only has times and owners of the next file."""
    keys = {line.partition(b"=")[0].partition(b" ")[2] for line in records.splitlines()}
    return keys <= {b"atime", b"ctime", b"mtime", b"uid", b"gid", b"uname", b"gname"}


def _read_labels(path: Path, members: Iterable[Member]) -> list[int]:
    labels = []
    with path.open("rb", buffering=0) as file:
        for name, begin, size in members:
            content = _read(file, begin, size)
            try:
                labels.append(int(content))
            except ValueError:
                raise ValueError(
                    f"the label {name} in {path} is {content[:20]!r}: expected the number of a class, such as 7"
                ) from None
    return labels


def _name_classes(
    numbers: list[int], names: list[str] | None, identities: list[str], where: str
) -> tuple[list[str], list[int]]:
    """Names of the classes, and the class of each picture as an index into them."""
    found = sorted(set(numbers))
    most = found[-1] if names is None else len(names) - 1
    for wrong in (number for number in found if not 0 <= number <= most):
        expected = "0 or more" if names is None else f"from 0 to {most}, a line in {CLASS_NAMES} each"
        raise ValueError(
            f"the label of {identities[numbers.index(wrong)]} in {where} is {wrong}: expected {expected}; "
            "correct the one or the other"
        )
    if names is not None:
        return names, numbers
    places = {number: place for place, number in enumerate(found)}
    return [str(number) for number in found], [places[number] for number in numbers]
