"""Webdataset shards against the files that were put into them, and against what tarfile finds there."""

import io
import json
import shutil
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from torchvars.data import Order, Pictures, absolute, load, open_source, shards
from torchvars.training.loop import Settings, train
from torchvars.training.recipe import find_recipe


def write_tar(path: Path, files, format=tarfile.USTAR_FORMAT, mode="w", mtime=0) -> Path:
    """A tar of files, a dictionary or pairs of name and content."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, mode, format=format) as archive:
        for name, content in files.items() if isinstance(files, dict) else files:
            member = tarfile.TarInfo(name)
            member.size, member.mtime = len(content), mtime
            archive.addfile(member, io.BytesIO(content))
    return path


def sample(key: str, label: int, picture: bytes | None = None) -> dict[str, bytes]:
    return {f"{key}.cls": str(label).encode(), f"{key}.jpg": picture or key.encode()}


def contents(source) -> list[tuple[str, str, bytes]]:
    """Identity, name of the class and bytes of each picture, in order."""
    return [
        (identity, source.classes[label], source.read(index))
        for index, (identity, label) in enumerate(zip(source.identities, source.labels, strict=True))
    ]


def by_tarfile(path: Path) -> list[tuple[str, int, int]]:
    with tarfile.open(path) as archive:
        return [(member.name, member.offset_data, member.size) for member in archive.getmembers() if member.isfile()]


# Headers


FORMATS = st.sampled_from([tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
SHORT = st.text("ab0._-é ", min_size=1, max_size=12)
# Beyond 100 characters: in two fields of the header with a slash at a fit place, else in a header of their own.
LONG = st.tuples(st.integers(20, 90), st.integers(20, 90)).map(lambda n: "d" * n[0] + "/" + "f" * n[1])
LONGER = st.integers(101, 300).map(lambda count: "n" * count)
FILES = st.lists(st.tuples(SHORT | LONG, st.sampled_from([0, 1, 511, 512, 513, 1500])), min_size=1, max_size=8)


@given(files=FILES, longer=st.none() | LONGER, format=FORMATS, mtime=st.sampled_from([0, 1.5]))
def test_scanning_finds_what_tarfile_finds(tmp_path_factory, files, longer, format, mtime):
    folder = tmp_path_factory.mktemp("tar")
    written = [(name, bytes([number]) * size) for number, (name, size) in enumerate(files, 1)]
    if longer and format != tarfile.USTAR_FORMAT:  # which has no place for it
        written.insert(len(written) // 2, (longer, b"long"))
    path = write_tar(folder / "1.tar", written, format, mtime=mtime)
    found = shards.scan(path)
    assert found == by_tarfile(path)
    whole = path.read_bytes()
    assert [(name, whole[begin : begin + size]) for name, begin, size in found] == written
    shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("format", "mtime"),
    [(tarfile.USTAR_FORMAT, 0), (tarfile.GNU_FORMAT, 0), (tarfile.PAX_FORMAT, 0), (tarfile.PAX_FORMAT, 1.5)],
)
def test_plain_shards_are_scanned_without_tarfile(tmp_path, monkeypatch, format, mtime):
    """Times that are no whole seconds, as webdataset writes them, get a header of their own before every file."""
    path = write_tar(tmp_path / "1.tar", sample("d/a", 1) | sample("d/b", 2, bytes(700)), format, mtime=mtime)
    with tarfile.open(path, "a", format=format) as archive:
        folder = tarfile.TarInfo("d")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
    expected = by_tarfile(path)
    monkeypatch.setattr(shards, "tar_members", lambda path: pytest.fail("left to tarfile"))
    assert shards.scan(path) == expected
    assert len(expected) == 4


@pytest.mark.parametrize("format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_links_have_the_bytes_they_lead_to_and_other_things_are_told_of(tmp_path, format):
    path = tmp_path / "1.tar"
    with tarfile.open(path, "w", format=format) as archive:
        for name, kind, target in (
            ("./in/a.jpg", tarfile.REGTYPE, ""),
            ("in/hard.jpg", tarfile.LNKTYPE, "in/a.jpg"),
            ("in/soft.jpg", tarfile.SYMTYPE, "../in/later.jpg"),
            ("in/later.jpg", tarfile.SYMTYPE, "hard.jpg"),
            ("in/lost.jpg", tarfile.SYMTYPE, "nowhere.jpg"),
            ("in/round.jpg", tarfile.SYMTYPE, "round.jpg"),
            ("in/lost.txt", tarfile.SYMTYPE, "nowhere.txt"),
            ("in/pipe.jpg", tarfile.FIFOTYPE, ""),
        ):
            member = tarfile.TarInfo(name)
            member.type, member.linkname, member.size = kind, target, 3 * (kind == tarfile.REGTYPE)
            archive.addfile(member, io.BytesIO(b"abc"))
    with pytest.warns(UserWarning, match=r"neither files .* in it: in/lost.jpg, in/pipe.jpg, in/round.jpg$"):
        found = shards.scan(path)
    assert found == [(name, 512, 3) for name in ("./in/a.jpg", "in/hard.jpg", "in/soft.jpg", "in/later.jpg")]


def test_hidden_files_and_shards_are_passed_over(tmp_path):
    files = sample("a", 0) | sample("._a", 0) | sample(".trash/a", 0)
    write_tar(tmp_path / "data" / "1.tar", files)
    (tmp_path / "data" / "._1.tar").write_bytes(b"left by a system")
    assert open_source(f"wds/{tmp_path / 'data'}", "train").identities == ["1.tar/a.jpg"]


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.PAX_FORMAT])
def test_a_shard_cut_off_anywhere_is_refused(tmp_path, format):
    path = write_tar(tmp_path / "data" / "1.tar", sample("a", 0, bytes(700)) | sample("b", 1), format, mtime=1.5)
    whole = path.read_bytes()
    end = max(begin + -(-size // 512) * 512 for _, begin, size in by_tarfile(path))
    for length in [*range(0, end, 300), *range(0, end + 1, 512)]:
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"1.tar is no plain and whole tar: .* copy a broken one again"):
            open_source(f"wds/{path.parent}", "train")
    path.write_bytes(whole)
    assert len(open_source(f"wds/{path.parent}", "train")) == 2


@pytest.mark.parametrize("place", [0, 124 + 8, 124 + 7, 148 + 5, 257])
def test_a_header_that_was_changed_is_noticed(tmp_path, place):
    """In the name, in the size by 64 bytes and by 512, in the sum of all bytes, and in what tells that it is one."""
    path = write_tar(tmp_path / "1.tar", sample("a", 0, bytes(700)) | sample("b", 1))
    content = bytearray(path.read_bytes())
    _, begin, _ = by_tarfile(path)[1]
    content[begin - 512 + place] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="no plain and whole tar: cut off after 1 files"):
        shards.scan(path)


# Samples


def test_shards_hold_what_was_put_into_them(tmp_path):
    """In the order of shards and members; the label before or after the picture, or far from it."""
    write_tar(tmp_path / "b.tar", sample("x/1", 9) | {"x/2.JPG": b"two", "x/2.cls": b"10\n"})
    write_tar(
        tmp_path / "a.tar",
        {"7.png": b"seven", "6.png": b"six", "6.cls": b"2", "7.json": b"{}", "7.cls": b"10", "notes.txt": b"1"},
    )
    source = open_source(f"wds/{tmp_path}", "train")
    assert source.classes == ["2", "9", "10"]  # as numbers: 10 is after 9
    assert contents(source) == [
        ("a.tar/7.png", "10", b"seven"),
        ("a.tar/6.png", "2", b"six"),
        ("b.tar/x/1.jpg", "9", b"x/1"),
        ("b.tar/x/2.JPG", "10", b"two"),
    ]


def test_the_first_dot_ends_a_key(tmp_path):
    """So that a.seg.png is no picture of the sample a, and ._a.jpg of none; as in webdataset."""
    files = {"v1.0/a.seg.png": b"mask", "v1.0/._a.jpg": b"mac", **sample("v1.0/a", 3, b"photo")}
    write_tar(tmp_path / "1.tar", files)
    assert contents(open_source(f"wds/{tmp_path}", "train")) == [("1.tar/v1.0/a.jpg", "3", b"photo")]


def test_of_several_pictures_that_which_timm_takes(tmp_path):
    files = {"a.bmp": b"bmp", "a.webp": b"webp", "a.png": b"png", "a.jpg": b"jpg", "a.cls": b"0"}
    for first, then in (("jpg", "png"), ("png", "webp"), ("webp", "bmp")):
        write_tar(tmp_path / "1.tar", files)
        assert open_source(f"wds/{tmp_path}", "train").read(0) == first.encode()
        del files[f"a.{first}"]
        assert f"a.{then}" in files


def test_names_of_classes_come_from_a_list(tmp_path):
    write_tar(tmp_path / "1.tar", sample("a", 2) | sample("b", 0))
    (tmp_path / "classnames.txt").write_text("tench\ngreat white shark\ncock\n")
    source = open_source(f"wds/{tmp_path}", "val")
    assert source.classes == ["tench", "great white shark", "cock"]
    assert source.labels == [2, 0]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            sample("a", 0) | {"b.jpg": b"", "c.jpg": b""},
            r"2 of 3 samples in .*1.tar have no .cls with its label, such as b: expected <key>.cls and <key>.jpg",
        ),
        (sample("a", 0) | {"b.cls": b"1"}, r"1 of 2 samples in .*1.tar have no picture, such as b: expected"),
        ([*sample("a", 0).items(), ("a.jpg", b"")], r"1.tar has a.jpg twice: a key is to be that of one sample"),
        ([*sample("a", 0).items(), ("a.JPG", b"")], r"1.tar has a.JPG twice"),
        ([*sample("a", 0).items(), ("a.cls", b"1")], r"1.tar has a.cls twice"),
        (sample("a", 0) | {"b.jpg": b"", "b.cls": b"dog"}, r"the label b.cls in .* is b'dog': expected the number"),
        (sample("a", 0) | {"b.jpg": b"", "b.cls": b""}, r"the label b.cls in .* is b'': expected the number"),
        (sample("a", 0) | sample("b", -1), r"the label of 1.tar/b.jpg in .* is -1: expected 0 or more"),
        ({"read.me": b""}, r"\(1 shards, 1.tar the first\) holds no pictures: expected <key>.jpg and <key>.cls"),
    ],
)
def test_shards_that_cannot_be_trained_on(tmp_path, files, message):
    write_tar(tmp_path / "1.tar", files)
    with pytest.raises(ValueError, match=message):
        open_source(f"wds/{tmp_path}", "train")


def test_a_label_beyond_the_list_of_classes(tmp_path):
    write_tar(tmp_path / "1.tar", sample("a", 0) | sample("b", 2))
    (tmp_path / "classnames.txt").write_text("cat\ndog\n")
    with pytest.raises(ValueError, match=r"label of 1.tar/b.jpg in .* is 2: expected from 0 to 1, a line in class"):
        open_source(f"wds/{tmp_path}", "train")


def test_the_same_key_in_two_shards_is_two_pictures(tmp_path):
    for number in (0, 1):
        write_tar(tmp_path / f"{number}.tar", sample("000", number))
    assert open_source(f"wds/{tmp_path}", "train").identities == ["0.tar/000.jpg", "1.tar/000.jpg"]


# Which shards


def write_shards(folder: Path, *names: str) -> Path:
    """Shards of one picture each, which holds the name of the shard."""
    for name in names:
        write_tar(folder / name, sample("a", 0, name.encode()))
    return folder


def chosen(folder: Path, split: str) -> list[str]:
    source = open_source(f"wds/{folder}", split)
    return [source.read(index).decode() for index in range(len(source))]


@pytest.mark.parametrize(
    ("training", "held_out"),
    [
        ("imagenet1k-train-0001.tar", "imagenet1k-validation-00.tar"),
        ("TRAIN_1.tar", "myVal_1.tar"),
        ("train/0.tar", "test/0.tar"),
        ("carnival-training-0.tar", "latest-eval-0.tar"),  # val and test as parts of words are none
    ],
)
def test_a_split_is_a_word_in_the_name_of_a_shard_or_its_folder(tmp_path, training, held_out):
    write_shards(tmp_path, training, held_out)
    assert chosen(tmp_path, "train") == [training]
    assert chosen(tmp_path, "val") == [held_out]


def test_shards_are_sorted(tmp_path):
    names = [f"val-{number:02}.tar" for number in range(12)]
    assert chosen(write_shards(tmp_path, *reversed(names)), "val") == names


def test_shards_without_a_split_are_all_there_is(tmp_path):
    write_shards(tmp_path, "0.tar", "1.tar")
    assert chosen(tmp_path, "train") == chosen(tmp_path, "val") == ["0.tar", "1.tar"]


def test_the_list_of_timm_is_followed(tmp_path):
    write_shards(tmp_path, "1.tar", "2.tar", "3.tar", "train-4.tar")
    splits = {
        "train": {"name": "train", "filenames": ["3.tar", "1.tar"], "shard_lengths": [1, 1], "num_samples": 2},
        "validation": {"name": "validation", "filenames": ["2.tar"], "shard_lengths": [1], "num_samples": 1},
    }
    (tmp_path / "_info.json").write_text(json.dumps({"splits": splits}))
    assert chosen(tmp_path, "train") == ["1.tar", "3.tar"]
    assert chosen(tmp_path, "val") == ["2.tar"]


@pytest.mark.parametrize(
    ("info", "error", "message"),
    [
        (
            {"splits": {"train": {"filenames": ["1.tar", "2.tar"]}}},
            FileNotFoundError,
            r"1 of 2 shards listed in .*_info.json are not there, such as 2.tar: copy them, or take them off",
        ),
        ({"splits": {"val": {"filenames": []}}}, ValueError, r"has the splits val, but none for 'train': expected one"),
        ({"splits": {"train": {"filenames": []}}}, ValueError, r"_info.json lists no shards for 'train': add them"),
        ({"splits": {"all": {"filenames": []}}}, ValueError, r"does not list the shards of 'train' .KeyError: None"),
        (
            {},
            ValueError,
            r"does not list the shards of 'train' .KeyError: 'splits'.: expected {\"splits\": {",
        ),
        ("{", ValueError, r"does not list the shards of 'train' .JSONDecodeError"),
        (
            {"splits": {"train": {"filenames": ["1.tar"], "alt_label": "in12k"}}},
            ValueError,
            r"asks for the labels 'in12k' \(alt_label\): only those in .cls files are read",
        ),
        (
            {"splits": {"train": {"filenames": ["1.tar", "2.tar.gz"]}}},
            ValueError,
            r"1 of the shards in .* are compressed, such as 2.tar.gz: .* Unpack them first",
        ),
    ],
)
def test_a_list_that_is_wrong(tmp_path, info, error, message):
    write_shards(tmp_path, "1.tar")
    (tmp_path / "_info.json").write_text(info if isinstance(info, str) else json.dumps(info))
    with pytest.raises(error, match=message):
        open_source(f"wds/{tmp_path}", "train")


def test_folders_without_shards(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no folder of shards at .*nowhere: there is none"):
        open_source(f"wds/{tmp_path}/nowhere", "train")
    with pytest.raises(ValueError, match=r"holds no shards: found nothing; expected files ending in .tar"):
        open_source(f"wds/{tmp_path}", "train")
    (tmp_path / "a.txt").write_text("")
    with pytest.raises(ValueError, match=r"holds no shards: found a.txt; expected files ending in .tar"):
        open_source(f"wds/{tmp_path}", "train")
    with pytest.raises(FileNotFoundError, match=r"no folder of shards at .*a.txt: it is a file"):
        open_source(f"wds/{tmp_path}/a.txt", "train")


def test_splits_of_shards_that_are_missing_or_unclear(tmp_path):
    write_shards(tmp_path, "train-0.tar")
    with pytest.raises(ValueError, match=r"has the splits train, but none for 'val': expected shards named val or"):
        open_source(f"wds/{tmp_path}", "val")
    write_shards(tmp_path, "train/val-0.tar")
    with pytest.raises(ValueError, match=r"train/val-0.tar in .* could be of any split, train or val: rename it"):
        open_source(f"wds/{tmp_path}", "val")


@pytest.mark.parametrize("name", ["train-0.tar.gz", "train-0.tgz", "train/0.tar.zst"])
def test_compressed_shards_are_to_be_unpacked(tmp_path, name):
    write_shards(tmp_path, "train-1.tar")
    write_tar(tmp_path / name, sample("a", 0), mode="w:gz")
    with pytest.raises(ValueError, match=rf"1 of the shards in .* are compressed, such as {name}: .* Unpack them"):
        open_source(f"wds/{tmp_path}", "train")
    (tmp_path / name).rename(tmp_path / "train-2.tar")  # whatever it is called
    with pytest.raises(ValueError, match=r"train-2.tar is no plain and whole tar: .* unpack a compressed one first"):
        open_source(f"wds/{tmp_path}", "train")


def test_a_folder_of_shards_is_recognised_but_not_taken_for_classes(tmp_path):
    with pytest.raises(ValueError, match=f"holds no pictures: .* webdataset shards, they are read from wds/{tmp_path}"):
        open_source(write_shards(tmp_path, "1.tar"), "train")


def test_words_before_a_path_are_kept_when_it_is_made_absolute(tmp_path, monkeypatch):
    write_shards(tmp_path / "wds", "1.tar")
    monkeypatch.chdir(tmp_path)
    assert absolute("wds/wds") == f"wds/{tmp_path}/wds"
    assert absolute(f"wds/{tmp_path}/wds") == f"wds/{tmp_path}/wds"
    assert absolute("./wds") == absolute("wds") == str(tmp_path / "wds")
    assert absolute("hfds/wds") == f"hfds/{tmp_path}/wds"
    assert absolute("hfds/timm/imagenet-1k") == "hfds/timm/imagenet-1k"
    monkeypatch.chdir("/")
    assert open_source(f"wds/{tmp_path}/wds", "train").read(0) == b"1.tar"


# Runs


@pytest.fixture(scope="module")
def stores(tmp_path_factory) -> dict[str, str]:
    """The same pictures of two classes, 0 and 1, in folders and in shards, in one order."""
    folder, generator = tmp_path_factory.mktemp("stores"), np.random.default_rng(0)
    for split, count in (("train", 16), ("val", 6)):
        members = {}
        for number in range(count):
            label = int(number >= count // 2)
            noise = generator.integers(0, 128, (16, 16, 3))
            noise[..., 2 * label] += 100
            file = io.BytesIO()
            Image.fromarray(noise.astype(np.uint8)).save(file, "PNG")
            path = folder / "folder" / split / str(label) / f"{number:02}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(file.getvalue())
            members |= {f"{number:02}.cls": str(label).encode(), f"{number:02}.png": file.getvalue()}
        files = list(members.items())
        for number, first in enumerate(range(0, len(files), 10)):  # five samples a shard
            write_tar(folder / "shards" / f"tiny-{split}-{number:04}.tar", files[first : first + 10])
    return {"folder": str(folder / "folder"), "shards": f"wds/{folder / 'shards'}"}


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_from_shards_are_those_from_a_folder(stores, workers):
    def pixels_of(image):
        return torch.from_numpy(np.asarray(image).copy()).movedim(-1, 0)

    order = Order(16, 3, seed=1)
    batches = [
        list(load(Pictures(open_source(store, "train"), pixels_of), order.batches(2, 9), count))
        for store, count in ((stores["folder"], 0), (stores["shards"], workers))
    ]
    assert len(batches[0]) == 7
    for one, other in zip(*batches, strict=True):
        torch.testing.assert_close(one.pixels, other.pixels, rtol=0, atol=0)
        torch.testing.assert_close(one.labels, other.labels, rtol=0, atol=0)
    assert other.identities[0].startswith("tiny-train-000")


@pytest.mark.usefixtures("one_thread")
def test_a_run_on_shards_ends_as_on_a_folder_also_when_resumed(stores, tmp_path):
    recipe = find_recipe("cifar10_deit_micro_vars_d", img_size=16, epochs=2, batch=4, warmup_epochs=1, ema=0.5)

    def outcome(output: Path) -> tuple[bytes, bytes]:
        """The weights, and what the last epoch was like."""
        lines = (output / "metrics.jsonl").read_bytes().splitlines()
        return (output / "weights" / "model.safetensors").read_bytes(), lines[-1]

    begun = Settings(stores["folder"], tmp_path / "folder", workers=0)
    train(recipe, begun)
    settings = replace(begun, data=stores["shards"], output=tmp_path / "shards")
    train(recipe, replace(settings, max_steps=3))  # of the four of an epoch
    first = outcome(settings.output)
    train(recipe, settings, resume=True)
    assert outcome(settings.output) == outcome(begun.output)
    assert outcome(settings.output)[0] != first[0]
