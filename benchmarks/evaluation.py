"""Where the time of an evaluation goes: the model, the corruptions, and everything else.

    python benchmarks/evaluation.py rvt_micro_softmax.imagenette --data PICTURES [--limit 1000]

CPU time of this process, whose batches are read in it. The 15 published corruptions at 5 severities,
unless others are asked for.
"""

import argparse
import time
from collections import Counter

import torch

import torchvars
from torchvars.evaluation.benchmarks import corruptions


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--data", required=True)
    parser.add_argument("--limit", type=int, default=1000)
    parser.add_argument("--corruptions", type=lambda text: tuple(text.split(",")), default=corruptions.PUBLISHED)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    spent = Counter()

    def timed(name, call):
        def wrapped(*given, **named):
            begun = time.process_time()
            try:
                return call(*given, **named)
            finally:
                spent[name] += time.process_time() - begun

        return wrapped

    corruptions.corrupt = timed("corruptions", corruptions.corrupt)
    classifier = torchvars.Classifier.from_pretrained(arguments.model)
    classifier.forward = timed("model", classifier.forward)
    begun = time.process_time()
    torchvars.evaluate(
        classifier,
        "corruptions",
        arguments.data,
        limit=arguments.limit,
        corruptions=tuple(arguments.corruptions),
        partial=True,
        quiet=True,
    )
    whole = time.process_time() - begun
    rest = whole - sum(spent.values())
    for name, seconds in {**spent, "everything else": rest, "all": whole}.items():
        print(f"{name:16} {seconds:8.1f} s  {100 * seconds / whole:5.1f} %")


if __name__ == "__main__":
    main()
