"""Where pictures are stored: folders and tars against the files that were put into them."""

import io
import os
import shutil
import tarfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from torchvars.data import Source, absolute, open_source
from torchvars.data.sources import EXTENSIONS, SPLITS


def encoded(seed=0, format="PNG", size=(6, 5)):
    """The file of a small picture of noise."""
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, format)
    return file.getvalue()


def write_folder(folder, files):
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def write_tar(path, files, mode="w"):
    with tarfile.open(path, mode) as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def contents(source):
    """What a source holds: identity -> name of its class, bytes."""
    held = {}
    for index, identity in enumerate(source.identities):
        held[identity] = source.classes[source.labels[index]], source.read(index)
    return held


# Names out of order, a class of one, a folder within a class, capitals, and what is no picture.
FILES = {
    "train/dog/b.png": encoded(0),
    "train/dog/a.JPG": encoded(1, "JPEG"),
    "train/cat/2/z.bmp": encoded(2, "BMP"),
    "train/cat/10.png": encoded(3),
    "train/ant/only.webp": encoded(4, "WEBP"),
    "train/dog/notes.txt": b"no picture",
    "val/cat/v.png": encoded(5),
    "val/dog/v.png": encoded(6),
    "read.me": b"no picture",
}


@pytest.fixture(params=["folder", "tar"])
def store(request, tmp_path):
    """Writes files as a folder or as a tar."""
    if request.param == "folder":
        (tmp_path / "data").mkdir()
        return lambda files: write_folder(tmp_path / "data", files)
    return lambda files: write_tar(tmp_path / "data.tar", files)


def test_a_source_holds_what_was_put_into_it(store):
    source = open_source(store(FILES), "train")
    # By hand, in the order of the alphabet.
    assert source.identities == ["ant/only.webp", "cat/10.png", "cat/2/z.bmp", "dog/a.JPG", "dog/b.png"]
    assert source.classes == ["ant", "cat", "dog"]
    assert source.labels == [0, 1, 1, 2, 2]
    assert len(source) == 5
    for index, identity in enumerate(source.identities):
        assert source.read(index) == FILES[f"train/{identity}"]
    assert set(open_source(store(FILES), "val").identities) == {"cat/v.png", "dog/v.png"}


NAMES = st.text("ab0_-. ", min_size=1, max_size=4).filter(lambda name: name.strip(".") == name)
PATHS = st.tuples(NAMES, NAMES, st.sampled_from([*sorted(EXTENSIONS), ".txt"]))


@given(paths=st.sets(PATHS, min_size=1, max_size=12), reverse=st.booleans())
def test_folder_and_tar_hold_the_same(tmp_path_factory, paths, reverse):
    """Whatever the names, and in whatever order they were written."""
    tmp_path = tmp_path_factory.mktemp("pictures")
    names = [f"val/{folder}/{file}{extension}" for folder, file, extension in sorted(paths, reverse=reverse)]
    files = {f"val/{folder}/z.png": b"0" for folder in ("z", *(path[0] for path in paths))}  # no class without any
    files |= {name: name.encode() for name in names}
    folder = open_source(write_folder(tmp_path / "data", files), "val")
    tar = open_source(write_tar(tmp_path / "data.tar", files), "val")
    assert folder.identities == tar.identities
    assert folder.classes == tar.classes
    assert folder.labels == tar.labels
    held = {name: (name.split("/")[0], content) for name, content in _without_split(files).items()}
    assert contents(folder) == contents(tar) == held
    shutil.rmtree(tmp_path)


def _without_split(files):
    return {name.removeprefix("val/"): content for name, content in files.items() if not name.endswith(".txt")}


@pytest.mark.parametrize("split", SPLITS)
def test_a_split_goes_by_its_other_names(store, split):
    path = store({})
    for name in SPLITS[split]:
        if path.is_dir():
            shutil.rmtree(path)
        path = store({f"{name}/cat/1.png": name.encode()})
        assert contents(open_source(path, split)) == {"cat/1.png": ("cat", name.encode())}


def test_the_home_folder_is_found_in_paths(tmp_path, monkeypatch):
    write_folder(tmp_path / "data", {"train/cat/1.png": b"1"})
    monkeypatch.setenv("HOME", str(tmp_path))
    assert open_source("~/data", "train").read(0) == b"1"
    assert absolute("~/data") == str(tmp_path / "data")
    assert absolute("wds/~/data") == f"wds/{tmp_path}/data"


def test_the_first_of_two_names_is_taken(store):
    path = store({"test/cat/1.png": b"test", "val/cat/1.png": b"val"})
    assert open_source(path, "val").read(0) == b"val"


def test_classes_without_splits_are_all_there_is(store):
    path = store({"cat/1.png": b"1", "dog/2.png": b"2"})
    held = {"cat/1.png": ("cat", b"1"), "dog/2.png": ("dog", b"2")}
    assert contents(open_source(path, "train")) == contents(open_source(path, "val")) == held


