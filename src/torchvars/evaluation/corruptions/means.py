"""The conditions over which the mean of a corruption benchmark is taken."""

from collections.abc import Iterable

from ..conditions import ALL_CORRUPTIONS, Condition
from .registry import CORRUPTIONS


def means_of_corruptions(conditions: Iterable[Condition]) -> dict[Condition, list[Condition]]:
    """The condition of the mean, with its conditions: those of corruptions that are `summed`. Empty without these."""
    members = [each for each in conditions if each.family == "corruption" and CORRUPTIONS[each.name].summed]
    return {ALL_CORRUPTIONS: members} if members else {}
