"""Measures time and memory of attentions and models side by side, as ratios to fused softmax attention.

All contestants take turns in one process, so that a slow moment of the machine affects all of them. Tables are printed
as soon as they are measured; all figures go to benchmark.json, and a plot of time against tokens to
time_against_tokens.png.
"""

import argparse
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from .paths import Names, path_of

if TYPE_CHECKING:
    from ..models.speed import Measurement

ATTENTIONS = ("softmax", "performer", "global_filter", "vars_s", "vars_d", "vars_sd")
SLOW_ATTENTIONS = ("softmax", "vars_s", "vars_d", "vars_sd")  # of models and compiled layers, which take longer
SIZES = ("196x16", "784x4", "3136x1")
SCALING = (196, 784, 3136, 12544)
STEPS = (196, 4)
SECTIONS = ("layers", "scaling", "steps", "models")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--output",
        type=path_of,
        default=Path("output/benchmark"),
        metavar="FOLDER",
        help="folder to write into (default: %(default)s)",
    )
    parser.add_argument("--out", type=path_of, help=argparse.SUPPRESS)  # its name in 0.1
    parser.add_argument(
        "--attentions",
        nargs="+",
        action=Names,
        metavar="NAME[,NAME]",
        help=f"attentions to measure, always beside softmax (default: {','.join(ATTENTIONS)}; "
        f"in models and compiled: {','.join(SLOW_ATTENTIONS)})",
    )
    parser.add_argument(
        "--sizes",
        nargs="+",
        action=Names,
        default=SIZES,
        metavar="TOKENSxBATCH[,TOKENSxBATCH]",
        help=f"numbers of tokens, which are squares, and batch sizes of the layers (default: {','.join(SIZES)})",
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=15,
        metavar="N",
        help="number of timed runs of each layer (default: %(default)s; at most 5 of these in the other sections)",
    )
    parser.add_argument(
        "--sections",
        nargs="+",
        action=Names,
        default=SECTIONS,
        metavar="NAME[,NAME]",
        help=f"sections to measure, of {', '.join(SECTIONS)} (default: all of them)",
    )
    parser.add_argument(
        "--compiled", action="store_true", help="also measure layers through torch.compile, which takes minutes"
    )
    parser.add_argument("--device", default="cpu", help="device, such as cuda (default: %(default)s)")


def run(arguments: argparse.Namespace) -> None:
    # By default PyTorch's profiler, which counts the memory, prints lines between the tables.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    import torch

    from ..models import speed

    if unknown := [name for name in arguments.sections if name not in SECTIONS]:
        raise ValueError(f"--sections must be of {', '.join(SECTIONS)}, got {unknown[0]!r}")
    if arguments.out is not None:
        print("--out is deprecated and will be removed: use --output", file=sys.stderr)
        arguments.output = arguments.out
    sizes = [parse_size(text) for text in arguments.sizes]
    rounds, device = arguments.rounds, arguments.device
    if rounds < 1:
        raise ValueError(f"--rounds must be at least 1, got {rounds}")
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"--device {device} is not available: {str(error).splitlines()[0]}") from error
    attentions = speed.with_reference(arguments.attentions or ATTENTIONS)
    slow = speed.with_reference(arguments.attentions or SLOW_ATTENTIONS)
    measures = {
        "layers": lambda: speed.measure_layers(attentions, sizes, rounds, device),
        "scaling": lambda: speed.measure_scaling(attentions, SCALING, rounds, device),
        "steps": lambda: speed.measure_steps(attentions, *STEPS, rounds, device),
        "models": lambda: speed.measure_models(slow, rounds, device),
        "compiled": lambda: speed.measure_compiled(slow, sizes[0], rounds, device),
    }
    sections = [name for name in SECTIONS if name in arguments.sections]
    if arguments.compiled and speed.has_compiler():
        sections.append("compiled")
    elif arguments.compiled:
        print("nothing will be compiled: there is no C++ compiler; install g++, or name yours in CXX")

    torch.manual_seed(0)
    environment = describe_machine(device)
    results = {
        "settings": {
            "attentions": attentions,
            "sizes": sizes,
            "rounds": rounds,
            "sections": sections,
            "dim": speed.DIM,
            "heads": speed.HEADS,
            "models": {"backbone": "rvt_tiny", "img_size": speed.PICTURE, "attentions": slow},
        },
        "environment": environment,
        "rows": [],
        "exponents": {},
    }
    print(
        f"{environment['threads']} of {environment['cpus']} CPUs ({environment['cpu_capability']}), "
        f"PyTorch {environment['torch']}, device {environment['device']}, {environment['kernels']}",
        flush=True,
    )
    arguments.output.mkdir(parents=True, exist_ok=True)
    for section in sections:
        rows = measures[section]()
        results["rows"] += [asdict(row) for row in rows]
        if section == "scaling":
            results["exponents"] = speed.exponents(rows)
        write_json(results, arguments.output / "benchmark.json")
        show(section, rows, results["exponents"])
        if section == "scaling":
            draw(rows, arguments.output / "time_against_tokens.png")
    print(f"\nall figures: {arguments.output / 'benchmark.json'}")