def test_every_extension_is_a_picture_that_decodes(store):
    formats = {".jpg": "JPEG", ".jpeg": "JPEG", ".tif": "TIFF", ".tiff": "TIFF", ".bmp": "BMP", ".png": "PNG"}
    formats |= {".ppm": "PPM", ".pgm": "PPM", ".webp": "WEBP", ".gif": "GIF", ".jfif": "JPEG"}
    assert set(formats) == EXTENSIONS
    files = {f"cat/1{extension}": encoded(7, format) for extension, format in formats.items()}
    files |= {f"cat/2{extension.upper()}": encoded(7, format) for extension, format in formats.items()}
    source = open_source(store(files | {"cat/1.npy": b"", "cat/1.json": b""}), "train")
    assert set(source.identities) == set(files)
    for index in range(len(source)):
        assert source.open(index).size == (6, 5)


@pytest.mark.parametrize("around", ["", "val/"])
def test_a_class_without_pictures_is_not_left_out_in_silence(store, around):
    files = {"cat/1.png": encoded(), "dog/1.npy": b"", "eel/1/2.npy": b"", ".git/config": b"", "notes.txt": b""}
    data = store({f"{around}{name}": content for name, content in files.items()})
    with pytest.raises(ValueError, match=r"2 of the 3 classes of .* have no pictures, such as dog: copy them again"):
        open_source(data, "val")


def test_an_empty_folder_is_a_class_without_pictures(tmp_path):
    folder = write_folder(tmp_path, {"cat/1.png": encoded()})
    (folder / "eel").mkdir()
    with pytest.raises(ValueError, match=r"1 of the 2 classes of .* have no pictures, such as eel"):
        open_source(folder, "val")


def test_hidden_files_are_passed_over(store):
    hidden = {"train/dog/.b.png": b"", "train/dog/._a.JPG": b"", "train/.trash/a.png": b"", ".train/dog/a.png": b""}
    source = open_source(store(FILES | hidden), "train")
    assert source.identities == open_source(store(FILES), "train").identities
    assert source.classes == ["ant", "cat", "dog"]


def test_names_that_are_no_utf_8_can_be_read_and_printed(store):
    names = [os.fsdecode(name) for name in (b"caf\xe9/\xff.png", b"caf\xe9/\xfe.png", "café/1.png".encode())]
    files = {name: encoded(number) for number, name in enumerate(names)}
    source = open_source(store(files), "val")
    assert source.classes == ["caf\\xe9", "café"]
    assert contents(source) == {
        "caf\\xe9/\\xff.png": ("caf\\xe9", files[names[0]]),
        "caf\\xe9/\\xfe.png": ("caf\\xe9", files[names[1]]),
        "café/1.png": ("café", files[names[2]]),
    }
    "".join([*source.identities, *source.classes]).encode()
    with pytest.raises(ValueError, match=r"two pictures in .* differ only in bytes that are not UTF-8"):
        open_source(store(files | {r"caf\xe9/\xff.png": b""}), "val")


def test_a_loop_of_links_adds_no_picture(tmp_path):
    write_folder(tmp_path / "data", FILES)
    expected = open_source(tmp_path / "data", "train").identities
    for place, target in (("cat/loop", "cat"), ("loop", "."), ("dog/around", "..")):
        (tmp_path / "data" / "train" / place).symlink_to(tmp_path / "data" / "train" / target)
    with pytest.warns(UserWarning, match="lead back to a folder around them: cat/loop, dog/around, loop"):
        assert open_source(tmp_path / "data", "train").identities == expected
    # What is linked to twice is there twice.
    shutil.rmtree(tmp_path / "data" / "val")
    (tmp_path / "data" / "val").mkdir()
    for name in ("one", "two"):
        (tmp_path / "data" / "val" / name).symlink_to(tmp_path / "data" / "train" / "ant")
    assert open_source(tmp_path / "data", "val").identities == ["one/only.webp", "two/only.webp"]


def test_a_pipe_is_no_picture_and_a_dead_link_is_a_lost_one(tmp_path):
    write_folder(tmp_path / "data", FILES)
    os.mkfifo(tmp_path / "data" / "val" / "cat" / "pipe.png")
    (tmp_path / "data" / "val" / "cat" / "dead.png").symlink_to(tmp_path / "nowhere")
    with pytest.warns(UserWarning, match="are neither pictures nor links to any .* cat/pipe.png"):
        assert open_source(tmp_path / "data", "val").identities == ["cat/dead.png", "cat/v.png", "dog/v.png"]


def test_a_split_that_is_not_there(store):
    path = store({"train/cat/1.png": b"1"})
    with pytest.raises(ValueError, match="has the splits train, but none for 'val': expected a folder named val or"):
        open_source(path, "val")


def test_no_such_split(store):
    with pytest.raises(ValueError, match="split must be one of train, val, got 'testing'"):
        open_source(store(FILES), "testing")


def test_nothing_there(tmp_path):
    with pytest.raises(FileNotFoundError, match=f"no pictures at {tmp_path / 'nowhere'}"):
        open_source(tmp_path / "nowhere", "train")


def test_no_pictures(store):
    with pytest.raises(ValueError, match=r"holds no pictures: found nothing; expected <class>/<picture>, .*\.webp"):
        open_source(store({}), "train")
    with pytest.raises(ValueError, match=r"holds no pictures: found .*1.txt"):
        open_source(store({"1.txt": b"1"}), "train")


