"""Targets of a picture: its class, a mask, or points."""

from dataclasses import dataclass

import numpy as np

from ..models.geometry import Geometry


@dataclass(frozen=True)
class Mask:
    """A mask: a label for each pixel of a picture, whole numbers (H, W)."""

    labels: np.ndarray

    def moved(self, geometry: Geometry) -> "Mask":
        """The mask with the geometry of the preprocessed picture.

        Raises:
            ValueError: its size is not that of the picture.
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
    """Points in a picture.

    Attributes:
        places: (N, 2), from the left and the top, in pixels.
        observers: index of the observer of each point, (N,), if known.
        size: width and height of the picture, if known.
    """

    places: np.ndarray
    observers: np.ndarray | None = None
    size: tuple[int, int] | None = None

    def moved(self, geometry: Geometry) -> "Points":
        """The points with the geometry of the preprocessed picture; those outside of the crop are left out.

        Raises:
            ValueError: a point is outside the picture.
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
"""A class, as an index into those of the source, or a target that is transformed with the picture."""
