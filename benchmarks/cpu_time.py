"""CPU time of single layers on one thread, as a ratio to fused softmax attention.

    python benchmarks/cpu_time.py

What `torchvars benchmark` measures by the clock, for machines on which others work as well: a thread that waits for its
turn is not counted. All layers run in turns in one process; figures are medians over rounds of the ratio within a
round, forward / forward + backward, and milliseconds.
"""

import argparse
import statistics
import time

import torch

from torchvars.models.speed import interleaved, layer, with_reference
from torchvars.sparse import native


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--attentions", nargs="+", default=["vars_s", "vars_sd", "vars_d"])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(f"{native.describe()}, PyTorch {torch.__version__}, one thread\n")
    for tokens, batch in ((196, 16), (784, 4), (3136, 1)):
        contestants = {name: layer(name, tokens, batch) for name in with_reference(arguments.attentions)}
        actions = {}
        for name, contestant in contestants.items():
            actions[name, "forward"] = lambda each=contestant: seconds(each, training=False)
            actions[name, "training"] = lambda each=contestant: seconds(each, training=True)
        for action in actions.values():
            action()
        measured = interleaved(actions, arguments.rounds)
        for name in contestants:
            cells = []
            for kind in ("forward", "training"):
                pairs = zip(measured[name, kind], measured["softmax", kind], strict=True)
                cells.append(f"{statistics.median(own / other for own, other in pairs):.2f}")
            milliseconds = [f"{1e3 * statistics.median(measured[name, kind]):.0f}" for kind in ("forward", "training")]
            print(f"| {tokens} x {batch} | {name} | {' / '.join(cells)} | {' / '.join(milliseconds)} ms |", flush=True)


def seconds(contestant, *, training: bool) -> float:
    """CPU time of a pass."""
    contestant.module.train(training).zero_grad(set_to_none=True)
    contestant.inputs[0].grad = None
    begin = time.process_time()
    with torch.set_grad_enabled(training):
        output = contestant.run()
    if training:
        output.sum().backward()
    return time.process_time() - begin


if __name__ == "__main__":
    main()
