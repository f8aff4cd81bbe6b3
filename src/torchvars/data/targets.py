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
    """Places in a picture, from the left and the top: (N, 2), in pixels."""

    places: np.ndarray

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
        return Points(geometry.points(self.places))


Target = int | Mask | Points
"""The class, an index into those of the source; or what has a place in the picture, and moves with it."""
