"""The layout of PASCAL VOC, in folders and tars, whole and broken."""

import tarfile

import numpy as np
import pytest
from PIL import Image

from torchvars.data import Pictures, Whole, open_segmented

NAMES = ("2007_000033", "2007_000042", "2007_000061")


def write(folder, around="VOCdevkit/VOC2012", names=NAMES, split=NAMES[:2]):
    root = folder / around
    for each in ("JPEGImages", "SegmentationClass", "ImageSets/Segmentation"):
        (root / each).mkdir(parents=True)
    for number, name in enumerate(names):
        Image.new("RGB", (6, 4 + number), (200, 40, 40)).save(root / f"JPEGImages/{name}.jpg")
        labels = np.full((4 + number, 6), 255, np.uint8)
        labels[1:, 1:] = 15
        labels[2:, 3:] = 0
        mask = Image.fromarray(labels, "P")
        mask.putpalette([number for colour in range(256) for number in (colour, 0, 255 - colour)])
        mask.save(root / f"SegmentationClass/{name}.png")
    (root / "ImageSets/Segmentation/val.txt").write_text("\n".join(split) + "\n")
    return root


def packed(folder, path):
    with tarfile.open(path, "w") as archive:
        archive.add(folder, "VOCdevkit")
    return path


@pytest.mark.parametrize("kind", ["around", "root", "tar"])
def test_masks_are_read_as_numbers_from_wherever_they_lie(kind, tmp_path):
    root = write(tmp_path / "data")
    places = {"around": tmp_path / "data", "root": root}
    path = packed(tmp_path / "data/VOCdevkit", tmp_path / "voc.tar") if kind == "tar" else places[kind]
    source = open_segmented(path)
    assert source.identities == list(NAMES[:2])
    labels = source.target(1).labels
    assert labels.shape == (5, 6)
    assert (labels[0] == 255).all()
    assert (labels[1, 1:] == 15).all()
    assert (labels[2:, 3:] == 0).all()
    assert source.open(1).size == (6, 5)
    sample = Pictures(source, Whole(8))[type("Draw", (), {"index": 1, "seed": 0})]
    assert sample.pixels.shape == (3, 8, 8)
    np.testing.assert_array_equal(sample.target.labels, labels)  # as it is stored


def test_another_split_and_none(tmp_path):
    root = write(tmp_path, "")
    (root / "ImageSets/Segmentation/train.txt").write_text(NAMES[2])
    assert open_segmented(root, "train").identities == [NAMES[2]]
    with pytest.raises(ValueError, match=r"has no ImageSets/Segmentation/test.txt: there are ImageSets/Seg"):
        open_segmented(root, "test")
    for name in ("train", "val"):
        (root / f"ImageSets/Segmentation/{name}.txt").unlink()
    assert open_segmented(root).identities == list(NAMES)  # all that have a mask


def test_what_is_broken_is_named(tmp_path):
    root = write(tmp_path / "a", "")
    mask = root / f"SegmentationClass/{NAMES[1]}.png"
    Image.new("RGB", (6, 5)).save(mask)
    with pytest.raises(ValueError, match=rf"SegmentationClass/{NAMES[1]}.png of .* is a picture of mode RGB: expected"):
        open_segmented(root).target(1)
    mask.write_bytes(mask.read_bytes()[:40])
    with pytest.raises(ValueError, match=rf"{NAMES[1]}.png of .* is no mask that can be read"):
        open_segmented(root).target(1)
    Image.new("L", (7, 5)).save(mask)
    pictures = Pictures(open_segmented(root), Whole(8))
    with pytest.raises(ValueError, match=rf"{NAMES[1]} of .*: the mask is of 7 x 5 pixels and its picture of 6 x 5"):
        pictures[type("Draw", (), {"index": 1, "seed": 0})]
    mask.unlink()
    with pytest.raises(ValueError, match=rf"1 of 2 pictures of .* have no picture or no mask, such as {NAMES[1]}"):
        open_segmented(root)
    write(tmp_path / "b", "VOC2007")
    write(tmp_path / "b", "VOC2012")
    with pytest.raises(ValueError, match=r"several folders SegmentationClass, in VOC2007, VOC2012: name one of these"):
        open_segmented(tmp_path / "b")
    (tmp_path / "c/val").mkdir(parents=True)
    (tmp_path / "c/val/1.png").touch()
    with pytest.raises(ValueError, match=r"is not in the layout of PASCAL VOC: .*found val"):
        open_segmented(tmp_path / "c")
    with pytest.raises(FileNotFoundError, match=r"no data set at .*nowhere"):
        open_segmented(tmp_path / "nowhere")
