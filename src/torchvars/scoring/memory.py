"""A cache of decoded pictures: an evaluation of ninety conditions does not decode them ninety times."""

from collections.abc import Iterator, Sequence

from ..data import Batch, Draw, Pictures, Sample, Shown, Source, load
from ..data.pictures import collate

BOUND = 2**30  # bytes of pixels in each process: 21 000 pictures of 128 x 128, or 7 000 of 224 x 224


class Memory:
    """A cache of preprocessed pictures in 8 bit, up to a bound. The others are read every time.

    Args:
        bound: maximum number of bytes of pixels.
    """

    def __init__(self, bound: int = BOUND):
        self.left = bound
        self.kept: dict[tuple[Source, int, Shown], Sample] = {}

    def batches(
        self, source: Source, shown: Shown, batches: Sequence[Sequence[int]], workers: int = 0
    ) -> Iterator[Batch]:
        """Yields the batches with these indices of pictures in a source; what is not cached is read by workers."""
        places = [[(*source.origin(index), shown) for index in indices] for indices in batches]
        known = [all(place in self.kept for place in wanted) for wanted in places]
        missing = [
            [Draw(index, 0) for index in indices] for indices, kept in zip(batches, known, strict=True) if not kept
        ]
        read = iter(load(Pictures(source, shown), missing, workers) if missing else ())
        for wanted, kept in zip(places, known, strict=True):
            if kept:
                yield collate([self.kept[place] for place in wanted])
            else:
                batch = next(read)
                shown_now = zip(wanted, batch.pixels, batch.targets, batch.identities, strict=True)
                for place, pixels, target, identity in shown_now:
                    self._keep(place, Sample(pixels, target, identity, batch.problems.get(identity, "")))
                yield batch

    def _keep(self, place: tuple[Source, int, Shown], sample: Sample) -> None:
        size = sample.pixels.numel() * sample.pixels.element_size()
        if place not in self.kept and size <= self.left:
            self.left -= size
            self.kept[place] = sample._replace(pixels=sample.pixels.clone())  # a view would keep the whole batch
