"""Measures the accuracy of a model on a domain that was left out of training (PACS and the like).

    torchvars generalize rvt_micro_vars_d.imagenette --data PACS --output FOLDER
    torchvars generalize --resume FOLDER

For each target domain the model is trained on all other domains: as a linear probe of the frozen model, and by
fine-tuning all weights, once for each seed. A held-out share of the other domains selects the epoch; the target is
only evaluated at the end. The same command resumes after an interruption, and adds targets and seeds. torchvars compare
puts the results of several models side by side. On several processes: torchrun --nproc-per-node N -m torchvars ...
"""

import argparse
import shlex
import signal
import sys

from .extras import missing_extra
from .memory import keep_freed_memory
from .options import add_img_size
from .paths import MODEL_WORDS, data_of, model_of, names_of, path_of
from .plans import add_resume, plan_of
from .stopping import stoppable


def configure(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.argument_default = argparse.SUPPRESS  # the defaults are those of generalization.Plan
    parser.add_argument("model", nargs="?", type=model_of, metavar="MODEL", help=MODEL_WORDS)
    parser.add_argument(
        "--data",
        type=data_of,
        metavar="PATH",
        help="pictures in <domain>/<class>/<picture>: a folder or an uncompressed tar",
    )
    parser.add_argument("--output", type=path_of, metavar="FOLDER", help="folder for the runs and their results")
    add_resume(parser)
    parser.add_argument(
        "--targets", type=names_of, metavar="NAME,NAME", help="target domains, each left out in turn (default: all)"
    )
    parser.add_argument(
        "--seeds", type=_numbers, metavar="N,N", help="random seeds of the fine-tuning runs, such as 0,1,2 (default: 0)"
    )
    parser.add_argument(
        "--methods",
        type=names_of,
        metavar="NAME,NAME",
        help="training methods: probe (logistic regression on frozen features), tune (fine-tuning of all weights) "
        "(default: both)",
    )
    parser.add_argument(
        "--held-out-share",
        type=float,
        metavar="SHARE",
        help="share of the other domains held out for validation, in whole tenths; DomainBed holds out 0.2 (default: "
        "the split lists that come with the pictures, else 0.1)",
    )
    parser.add_argument(
        "--split-lists",
        type=_folder,
        metavar="FOLDER",
        help="folder of split lists, <domain>_{train,crossval}_kfold.txt, that determine the held-out pictures "
        "(default: the folder of the pictures, if it has them)",
    )
    add_img_size(parser)
    parser.add_argument(
        "--corrupted",
        metavar="DOMAIN",
        help="domain on whose pictures the fine-tuned models are evaluated under corruptions (default: photo, if there "
        "is such a domain)",
    )
    parser.add_argument(
        "--no-corruptions",
        dest="corrupted",
        action="store_const",
        const=None,
        help="skip the evaluation under corruptions",
    )
    parser.add_argument(
        "--corrupted-pictures",
        type=int,
        metavar="N",
        help="number of pictures for the evaluation under corruptions (default: 100)",
    )
    parser.add_argument(
        "--set",
        dest="changed",
        nargs="+",
        action="extend",
        metavar="FIELD=VALUE",
        help="changed fields of the training recipe, such as epochs=10 learning_rate=2e-3 (torchvars train "
        "pacs_rvt_micro_softmax --help lists them)",
    )
    parser.add_argument("--workers", type=int, metavar="N", help="number of data loading processes (default: 1)")


def run(arguments: argparse.Namespace) -> None:
    keep_freed_memory()
    try:
        from .. import generalization
        from ..generalization.plan import read_plan
        from ..generalization.run import RESULTS
    except ModuleNotFoundError as error:
        raise missing_extra(error, "train,eval", "domain generalisation") from error
    from ..scoring import is_first

    if arguments.resume is None and {"held_out_share", "split_lists"} <= vars(arguments).keys():
        raise ValueError("give --held-out-share or --split-lists: both decide what is held out")
    hint = "; the full command can add targets and seeds"
    plan = plan_of(arguments, generalization.Plan, read_plan, hint)
    message = f"resume with: torchvars generalize --resume {shlex.quote(str(plan.output))}"
    with stoppable(lambda: message if is_first() and (plan.output / "generalize.json").exists() else ""):
        results = generalization.generalize(plan)
    if isinstance(results, signal.Signals):
        sys.exit(128 + results)
    if is_first():
        generalization.print_generalization([results])
        draw([results], plan.output / "accuracy.png")
        print(f"results: {plan.output / RESULTS}")


def draw(results, path) -> None:
    """Draws the figure if matplotlib is installed."""
    try:
        from ..figures.generalization import draw_domains

        if draw_domains(results, path):
            print(f"figure: {path}")
    except ModuleNotFoundError as error:
        print(f"no figure was drawn: {missing_extra(error, 'figures', 'drawing')}")


def _folder(text: str) -> str:
    return str(path_of(text))


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(dict.fromkeys(int(part) for part in text.split(",") if part.strip()))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"expected whole numbers such as 0,1,2, got {text!r}") from error
