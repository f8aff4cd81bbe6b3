"""Labelled pictures: where they are stored, in which order they come, and how they become tensors."""

from .domains import check_domains, domainbed_part, leave_out, read_split_lists
from .fixations import open_fixations
from .order import Draw, Order, derive_seed
from .parts import Part, held_out_tenth, limited
from .pictures import Batch, Pictures, Sample, Shown, Whole, check_workers, load, most_workers
from .segmented import open_segmented
from .sources import Source, absolute, open_source
from .targets import Mask, Points, Target
from .unlabelled import open_unlabelled

__all__ = [
    "Batch",
    "Draw",
    "Mask",
    "Order",
    "Part",
    "Pictures",
    "Points",
    "Sample",
    "Shown",
    "Source",
    "Target",
    "Whole",
    "absolute",
    "check_domains",
    "check_workers",
    "derive_seed",
    "domainbed_part",
    "held_out_tenth",
    "leave_out",
    "limited",
    "load",
    "most_workers",
    "open_fixations",
    "open_segmented",
    "open_source",
    "open_unlabelled",
    "read_split_lists",
]
