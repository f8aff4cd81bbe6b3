"""Attention maps of any model: how much an attention takes from each position."""

from .call import attention_maps, find_maps
from .kinds import KINDS
from .mixing import Mixing, mixing_of
from .observe import Observation, observe
from .traced import WithMaps

__all__ = ["KINDS", "Mixing", "Observation", "WithMaps", "attention_maps", "find_maps", "mixing_of", "observe"]
