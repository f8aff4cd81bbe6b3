"""Pictures in arrays, as CIFAR-10-C comes."""

import io

import numpy as np
import pytest
from PIL import Image

from torchvars.data.arrays import Arrays

CLASSES = ["cat", "dog", "frog"]


@pytest.fixture
def stored(tmp_path):
    pictures = np.random.default_rng(0).integers(0, 256, (12, 5, 7, 3), dtype=np.uint8)
    np.save(tmp_path / "fog.npy", pictures)
    return tmp_path / "fog.npy", pictures, np.arange(12) % 3


def test_a_block_of_an_array(stored):
    file, pictures, labels = stored
    source = Arrays(file, labels, 4, 5, CLASSES)
    assert source.identities == ["dog/0", "frog/1", "cat/2", "dog/3", "frog/4"]
    assert source.classes == CLASSES
    assert source.labels == [1, 2, 0, 1, 2]
    for index in range(5):
        assert np.array_equal(np.asarray(source.open(index)), pictures[4 + index])
        with Image.open(io.BytesIO(source.read(index))) as image:  # the same as a file
            assert np.array_equal(np.asarray(image.convert("RGB")), pictures[4 + index])


def test_arrays_that_are_something_else(stored, tmp_path):
    file, pictures, labels = stored
    with pytest.raises(ValueError, match=r"fog.npy holds 12 pictures and there are 12 labels: .* at least 13"):
        Arrays(file, labels, 8, 5, CLASSES)
    with pytest.raises(ValueError, match=r"fog.npy holds 12 pictures and there are 11 labels: expected as many"):
        Arrays(file, labels[1:], 0, 5, CLASSES)
    with pytest.raises(ValueError, match=r"labels are from 0 to 2: expected from 0 to 1"):
        Arrays(file, labels, 0, 5, CLASSES[:2])
    with pytest.raises(ValueError, match=r"labels are from -1 to 1: expected from 0 to 2"):
        Arrays(file, labels - 1, 0, 5, CLASSES)
    for wrong in (pictures[..., :1], pictures / 255, pictures[0]):
        np.save(tmp_path / "wrong.npy", wrong)
        with pytest.raises(ValueError, match=r"wrong.npy holds .* of shape .*: expected pictures \(N, H, W, 3\) of 8"):
            Arrays(tmp_path / "wrong.npy", labels, 0, 5, CLASSES)
    (tmp_path / "cut.npy").write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"mmap|cut.npy"):
        Arrays(tmp_path / "cut.npy", labels, 0, 5, CLASSES)
