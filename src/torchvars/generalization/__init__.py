"""Domain generalisation: one domain is left out of training after the other, and is what a model is judged by."""

from .plan import Plan
from .results import Generalization, Score
from .run import generalize
from .table import print_generalization

__all__ = ["Generalization", "Plan", "Score", "generalize", "print_generalization"]
