"""The label space: the classes among which a model chooses."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class LabelSpace:
    """The classes among which a model chooses."""

    classes: int  # their number
    of: int | None  # number of classes of the model; None if the file does not contain it
    folders: int  # number of classes of the data set
    names: str | None  # hash of the names of the classes; None if the file does not contain it

    def __str__(self) -> str:
        if self.of is not None and self.classes < self.of:
            return f"{self.classes} of {self.of} classes"
        least = "at least " if self.of is None and self.classes > self.folders else ""
        rest = f", {self.folders} of them in the pictures" if self.classes > self.folders else ""
        return f"{least}{self.classes} classes{rest}"

    @property
    def is_plain(self) -> bool:
        """Whether the model and the data set have the same classes, so that only one label space is possible."""
        return self.of in (None, self.classes) and self.classes == self.folders


def digest_of(names: Sequence[str]) -> str:
    """A hash of names in their order."""
    return hashlib.sha256("\n".join(names).encode()).hexdigest()
