"""How fast training is for each way in which threads may wait (src/torchvars/cli/threads.py).

    python benchmarks/waiting.py [--seconds 15] [--rounds 2]

Training steps of rvt_micro_vars_d in processes of their own, in turns. It says something of contention only while other
programs keep the CPUs busy.
"""

import argparse
import os
import subprocess
import sys
import time

from tables import table

WAYS = ({}, {"OMP_WAIT_POLICY": "passive"}, {"GOMP_SPINCOUNT": "10000"}, {"OMP_NUM_THREADS": "1"})
BATCH = 16


def rates(seconds: float) -> tuple[float, float]:
    """Pictures a second, and pictures a second of CPU time."""
    import torch

    import torchvars
    from torchvars.cli.memory import keep_freed_memory

    keep_freed_memory()
    model = torchvars.create("rvt_micro_vars_d", num_classes=10)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    pixels, labels = torch.randn(BATCH, 3, 112, 112), torch.arange(BATCH) % 10

    def step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(pixels), labels).backward()
        optimizer.step()

    step()
    begun, used, steps = time.perf_counter(), time.process_time(), 0
    while time.perf_counter() - begun < seconds:
        step()
        steps += 1
    return BATCH * steps / (time.perf_counter() - begun), BATCH * steps / (time.process_time() - used)


def measured(way: dict[str, str], seconds: float) -> list[str]:
    quiet = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_", "KMP_"))}
    program = f"from waiting import rates; print(*rates({seconds}))"
    run = [sys.executable, "-c", program]
    here = os.path.dirname(os.path.abspath(__file__))
    path = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))
    done = subprocess.run(run, env={**quiet, **way, "PYTHONPATH": path}, check=True, capture_output=True, text=True)
    return [f"{float(rate):.1f}" for rate in done.stdout.split()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--rounds", type=int, default=2)
    arguments = parser.parse_args()
    before = os.getloadavg()[0]
    rounds = [[measured(way, arguments.seconds) for way in WAYS] for _ in range(arguments.rounds)]
    rows = []
    for number, way in enumerate(WAYS):
        name = " ".join(f"{variable}={value}" for variable, value in way.items()) or "as PyTorch has it"
        rows.append([name, *(", ".join(each[number][kind] for each in rounds) for kind in range(2))])
    print(f"load average before {before:.1f}, after {os.getloadavg()[0]:.1f}, {os.cpu_count()} CPUs\n")
    table(["", "images a second", "images a second of CPU time"], rows)


if __name__ == "__main__":
    main()
