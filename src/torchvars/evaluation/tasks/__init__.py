"""Questions that a model is asked, one file each."""

from .classification import Classification

__all__ = ["Classification"]
