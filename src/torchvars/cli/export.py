"""Exports a trained model to another runtime, runs the exported file, and compares its logits with the model's.

The file takes pixels in [0, 1], any number of pictures of one size at a time, and returns logits; with --maps also
attention maps, which are described in its metadata.
"""

import argparse
from functools import partial
from pathlib import Path

from .extras import missing_extra
from .paths import MODEL_WORDS, check_output, model_of, path_of


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=model_of, help=MODEL_WORDS)
    parser.add_argument("--format", choices=["onnx", "pt2"], default="onnx", help="format of the file (default: onnx)")
    parser.add_argument(
        "--output", type=path_of, metavar="FILE", help="file to write (default: output/NAME.FORMAT); it is replaced"
    )
    parser.add_argument(
        "--img-size",
        type=int,
        nargs="+",
        metavar="PIXELS",
        help="size of the pictures: side, or height and width (default: the model's own)",
    )
    parser.add_argument(
        "--maps",
        nargs="?",
        choices=["implicit", "energy"],
        const="implicit",
        metavar="KIND",
        help="kind of maps, implicit or energy (default: implicit), of every layer after each recurrent step, "
        "to be returned together with the share of the code that is zero. The file then has a second input, query: the "
        "(row, column) of a pixel, or (-1, -1) for the mean over all positions",
    )
    parser.add_argument("--half", action="store_true", help="store large weights in half precision: half the size")
    weights = parser.add_mutually_exclusive_group()
    weights.add_argument(
        "--untrained",
        action="store_true",
        help="export random weights; MODEL is a name of torchvars list models, or timm:NAME",
    )
    weights.add_argument("--pretrained", action="store_true", help=argparse.SUPPRESS)  # the default
    parser.add_argument("--num-classes", type=int, metavar="N", help="number of classes, with --untrained")


def run(arguments: argparse.Namespace) -> None:
    size, count = arguments.img_size, arguments.num_classes
    if size is not None and (len(size) > 2 or min(size) < 1):
        raise ValueError(f"--img-size takes one number or two, each at least 1, got {' '.join(map(str, size))}")
    if count is not None and not arguments.untrained:
        raise ValueError("--num-classes is for --untrained: the classes of trained weights are fixed")
    if count is not None and count < 1:
        raise ValueError(f"--num-classes must be at least 1, got {count}")
    for option in ("maps", "half"):
        if getattr(arguments, option) and arguments.format != "onnx":
            raise ValueError(f"--{option} is for --format onnx, got {arguments.format}")
    if arguments.output is not None:
        check_output(arguments.output)

    from ..maps import WithMaps
    from ..models import MODELS
    from ..models.export import check_runtime, export
    from ..models.sources import open_classifier

    try:
        check_runtime(arguments.format)
    except ModuleNotFoundError as error:
        raise missing_extra(error, "export", "exporting") from error
    if arguments.untrained:
        name, classifier = new(arguments.model, count)
        print(f"{name}: random weights (--untrained)")
    else:
        try:
            name, classifier = open_classifier(arguments.model)
        except ValueError as error:
            if arguments.model not in MODELS:
                raise
            raise ValueError(f"{error}. To export random weights, add --untrained") from error
        print(f"{name}: trained weights")
    output = arguments.output or Path("output") / f"{name.replace(':', '_')}.{arguments.format}"
    check_output(output)
    size = None if size is None else size[0] if len(size) == 1 else tuple(size)
    extend = None if arguments.maps is None else partial(WithMaps, kind=arguments.maps)
    difference = export(
        classifier,
        output,
        arguments.format,
        size,
        extend=extend,
        half=arguments.half,
        report=lambda step: print(step, flush=True),
    )
    print(f"{output}: logits within {difference:.1e} of the model's")


def new(name: str, num_classes: int | None):
    """The name of a model, and a classifier of it with random weights."""
    from ..models import Classifier
    from ..models.origin import build

    options = {} if num_classes is None else {"num_classes": num_classes}
    return name, Classifier(build({"name": name, "options": options})).eval()
