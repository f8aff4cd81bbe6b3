"""Draws figures like those of the paper, from shipped weights and from results files.

maps: attention maps beside the picture. maps_corrupted: maps under noise, blur, compression and fog. maps_steps: maps
after each recurrent step. atoms: the atoms of VARS models. corruptions, attacks: accuracies recorded with the weights.
From --results, if they have the numbers: ablation (accuracy by steps and strength), thresholds (of segmentation),
stability and sharpening (of maps).
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from .extras import missing_extra
from .maps import figure_names
from .paths import check_folder, names_of, path_of

if TYPE_CHECKING:
    from PIL import Image

MODELS = ("softmax", "performer", "vars_s", "vars_d", "vars_sd")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--output", type=path_of, required=True, metavar="FOLDER", help="folder of the figures")
    parser.add_argument(
        "--models",
        type=names_of,
        default=tuple(f"rvt_micro_{name}.imagenette" for name in MODELS),
        metavar="NAME,NAME",
        help="names whose weights ship (default: the five for Imagenette)",
    )
    parser.add_argument(
        "--pictures",
        type=path_of,
        nargs="+",
        metavar="FILE",
        help="pictures, or folders of them (default: two free photographs that come with scikit-learn)",
    )
    parser.add_argument(
        "--results", type=path_of, nargs="+", default=[], metavar="FILE", help="files of torchvars evaluate"
    )
    parser.add_argument("--kind", default="implicit", help="kind of the maps (default: implicit)")


def run(arguments: argparse.Namespace) -> None:
    check_folder(arguments.output)
    try:
        from ..evaluation.record import read_results
        from ..evaluation.results import Results
        from ..evaluation.subjects import open_subject
        from ..figures import curves, maps
        from ..figures.robustness import draw_attacks, draw_corruptions
        from ..maps import KINDS
    except ModuleNotFoundError as error:
        raise missing_extra(error, "eval", "drawing figures") from error
    try:
        import matplotlib  # noqa: F401
    except ModuleNotFoundError as error:
        raise missing_extra(error, "figures", "drawing figures") from error

    if arguments.kind not in KINDS:
        raise ValueError(f"no kind of map named {arguments.kind!r}: there are {', '.join(KINDS)}")
    results = [Results.read(path) for path in arguments.results]
    images = _images(arguments.pictures, arguments.output)
    subjects = [open_subject(name) for name in arguments.models]
    asking, folder = maps.MapRequest(arguments.kind), arguments.output
    recurrent = [each for each in subjects if maps.reconstructs(each)]
    for name, image in images.items():
        written = maps.draw(maps.compare(subjects, image, asking), folder / f"maps_{name}.png")
        sheet = maps.under_corruptions(subjects, image, asking, identity=name)
        written += maps.draw(sheet, folder / f"maps_corrupted_{name}.png")
        if recurrent and KINDS[arguments.kind].stepped:
            written += maps.draw(maps.by_step(recurrent, image, asking), folder / f"maps_steps_{name}.png")
        for subject in recurrent:
            atoms = maps.find_atoms(subject, image, layer=0)
            written += maps.draw_atoms(atoms, folder / f"atoms_{name}_{subject.name}.png")
        _report(written)
    shipped = [read_results(name) for name in arguments.models]
    drawings = {"corruptions": (draw_corruptions, shipped), "attacks": (draw_attacks, shipped)}
    drawings |= {name: (draw, [*shipped, *results]) for name, draw in curves.CURVES.items()}
    for name, (draw, inputs) in drawings.items():
        path = folder / f"{name}.png"
        _report([path]) if draw(inputs, path) else print(f"no {name}.png: no file of results has the numbers for it")


def _report(written: list[Path]) -> None:
    print("\n".join(map(str, written)), flush=True)


def _images(places: list[Path] | None, folder: Path) -> dict[str, "Image.Image"]:
    """Pictures by the names of their figures."""
    if places is None:
        try:
            from sklearn.datasets import load_sample_image
        except ModuleNotFoundError as error:
            raise missing_extra(error, "demo", "drawing without --pictures") from error
        from PIL import Image

        return {name: Image.fromarray(load_sample_image(f"{name}.jpg")) for name in ("china", "flower")}
    from ..data.loose import find_pictures, open_picture
    from ..data.pictures import UNREADABLE

    images, names = {}, figure_names(find_pictures(places), folder)
    for path, name in names.items():
        try:
            images[name] = open_picture(path)
        except UNREADABLE as error:
            raise ValueError(f"{path} cannot be read: {type(error).__name__}: {error}") from error
    return images
