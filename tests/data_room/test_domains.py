"""Domains, what is held out of them, and the lists and splits of others."""

from pathlib import Path

import numpy as np
import pytest

from torchvars.data import Source, check_domains, domainbed_part, leave_out, read_split_lists

DOMAINS, CLASSES = ("art", "photo", "sketch"), ("cat", "dog")


class Named(Source):
    """Pictures whose content is their name."""

    def __init__(self, identities: list[str]):
        identities = sorted(identities)
        domains = sorted({identity.split("/")[0] for identity in identities})
        labels = [domains.index(identity.split("/")[0]) for identity in identities]
        super().__init__("all", identities, domains, labels)

    def read(self, index: int) -> bytes:
        return self.identities[index].encode()


@pytest.fixture
def source() -> Source:
    return Named([f"{domain}/{name}/{number}.jpg" for domain in DOMAINS for name in CLASSES for number in range(200)])


@pytest.mark.parametrize("share", [0.1, 0.2, 0.5, 0.9])
def test_a_share_of_the_sources_is_held_out_and_nothing_is_lost(share, source):
    train, val, test = (leave_out(source, "photo", split, share) for split in ("train", "val", "test"))
    assert sorted(train.identities + val.identities + test.identities) == source.identities
    assert abs(len(val) - 800 * share) < 3 * np.sqrt(800 * share * (1 - share))
    assert {identity.split("/")[0] for identity in test.identities} == {"photo"}
    smaller = leave_out(source, "photo", "val", round(share - 0.1, 1)) if share > 0.1 else val
    assert set(smaller.identities) <= set(val.identities)


@pytest.mark.parametrize(
    ("count", "seed", "domain", "missing"), [(11, 0, "photo", [0, 3]), (11, 3, "art", [0, 1]), (7, 1, "sketch", [3])]
)
def test_four_fifths_are_those_of_domainbed(count, seed, domain, missing):
    """What is left out was found by DomainBed's own split_dataset and seed_hash (commit b93c22a)."""
    ordered = [f"{domain}/{name}/{number}.jpg" for name in CLASSES for number in range(count)][:count]
    others = [f"{other}/cat/{number}.jpg" for other in DOMAINS if other != domain for number in range(3)]
    within = domainbed_part(Named(ordered + others), domain, seed)
    ordered.sort()
    assert [number for number, identity in enumerate(ordered) if not within(identity)] == missing
    assert not any(map(within, others))


def test_domains_are_counted_and_told_apart(source):
    assert check_domains(source) == {domain: dict.fromkeys(CLASSES, 200) for domain in DOMAINS}
    with pytest.raises(ValueError, match="only in art cat; only in photo none"):
        check_domains(Named([name for name in source.identities if not name.startswith("photo/cat")]))


def write_lists(folder: Path, source: Source, first: int = 1, ending: str = ".png") -> Path:
    """Every fifth picture is held out."""
    folder.mkdir()
    for domain in source.classes:
        lines = {"train": [], "crossval": []}
        for number, identity in enumerate(name for name in source.identities if name.startswith(f"{domain}/")):
            label = first + CLASSES.index(identity.split("/")[1])
            lines["train" if number % 5 else "crossval"].append(identity.replace(".jpg", ending) + f" {label}")
        for name, each in lines.items():
            (folder / f"{domain}_{name}_kfold.txt").write_text("\n".join(each) + "\n")
    return folder


@pytest.mark.parametrize("first", [0, 1])
def test_published_lists_decide_what_is_held_out(first, source, tmp_path, recwarn):
    lists = read_split_lists(write_lists(tmp_path / "lists", source, first), source)
    assert not recwarn.list
    train, val, test = (leave_out(source, "art", split, lists=lists) for split in ("train", "val", "test"))
    assert sorted(train.identities + val.identities + test.identities) == source.identities
    places = {identity: number for number, identity in enumerate(source.identities)}
    assert all(places[identity] % 5 == 0 for identity in val.identities)
    assert len(val) == 160
    assert [val.classes[label] for label in val.labels] == [name.split("/")[1] for name in val.identities]


def test_lists_that_overlap_hold_out_what_is_in_both(source, tmp_path):
    folder = write_lists(tmp_path / "lists", source)
    held_out = (folder / "art_crossval_kfold.txt").read_text().splitlines()
    with (folder / "art_train_kfold.txt").open("a") as file:
        file.write(held_out[0] + "\n")
    (folder / "sketch_crossval_kfold.txt").write_text("sketch/cat/0.png 1\nsketch/cat/0.png 1\nsketch/cat/5.png 2\n")
    with pytest.warns(UserWarning, match="pictures of") as told:
        lists = read_split_lists(folder, source)
    both = held_out[0].split()[0].replace(".png", ".jpg")
    assert lists[both] == "val"
    said = [str(each.message) for each in told]
    assert any(f"in both lists: they are held out, and not trained on, such as {both}" in each for each in said)
    assert any(
        "1 pictures" in each and "listed twice, and count once, such as sketch/cat/0.jpg" in each for each in said
    )
    assert any("another class than their folder, which decides, such as sketch/cat/5.jpg" in each for each in said)
    assert any("in no list: they are neither trained on nor held out" in each for each in said)
    train, val = (leave_out(source, "photo", split, lists=lists) for split in ("train", "val"))
    assert both in val.identities
    assert both not in train.identities
    assert val.classes[val.labels[val.identities.index("sketch/cat/5.jpg")]] == "cat"


@pytest.mark.parametrize(
    ("line", "said"),
    [("art/cat/1000.png 1", "is of no picture of art"), ("art/cat/1.png", "is not a path and a number")],
)
def test_lines_that_are_of_no_list_are_told(line, said, source, tmp_path):
    folder = write_lists(tmp_path / "lists", source)
    (folder / "art_train_kfold.txt").write_text(line)
    with pytest.raises(ValueError, match=f"art_train_kfold.txt, line 1: '{line}' {said}"):
        read_split_lists(folder, source)
    (folder / "art_train_kfold.txt").unlink()
    with pytest.raises(FileNotFoundError, match=r"no list .*art_train_kfold.txt: expected train lists of art, photo"):
        read_split_lists(folder, source)
