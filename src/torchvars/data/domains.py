"""Pictures of several domains, stored as <domain>/<class>/<picture>: one domain is left out of training."""

import hashlib
import posixpath
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Literal

import numpy as np

from .parts import Part, is_held_out
from .sources import Folder, Source, is_hidden

LISTS = {"train": "train", "crossval": "val"}  # <domain>_<name>_kfold.txt, as PACS is published -> split


def domain_of(identity: str) -> str:
    return PurePosixPath(identity).parts[0]


def class_of(identity: str) -> str:
    return PurePosixPath(identity).parts[1]


def leave_out(
    source: Source,
    domain: str,
    split: Literal["train", "val", "test"],
    share: float = 0.1,
    lists: Mapping[str, str] | None = None,
) -> Part:
    """A part of pictures stored as <domain>/<class>/<picture>, with one domain left out of training.

    Args:
        source: its classes are the domains.
        domain: domain that is left out.
        split: "train" for the other domains without the held-out pictures, "val" for these, "test" for all of `domain`.
        share: held-out share of the other domains, in tenths; the choice depends on the names of the pictures only.
        lists: result of `read_split_lists`, which determines the held-out pictures in place of the share.
    """
    if domain not in source.classes:
        raise ValueError(f"no domain {domain!r} in {source.name}: it has {', '.join(source.classes)}")
    check_depth(source)

    def keep(identity: str) -> bool:
        if split == "test" or domain_of(identity) == domain:
            return split == "test" and domain_of(identity) == domain
        if lists is not None:
            return lists.get(identity) == split
        return is_held_out(identity, share) == (split == "val")

    name = f"{domain} of {source.name}" if split == "test" else f"{split} part of {source.name} without {domain}"
    return Part(source, name, keep, class_of)


def check_depth(source: Source) -> None:
    """Raises a ValueError unless all pictures are in folders of a domain and a class."""
    flat = [identity for identity in source.identities if len(PurePosixPath(identity).parts) < 3]
    if flat:
        raise ValueError(f"{source.name} has no domains: expected <domain>/<class>/<picture>, found {flat[0]}")


def check_domains(source: Source, targets: Sequence[str] = ()) -> dict[str, dict[str, int]]:
    """Numbers of pictures: domain -> class -> number.

    Raises:
        ValueError: a target is not a domain; there is one domain only; the classes of the domains differ; a class has
            fewer than two pictures in a domain, so that none could be held out.
    """
    domains, where = source.classes, source.name
    if unknown := [target for target in targets if target not in domains]:
        raise ValueError(f"no domain {unknown[0]!r} in {where}: it has {', '.join(domains)}")
    check_depth(source)
    if len(domains) < 2:
        raise ValueError(
            f"{where} has the domain {domains[0]} only: expected two at least, one to leave out and one to train on, "
            "as <domain>/<class>/<picture>"
        )
    counts: dict[str, dict[str, int]] = {domain: {} for domain in domains}
    for identity in source.identities:
        inside = counts[domain_of(identity)]
        inside[class_of(identity)] = inside.get(class_of(identity), 0) + 1
    if isinstance(source, Folder):
        for domain in domains:
            folders = {path.name for path in (source.folder / domain).iterdir() if path.is_dir()}
            if empty := sorted(name for name in folders - set(counts[domain]) if not is_hidden(name)):
                raise ValueError(f"the class {empty[0]} of the domain {domain} in {where} has no pictures: {MEND}")
    for domain in domains[1:]:
        first, other = (set(counts[each]) for each in (domains[0], domain))
        if first != other:
            only_first, only_other = (", ".join(sorted(each)) or "none" for each in (first - other, other - first))
            raise ValueError(
                f"the domains {domains[0]} and {domain} in {where} have other classes: only in {domains[0]} "
                f"{only_first}; only in {domain} {only_other}. All domains need the same classes"
            )
    for domain, inside in counts.items():
        if single := [name for name, count in inside.items() if count == 1]:
            raise ValueError(
                f"the class {single[0]} of the domain {domain} in {where} has one picture only, expected two at least: "
                f"{MEND}"
            )
    if len(counts[domains[0]]) < 2:
        raise ValueError(
            f"{where} has one class only, {next(iter(counts[domains[0]]))}: there is nothing to tell apart"
        )
    return counts


MEND = "copy the pictures again, or remove that class from all domains"


def check_sources(source: Source, target: str, share: float, lists: Mapping[str, str] | None) -> None:
    """Raises a ValueError unless each class has training pictures when a domain is left out."""
    train = leave_out(source, target, "train", share, lists)
    if lost := sorted(set(range(len(train.classes))) - set(train.labels)):
        raise ValueError(
            f"with {target} left out, no picture of the class {train.classes[lost[0]]} is left to train on: all "
            f"{'are in the lists of held-out pictures' if lists else 'happen to be held out'}"
        )
    leave_out(source, target, "val", share, lists)  # raises an error if it is empty


