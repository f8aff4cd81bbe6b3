"""Classifies pictures: prints the top classes of a trained model, each with its confidence.

Pictures are files, or folders of pictures. Each is preprocessed as in evaluation: the shorter side is resized to
256 / 224 of the model's size, bicubic, and the centre is cropped. Exits with 1 if pictures could not be read.
"""

import argparse
import json
import sys
from pathlib import Path

from .options import add_batch, add_device, add_img_size
from .paths import MODEL_WORDS, check_output, model_of, path_of

FORMAT = "torchvars_predictions"  # key that marks a file of predictions


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=model_of, help=MODEL_WORDS)
    parser.add_argument("pictures", type=path_of, nargs="+", metavar="PICTURE", help="picture, or folder of pictures")
    parser.add_argument("--top", type=int, default=5, metavar="K", help="number of top classes (default: 5)")
    parser.add_argument(
        "--output", type=path_of, metavar="FILE", help="file of predictions (JSON); an existing one is replaced"
    )
    add_img_size(parser)
    add_batch(parser, 32)
    add_device(parser)


def run(arguments: argparse.Namespace) -> None:
    for name in ("top", "batch"):
        if getattr(arguments, name) < 1:
            raise ValueError(f"--{name} must be at least 1, got {getattr(arguments, name)}")
    if arguments.output is not None:
        check_output(arguments.output)
        check_replaceable(arguments.output)

    from ..data.loose import find_pictures
    from ..data.sources import printable
    from ..evaluation.predict import predict
    from ..evaluation.subjects import check_size
    from ..models.classifier import own_size
    from ..models.sources import open_classifier
    from ..models.weights import write_whole
    from ..scoring.processes import find_device

    pictures = find_pictures(arguments.pictures)
    name, classifier = open_classifier(arguments.model)
    size = own_size(classifier.model) if arguments.img_size is None else arguments.img_size
    check_size(name, classifier, size)
    options = {"top": arguments.top, "batch": arguments.batch, "device": find_device(arguments.device)}
    lines, unreadable = [], {}
    for path, result in predict(classifier, pictures, size, **options):
        picture = printable(str(path))
        if isinstance(result, str):
            unreadable[picture] = result
            continue
        lines.append({"picture": picture, "top": [each._asdict() for each in result]})
        print(picture)
        for each in result:
            print(f"  {100 * each.confidence:5.1f} %  {each.label}", flush=True)
    if arguments.output is not None:
        content = {
            FORMAT: 1,
            "model": name,
            "size": size,
            "pictures": lines,
            "unreadable": unreadable,
        }
        text = json.dumps(content, indent=1) + "\n"
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        write_whole(arguments.output, lambda temporary: temporary.write_text(text))
        print(f"predictions: {arguments.output}")
    if unreadable:
        sys.stdout.flush()
        listed = "".join(f"\n  {path}: {problem}" for path, problem in unreadable.items())
        raise SystemExit(f"{len(unreadable)} of {len(pictures)} pictures could not be read:{listed}")


def check_replaceable(path: Path) -> None:
    """Raises a ValueError if a file exists that does not hold predictions."""
    if not path.exists():
        return
    try:
        replaceable = FORMAT in json.loads(path.read_text())
    except (ValueError, TypeError):
        replaceable = False
    if not replaceable:
        raise ValueError(f"{path} exists and holds no predictions: give --output another name, or remove it")
