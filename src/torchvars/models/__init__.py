"""Models: normalised images in, logits out. Importing this package registers all names with timm."""

from .classifier import Classifier
from .convert import convert, restore, set_share
from .deit import DeiT
from .gfnet import GFNet
from .matching import match
from .registry import BACKBONES, MODELS, create
from .rvt import RVT
from .weights import load_released

__all__ = [
    "BACKBONES",
    "MODELS",
    "RVT",
    "Classifier",
    "DeiT",
    "GFNet",
    "convert",
    "create",
    "load_released",
    "match",
    "restore",
    "set_share",
]
