"""Compares results of `torchvars evaluate` side by side, with the paper's figures where a model is one of its rows.

For two models it also prints the paired differences on the same pictures, with intervals and p-values. Shipped weights
contain their results. Results of `torchvars generalize` are compared in the same way, by domain.
"""

import argparse
from os.path import expanduser

from .extras import missing_extra
from .paths import path_of


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "results",
        nargs="+",
        type=expanduser,
        help="files of torchvars evaluate, or names of torchvars list weights; or several results.json of torchvars "
        "generalize",
    )
    parser.add_argument(
        "--baseline",
        type=int,
        default=1,
        metavar="N",
        help="index of the results, from 1, whose corruption errors are the baseline of relative errors (default: 1)",
    )
    parser.add_argument("--figures", type=path_of, metavar="FOLDER", help="folder to draw heat maps and curves into")


def run(arguments: argparse.Namespace) -> None:
    try:
        from ..evaluation.compare import print_differences, print_table
        from ..evaluation.record import read_results
        from ..generalization.results import is_generalization
    except ModuleNotFoundError as error:
        raise missing_extra(error, "eval", "comparing") from error

    if not 1 <= arguments.baseline <= len(arguments.results):
        raise ValueError(f"--baseline must be from 1 to {len(arguments.results)}, got {arguments.baseline}")
    if any(is_generalization(word) for word in arguments.results):
        compare_domains(arguments)
        return
    results = [read_results(word) for word in arguments.results]
    print_table(results, arguments.baseline - 1)
    if len(results) == 2:
        print_differences(results[0], results[1])
    if arguments.figures is not None:
        from ..figures.robustness import draw_attacks, draw_corruptions

        try:
            import matplotlib  # noqa: F401
        except ModuleNotFoundError as error:
            raise missing_extra(error, "figures", "drawing") from error
        for draw, name in ((draw_corruptions, "corruptions.png"), (draw_attacks, "attacks.png")):
            path = arguments.figures / name
            print(path if draw(results, path) else f"no {name}: no file has the numbers for it")


def compare_domains(arguments: argparse.Namespace) -> None:
    """Compares results of `torchvars generalize`."""
    from ..generalization.results import Generalization
    from ..generalization.table import print_generalization
    from .generalize import draw

    results = [Generalization.read(word) for word in arguments.results]
    first = arguments.baseline - 1
    print_generalization([results[first], *results[:first], *results[first + 1 :]])
    if arguments.figures is not None:
        draw(results, arguments.figures / "domains.png")
