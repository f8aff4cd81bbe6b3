"""Measures the accuracy of a model on clean, corrupted, attacked and shifted pictures.

Results are written after each condition: the same command resumes an interrupted evaluation, and further benchmarks
can be added to the file. On several processes: torchrun --nproc-per-node N -m torchvars evaluate ...
"""

import argparse
from collections.abc import Collection, Sequence
from fractions import Fraction
from os.path import expanduser

from .extras import missing_extra
from .memory import keep_freed_memory
from .options import add_batch, add_device, add_img_size, add_workers
from .paths import data_of, model_of, names_of, path_of
from .stopping import stoppable


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model",
        type=model_of,
        help="model: a name whose weights ship, a folder of weights or of a run, a checkpoint of the authors (.pth), "
        "timm:NAME, or timm:NAME:FILE with weights from a file",
    )
    parser.add_argument(
        "--benchmark",
        type=names_of,
        default=("clean",),
        metavar="NAME[,NAME]",
        help="benchmarks: clean, corruptions, imagenet_c, cifar10_c, imagenet_a, imagenet_r, imagenet_sketch, pacs, "
        "pgd, fgsm, square, autoattack, segmentation, fixation, map_stability (default: clean); described by torchvars "
        "list benchmarks",
    )
    parser.add_argument(
        "--data",
        type=data_of,
        required=True,
        action="append",
        metavar="[NAME=]PATH",
        help="labelled pictures, as for torchvars train; for imagenet_c, cifar10_c and pacs the folder as published; "
        "for segmentation the layout of PASCAL VOC; for fixation that of MIT1003 or the plain layout of docs/maps.md. "
        "May be repeated: NAME=PATH sets the pictures of one benchmark",
    )
    parser.add_argument("--output", type=path_of, required=True, metavar="FILE", help="file of results (JSON)")
    add_img_size(parser)
    add_batch(parser, 64)
    add_workers(parser)
    add_device(parser)
    parser.add_argument("--seed", type=int, metavar="N", help="random seed of corruptions and attacks (default: 0)")
    parser.add_argument(
        "--limit", type=int, metavar="N", help="number of pictures to use, always the same ones (default: all)"
    )
    parser.add_argument(
        "--label-space",
        choices=["model", "present"],
        help="classes among which the prediction is chosen: all classes of the model, or those present in the data set "
        "(default: present if the data set has fewer classes than the model, else model)",
    )
    parser.add_argument(
        "--partial", action="store_true", help="compute means although conditions or classes are missing in the data"
    )
    group = parser.add_argument_group("corruptions")
    group.add_argument(
        "--corruptions",
        type=names_of,
        metavar="NAME,NAME",
        help="corruptions, as in torchvars list corruptions (default: the 15 and the 4 extra); means over some of them "
        "are marked partial",
    )
    group.add_argument("--severities", type=_numbers, metavar="N,N", help="severities (default: 1,2,3,4,5)")
    group.add_argument(
        "--strengths",
        choices=["imagenet", "cifar"],
        help="table of corruption strengths (default: the one of the nearer size)",
    )
    group.add_argument(
        "--frost",
        type=path_of,
        metavar="FOLDER",
        help="folder of the published frost pictures (default: synthetic frost)",
    )
    group = parser.add_argument_group("attacks")
    group.add_argument(
        "--radii",
        type=_radii,
        metavar="R,R",
        help="attack radii, such as 1/255,.5 (default for linf: 1, 2, 4, 8 / 255)",
    )
    group.add_argument("--norm", choices=["linf", "l2"], help="norm of the radius (default: linf)")
    group.add_argument("--attack-steps", type=_numbers, metavar="N,N", help="numbers of steps of pgd (default: 5,20)")
    group.add_argument("--queries", type=int, metavar="N", help="number of queries of square (default: 200)")
    group.add_argument(
        "--transfer-from",
        type=model_of,
        metavar="MODEL",
        help="model to attack; the attacked pictures are shown to MODEL",
    )
    group = parser.add_argument_group("segmentation, fixation, map_stability")
    group.add_argument(
        "--map-kind",
        metavar="KIND",
        help="kind of the maps: implicit, kernel, energy, gradient or rollout (default: implicit)",
    )
    group.add_argument("--map-layer", metavar="LAYER", help="name or index of an attention (default: -1, the last)")
    group.add_argument(
        "--no-baselines", action="store_true", help="leave out the baselines of maps: centre, random weights, ..."
    )
    group = parser.add_argument_group("pacs")
    group.add_argument("--left-out", metavar="DOMAIN", help="domain to evaluate on (default: sketch)")
    group = parser.add_argument_group(
        "solver of VARS layers", "changes of a trained model at test time (default: its own settings)"
    )
    group.add_argument("--steps", type=int, metavar="N", help="number of solver steps")
    group.add_argument("--strength", type=float, metavar="X", help="strength of the sparse penalty")
    group.add_argument(
        "--solver", metavar="NAME", help="solver, as in torchvars list solvers, with the start of the model's own"
    )
    group.add_argument(
        "--adapt",
        type=float,
        metavar="POWER",
        help="adapt the strength to each picture by (unexplained share of its energy / that of clean pictures)^POWER",
    )
    group.add_argument(
        "--adapt-data", type=data_of, metavar="PATH", help="clean pictures for --adapt (default: those of --data)"
    )


