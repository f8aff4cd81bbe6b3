"""Pictures in NumPy arrays, such as CIFAR-10-C."""

import io
from pathlib import Path

import numpy as np
from PIL import Image

from .sources import Source


class Arrays(Source):
    """A range of pictures in a file, identified by class and index.

    Args:
        file: .npy of pictures (N, H, W, 3), 8 bit. It is memory-mapped.
        labels: labels of all pictures of the file.
        first, count: first picture, and number of pictures.
        classes: names of the classes.
    """

    def __init__(self, file: Path, labels: np.ndarray, first: int, count: int, classes: list[str]):
        self.pictures, self.first = np.load(file, mmap_mode="r"), first
        if self.pictures.ndim != 4 or self.pictures.shape[-1] != 3 or self.pictures.dtype != np.uint8:
            raise ValueError(
                f"{file} holds {self.pictures.dtype} of shape {self.pictures.shape}: expected pictures (N, H, W, 3) of "
                "8 bit"
            )
        if len(self.pictures) != len(labels) or len(labels) < first + count:
            raise ValueError(
                f"{file} holds {len(self.pictures)} pictures and there are {len(labels)} labels: expected as many of "
                f"both, at least {first + count}"
            )
        chosen = labels[first : first + count].astype(int)
        if chosen.min() < 0 or chosen.max() >= len(classes):
            raise ValueError(f"labels are from {chosen.min()} to {chosen.max()}: expected from 0 to {len(classes) - 1}")
        names = [f"{classes[label]}/{index}" for index, label in enumerate(chosen)]
        super().__init__(f"{file}[{first}:{first + count}]", names, classes, chosen.tolist())

    def open(self, index: int) -> Image.Image:
        return Image.fromarray(self.pictures[self.first + index])

    def read(self, index: int) -> bytes:
        file = io.BytesIO()
        self.open(index).save(file, "PNG")
        return file.getvalue()
