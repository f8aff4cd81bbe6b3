"""Prints the names that can be built, each with one line on what it is."""

import argparse
import inspect


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "kind", nargs="?", choices=["attentions", "solvers"], help="only names of this kind (default: all)"
    )


def run(arguments: argparse.Namespace) -> None:
    from ..attention import ATTENTIONS
    from ..sparse import SOLVERS

    for kind, registry in {"attentions": ATTENTIONS, "solvers": SOLVERS}.items():
        if arguments.kind in (None, kind):
            print(kind)
            for name, constructor in registry.items():
                print(f"  {name:<18}{inspect.getdoc(constructor).splitlines()[0]}")
