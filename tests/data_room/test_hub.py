"""Data sets of Hugging Face that lie in folders, against the files they were made of and the package itself."""

import io
import sys

import datasets
import numpy as np
import pytest
import torch
from PIL import Image

from torchvars.data import Order, Pictures, load, open_source

NAMES = ["zebra", "ant", "Dog"]  # an order of their own


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    """Nothing is left in the home of whoever runs this, nothing is asked of the network."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    datasets.disable_progress_bars()


def encoded(seed: int) -> bytes:
    file = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 256, (5, 6, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def write_parquet(folder, splits, names=NAMES, image="image", label="label", kind=None):
    """Files of a data set as the hub has them. splits: name -> (seed of the picture or None, label) of each row."""
    features = datasets.Features({image: datasets.Image(), label: kind or datasets.ClassLabel(names=names)})
    (folder / "data").mkdir(parents=True)
    for split, rows in splits.items():
        pictures = [None if seed is None else {"bytes": encoded(seed), "path": None} for seed, _ in rows]
        table = datasets.Dataset.from_dict({image: pictures, label: [number for _, number in rows]}, features)
        table.to_parquet(folder / "data" / f"{split}-00000-of-00001.parquet")
    return folder


SPLITS = {"train": [(0, 2), (1, 0), (2, 2), (3, 1), (4, 0)], "validation": [(5, 1), (6, 0)], "test": [(7, -1)]}


@pytest.mark.parametrize("columns", [{}, {"image": "img", "label": "fine_label"}])
def test_a_data_set_holds_what_was_put_into_it(tmp_path, columns):
    folder = write_parquet(tmp_path / "Set", SPLITS, **columns)  # a capital: timm's factory would not find it
    for split, name in (("train", "train"), ("val", "validation")):
        source = open_source(f"hfds/{folder}", split)
        assert source.name == f"{folder}:{name}"
        assert source.classes == NAMES
        assert source.labels == [label for _, label in SPLITS[name]]
        assert source.identities == [f"{NAMES[label]}/{name}-{n}" for n, (_, label) in enumerate(SPLITS[name])]
        assert [source.read(index) for index in range(len(source))] == [encoded(seed) for seed, _ in SPLITS[name]]


def test_labels_are_read_without_the_pictures(tmp_path, monkeypatch):
    folder = write_parquet(tmp_path / "set", SPLITS)
    monkeypatch.setattr(datasets.Image, "decode_example", lambda *_, **__: pytest.fail("a picture was decoded"))
    assert open_source(f"hfds/{folder}", "train").labels == [2, 0, 2, 1, 0]


def test_a_folder_of_pictures_is_read_as_datasets_reads_it(tmp_path):
    files = {"train/b/1.png": 0, "train/b/2.png": 1, "train/a/1.png": 2, "val/a/3.png": 3, "val/b/3.png": 4}
    for name, seed in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(encoded(seed))
    for split, name in (("train", "train"), ("val", "validation")):
        source = open_source(f"hfds/{tmp_path}", split)
        rows = datasets.load_dataset(str(tmp_path), split=name)
        assert source.classes == rows.features["label"].names == ["a", "b"]
        assert source.labels == list(rows["label"])
        for index, row in enumerate(rows):
            np.testing.assert_array_equal(Image.open(io.BytesIO(source.read(index))), row["image"])


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_what_was_drawn_whoever_reads_them(tmp_path, workers):
    def pixels_of(image):
        return torch.from_numpy(np.asarray(image).copy()).movedim(-1, 0)

    source = open_source(f"hfds/{write_parquet(tmp_path / 'set', SPLITS)}", "train")
    order = Order(5, 2, seed=3)
    batches = list(load(Pictures(source, pixels_of), order.batches(1, 6), workers))
    for batch, draws in zip(batches, order.batches(1, 6), strict=True):
        rows = [SPLITS["train"][draw.index] for draw in draws]
        expected = [pixels_of(Image.open(io.BytesIO(encoded(seed)))) for seed, _ in rows]
        torch.testing.assert_close(batch.pixels, torch.stack(expected), rtol=0, atol=0)
        assert batch.labels.tolist() == [label for _, label in rows]
        assert batch.problems == {}


def test_a_split_that_is_not_there(tmp_path):
    folder = write_parquet(tmp_path / "set", {"train": SPLITS["train"]})
    with pytest.raises(ValueError, match=r"has the splits train, but none for 'val': expected one named val or valid"):
        open_source(f"hfds/{folder}", "val")


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        ([(0, 1), (1, -1)], {}, r"the label of picture 1 of .*:train is -1: expected from 0 to 2"),
        ([(0, 1), (1, None)], {}, r"the label of picture 1 of .*:train is None: expected from 0 to 2"),
        ([(0, 1), (None, 1)], {}, r"1 of 2 rows of .*:train have no picture"),
        (
            [(0, 1)],
            {"kind": datasets.Value("int64")},
            r"has 0 columns of the kind ClassLabel, none named 'label', among .*label \(int64\): .*class_encode_column",
        ),
    ],
)
def test_data_sets_that_cannot_be_trained_on(tmp_path, rows, options, message):
    folder = write_parquet(tmp_path / "set", {"train": rows}, **options)
    with pytest.raises(ValueError, match=message):
        open_source(f"hfds/{folder}", "train")


def test_without_the_package_it_is_told_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)  # as if it were not installed
    with pytest.raises(ValueError, match=r"hfds/timm/some is read by the package datasets.*torchvars\[hub\]"):
        open_source("hfds/timm/some", "train")
