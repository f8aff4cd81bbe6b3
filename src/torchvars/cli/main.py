"""The command line: finds a command and runs it. Heavy modules are imported only when a command needs them."""

import argparse
import io
import os
import signal
import sys
from importlib import import_module
from typing import Any, cast

from .. import __version__
from .extras import missing_extra
from .threads import limit_spinning

# Commands and their lines of help. Each is a module of that name with `configure(parser)` and `run(arguments)`. If the
# module has TAKES_MORE, `run` gets the unknown arguments, --help included, as a second argument.
COMMANDS = {
    "benchmark": "measure time and memory of attentions and models",
    "compare": "compare results of several models",
    "convert": "replace the attention of a trained model",
    "evaluate": "measure the robustness of a model",
    "explore": "show models and their attention maps in the browser",
    "export": "export a model to another runtime",
    "figures": "draw figures like the paper's from shipped weights and results",
    "generalize": "fine-tune with each domain left out, and evaluate on it",
    "list": "list names of attentions, solvers, models, weights and benchmarks",
    "maps": "draw attention maps",
    "predict": "classify pictures",
    "train": "train a model, or resume a run",
    "verify": "reproduce the recorded figures of shipped weights",
}


def main(arguments: list[str] | None = None) -> None:
    """Runs a command; ends without a traceback if its output is no longer read, as in `torchvars list | head -1`."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # file names may contain bytes that are not characters
            cast(io.TextIOWrapper, stream).reconfigure(errors="backslashreplace")
    limit_spinning()
    try:
        try:
            dispatch(arguments)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python prints an error at exit
        raise SystemExit(128 + 13) from None  # as if by SIGPIPE


class PrintCompletion(argparse.Action):
    """Prints a script that completes commands and options in a shell."""

    def __call__(self, parser, namespace, values: Any, option_string=None):
        try:
            import shtab
        except ModuleNotFoundError as error:
            parser.exit(2, f"torchvars: {missing_extra(error, 'completion', 'completion')}\n")
        print(shtab.complete(parser, values))
        parser.exit()


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="torchvars", description="Attention as recurrent sparse reconstruction, for PyTorch."
    )
    parser.add_argument("--version", action="version", version=f"torchvars {__version__}")
    parser.add_argument(
        "--print-completion",
        choices=["bash", "zsh", "tcsh"],
        action=PrintCompletion,
        help="print a script for the completion of commands and options in a shell",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, help_line in COMMANDS.items():
        module = import_module(f"{__package__}.{name}")
        takes_more = getattr(module, "TAKES_MORE", False)
        subparser = commands.add_parser(
            name,
            help=help_line,
            description=module.__doc__,
            add_help=not takes_more,
            formatter_class=argparse.RawDescriptionHelpFormatter if takes_more else argparse.HelpFormatter,
        )
        module.configure(subparser)
        subparser.set_defaults(run=module.run, takes_more=takes_more, print_help=subparser.print_help)
    return parser


def dispatch(arguments: list[str] | None = None) -> None:
    parser = build_parser()
    parsed, more = parser.parse_known_args(arguments)
    if more and not parsed.takes_more:
        words = [word for word in more if not word.startswith("-")]
        hint = "; lists are written with commas, without spaces" if words == more else ""
        parser.error(f"unrecognized arguments: {' '.join(more)}{hint}")
    try:
        parsed.run(parsed, *([more] if parsed.takes_more else []))
    except BrokenPipeError:
        raise
    except (ValueError, OSError, FloatingPointError) as error:  # their messages say what is wrong
        parser.exit(2, f"torchvars {parsed.command}: {error}\n")
    except KeyboardInterrupt as interrupt:  # its arguments may say how to resume
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback for a second one during exit
        message = "; ".join(["interrupted", *map(str, interrupt.args)])
        parser.exit(128 + signal.SIGINT, f"\ntorchvars {parsed.command}: {message}\n")