def run(arguments: argparse.Namespace) -> None:
    keep_freed_memory()
    try:
        from ..data.sources import absolute
        from ..evaluation.adaptive import adapt, usual_rest
        from ..evaluation.attacks import ATTACKS
        from ..evaluation.benchmarks import BENCHMARKS, build, check_names
        from ..evaluation.compare import print_table
        from ..evaluation.results import say_kept
        from ..evaluation.run import evaluate
        from ..evaluation.subjects import open_subject, set_solving
        from ..evaluation.watch import watching
        from ..scoring import is_first
    except ModuleNotFoundError as error:
        raise missing_extra(error, "eval", "evaluation") from error

    names = arguments.benchmark
    check_names(names)
    data = by_benchmark(arguments.data, BENCHMARKS)
    if arguments.transfer_from is not None and not set(names) & set(ATTACKS):
        raise ValueError(
            f"--transfer-from is for {', '.join(ATTACKS)}: none of them is in --benchmark {','.join(names)}"
        )
    present_only = [name for name in names if name in ("imagenet_a", "imagenet_r")]
    if present_only and arguments.label_space == "model":
        raise ValueError(
            f"{present_only[0]} is evaluated on the classes present, got --label-space model: leave it out"
        )
    subject = open_subject(arguments.model, arguments.img_size)
    solving = {name: getattr(arguments, name) for name in ("steps", "strength", "solver")}
    solving = {name: value for name, value in solving.items() if value is not None}
    if solving:
        set_solving(subject, **solving)
    if arguments.adapt is not None:
        corrupted = [name for name in names if name in ("imagenet_c", "cifar10_c")]
        if corrupted and arguments.adapt_data is None:
            raise ValueError(f"--adapt needs clean pictures, and {corrupted[0]} has none: give some with --adapt-data")
        usual_data = arguments.adapt_data or data.get(None)
        if usual_data is None:
            raise ValueError("--adapt needs clean pictures: give some with --adapt-data")
        adapt(subject.classifier, usual_rest(subject, usual_data), arguments.adapt)
        solving |= {"adapt": arguments.adapt, "adapt_data": absolute(usual_data)}
    options = {
        "seed": arguments.seed,
        "corruptions": arguments.corruptions,
        "severities": arguments.severities,
        "strengths": arguments.strengths,
        "frost": arguments.frost,
        "radii": arguments.radii,
        "norm": arguments.norm,
        "attack_steps": arguments.attack_steps,
        "queries": arguments.queries,
        "map_kind": arguments.map_kind,
        "map_layer": arguments.map_layer,
        "baselines": False if arguments.no_baselines else None,
        "left_out": arguments.left_out,
        "limit": arguments.limit,
        "label_space": arguments.label_space,
        "transfer": None if arguments.transfer_from is None else open_subject(arguments.transfer_from, subject.size),
    }
    try:
        benchmarks = build(names, data, subject, **{name: each for name, each in options.items() if each is not None})
    except ImportError as error:  # of AutoAttack; the message says how to install it
        raise ValueError(str(error)) from error
    with stoppable(lambda: say_kept(arguments.output) if is_first() else ""), watching() as watch:
        results = evaluate(
            subject,
            benchmarks,
            arguments.output,
            solving=solving,
            partial_ok=arguments.partial,
            batch=arguments.batch,
            workers=arguments.workers,
            device=arguments.device,
            watch=watch,
        )
    if is_first():
        print_table([results])
        print(f"results: {arguments.output}")


def by_benchmark(arguments: Sequence[str], benchmarks: Collection[str]) -> dict[str | None, str]:
    """Paths of pictures by the names of their benchmarks, from PATH or NAME=PATH; None for all other benchmarks.

    Raises:
        ValueError: a benchmark has two paths.
    """
    paths = {}
    for text in arguments:
        name, sign, path = text.partition("=")
        name, path = (name, expanduser(path)) if sign and name in benchmarks else (None, text)
        if name in paths:
            raise ValueError(f"--data is given twice for {name or 'all benchmarks'}: {paths[name]} and {path}")
        paths[name] = path
    return paths


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"expected whole numbers such as 1,2,3, got {text!r}") from error


def _radii(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(Fraction(part)) for part in text.split(","))
    except (ValueError, ZeroDivisionError) as error:
        raise argparse.ArgumentTypeError(f"expected radii such as 1/255,.5, got {text!r}") from error
