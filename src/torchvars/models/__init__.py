"""Images in, logits out. Importing this registers every name with timm."""

from .classifier import Classifier
from .deit import DeiT
from .gfnet import GFNet
from .registry import BACKBONES, MODELS, create
from .rvt import RVT

__all__ = ["BACKBONES", "MODELS", "RVT", "Classifier", "DeiT", "GFNet", "create"]
