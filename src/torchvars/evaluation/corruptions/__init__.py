"""The corruptions of ImageNet-C and CIFAR-10-C, made from clean pictures as tensors."""

from .registry import CORRUPTIONS, EXTRA, PUBLISHED, Corruption, corrupt
from .strengths import STRENGTHS

__all__ = ["CORRUPTIONS", "EXTRA", "PUBLISHED", "STRENGTHS", "Corruption", "corrupt"]
