"""Attention as recurrent sparse reconstruction, for PyTorch.

Nothing heavy is loaded before it is used: the rooms and the names below load PyTorch and timm when first touched.
"""

from importlib import import_module

__version__ = "0.1.0"

# Public names, and the room where each lives.
_ROOMS = {
    "attention_maps": "maps",
    "evaluate": "evaluation",
    "inspect": "attention",
    **dict.fromkeys(["Classifier", "convert", "create", "load_released", "match", "restore", "set_share"], "models"),
}
_SUBPACKAGES = ("attention", "evaluation", "maps", "models", "sparse")

__all__ = [
    "Classifier",
    "attention",
    "attention_maps",
    "convert",
    "create",
    "evaluate",
    "evaluation",
    "inspect",
    "load_released",
    "maps",
    "match",
    "models",
    "restore",
    "set_share",
    "sparse",
]


def __getattr__(name: str):
    if name in _SUBPACKAGES:
        return import_module(f".{name}", __name__)
    if name in _ROOMS:
        return getattr(import_module(f".{_ROOMS[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
