"""The loop that runs a model on every picture of a source, for training and for evaluation."""

from .answers import answers
from .loop import Asked, Scores, score
from .memory import Memory
from .processes import Processes, is_first

__all__ = ["Asked", "Memory", "Processes", "Scores", "answers", "is_first", "score"]
