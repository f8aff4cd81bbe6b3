"""Stored pictures as tensors, ready to be batched."""

import os
import random
import signal
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ..models.geometry import Geometry, centred
from .order import Draw
from .sources import Source
from .targets import Target

# What Pillow raises of broken files; a header that is garbage may promise a picture of any size.
UNREADABLE = (OSError, ValueError, SyntaxError, Image.DecompressionBombError)


class Sample(NamedTuple):
    """One picture."""

    pixels: Tensor  # (3, H, W) in [0, 1], or as the transform makes them
    target: Target
    identity: str  # of the picture drawn, also if another had to take its place
    problem: str  # why the picture drawn could not be read; empty if it could


class Batch(NamedTuple):
    """Pictures of one step."""

    pixels: Tensor  # (B, 3, H, W) in [0, 1], or as the transform makes them
    targets: Sequence[Target]
    identities: list[str]
    problems: dict[str, str]  # identity -> why it could not be read

    @property
    def labels(self) -> Tensor:
        """The classes (B,) of pictures that have one."""
        return torch.as_tensor(self.targets)


class Pictures(Dataset):
    """Pictures of a source under a transform: draw -> sample.

    Chance in the transform comes from the draw alone, not from the worker it happens to be in. A picture that cannot be
    read is told of, and another takes its place: the next in the source that can.

    Args:
        source: where they come from.
        transform: PIL image in RGB -> pixels (3, H, W) in [0, 1]. Where targets have a place in the picture it is a
            `Shown`, whose geometry acts on them too.
    """

    def __init__(self, source: Source, transform: Callable[[Image.Image], Tensor]):
        self.source, self.transform = source, transform

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, draw: Draw) -> Sample:
        index, image, problem = self.readable(draw.index)
        with seeded(draw.seed):
            pixels = self.transform(image)
        target = self.source.target(index)
        if not isinstance(target, int):
            try:
                target = target.moved(self.transform.geometry(*image.size))
            except ValueError as error:
                raise ValueError(f"{self.source.identities[index]} of {self.source.name}: {error}") from error
        return Sample(pixels, target, self.source.identities[draw.index], problem)

    def readable(self, first: int = 0) -> tuple[int, Image.Image, str]:
        """The first picture from there on that can be read: its index, itself, and why the one asked for could not.

        Raises:
            ValueError: there is none.
        """
        problem = ""
        for offset in range(len(self.source)):
            index = (first + offset) % len(self.source)
            try:
                return index, self.source.open(index), problem
            except UNREADABLE as error:
                problem = problem or f"{type(error).__name__}: {error}"
        raise ValueError(f"no picture of {self.source.name} can be read: {problem}")


class seeded:
    """A context in which Python, NumPy and PyTorch draw from a seed; they go on as before it afterwards."""

    def __init__(self, seed: int):
        self.seed = seed

    def __enter__(self) -> None:
        self.before = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
        random.seed(self.seed)
        np.random.seed(self.seed % 2**32)  # noqa: NPY002 (timm's transforms draw from it)
        torch.default_generator.manual_seed(self.seed)  # torch.manual_seed would also seed every GPU, for good

    def __exit__(self, *_) -> None:
        random.setstate(self.before[0])
        np.random.set_state(self.before[1])  # noqa: NPY002
        torch.set_rng_state(self.before[2])


@dataclass(frozen=True)
class Shown:
    """How a model is shown stored pictures when it is judged: an image -> (3, size, size) of 8 bit, by `centred`."""

    size: int

    def geometry(self, width: int, height: int) -> Geometry:
        """Where the pixels of a picture of that size go."""
        return centred(width, height, self.size)

    def __call__(self, image: Image.Image) -> Tensor:
        return torch.from_numpy(np.array(self.geometry(*image.size).image(image))).movedim(-1, 0)


@dataclass(frozen=True)
class Whole(Shown):
    """The whole of a stored picture, resized to a square, bicubic; its target stays as it is stored.

    For what is found at places in the picture: it is put back to the size of the picture before it is judged.
    """

    def geometry(self, width: int, height: int) -> Geometry:
        """Of the target: the picture as it is stored."""
        return Geometry((width, height), (width, height), (0, 0), (width, height))

    def __call__(self, image: Image.Image) -> Tensor:
        side = (self.size, self.size)
        return torch.from_numpy(np.array(Geometry(image.size, side, (0, 0), side).image(image))).movedim(-1, 0)


def collate(samples: list[Sample]) -> Batch:
    return Batch(
        torch.stack([sample.pixels for sample in samples]),
        [sample.target for sample in samples],
        [sample.identity for sample in samples],
        {sample.identity: sample.problem for sample in samples if sample.problem},
    )


ENDING = {signal.SIGINT, signal.SIGTERM}


class Reading(DataLoader):
    """Processes that read pictures, and leave it to their parent to end them.

    A terminal tells Ctrl-C to every process of a command, and a scheduler SIGTERM; they are to go when the parent does,
    which may still need their pictures.
    """

    def __iter__(self):
        if not hasattr(signal, "sigwaitinfo"):
            return super().__iter__()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)  # so that they are blocked from their first moment on
        try:
            return super().__iter__()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _leave_ending_to_the_parent(worker: int) -> None:
    if hasattr(signal, "sigwaitinfo"):
        signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)  # again: a process that was not forked does not inherit it
        threading.Thread(target=_end_when_told_by, args=(os.getppid(),), daemon=True).start()


def _end_when_told_by(process: int) -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != process:
        pass
    os._exit(0)


def most_workers() -> int:
    """The most processes that read pictures here: four for each CPU that this process may use, and never fewer than 16.

    Those that wait for a network drive keep no CPU busy, but a thousand of them take all memory before the first
    picture is read.
    """
    return max(16, 4 * _cpus())


def check_workers(workers: int) -> None:
    """A ValueError if so many processes cannot read pictures here."""
    if not 0 <= workers <= most_workers():
        raise ValueError(
            f"workers must be from 0 to {most_workers()}, got {workers}: they are processes that read pictures, and "
            f"there {'is 1 CPU' if _cpus() == 1 else f'are {_cpus()} CPUs'} for this process"
        )


def _cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def load(pictures: Pictures, batches: Iterable[list[Draw]], workers: int = 0) -> Iterable[Batch]:
    """Batches in the order given, made by so many processes beside this one."""
    check_workers(workers)
    pictures.readable()  # if none is, it is said here plainly, and not by another process
    return Reading(
        pictures,
        batch_sampler=batches,
        num_workers=workers,
        collate_fn=collate,
        worker_init_fn=_leave_ending_to_the_parent,
        prefetch_factor=4 if workers else None,
        generator=torch.Generator(),  # its seed for the workers is not to come from the generator of all
    )
