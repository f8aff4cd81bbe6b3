"""The explorer: a page that runs exported models in a browser. Here is what it is given, and who serves it."""

from .pack import Packed, pack
from .server import serve

__all__ = ["Packed", "pack", "serve"]
