"""Processes that share the pictures of a source."""

import os
from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

import torch
from torch import distributed

T = TypeVar("T")


def is_first() -> bool:
    """Whether this is the first of the processes, which prints and writes for all."""
    return os.environ.get("RANK", "0") == "0"


def find_device(word: str | torch.device | None) -> torch.device:
    """The device of a name such as "cuda" or "cuda:1"; by default the accelerator, or the CPU if there is none.

    Of several processes each takes the accelerator with its local rank, unless the name has an index.

    Raises:
        ValueError: there is no such device here.
    """
    if isinstance(word, torch.device):
        return word
    number = int(os.environ.get("LOCAL_RANK", "0"))
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    kind = None if accelerator is None else accelerator.type
    present = ["cpu", *(f"{kind}:{index}" for index in range(torch.accelerator.device_count() if kind else 0))]
    word = kind or "cpu" if word is None else word
    wanted = f"{kind}:{number}" if word == kind else word.removesuffix(":0") if word == "cpu:0" else word
    if wanted not in present:
        raise ValueError(f"no device {word!r} here: there {'are' if present[1:] else 'is'} {', '.join(present)}")
    return torch.device(wanted)


class Processes:
    """This process among those started together by torchrun or accelerate; alone if it was started by itself.

    Args:
        device: device to compute on, as for `find_device`.
    """

    def __init__(self, device: str | torch.device | None = None):
        self.world = int(os.environ.get("WORLD_SIZE", "1"))
        self.rank = int(os.environ.get("RANK", "0"))
        self.device = find_device(device)
        if self.device.type != "cpu":
            torch.accelerator.set_device_index(self.device.index)
        if self.world > 1 and not distributed.is_initialized():
            # Short lists are gathered, on the CPU. The first to end a condition waits for the last, and a batch
            # under a long attack may take hours; a process that dies is noticed by what started them.
            distributed.init_process_group("gloo", timeout=timedelta(days=7))

    def by_first(self, make: Callable[[], T]) -> T:
        """The value that the first process computes, on all of them."""
        return self.gather([make()] if self.rank == 0 else [])[0]

    def gather(self, mine: list) -> list:
        """Concatenated lists of all processes."""
        if self.world == 1:
            return mine
        found: list[list] = [[] for _ in range(self.world)]
        distributed.all_gather_object(found, mine)
        return [each for part in found for each in part]

    def wait(self) -> None:
        if self.world > 1:
            distributed.barrier()
