"""What is right of a picture: its class, a mask of it, or points in it."""

from dataclasses import dataclass

import numpy as np

from ..models.geometry import Geometry


@dataclass(frozen=True)
class Mask:
    """A label for each pixel of a picture: (H, W), whole numbers."""

    labels: np.ndarray

    def moved(self, geometry: Geometry) -> "Mask":
        """As the picture is shown.

        Raises:
            ValueError: it is of another size than the picture.
        """
        height, width = self.labels.shape
        if (width, height) != geometry.before:
            raise ValueError(
                f"the mask is of {width} x {height} pixels and its picture of {geometry.before[0]} x "
                f"{geometry.before[1]}: expected the same"
            )
        return Mask(geometry.mask(self.labels))


@dataclass(frozen=True)
class Points:
    """Places in a picture.

    Attributes:
        places: (N, 2), from the left and the top, in pixels.
        observers: the number of who looked there, (N,), where it is known.
        size: width and height of the picture, where it is known.
    """

    places: np.ndarray
    observers: np.ndarray | None = None
    size: tuple[int, int] | None = None

    def moved(self, geometry: Geometry) -> "Points":
        """As the picture is shown; those that are cut off are left out.

        Raises:
            ValueError: one is outside the picture.
        """
        outside = ((self.places < 0) | (self.places > geometry.before)).any(1)
        if outside.any():
            raise ValueError(
                f"the point {tuple(self.places[outside][0].tolist())} is outside its picture of {geometry.before[0]} x "
                f"{geometry.before[1]} pixels"
            )
        observers = None if self.observers is None else self.observers[geometry.shows(self.places)]
        return Points(geometry.points(self.places), observers, geometry.size)


Target = int | Mask | Points
"""The class, an index into those of the source; or what has a place in the picture, and moves with it."""
