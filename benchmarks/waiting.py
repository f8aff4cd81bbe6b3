"""How fast training is with the way in which threads wait that the environment says (src/torchvars/cli/threads.py).

    OMP_WAIT_POLICY=passive python benchmarks/waiting.py [--seconds 15] [--threads 2]

Training steps of rvt_micro_vars_d, 16 pictures of 112 pixels. It says something of contention only while other programs
keep the CPUs busy.
"""

import argparse
import time

import torch

import torchvars
from torchvars.cli.memory import keep_freed_memory

BATCH = 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    keep_freed_memory()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    model = torchvars.create("rvt_micro_vars_d", num_classes=10)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    pixels, labels = torch.randn(BATCH, 3, 112, 112), torch.arange(BATCH) % 10

    def step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(pixels), labels).backward()
        optimizer.step()

    step()
    begun, used, steps = time.perf_counter(), time.process_time(), 0
    while time.perf_counter() - begun < arguments.seconds:
        step()
        steps += 1
    seconds, of_cpu = time.perf_counter() - begun, time.process_time() - used
    print(f"{BATCH * steps / seconds:.1f} images a second, {BATCH * steps / of_cpu:.1f} a second of CPU time")


if __name__ == "__main__":
    main()
