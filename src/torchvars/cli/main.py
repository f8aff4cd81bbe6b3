"""Finds the command and runs it. Nothing heavy is imported before a command needs it."""

import argparse
import os
import signal
import sys
from importlib import import_module

from .. import __version__
from .threads import limit_spinning

# Command: its one line of help. Each lives in a module of its name, with `configure(parser)` and `run(arguments)`; one
# that has TAKES_MORE gets what the parser does not know as a second argument, a call for help included.
COMMANDS = {
    "benchmark": "time and memory of attentions and models, side by side",
    "compare": "results of several models side by side",
    "convert": "replace the attention of a trained model",
    "evaluate": "how robust a model is",
    "explore": "models in the browser: what they say, and where they look",
    "export": "write a model for another runtime",
    "list": "the names that can be built",
    "predict": "what is in pictures: top classes with their confidence",
    "train": "train a model, or go on with a run",
    "verify": "evaluate weights that ship once more, against what is claimed",
}


def main(arguments: list[str] | None = None) -> None:
    """Runs a command; ends quietly if what reads its output has gone, as `torchvars list | head -1` does."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # names of files may have bytes that are no characters
    limit_spinning()
    try:
        try:
            dispatch(arguments)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python complains when it ends
        raise SystemExit(128 + 13) from None  # as if by SIGPIPE


def dispatch(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="torchvars", description="Attention as recurrent sparse reconstruction, for PyTorch."
    )
    parser.add_argument("--version", action="version", version=f"torchvars {__version__}")
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
    parsed, more = parser.parse_known_args(arguments)
    if more and not parsed.takes_more:
        words = [word for word in more if not word.startswith("-")]
        hint = "; lists are written with commas, without spaces" if words == more else ""
        parser.error(f"unrecognized arguments: {' '.join(more)}{hint}")
    try:
        parsed.run(parsed, *([more] if parsed.takes_more else []))
    except BrokenPipeError:
        raise
    except (ValueError, OSError, FloatingPointError) as error:  # what went wrong, in its own words
        parser.exit(2, f"torchvars {parsed.command}: {error}\n")
    except KeyboardInterrupt as interrupt:  # a command may say in it how to go on
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # one that comes while the process ends shows no traceback either
        said = "; ".join(["interrupted", *map(str, interrupt.args)])
        parser.exit(128 + signal.SIGINT, f"\ntorchvars {parsed.command}: {said}\n")
