"""Geometry of preprocessing: the same for a picture, its mask and its points."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from PIL import Image


@dataclass(frozen=True)
class Geometry:
    """Resizing of a picture, then a crop. Sizes are (width, height), places are (left, top).

    Attributes:
        before: size of the picture before.
        resized: size of the resized picture.
        corner: place of the crop in the resized picture.
        size: size of the crop.
    """

    before: tuple[int, int]
    resized: tuple[int, int]
    corner: tuple[int, int]
    size: tuple[int, int]

    def image(self, image: Image.Image, *, mixed: bool = True) -> Image.Image:
        """Resizes and crops a picture of the size `before`.

        Args:
            mixed: whether to interpolate (bicubic), or to take the nearest pixels.
        """
        from PIL import Image

        if image.size != self.before:
            raise ValueError(f"the picture is of {self.before[0]} x {self.before[1]} pixels, got {image.size}")
        if self.resized == self.before == self.size:
            return image
        (left, top), (width, height) = self.corner, self.size
        resampling = Image.Resampling.BICUBIC if mixed else Image.Resampling.NEAREST
        return image.resize(self.resized, resampling).crop((left, top, left + width, top + height))

    def mask(self, labels: np.ndarray) -> np.ndarray:
        """Resizes and crops the labels (H, W) of the pixels of a picture, by nearest pixels: (height, width)."""
        from PIL import Image

        return np.array(self.image(Image.fromarray(labels), mixed=False))

    def points(self, places: np.ndarray) -> np.ndarray:
        """Places (N, 2) in a picture, from the left and the top, as places in the crop; those outside are left out.

        A pixel extends from its index to the next one: the centre of the first is at .5.
        """
        return self._moved(places)[self.shows(places)]

    def shows(self, places: np.ndarray) -> np.ndarray:
        """Whether places (N, 2) are in the crop: (N,)."""
        moved = self._moved(places)
        return np.all((moved >= 0) & (moved < self.size), axis=1)

    def _moved(self, places: np.ndarray) -> np.ndarray:
        return places * np.divide(self.resized, self.before) - self.corner


def centred(width: int, height: int, size: int) -> Geometry:
    """The geometry of evaluation: the shorter side is resized to 256 / 224 of the size, and the centre is cropped.

    A picture that has the size is not changed.
    """
    if width == height == size:
        return Geometry((size, size), (size, size), (0, 0), (size, size))
    shorter = round(size * 256 / 224)
    longer = shorter * max(width, height) // min(width, height)
    resized = (shorter, longer) if width < height else (longer, shorter)
    left, top = (round((side - size) / 2) for side in resized)
    return Geometry((width, height), resized, (left, top), (size, size))
