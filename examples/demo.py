"""The models that come with the package, side by side: recognising pictures as they are, corrupted and attacked.

    python examples/demo.py [--output output/demo]

300 test pictures of CIFAR-10 are shown to every model that was trained on CIFAR-10. Printed: a table of accuracies with
their intervals. Drawn: accuracy by corruption and radius; what a model passes on of a photograph after each recurrent
step, clean and corrupted; and the same for all models side by side.
"""

import argparse
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

import torchvars
from torchvars.data.pictures import centre_pixels
from torchvars.evaluation.benchmarks import BENCHMARKS, Options
from torchvars.evaluation.compare import print_table
from torchvars.evaluation.corruptions import corrupt
from torchvars.evaluation.results import Results
from torchvars.evaluation.run import evaluate
from torchvars.evaluation.subjects import open_subject
from torchvars.evaluation.watch import watching
from torchvars.figures.attention import draw_models, draw_steps
from torchvars.figures.robustness import draw_attacks, draw_corruptions
from torchvars.models.embedded import embedded

PICTURES = Path(__file__).parent / "pictures"
CORRUPTIONS = ("gaussian_noise", "motion_blur", "fog", "contrast", "jpeg_compression")
OPTIONS = Options(corruptions=CORRUPTIONS, severities=(1, 4), radii=(1 / 255, 2 / 255))
ATTENTIONS = ("softmax", "performer", "vars_s", "vars_d", "vars_sd")


def names(pictures: str) -> dict[str, str]:
    """The models that were trained on these pictures, by their attention."""
    found = {attention: f"rvt_micro_{attention}.{pictures}" for attention in ATTENTIONS}
    return {attention: name for attention, name in found.items() if name in embedded()}


def try_out(name: str, folder: Path) -> Results:
    """One model on the 300 pictures."""
    subject = open_subject(name)
    data = str(PICTURES / "cifar10_test_300.tar")
    benchmarks = [BENCHMARKS[each](data, subject, OPTIONS) for each in ("clean", "corruptions", "pgd")]
    output = folder / f"{name}.json"
    output.unlink(missing_ok=True)
    print(name)
    with watching() as watch:
        return evaluate(subject, benchmarks, output, partial_ok=True, workers=0, batch=100, watch=watch)


def photograph(name: str, size: int) -> Tensor:
    """(3, size, size) in [0, 1]."""
    return centre_pixels(Image.open(PICTURES / name).convert("RGB"), size)


def spoilt(pixels: Tensor) -> dict[str, Tensor]:
    """A photograph as it is and under corruptions of the fourth of five severities."""
    found = {"clean": pixels}
    for name in ("gaussian_noise", "fog", "pixelate"):
        found[name.replace("_", " ")] = corrupt(pixels[None], name, 4, ["photograph"], strengths="imagenet")[0]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("output/demo"), help="folder for results and pictures")
    folder = parser.parse_args().output
    folder.mkdir(parents=True, exist_ok=True)

    trained = {pictures: names(pictures) for pictures in ("cifar10", "imagenette")}
    if not trained["cifar10"] or "vars_d" not in trained["imagenette"]:
        raise SystemExit(f"this needs models of both data sets, and there are only {', '.join(embedded())}")
    results = [try_out(name, folder) for name in trained["cifar10"].values()]
    print_table(results)
    draw_corruptions(results, folder / "corruptions.png")
    draw_attacks(results, folder / "attacks.png")

    models = {each: torchvars.Classifier.from_pretrained(name) for each, name in trained["imagenette"].items()}
    size = open_subject("rvt_micro_vars_d").size
    photographs = {each: photograph(f"{each}.jpg", size) for each in ("astronaut", "chelsea", "coffee", "rocket")}
    draw_steps(models["vars_d"], photographs, folder / "steps.png")
    draw_steps(models["vars_d"], spoilt(photographs["chelsea"]), folder / "steps_corrupted.png")
    draw_models(models, spoilt(photographs["chelsea"]), folder / "models.png")
    print(f"results and pictures: {folder}")


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
