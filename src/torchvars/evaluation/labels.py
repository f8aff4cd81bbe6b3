"""The classes among which an answer is looked for."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class LabelSpace:
    """The classes among which the answer is looked for."""

    classes: int  # how many they are
    of: int | None  # how many the model has; None if the file does not say
    folders: int  # how many the data set has
    names: str | None  # hash of their names; None if the file does not say

    def __str__(self) -> str:
        if self.of is not None and self.classes < self.of:
            return f"{self.classes} of {self.of} classes"
        least = "at least " if self.of is None and self.classes > self.folders else ""
        rest = f", {self.folders} of them in the pictures" if self.classes > self.folders else ""
        return f"{least}{self.classes} classes{rest}"

    @property
    def is_plain(self) -> bool:
        """Whether the model and the data set have the same classes, so that there is no other label space."""
        return self.of in (None, self.classes) and self.classes == self.folders


def digest_of(names: Sequence[str]) -> str:
    """A hash of names in their order."""
    return hashlib.sha256("\n".join(names).encode()).hexdigest()
