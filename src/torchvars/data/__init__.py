"""Labelled pictures: where they are stored, in which order they come, and how they become tensors."""

from .order import Draw, Order, derive_seed
from .pictures import Batch, Pictures, Sample, load
from .sources import Source, open_source

__all__ = ["Batch", "Draw", "Order", "Pictures", "Sample", "Source", "derive_seed", "load", "open_source"]
