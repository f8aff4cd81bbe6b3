"""Where the pixels of a stored picture go: one geometry for a picture and for all that is marked in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from PIL import Image


@dataclass(frozen=True)
class Geometry:
    """A picture is resized, and a box is cut out of it. All sizes are (width, height), places are (left, top).

    Attributes:
        before: size of the stored picture.
        resized: size of all of it afterwards.
        corner: place of the box in that.
        size: of the box.
    """

    before: tuple[int, int]
    resized: tuple[int, int]
    corner: tuple[int, int]
    size: tuple[int, int]

    def image(self, image: Image.Image, *, mixed: bool = True) -> Image.Image:
        """A picture of the size `before` as it is shown; as it is if nothing changes.

        Args:
            mixed: whether pixels are means of those around them (bicubic), or that of the nearest.
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
        """Labels (H, W) of the pixels of a picture, each as that of the nearest pixel: (height, width)."""
        from PIL import Image

        return np.array(self.image(Image.fromarray(labels), mixed=False))

    def points(self, places: np.ndarray) -> np.ndarray:
        """Places (N, 2) in a picture, from the left and the top, in those of the box; what is outside is left out.

        A pixel reaches from its number to the next one: the centre of the first is at .5.
        """
        return self._moved(places)[self.shows(places)]

    def shows(self, places: np.ndarray) -> np.ndarray:
        """Which of some places (N, 2) are in the box: (N,)."""
        moved = self._moved(places)
        return np.all((moved >= 0) & (moved < self.size), axis=1)

    def _moved(self, places: np.ndarray) -> np.ndarray:
        return places * np.divide(self.resized, self.before) - self.corner


def centred(width: int, height: int, size: int) -> Geometry:
    """The clean protocol: the shorter side to 256 / 224 of the size, and the middle of it.

    A picture that has the size is left as it is.
    """
    if width == height == size:
        return Geometry((size, size), (size, size), (0, 0), (size, size))
    shorter = round(size * 256 / 224)
    longer = shorter * max(width, height) // min(width, height)
    resized = (shorter, longer) if width < height else (longer, shorter)
    left, top = (round((side - size) / 2) for side in resized)
    return Geometry((width, height), resized, (left, top), (size, size))
