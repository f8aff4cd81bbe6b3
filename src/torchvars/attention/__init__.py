"""Attention layers: tokens in, tokens out, module(tokens, grid)."""

from .base import Attention
from .baselines import GlobalFilter, Hedgehog, Performer, Softmax
from .dictionaries import Dynamic, Prototypes, Static, StaticDynamic
from .features import PositiveFeatures
from .inspect import Inspection, inspect
from .reconstruction import Reconstruction
from .registry import ATTENTIONS, create
from .views import Views, look

__all__ = [
    "ATTENTIONS",
    "Attention",
    "Dynamic",
    "GlobalFilter",
    "Hedgehog",
    "Inspection",
    "Performer",
    "PositiveFeatures",
    "Prototypes",
    "Reconstruction",
    "Softmax",
    "Static",
    "StaticDynamic",
    "Views",
    "create",
    "inspect",
    "look",
]
