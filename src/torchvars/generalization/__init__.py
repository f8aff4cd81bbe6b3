"""Domain generalisation: each domain in turn is left out of training, and the model is evaluated on it."""

from .plan import Plan
from .results import Generalization, Score
from .run import generalize
from .table import print_generalization

__all__ = ["Generalization", "Plan", "Score", "generalize", "print_generalization"]
