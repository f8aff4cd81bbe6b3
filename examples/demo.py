"""The models that come with the package, side by side: recognising pictures as they are, corrupted and attacked.

    python examples/demo.py [--output output/demo] [--limit 300]

300 test pictures of CIFAR-10 are shown to every model that was trained on CIFAR-10, and 100 of them attacked. Printed:
a table of accuracies with their intervals. Drawn: accuracy by corruption and radius; what a model passes on of a
photograph after each recurrent step, clean and corrupted; and the same for all models side by side.
"""

import argparse
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

import torchvars
from torchvars.cli.memory import keep_freed_memory
from torchvars.evaluation import Results, corrupt, open_subject, print_table
from torchvars.figures.attention import draw_models, draw_steps
from torchvars.figures.robustness import draw_attacks, draw_corruptions
from torchvars.models.pixels import centre_pixels
from torchvars.models.registry import trained

PICTURES = Path(__file__).parent / "pictures"
CORRUPTIONS = ("gaussian_noise", "motion_blur", "fog", "contrast", "jpeg_compression")


def try_out(name: str, folder: Path, limit: int) -> Results:
    """One model on at most so many of the pictures, and on fewer of them where it is attacked, which takes longest."""
    data, output = PICTURES / "cifar10_test_300.tar", folder / f"{name}.json"
    output.unlink(missing_ok=True)
    print(name)
    how = {"output": output, "partial": True, "batch": 100}
    shown = {"limit": min(limit, 300), "corruptions": CORRUPTIONS, "severities": (1, 4)}
    torchvars.evaluate(name, "clean,corruptions", data, **shown, **how)
    attacked = {"limit": min(limit, 100), "radii": (1 / 255, 2 / 255), "attack_steps": (5,)}
    return torchvars.evaluate(name, "pgd", data, **attacked, **how)


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
    parser.add_argument("--limit", type=int, default=300, help="at most so many pictures")
    arguments = parser.parse_args()
    folder = arguments.output
    folder.mkdir(parents=True, exist_ok=True)

    results = [try_out(name, folder, arguments.limit) for name in trained("rvt_micro", "cifar10").values()]
    print_table(results)
    draw_corruptions(results, folder / "corruptions.png")
    draw_attacks(results, folder / "attacks.png")

    names = trained("rvt_micro", "imagenette")
    models = {attention: torchvars.Classifier.from_pretrained(name) for attention, name in names.items()}
    size = open_subject("rvt_micro_vars_d").size
    photographs = {each: photograph(f"{each}.jpg", size) for each in ("astronaut", "chelsea", "coffee", "rocket")}
    draw_steps(models["vars_d"], photographs, folder / "steps.png")
    draw_steps(models["vars_d"], spoilt(photographs["chelsea"]), folder / "steps_corrupted.png")
    draw_models(models, spoilt(photographs["chelsea"]), folder / "models.png")
    print(f"results and pictures: {folder}")


if __name__ == "__main__":
    keep_freed_memory()
    torch.manual_seed(0)
    main()
