"""What it is worth that the commands keep freed memory (src/torchvars/cli/memory.py).

    python benchmarks/memory.py

Models of 196 tokens, 64 pictures at a time, in processes of their own: with and without in turns, medians over rounds.
"""

import multiprocessing
import statistics
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor

import torch

import torchvars
from tables import table
from torchvars.cli.memory import keep_freed_memory, told_by_environment
from torchvars.models.speed import Contestant, forward_seconds, training_seconds

MODELS, ROUNDS, BATCH = ("rvt_micro_softmax", "rvt_micro_vars_d", "rvt_micro_vars_sd"), 5, 64
CONTEXT = multiprocessing.get_context("spawn")  # what is said to the C library holds for a whole process


def rates(name: str, threads: int, kept: bool) -> tuple[float, float]:
    """Pictures a second in evaluation and in training without the optimiser."""
    torch.set_num_threads(threads)
    if kept:
        keep_freed_memory()
    contestant = Contestant(torchvars.create(name), (torch.rand(BATCH, 3, 112, 112),))
    return rate(forward_seconds, contestant), rate(training_seconds, contestant)


def rate(seconds: Callable[[Contestant], float], contestant: Contestant, times: int = 4) -> float:
    seconds(contestant)  # warms up
    return times * BATCH / sum(seconds(contestant) for _ in range(times))


def measured(*given) -> tuple[float, float]:
    with ProcessPoolExecutor(1, CONTEXT) as pool:
        return pool.submit(rates, *given).result()


def rows() -> Iterator[list[str]]:
    for name in MODELS:
        for threads in (1, 2):
            pairs = [[measured(name, threads, kept) for kept in (False, True)] for _ in range(ROUNDS)]
            row = [name, str(threads)]
            for kind in range(2):
                before, after = zip(*((without[kind], kept[kind]) for without, kept in pairs), strict=True)
                ratio = statistics.median(b / a for a, b in zip(before, after, strict=True))
                row.append(f"{statistics.median(before):.0f} to {statistics.median(after):.0f} ({ratio:.2f})")
            yield row


if __name__ == "__main__":
    if (told := told_by_environment()) is not None:
        raise SystemExit(f"{told} is set, so that nothing would be compared: run this without it")
    table(["model", "threads", "evaluation, img/s", "training, img/s"], rows())
