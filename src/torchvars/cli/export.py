"""Writes a model for another runtime, runs what it wrote, and prints how far its logits are from the model's.

The file takes pixels in [0, 1], any number of pictures of one size at a time, and returns logits.
"""

import argparse
from pathlib import Path


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model",
        help="a name of torchvars list weights or torchvars list models, or a folder of weights or of a run",
    )
    parser.add_argument("--format", choices=["onnx", "pt2"], default="onnx", help="default: onnx")
    parser.add_argument("--output", type=Path, help="file to write (default: output/NAME.FORMAT)")
    parser.add_argument("--img-size", type=int, nargs="+", metavar="PIXELS", help="one number, or height and width")
    parser.add_argument("--num-classes", type=int, help="of a model by name")
    parser.add_argument(
        "--pretrained", action="store_true", help="the weights that ship, also by the name of the model alone"
    )


def run(arguments: argparse.Namespace) -> None:
    from ..models import Classifier, create
    from ..models.export import export
    from ..models.peers import open_classifier

    # With what it was trained on, the weights are meant.
    trained = arguments.pretrained or "." in arguments.model or Path(arguments.model).is_dir()
    if trained:
        if arguments.num_classes is not None:
            raise ValueError(f"{arguments.model} is trained for the classes it has: leave out --num-classes")
        name, classifier = open_classifier(arguments.model)
    else:
        options = {} if arguments.num_classes is None else {"num_classes": arguments.num_classes}
        name, classifier = arguments.model, Classifier(create(arguments.model, **options))
        print(f"{name} is not trained: give a folder of weights, or a name of torchvars list weights")
    output = arguments.output or Path("output") / f"{name}.{arguments.format}"
    size = arguments.img_size
    if size is not None:
        if len(size) > 2:
            raise ValueError(f"--img-size takes one number or two, got {len(size)}")
        size = size[0] if len(size) == 1 else tuple(size)
    try:
        difference = export(classifier, output, arguments.format, size)
    except ModuleNotFoundError as error:
        raise ValueError(f'exporting needs {error.name}: pip install "torchvars[export]"') from error
    print(f"{output}: logits within {difference:.1e} of the model's")
