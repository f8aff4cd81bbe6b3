"""Attention as recurrent sparse reconstruction, for PyTorch.

Importing this package loads nothing heavy: subpackages and the names below load PyTorch and timm when first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # for editors and type checkers, which do not run __getattr__
    from . import attention, data, evaluation, figures, generalization, maps, models, scoring, sparse
    from .attention import inspect
    from .evaluation import evaluate
    from .maps import attention_maps
    from .models import Classifier, convert, create, load_released, match, restore, set_share

__version__ = "0.1.0"

# Public names, and the subpackage that defines each.
_DEFINED_IN = {
    "attention_maps": "maps",
    "evaluate": "evaluation",
    "inspect": "attention",
    **dict.fromkeys(["Classifier", "convert", "create", "load_released", "match", "restore", "set_share"], "models"),
}
_SUBPACKAGES = ("attention", "data", "evaluation", "figures", "generalization", "maps", "models", "scoring", "sparse")

__all__ = [
    "Classifier",
    "attention",
    "attention_maps",
    "convert",
    "create",
    "data",
    "evaluate",
    "evaluation",
    "figures",
    "generalization",
    "inspect",
    "load_released",
    "maps",
    "match",
    "models",
    "restore",
    "scoring",
    "set_share",
    "sparse",
]


def __getattr__(name: str):
    if name in _SUBPACKAGES:
        return import_module(f".{name}", __name__)
    if name in _DEFINED_IN:
        return getattr(import_module(f".{_DEFINED_IN[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
