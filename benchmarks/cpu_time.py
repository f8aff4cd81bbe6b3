"""CPU time of layers and models on one thread, as a ratio to fused softmax attention.

    python benchmarks/cpu_time.py

What `torchvars benchmark` measures by the clock, for machines on which others work as well: a thread that waits for its
turn is not counted. All of a row's size run in turns in one process; figures are medians over rounds of the ratio
within a round, forward / forward + backward, and milliseconds. "at the equilibrium" is `Equilibrium(ISTA(3))`, and
rvt_tiny the whole model on 8 pictures of 224 pixels, training without the optimiser. Last come the exponents of time in
tokens at batch 1, from 196 to 12,544, and the peak memory of training at 196 and 784.
"""

import argparse
import statistics
import time
from collections.abc import Mapping

import torch

from torchvars.models import create
from torchvars.models.speed import Contestant, exponent, interleaved, layer, peak_bytes, with_reference
from torchvars.sparse import ISTA, Equilibrium, native

PARTS = ("layers", "equilibrium", "models", "scaling")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--attentions", nargs="+", default=["vars_s", "vars_sd", "vars_d", "vars_p"])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(f"{native.describe()}, PyTorch {torch.__version__}, one thread\n")
    names = with_reference(arguments.attentions)
    if "layers" in arguments.parts:
        for tokens, batch in ((196, 16), (784, 4), (3136, 1)):
            measure(f"{tokens} x {batch}", {name: layer(name, tokens, batch) for name in names}, arguments.rounds)
    if "equilibrium" in arguments.parts:
        contestants = {name: layer(name, 196, 4) for name in names}
        for name in names[1:]:
            contestants[name].module.solver = Equilibrium(ISTA(3))
        measure("196 x 4, at the equilibrium", contestants, arguments.rounds)
    if "models" in arguments.parts:
        pictures = torch.randn(8, 3, 224, 224)
        contestants = {name: Contestant(create(f"rvt_tiny_{name}"), (pictures,)) for name in names}
        measure("rvt_tiny, 224 pixels x 8", contestants, arguments.rounds)
    if "scaling" in arguments.parts:
        memory = {(name, tokens): peak_bytes(layer(name, tokens, 1)) for name in names for tokens in (196, 784)}
        for name in names[1:]:
            ratios = [memory[name, tokens] / memory["softmax", tokens] for tokens in (196, 784)]
            print(f"| {name} | exponents {' / '.join(exponents(name))} | memory {ratios[0]:.1f}, {ratios[1]:.1f} |")


def exponents(name: str) -> list[str]:
    """Of forward and of training."""
    sizes, times = (196, 784, 3136, 12544), []
    for tokens in sizes:
        contestant = layer(name, tokens, 1)
        times.append([min(seconds(contestant, training=each) for _ in range(3)) for each in (False, True)])
    return [f"{exponent(sizes, each):.2f}" for each in zip(*times, strict=True)]


def measure(title: str, contestants: Mapping[str, Contestant], rounds: int) -> None:
    """Prints a row for each contestant; the first is softmax."""
    actions = {}
    for name, contestant in contestants.items():
        actions[name, "forward"] = lambda each=contestant: seconds(each, training=False)
        actions[name, "training"] = lambda each=contestant: seconds(each, training=True)
    for action in actions.values():
        action()
    measured = interleaved(actions, rounds)
    for name in contestants:
        cells = []
        for kind in ("forward", "training"):
            pairs = zip(measured[name, kind], measured["softmax", kind], strict=True)
            cells.append(f"{statistics.median(own / other for own, other in pairs):.2f}")
        milliseconds = [f"{1e3 * statistics.median(measured[name, kind]):.0f}" for kind in ("forward", "training")]
        print(f"| {title} | {name} | {' / '.join(cells)} | {' / '.join(milliseconds)} ms |", flush=True)


def seconds(contestant: Contestant, *, training: bool) -> float:
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
