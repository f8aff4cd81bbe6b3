"""Pictures of which one half is bright, whatever is done to them, and a model that sees which half it is."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

import torchvars
from torchvars.evaluation.benchmarks import BENCHMARKS, Benchmark
from torchvars.evaluation.run import Evaluation
from torchvars.evaluation.subjects import Subject, digest_weights

SIZE = 32
HALVES = ("left", "right", "top", "bottom")


def picture(half: str, number: int = 0) -> np.ndarray:
    """(32, 32, 3) of 8 bit: the half is bright, all of it a little noisy, each number in its own way."""
    pixels = np.random.default_rng([number, HALVES.index(half)]).uniform(30, 60, (SIZE, SIZE, 3))
    rows, columns = np.indices((SIZE, SIZE))
    bright = {"left": columns < 16, "right": columns >= 16, "top": rows < 16, "bottom": rows >= 16}[half]
    pixels[bright] += 160
    return pixels.astype(np.uint8)


def write(folder: Path, names: Sequence[str] = HALVES, count: int = 2) -> Path:
    """<folder>/<name>/<number>.png, the names standing for the halves in their order."""
    for half, name in zip(HALVES, names, strict=False):
        (folder / name).mkdir(parents=True)
        for number in range(count):
            Image.fromarray(picture(half, number)).save(folder / name / f"{number}.png")
    return folder


class Halves(nn.Module):
    """Pixels -> logits: of the four columns that stand for halves, by how much brighter a half is than the other.

    Args:
        columns: of left, right, top and bottom.
        outputs: number of logits; those that are no half are low.
        sign: -1 to say the opposite.
        favourite: column of a class that is always named, before any half.
    """

    def __init__(self, columns: Sequence[int], outputs: int, sign: int = 1, favourite: int | None = None):
        super().__init__()
        place = torch.zeros(2, outputs)
        for axis, (plus, minus) in enumerate((columns[:2], columns[2:])):
            place[axis, plus], place[axis, minus] = 20 * sign, -20 * sign
        rest = torch.full((outputs,), -30.0)
        rest[list(columns)] = 0
        if favourite is not None:
            rest[favourite] = 100
        self.register_buffer("place", place)
        self.register_buffer("rest", rest)

    def forward(self, pixels: Tensor) -> Tensor:
        grey, (height, width) = pixels.mean(1), pixels.shape[-2:]
        across = grey[:, :, : width // 2].mean((1, 2)) - grey[:, :, width // 2 :].mean((1, 2))
        down = grey[:, : height // 2].mean((1, 2)) - grey[:, height // 2 :].mean((1, 2))
        return torch.stack([across, down], 1) @ self.place + self.rest


def subject(
    names: Sequence[str] = HALVES,
    classes: Sequence[str] | None = None,
    *,
    sign: int = 1,
    favourite: str | None = None,
    name: str = "halves",
) -> Subject:
    """The model that is always right, or wrong by its sign.

    Args:
        names: which classes stand for the halves.
        classes: all that it knows, in the order of its logits.
    """
    classes = tuple(classes or names)
    chosen = None if favourite is None else classes.index(favourite)
    classifier = Halves([classes.index(each) for each in names], len(classes), sign, chosen)
    return Subject(name, classifier, SIZE, classes, digest_weights(classifier))


def save_weights(folder: Path, attention: str = "vars_d", classes: Sequence[str] = HALVES, seed: int = 0) -> Path:
    """A folder of weights that were never trained, of a model for 16 pixels that says now this, now that."""
    torch.manual_seed(seed)
    options = {"img_size": 16, "patch_size": 4, "embed_dim": 16, "num_heads": 2, "depth": 2}
    model = torchvars.create(f"deit_micro_{attention}", num_classes=len(classes), **options)
    classifier = torchvars.Classifier(model, classes=classes).eval()
    nn.init.normal_(model.head.weight)
    seen = np.stack([picture(half, number)[::2, ::2] for half in HALVES for number in range(4)])
    with torch.no_grad():
        logits = classifier(torch.from_numpy(seen).movedim(-1, 1) / 255)
        model.head.weight /= logits.std(0)[:, None]
        model.head.bias -= logits.mean(0) / logits.std(0)
    classifier.save_pretrained(folder)
    return folder


def counted(monkeypatch) -> list[str]:
    """Conditions as they are tried from now on."""
    keys, tried = [], Evaluation.tried

    def counting(self, benchmark, judge, showing, tally):
        keys.append(showing.condition.key)
        return tried(self, benchmark, judge, showing, tally)

    monkeypatch.setattr(Evaluation, "tried", counting)
    return keys


def build(name: str, path: str, model: Subject, options: Mapping) -> Benchmark:
    """A benchmark that takes of the options what it knows."""
    known = {word: value for word, value in options.items() if word in BENCHMARKS[name].takes()}
    return BENCHMARKS[name](path, model, **known)
