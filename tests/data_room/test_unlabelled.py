"""Pictures without labels, wherever they lie."""

import tarfile

import numpy as np
import pytest
from PIL import Image

from torchvars.data import open_unlabelled


def write(folder, names):
    for number, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((4, 4, 3), number, np.uint8)).save(folder / name)
    return folder


def tar_of(folder, file):
    with tarfile.open(file, "w") as archive:
        archive.add(folder, arcname=folder.name)
    return file


LAYOUTS = {
    "flat": [f"{number}.png" for number in range(12)],
    "nested": [f"{number % 2}/deep/{number}.png" for number in range(11)] + ["loose.png"],
    "one split of pictures": [f"train/{number}.png" for number in range(12)],
}


@pytest.mark.parametrize("kind", ["folder", "tar"])
@pytest.mark.parametrize("layout", list(LAYOUTS))
def test_pictures_anywhere_are_parted_in_two(layout, kind, tmp_path):
    names = LAYOUTS[layout]
    folder = write(tmp_path / "pictures", [*names, ".hidden/0.png"])
    (folder / "notes.txt").write_text("no picture")
    place = folder if kind == "folder" else tar_of(folder, tmp_path / "pictures.tar")
    pictures, held_out = (open_unlabelled(place, split) for split in ("train", "val"))
    assert len(held_out) == 1
    prefix = "" if kind == "folder" else "pictures/"
    assert sorted([*pictures.identities, *held_out.identities]) == sorted(prefix + name for name in names)
    assert pictures.classes == []
    assert set(pictures.labels) == {-1}
    for source in (pictures, held_out):
        for index, identity in enumerate(source.identities):
            level = np.asarray(source.open(index)).ravel()[0]
            assert level == names.index(identity.removeprefix(prefix))
    assert open_unlabelled(place, "val").identities == held_out.identities  # always the same


def test_splits_with_classes_keep_their_labels(tmp_path):
    names = [f"{split}/{name}/{number}.png" for split in ("train", "val") for name in "ab" for number in range(2)]
    folder = write(tmp_path, names)
    pictures, held_out = (open_unlabelled(folder, split) for split in ("train", "val"))
    assert (pictures.classes, pictures.labels) == (["a", "b"], [0, 0, 1, 1])
    assert held_out.identities == ["a/0.png", "a/1.png", "b/0.png", "b/1.png"]
    assert not pictures.stores() & held_out.stores()


def test_classes_without_splits_keep_their_labels_and_are_parted(tmp_path):
    folder = write(tmp_path, [f"{name}/{number}.png" for name in "ab" for number in range(10)])
    pictures, held_out = (open_unlabelled(folder, split) for split in ("train", "val"))
    assert pictures.classes == held_out.classes == ["a", "b"]
    assert (len(pictures), len(held_out)) == (18, 2)
    assert not set(pictures.identities) & set(held_out.identities)
    assert all(
        pictures.classes[label] == name[0] for label, name in zip(pictures.labels, pictures.identities, strict=True)
    )


def test_too_few_are_told_of(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"empty holds no picture: expected two at least, .* ending in .*\.png"):
        open_unlabelled(tmp_path / "empty", "train")
    write(tmp_path / "one", ["only.png"])
    with pytest.raises(ValueError, match=r"one holds one picture only: expected two at least"):
        open_unlabelled(tmp_path / "one", "train")
    with pytest.raises(FileNotFoundError, match=r"no pictures at .*nowhere"):
        open_unlabelled(tmp_path / "nowhere", "train")
