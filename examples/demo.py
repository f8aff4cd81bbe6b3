"""The models that come with the package, side by side: recognising pictures as they are, corrupted and attacked.

    python examples/demo.py [--output output/demo] [--limit 300]

300 test pictures of CIFAR-10 are shown to every model that was trained on CIFAR-10, and 100 of them attacked. Printed:
a table of accuracies with their intervals. Drawn: accuracy by corruption and radius; what the attentions of all models
pass on of a photograph, clean and corrupted; and the same after each recurrent step.
"""

import argparse
from pathlib import Path

import torch
from PIL import Image

import torchvars
from torchvars.cli.memory import keep_freed_memory
from torchvars.evaluation import Results, open_subject, print_table
from torchvars.figures import maps
from torchvars.figures.robustness import draw_attacks, draw_corruptions
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

    models = [open_subject(name) for name in trained("rvt_micro", "imagenette").values()]
    with Image.open(PICTURES / "chelsea.jpg") as image:
        photograph = image.convert("RGB")
    asking = maps.MapRequest("energy")
    maps.draw(maps.under_corruptions(models, photograph, asking), folder / "maps.png")
    maps.draw(maps.by_step(models, photograph, asking), folder / "steps.png")
    print(f"results and pictures: {folder}")


if __name__ == "__main__":
    keep_freed_memory()
    torch.manual_seed(0)
    main()
