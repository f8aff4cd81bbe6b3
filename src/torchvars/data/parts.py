"""Parts of a source: held-out pictures, and a limited number of pictures."""

from collections.abc import Callable

from .order import derive_seed
from .sources import Source
from .targets import Target


class Part(Source):
    """A part of the pictures of a source, with the same identities.

    Args:
        keep: identity -> whether the picture is in the part.
        class_of: identity -> name of its class; by default the classes are those of the source.
    """

    def __init__(
        self, source: Source, name: str, keep: Callable[[str], bool], class_of: Callable[[str], str] | None = None
    ):
        self.source, self.renamed = source, class_of is not None
        self.indices = [index for index, identity in enumerate(source.identities) if keep(identity)]
        identities = [source.identities[index] for index in self.indices]
        if not identities:
            raise ValueError(f"{name} is empty: there are {len(source)} pictures in all, of which none is chosen")
        if class_of is None:
            classes, labels = source.classes, [source.labels[index] for index in self.indices]
        else:
            classes = sorted({class_of(identity) for identity in source.identities})
            labels = [classes.index(class_of(identity)) for identity in identities]
        super().__init__(name, identities, classes, labels)

    def target(self, index: int) -> Target:
        target = self.source.target(self.indices[index])
        return int(self.labels[index]) if isinstance(target, int) else target

    def origin(self, index: int) -> tuple[Source, int]:
        return (self, index) if self.renamed else self.source.origin(self.indices[index])

    def read(self, index: int) -> bytes:
        return self.source.read(self.indices[index])


def held_out_tenth(source: Source, split: str) -> Part:
    """Nine tenths of a source to train on, or the tenth that is held out ("val"): always the same pictures."""
    return Part(source, f"{split} part of {source.name}", lambda identity: is_held_out(identity) == (split == "val"))


def limited(source: Source, limit: int | None) -> Source:
    """A limited number of pictures of a source, chosen by hashes of their names, so always the same."""
    if limit is None or limit >= len(source):
        return source
    if limit < 1:
        raise ValueError(f"limit must be at least 1, got {limit}")
    chosen = set(sorted(source.identities, key=lambda identity: derive_seed("limited", identity))[:limit])
    return Part(source, f"{limit} pictures of {source.name}", chosen.__contains__)


def is_held_out(identity: str, share: float = 0.1) -> bool:
    """Whether a picture is held out, by a hash of its name. A larger share, in tenths, includes smaller ones."""
    return derive_seed("held out", identity) % 10 < round(10 * share)