def read_split_lists(folder: Path, source: Source) -> dict[str, str]:
    """Splits of pictures into training and held-out ones, by the lists that PACS is published with.

    <domain>_train_kfold.txt and <domain>_crossval_kfold.txt hold a line for each picture, <domain>/<class>/<file> and
    the number of its class, from 1. A picture is identified by its path without the extension, so that the lists
    also fit copies in another format. Its class is that of its folder. A picture in both lists is held out and not
    trained on; one in no list is neither. Lists of all pictures of a domain (test) are not needed.

    Returns:
        identity -> "train" or "val".

    Raises:
        FileNotFoundError: a domain has no lists.
        ValueError: a line is invalid, or its picture does not exist.

    Warns:
        UserWarning: lines contradict each other or the folders, or pictures are in no list.
    """
    by_stem = {_stem(identity): identity for identity in source.identities}
    if len(by_stem) < len(source):
        raise ValueError(f"two pictures in {source.name} differ in their extension only: lists cannot tell them apart")
    classes = sorted({class_of(identity) for identity in source.identities})
    splits: dict[str, str] = {}
    numbers: dict[str, set[int]] = {}
    again, both = [], []
    for domain in source.classes:
        for listed, split in LISTS.items():
            file = Path(folder) / f"{domain}_{listed}_kfold.txt"
            if not file.is_file():
                raise FileNotFoundError(f"no list {file}: expected {listed} lists of {', '.join(source.classes)}")
            for place, line in enumerate(file.read_text().splitlines(), 1):
                if not line.strip():
                    continue
                path, _, number = line.strip().rpartition(" ")
                identity = by_stem.get(_stem(path))
                if not number.isdigit() or identity is None:
                    problem = "is not a path and a number" if not number.isdigit() else f"is of no picture of {domain}"
                    raise ValueError(f"{file}, line {place}: {line!r} {problem}: give the lists of these pictures")
                numbers.setdefault(identity, set()).add(int(number))
                if identity in splits:
                    (again if splits[identity] == split else both).append(identity)
                splits[identity] = "val" if "val" in (split, splits.get(identity)) else "train"
    if not splits:
        raise ValueError(f"the split lists in {folder} are empty: copy them again")
    place = {identity: classes.index(class_of(identity)) for identity in numbers}
    differences = Counter(number - place[identity] for identity, listed in numbers.items() for number in listed)
    ((first, _),) = differences.most_common(1)  # number of the first class: 1 as published, 0 in some copies
    mismatched = [identity for identity, listed in numbers.items() if listed != {first + place[identity]}]
    unlisted = [identity for identity in source.identities if identity not in splits]
    for text, names in (
        ("are listed twice, and count once", again),
        ("are in both lists: they are held out, and not trained on", both),
        ("have a number of another class than their folder, which decides", mismatched),
        ("are in no list: they are neither trained on nor held out", unlisted),
    ):
        if names:
            warnings.warn(f"{len(names)} pictures of {folder} {text}, such as {names[0]}", stacklevel=2)
    return splits


def _stem(path: str) -> str:
    return posixpath.splitext(path)[0]


def domainbed_part(source: Source, domain: str, seed: int) -> Callable[[str], bool]:
    """The pictures of a target domain on which DomainBed reports accuracy: four fifths of it, drawn by a seed.

    DomainBed sorts the pictures by class and name, shuffles them by NumPy's RandomState, whose seed is
    md5("(seed, number of the domain)") modulo 2^31, and leaves out the first fifth, rounded down
    (domainbed/scripts/train.py and domainbed/lib/misc.py at commit b93c22a, with the default holdout_fraction of 0.2;
    domains are numbered in the order of their names). For all pictures of PACS under their published names, these are
    exactly the pictures of its trial of that seed.

    Args:
        source: its classes are the domains.
        domain: one of them.
        seed: DomainBed's trial seed.

    Returns:
        identity -> whether it is one of them.
    """
    names = sorted(
        (identity for identity in source.identities if domain_of(identity) == domain),
        key=lambda identity: PurePosixPath(identity).parts,
    )
    digest = hashlib.md5(str((seed, sorted(source.classes).index(domain))).encode(), usedforsecurity=False)
    order = list(range(len(names)))
    np.random.RandomState(int(digest.hexdigest(), 16) % 2**31).shuffle(order)
    chosen = {names[number] for number in order[len(names) // 5 :]}
    return chosen.__contains__