def test_loose_pictures(store):
    path = store({"1.png": b"1", "0.png": b"0", "cat/1.png": b"1"})
    with pytest.raises(ValueError, match=r"2 pictures in .* lie in no class, such as 0.png: expected <class>"):
        open_source(path, "train")


@pytest.mark.parametrize("around", ["", "./", "imagenette/", "./a/b/", "/", "/a/"])
def test_folders_around_everything_in_a_tar_are_no_classes(tmp_path, around):
    path = write_tar(tmp_path / "data.tar", {around + name: content for name, content in FILES.items()})
    unpacked = open_source(write_folder(tmp_path / "data", FILES), "val")
    assert contents(open_source(path, "val")) == contents(unpacked)


def test_a_folder_around_classes_in_a_tar_is_no_class(tmp_path):
    path = write_tar(tmp_path / "data.tar", {"all/cat/1.png": b"1", "all/dog/1.png": b"2"})
    assert open_source(path, "train").classes == ["cat", "dog"]


def test_the_only_class_of_a_tar_is_a_class(tmp_path):
    path = write_tar(tmp_path / "data.tar", {"cat/1.png": b"1", "cat/2.png": b"2"})
    assert contents(open_source(path, "train")) == {"cat/1.png": ("cat", b"1"), "cat/2.png": ("cat", b"2")}


def test_a_file_that_is_twice_in_a_tar_is_the_later_one(tmp_path):
    path = write_tar(tmp_path / "data.tar", {"cat/1.png": b"old", "cat/2.png": b"2"})
    write_tar(path, {"cat/1.png": b"new"}, mode="a")
    assert contents(open_source(path, "train")) == {"cat/1.png": ("cat", b"new"), "cat/2.png": ("cat", b"2")}


@pytest.mark.parametrize("compression", ["gz", "bz2", "xz"])
def test_a_compressed_tar_is_refused(tmp_path, compression):
    path = write_tar(tmp_path / "data.tar", FILES, mode=f"w:{compression}")
    with pytest.raises(ValueError, match=r"data.tar is no plain and whole tar: .* unpack a compressed one first"):
        open_source(path, "train")


def test_a_tar_cut_off_anywhere_is_refused(tmp_path):
    path = write_tar(tmp_path / "data.tar", {"cat/1.png": bytes(700), "cat/2.png": bytes(512), "dog/1.png": b"1"})
    whole = path.read_bytes()
    end = (1 + 2) * 512 + (1 + 1) * 512 + (1 + 1) * 512  # a header for each file, and its content in whole blocks
    for length in [*range(0, end, 100), *range(0, end + 1, 512)]:
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"no plain and whole tar: .* copy a broken one again"):
            open_source(path, "train")
    path.write_bytes(whole)
    assert len(open_source(path, "train")) == 3


def test_a_tar_cut_off_after_it_was_opened_says_so(tmp_path):
    path = write_tar(tmp_path / "data.tar", {"cat/1.png": bytes(700)})
    source = open_source(path, "train")
    path.write_bytes(path.read_bytes()[: 512 + 300])
    with pytest.raises(OSError, match=r"ends after 300 of 700 bytes of cat/1.png"):
        source.read(0)


def test_grey_and_palette_pictures_decode_to_the_colours_they_show():
    grey = np.arange(30, dtype=np.uint8).reshape(5, 6) * 8
    expected = np.stack([grey] * 3, axis=-1)
    np.testing.assert_array_equal(opened(Image.fromarray(grey)), expected)
    alpha = Image.fromarray(np.stack([grey, np.full_like(grey, 7)], axis=-1), "LA")
    np.testing.assert_array_equal(opened(alpha), expected)

    palette = np.random.default_rng(0).integers(0, 256, (4, 3), dtype=np.uint8)
    numbers = np.arange(30, dtype=np.uint8).reshape(5, 6) % 4
    image = Image.fromarray(numbers, "P")
    image.putpalette(palette.tobytes())
    np.testing.assert_array_equal(opened(image), palette[numbers])


def test_pictures_of_16_bit_keep_the_upper_8():
    grey = np.arange(0, 65536, 2185, dtype=np.uint16).reshape(5, 6)
    np.testing.assert_array_equal(opened(Image.fromarray(grey)), np.stack([(grey >> 8).astype(np.uint8)] * 3, axis=-1))


@pytest.mark.parametrize("numbers", [np.float32(0.5), np.int32(-7), np.int32(70_000)])
def test_numbers_of_unknown_range_are_no_picture(numbers):
    with pytest.raises(ValueError, match=r"its pixels are .*: expected 8 or 16 bit"):
        opened(Image.fromarray(np.full((5, 6), numbers)), "TIFF")


def opened(image, format="PNG"):
    """The image as a source gives it that has only the file."""
    file = io.BytesIO()
    image.save(file, format)

    class Only(Source):
        def read(self, index):
            return file.getvalue()

    return Only("only", ["a/1.png"], ["a"], [0]).open(0)
