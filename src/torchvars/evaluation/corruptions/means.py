"""Over which conditions the mean of a benchmark under corruptions is taken."""

from collections.abc import Iterable

from ..conditions import ALL_CORRUPTIONS, Condition
from .registry import CORRUPTIONS


def means_of_corruptions(conditions: Iterable[Condition]) -> dict[Condition, list[Condition]]:
    """The mean and the conditions it is over: those of the corruptions that are `summed`; empty if there are none."""
    members = [each for each in conditions if each.family == "corruption" and CORRUPTIONS[each.name].summed]
    return {ALL_CORRUPTIONS: members} if members else {}
