"""Replaces the attention of a trained model and trains the result to match the original.

    torchvars convert timm:deit_tiny_patch16_224 --attention vars_p --data PICTURES --output FOLDER
    torchvars convert --resume FOLDER

Stages: match (each layer alone learns the output of the attention it replaces), join (the whole model learns the logits
and final features of the original), tune (the whole model learns labels; only this stage needs them). The result is
FOLDER/weights. On several processes: torchrun --nproc-per-node N -m torchvars convert ...
"""

import argparse
import sys
from pathlib import Path

from .extras import missing_extra
from .memory import keep_freed_memory
from .options import add_img_size
from .paths import data_of, model_of, names_of, path_of
from .plans import add_resume, plan_of


def configure(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.argument_default = argparse.SUPPRESS  # the defaults are those of training.conversion.Plan
    parser.add_argument(
        "model",
        nargs="?",
        type=model_of,
        metavar="MODEL",
        help="model: a name whose weights ship, a folder of weights, of a run or of transformers, timm:NAME, or "
        "timm:NAME:FILE with weights from a file",
    )
    add_resume(parser)
    parser.add_argument("--attention", metavar="NAME", help="attention to convert to (default: vars_p)")
    parser.add_argument(
        "--data",
        type=data_of,
        metavar="PATH",
        help="pictures as for torchvars train; or, without tune, a folder or a tar with pictures anywhere in it",
    )
    parser.add_argument("--output", type=path_of, metavar="FOLDER", help="folder of the conversion")
    parser.add_argument(
        "--stages", type=names_of, metavar="NAME,NAME", help="stages, of match, join and tune (default: match,join)"
    )
    parser.add_argument(
        "--layers",
        type=_layers,
        metavar="N,N",
        help="attentions to convert, by index or name, such as --layers=-2,-1 (default: all)",
    )
    parser.add_argument(
        "--classes",
        choices=["model", "present"],
        help="head of the result: all classes of the model, or those that are present in the pictures (default: model)",
    )
    add_img_size(parser)
    parser.add_argument("--batch", type=int, metavar="N", help="batch size (default: 16)")
    parser.add_argument("--match-steps", type=int, metavar="N", help="maximum number of steps of match (default: 1200)")
    parser.add_argument("--join-steps", type=int, metavar="N", help="number of steps of join (default: 1000)")
    parser.add_argument("--tune-epochs", type=int, metavar="N", help="number of epochs of tune (default: 2)")
    parser.add_argument(
        "--judge-every",
        dest="period",
        type=int,
        metavar="N",
        help="number of steps between evaluations and checkpoints in match and join (default: 200)",
    )
    parser.add_argument("--seed", type=int, metavar="N", help="random seed of all stages (default: 0)")
    parser.add_argument("--precision", choices=["no", "bf16", "fp16"], help="mixed precision (default: no)")
    parser.add_argument("--workers", type=int, metavar="N", help="number of data loading processes (default: 1)")
    parser.add_argument(
        "--timing",
        dest="sizes",
        type=_numbers,
        metavar="PIXELS,PIXELS",
        help="sides of the pictures on which original and result are timed (default: 224,448,896)",
    )
    parser.add_argument(
        "--no-timing", dest="sizes", action="store_const", const=(), help="do not time original and result"
    )
    parser.add_argument(
        "--judge",
        dest="judged",
        type=int,
        metavar="N",
        help="number of held-out pictures to evaluate the result on (default: all)",
    )
    parser.add_argument(
        "--set",
        dest="changed",
        nargs="+",
        action="extend",
        metavar="STAGE.FIELD=VALUE",
        help="changed fields of the recipes of the stages, such as match.learning_rate=0.01 join.groups=3",
    )
    group = parser.add_argument_group("the attention")
    group.add_argument(
        "--option",
        dest="options",
        nargs="+",
        action="extend",
        metavar="NAME=VALUE",
        help="options of the attention, such as atoms=1",
    )
    group.add_argument("--strength", type=float, metavar="X", help="strength of the sparse penalty (default: its own)")
    group.add_argument("--steps", type=int, metavar="N", help="number of solver steps (default: its own)")
    group.add_argument("--solver", metavar="NAME", help="solver, as in torchvars list solvers (default: its own)")


def run(arguments: argparse.Namespace) -> None:
    keep_freed_memory()
    try:
        from ..training import conversion
    except ModuleNotFoundError as error:
        raise missing_extra(error, "train", "training") from error
    from ..scoring import is_first

    plan = plan_of(arguments, conversion.Plan, conversion.read_plan)
    stopped = conversion.run(plan, resume=arguments.resume is not None)
    if stopped is not None:
        sys.exit(128 + stopped)
    if is_first():
        weights = Path(plan.output) / "weights"
        print(f"weights: {weights}")


def _layers(text: str) -> tuple[int | str, ...]:
    return tuple(int(part) if part.lstrip("-").isdigit() else part for part in names_of(text))


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"expected whole numbers such as 224,448, got {text!r}") from error
