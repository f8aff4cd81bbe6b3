"""The tasks of benchmarks, one file each."""

from .classification import Classification
from .fixation import Fixation
from .segmentation import Segmentation
from .stability import MapStability

__all__ = ["Classification", "Fixation", "MapStability", "Segmentation"]