def parse_size(text: str) -> tuple[int, int]:
    """ "196x16" -> 196 tokens, batch 16."""
    from ..models.speed import square

    match = re.fullmatch(r"(\d+)x([1-9]\d*)", text)
    if match is None:
        raise ValueError(f"a size is TOKENSxBATCH, such as 196x16: got {text!r}")
    tokens, batch = int(match[1]), int(match[2])
    square(tokens)
    return tokens, batch


def describe_machine(device: str) -> dict:
    import torch

    from ..models.environment import environment

    cuda = torch.device(device).type == "cuda"
    return {**environment(), "device": f"{device} ({torch.cuda.get_device_name(device)})" if cuda else device}


def write_json(results: dict, path: Path) -> None:
    """Writes results. If the process is stopped meanwhile, the previous file stays as it was."""
    from ..models.weights import write_whole

    text = json.dumps(results, indent=1) + "\n"
    write_whole(path, lambda temporary: temporary.write_text(text))


def draw(rows: Sequence["Measurement"], path: Path) -> None:
    from ..figures.speed import draw_time_against_tokens

    try:
        draw_time_against_tokens(rows, path)
    except ModuleNotFoundError:
        print('\nno plot was drawn, it needs matplotlib: pip install "torchvars[figures]"', flush=True)
    else:
        print(f"\nplot: {path}", flush=True)


# Printing


def show(section: str, rows: Sequence["Measurement"], exponents: dict[str, dict[str, float]]) -> None:
    """Prints the tables of a section."""
    print(f"\n### {section.capitalize()}")
    if section == "scaling":
        print("\nMilliseconds, forward / forward + backward, and the fitted exponents of time in tokens\n")
        powers = {name: f"{own['forward']:.2f} / {own['training']:.2f}" for name, own in exponents.items()}
        print_by_size(rows, lambda row: f"{ms(row.forward_seconds)} / {ms(row.training_seconds)}", exponent=powers)
        print("\nPeak memory in MB, and its ratio to softmax\n")
        print_by_size(rows, memory)
    else:
        print("\nTime as a ratio to softmax, forward / forward + backward\n")
        print_by_size(rows, lambda row: f"{row.forward_ratio:.2f} / {row.training_ratio:.2f}")
        print("\nMilliseconds ± half the interquartile range, peak memory in MB and its ratio to softmax\n")
        print_details(rows)


def print_by_size(
    rows: Sequence["Measurement"], cell: Callable[["Measurement"], str], **columns: dict[str, str]
) -> None:
    """Prints a line for each contestant, with a column for each size and further columns by contestant."""
    sizes = list(dict.fromkeys(map(size, rows)))
    lines = []
    for name in dict.fromkeys(row.contestant for row in rows):
        cells = {size(row): cell(row) for row in rows if row.contestant == name}
        lines.append([name, *(cells.get(each, "") for each in sizes), *(column[name] for column in columns.values())])
    print_table(["", *sizes, *columns], lines)


def print_details(rows: Iterable["Measurement"]) -> None:
    lines = [
        [
            row.contestant,
            size(row),
            f"{ms(row.forward_seconds)} ± {100 * row.forward_spread:.0f} %",
            f"{ms(row.training_seconds)} ± {100 * row.training_spread:.0f} %",
            memory(row),
            "" if row.solver_share is None else f"{100 * row.solver_share:.0f} %",
        ]
        for row in rows
    ]
    headings = ["", "size", "forward", "forward + backward", "peak memory", "solver, of forward"]
    if not any(line[-1] for line in lines):  # models and compiled layers, whose solvers are not timed
        headings, lines = headings[:-1], [line[:-1] for line in lines]
    print_table(headings, lines)


def print_table(headings: Sequence[str], lines: Iterable[Sequence[str]]) -> None:
    """Prints a table in Markdown, padded so that it can be read as text."""
    lines = [headings, *lines]
    widths = [max(3, *(len(line[column]) for line in lines)) for column in range(len(headings))]
    for index, line in enumerate(lines):
        print("| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |")
        if index == 0:
            print("|" + "|".join("-" * (width + 2) for width in widths) + "|", flush=True)


def size(row: "Measurement") -> str:
    return f"batch {row.batch}" if row.tokens is None else f"{row.tokens} x {row.batch}"


def ms(seconds: float) -> str:
    """Milliseconds with at least three digits."""
    milliseconds = 1e3 * seconds
    return f"{milliseconds:.{0 if milliseconds >= 100 else 1 if milliseconds >= 10 else 2}f}"


def memory(row: "Measurement") -> str:
    return f"{row.peak_bytes / 1e6:.1f} ({row.peak_ratio:.2f})"
