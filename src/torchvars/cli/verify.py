"""Reproduces the recorded figures of shipped weights, or of a folder of weights with a record.

Fails if a figure is not met within its 95 % interval, or if weights, recipe and figures do not match their common hash.
With --output, results are written after each condition, so that the same command resumes. On several processes:
torchrun --nproc-per-node N -m torchvars verify ...
"""

import argparse
import tempfile
from pathlib import Path

from .extras import missing_extra
from .memory import keep_freed_memory
from .options import add_batch, add_device, add_workers
from .paths import data_of, model_of, names_of, path_of
from .stopping import stoppable


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", type=model_of, help="weights: a name of torchvars list weights, or a folder")
    parser.add_argument(
        "--data", type=data_of, metavar="PATH", help="labelled pictures (default: only hashes are compared)"
    )
    parser.add_argument(
        "--benchmark", type=names_of, metavar="NAME[,NAME]", help="recorded benchmarks to reproduce (default: all)"
    )
    parser.add_argument(
        "--output", type=path_of, metavar="FILE", help="file of results (JSON; default: none is written)"
    )
    add_batch(parser, 64)
    add_workers(parser)
    add_device(parser)


def run(arguments: argparse.Namespace) -> None:
    keep_freed_memory()
    try:
        from ..evaluation.record import RESULTS, Record, answers_alike, benchmarks_of, check
        from ..evaluation.results import Results, say_kept
        from ..evaluation.run import evaluate
        from ..evaluation.subjects import open_subject
        from ..evaluation.watch import watching
        from ..scoring import is_first
    except ModuleNotFoundError as error:
        raise missing_extra(error, "eval", "verifying") from error
    from ..models.embedded import find_embedded

    folder = Path(arguments.name).resolve() if Path(arguments.name).is_dir() else find_embedded(arguments.name)
    record = Record.read(folder)
    if is_first():
        print(f"{folder.name}: weights, recipe and figures are under one hash, {record.seal[:12]}", flush=True)
    if arguments.data is None:
        if is_first():
            print("nothing was evaluated: give the pictures with --data")
        return
    subject = open_subject(str(folder))
    benchmarks = benchmarks_of(record, arguments.data, subject, arguments.benchmark)

    def message() -> str:
        if not is_first():
            return ""
        if arguments.output is None:
            return "stopped: nothing is kept without --output FILE"
        return say_kept(arguments.output)

    with stoppable(message), tempfile.TemporaryDirectory() as temporary, watching() as watch:
        output = arguments.output or Path(temporary) / "results.json"
        options = {name: getattr(arguments, name) for name in ("batch", "workers", "device")}
        results = evaluate(subject, benchmarks, output, partial_ok=True, watch=watch, **options)
    if not is_first():
        return
    recorded = Results.read(folder / RESULTS)
    for benchmark in benchmarks:
        alike, count = answers_alike(recorded, results, benchmark.name)
        print(f"{benchmark.name}: {alike} of {count} pictures were recognised, or not, as it is recorded")
    _judge(folder.name, check(record, results, [benchmark.name for benchmark in benchmarks]))


def _judge(name: str, checks: list) -> None:
    """Prints how many figures are met; fails if one is not."""
    for benchmark in {each.benchmark: None for each in checks}:
        judged = [each for each in checks if each.benchmark == benchmark and each.judged]
        others = [each for each in checks if each.benchmark == benchmark and not each.judged]
        _sum_up(judged, f"{benchmark}: {sum(each.met for each in judged)} of {len(judged)} figures met")
        _sum_up(others, f"{benchmark}: {len(others)} without an interval, not judged")
    if missed := [each for each in checks if not each.met]:
        for each in missed[:20]:
            print(f"not met: {each}")
        raise SystemExit(f"{name} is not what is claimed: {len(missed)} of {len(checks)} figures are not met")
    print(f"{name} is what is claimed")


def _sum_up(checks: list, text: str) -> None:
    if checks:
        furthest = max(checks, key=lambda each: each.difference)
        where = f"{furthest.claimed.condition}, {furthest.claimed.metric}"
        print(f"{text}, the largest difference {furthest.difference:.3g} ({where})")
