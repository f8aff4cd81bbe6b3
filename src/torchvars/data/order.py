"""Which picture comes when, and with what chance: the same on any number of processes and workers, from any step."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch


class Draw(NamedTuple):
    """A picture, and the seed of whatever is done to it at random."""

    index: int
    seed: int


def derive_seed(*parts: int | str) -> int:
    """A seed for one thing from a seed for all and what the thing is; any change of a part makes another."""
    digest = hashlib.sha256(repr(parts).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1  # 63 bits: every generator takes it


@dataclass(frozen=True)
class Order:
    """The order in which pictures train.

    An epoch is one shuffle of all of them, cut into global batches; what does not fill the last is left to other
    epochs. A process takes its part of each global batch, so that the batch is the same however many share it.

    Args:
        count: pictures.
        batch: of one process.
        seed: of the whole run.
        repeats: copies of a picture, each changed by chance in its own way (repeated augmentation). They come in turn
            with those of another picture, so that neighbours, which are mixed with each other, are never copies of
            one. An epoch has as many batches as without, and goes through a share of the pictures.
        rank, world: this process, and how many there are.
    """

    count: int
    batch: int
    seed: int
    repeats: int = 1
    rank: int = 0
    world: int = 1

    def __post_init__(self):
        if self.batch < 1 or self.repeats < 1:
            raise ValueError(f"batch and repeats must be at least 1, got {self.batch} and {self.repeats}")
        if not 0 <= self.rank < self.world:
            raise ValueError(f"rank must be from 0 to {self.world - 1}, got {self.rank}")
        if self.steps < 1:
            raise ValueError(
                f"{self.count} pictures do not fill one batch of {self.batch} on each of {self.world} processes: "
                "take a smaller batch"
            )

    @property
    def steps(self) -> int:
        """Batches of an epoch."""
        return self.count // (self.batch * self.world)

    def batches(self, start: int, stop: int) -> Iterator[list[Draw]]:
        """The batches of this process in steps start, ..., stop - 1, counted from the beginning of the run."""
        for epoch in range(start // self.steps, -(-stop // self.steps)):
            generator = torch.Generator().manual_seed(derive_seed(self.seed, "order", epoch))
            shuffled = torch.randperm(self.count, generator=generator)
            begin = epoch * self.steps
            for step in range(max(start - begin, 0), min(stop - begin, self.steps)):
                first = (step * self.world + self.rank) * self.batch
                yield [
                    Draw(int(shuffled[self._number(place)]), derive_seed(self.seed, "picture", epoch, place))
                    for place in range(first, first + self.batch)
                ]

    def _number(self, place: int) -> int:
        """Which picture of the shuffled ones is at a place: two in turn, until both have all their copies."""
        return 2 * (place // (2 * self.repeats)) + place % 2

    def epoch(self, number: int) -> list[list[Draw]]:
        """The batches of this process in an epoch."""
        return list(self.batches(number * self.steps, (number + 1) * self.steps))
