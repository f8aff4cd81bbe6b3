"""The corruptions of ImageNet-C and CIFAR-10-C, made from clean pictures as tensors."""

from .registry import CORRUPTIONS, PUBLISHED, Corruption, corrupt
from .strengths import STRENGTHS

__all__ = ["CORRUPTIONS", "PUBLISHED", "STRENGTHS", "Corruption", "corrupt"]
