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

# Errors of Pillow for broken files; an invalid header may contain any size.
UNREADABLE = (OSError, ValueError, SyntaxError, Image.DecompressionBombError)


class Sample(NamedTuple):
    """One picture."""

    pixels: Tensor  # (3, H, W) in [0, 1], or as the transform makes them
    target: Target
    identity: str  # of the drawn picture, also if another one takes its place
    problem: str  # why the drawn picture could not be read; empty if it could


class Batch(NamedTuple):
    """A batch of pictures."""

    pixels: Tensor  # (B, 3, H, W) in [0, 1], or as the transform makes them
    targets: Sequence[Target]
    identities: list[str]
    problems: dict[str, str]  # identity -> why it could not be read

    @property
    def labels(self) -> Tensor:
        """The classes (B,) of pictures that have one."""
        return torch.as_tensor(self.targets)


class Pictures(Dataset):
    """Pictures of a source with a transform: draw -> sample.

    The randomness of the transform depends on the draw only, not on the worker. A picture that cannot be read is
    reported in the sample, and the next readable one of the source takes its place.

    Args:
        source: source of the pictures.
        transform: PIL image in RGB -> pixels (3, H, W) in [0, 1]. For masks and points it must be a `Shown`, whose
            geometry is applied to them too.
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
        """The first readable picture from an index on: its index, the picture, and why the first one is unreadable.

        Raises:
            ValueError: no picture can be read.
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
    """A context that seeds Python, NumPy and PyTorch, and restores their random states afterwards."""

    def __init__(self, seed: int):
        self.seed = seed

    def __enter__(self) -> None:
        self.before = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
        random.seed(self.seed)
        np.random.seed(self.seed % 2**32)  # noqa: NPY002 (used by timm's transforms)
        torch.default_generator.manual_seed(self.seed)  # torch.manual_seed would also seed all GPUs

    def __exit__(self, *_) -> None:
        random.setstate(self.before[0])
        np.random.set_state(self.before[1])  # noqa: NPY002
        torch.set_rng_state(self.before[2])


@dataclass(frozen=True)
class Shown:
    """The transform of evaluation, by `centred`: an image -> (3, size, size) in 8 bit."""

    size: int

    def geometry(self, width: int, height: int) -> Geometry:
        """The geometry of the transform for a picture of some size."""
        return centred(width, height, self.size)

    def __call__(self, image: Image.Image) -> Tensor:
        return torch.from_numpy(np.array(self.geometry(*image.size).image(image))).movedim(-1, 0)


@dataclass(frozen=True)
class Whole(Shown):
    """A transform of the whole picture to a square, bicubic; the target is not transformed.

    For predictions at places in the picture, which are resized to the stored picture before they are evaluated.
    """

    def geometry(self, width: int, height: int) -> Geometry:
        """The geometry of the target, which stays as it is stored."""
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
    """A data loader whose worker processes are stopped by their parent only.

    Ctrl-C in a terminal, or SIGTERM of a scheduler, reaches every process of a command; workers ignore it, since the
    parent may still need their pictures.
    """

    def __iter__(self):
        if not hasattr(signal, "sigwaitinfo"):
            return super().__iter__()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)  # so that workers block them from the beginning
        try:
            return super().__iter__()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _ignore_signals_of_others(worker: int) -> None:
    if hasattr(signal, "sigwaitinfo"):
        signal.pthread_sigmask(
            signal.SIG_BLOCK, ENDING
        )  # again, since a process that was not forked does not inherit it
        threading.Thread(target=_end_on_signal_of, args=(os.getppid(),), daemon=True).start()


def _end_on_signal_of(process: int) -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != process:
        pass
    os._exit(0)


def most_workers() -> int:
    """Maximum number of data loading processes: four for each CPU of this process, and at least 16.

    Processes that wait for a network drive use no CPU, but a thousand of them exhaust the memory before the first
    picture is read.
    """
    return max(16, 4 * _cpus())


def check_workers(workers: int) -> None:
    """Raises a ValueError if the number of data loading processes is too large."""
    if not 0 <= workers <= most_workers():
        raise ValueError(
            f"workers must be from 0 to {most_workers()}, got {workers}: they are processes that read pictures, and "
            f"there {'is 1 CPU' if _cpus() == 1 else f'are {_cpus()} CPUs'} for this process"
        )


def _cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def load(pictures: Pictures, batches: Iterable[list[Draw]], workers: int = 0) -> Iterable[Batch]:
    """Loads batches in a given order, in worker processes."""
    check_workers(workers)
    pictures.readable()  # raises an error here, not in a worker, if no picture is readable
    return Reading(
        pictures,
        batch_sampler=batches,
        num_workers=workers,
        collate_fn=collate,
        worker_init_fn=_ignore_signals_of_others,
        prefetch_factor=4 if workers else None,
        generator=torch.Generator(),  # so that seeds of workers are not drawn from the global generator
    )
