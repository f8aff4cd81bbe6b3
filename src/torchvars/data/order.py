"""The random order of pictures: the same on any number of processes and workers, from any step."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch


class Draw(NamedTuple):
    """Index of a picture, and the seed of its random augmentation."""

    index: int
    seed: int


def derive_seed(*parts: int | str) -> int:
    """A seed from several parts, such as the seed of a run and a purpose; any change of a part changes it."""
    digest = hashlib.sha256(repr(parts).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1  # 63 bits, which every generator accepts


@dataclass(frozen=True)
class Order:
    """The order of training pictures.

    An epoch is a shuffle of all pictures, divided into global batches; an incomplete last batch is dropped. A process
    takes its part of each global batch, so that the batch does not depend on the number of processes.

    Args:
        count: number of pictures.
        batch: batch size of one process.
        seed: random seed of the run.
        repeats: number of differently augmented copies of each picture (repeated augmentation). The copies of two
            pictures alternate, so that neighbours, which are mixed with each other, are never copies of one picture.
            The number of batches of an epoch is the same, so it uses only a part of the pictures.
        rank, world: index of this process, and number of processes.
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
        """Number of batches of an epoch."""
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
        """Index in the shuffle for a place in the epoch: two pictures alternate until both have all their copies."""
        return 2 * (place // (2 * self.repeats)) + place % 2

    def epoch(self, number: int) -> list[list[Draw]]:
        """The batches of this process in an epoch."""
        return list(self.batches(number * self.steps, (number + 1) * self.steps))
