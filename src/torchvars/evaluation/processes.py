"""Processes that share an evaluation."""

import os
from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

import torch
from torch import distributed

T = TypeVar("T")


def is_first() -> bool:
    """Whether this is the one of processes started together that speaks for all."""
    return os.environ.get("RANK", "0") == "0"


class Processes:
    """This process among those started together by torchrun or accelerate; alone if it was started by itself."""

    def __init__(self):
        self.world = int(os.environ.get("WORLD_SIZE", "1"))
        self.rank = int(os.environ.get("RANK", "0"))
        self.device = torch.device("cpu")
        if torch.accelerator.is_available():
            number = int(os.environ.get("LOCAL_RANK", "0"))
            torch.accelerator.set_device_index(number)
            self.device = torch.device(torch.accelerator.current_accelerator().type, number)
        if self.world > 1 and not distributed.is_initialized():
            # What is gathered are short lists, on the CPU. The first to end a condition waits for the last, and a batch
            # under a long attack may take hours; a process that dies is noticed by what started them.
            distributed.init_process_group("gloo", timeout=timedelta(days=7))

    def by_first(self, make: Callable[[], T]) -> T:
        """What the first process makes, for all of them."""
        return self.gather([make()] if self.rank == 0 else [])[0]

    def gather(self, mine: list) -> list:
        """What every process has, one after the other."""
        if self.world == 1:
            return mine
        found = [None] * self.world
        distributed.all_gather_object(found, mine)
        return [each for part in found for each in part]

    def wait(self) -> None:
        if self.world > 1:
            distributed.barrier()
