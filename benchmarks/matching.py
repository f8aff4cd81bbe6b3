"""Which attention imitates the softmax attention of a pretrained model best, with one budget of matching.

    python benchmarks/matching.py timm:deit_tiny_patch16_224 --data IMAGENETTE --img-size 144 \
        --forms vars_p vars_p:steps=1 vars_p:strength=.05 hedgehog performer

All forms learn from the same pictures and from one pass of the original. Then all layers are replaced at once, or the
last few, nothing is trained further, and accuracy among the classes of the pictures is measured on held-out pictures,
clean and corrupted. No label is used in training. A form is NAME or NAME:KEY=VALUE,... where a key is steps, strength,
start, rate (the peak of the learning rate) or an option of the attention. `--precision bf16` is for training only.
"""

import argparse
import ast
import json
import math
import time
from collections.abc import Iterable
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

import torchvars
from tables import table
from torchvars.cli.memory import keep_freed_memory
from torchvars.data import Batch, Draw, Order, Pictures, Shown, Source, derive_seed, limited, load, open_source
from torchvars.evaluation.corruptions import corrupt
from torchvars.models import Classifier
from torchvars.models.convert import converted_layers, originals_in
from torchvars.models.head import cut_head
from torchvars.models.matching import Matching
from torchvars.models.peers import class_names, resized
from torchvars.models.sources import open_classifier
from torchvars.training.augment import picture_transform

CORRUPTED = ("gaussian_noise", "defocus_blur", "fog", "jpeg_compression")


@dataclass
class Form:
    """An attention that learns to imitate another."""

    name: str
    model: Classifier
    matching: Matching
    optimizer: torch.optim.Optimizer
    rate: float
    errors: Tensor
    """Relative error of each layer, an average over the last steps."""


def build(name: str, original: Classifier, rate: float, seed: int) -> Form:
    """A form by its word, in a copy of the original model."""
    attention, _, words = name.partition(":")
    options = dict(word.split("=") for word in words.split(",") if word)
    for key, value in options.items():
        with suppress(ValueError, SyntaxError):  # else it is a word
            options[key] = ast.literal_eval(value)
    rate = options.pop("rate", rate)
    solving = {key: options.pop(key) for key in ("steps", "start") if key in options}
    torch.manual_seed(derive_seed(seed, "form"))
    model = deepcopy(original)
    torchvars.convert(model.model, attention, **options)
    for layer in model.modules():
        if hasattr(layer, "solver"):
            for key, value in solving.items():
                setattr(layer.solver, key, value)
    matching = Matching(model)
    parameters = [each for each in matching.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(parameters, rate, weight_decay=0.0)
    return Form(name, model, matching, optimizer, rate, torch.zeros(len(matching.names)))


def learn(forms: list[Form], batches: Iterable[Batch], steps: int, precision: str) -> None:
    """All forms learn from the same batches and from one pass of the original."""
    began = time.process_time()
    for step, batch in enumerate(batches):
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            _, calls = forms[0].matching.run_original(batch.pixels)
        for form in forms:
            if step == 0:
                form.matching.settle(batch.pixels)
            form.matching.train()
            for group in form.optimizer.param_groups:
                group["lr"] = form.rate * min(1, (step + 1) / 30) * (1 + math.cos(math.pi * step / steps)) / 2
            with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
                errors = form.matching.errors(calls)
            form.optimizer.zero_grad()
            errors.sum().backward()
            form.optimizer.step()
            share = 1 / min(step + 1, 20)
            form.errors.lerp_(errors.detach(), share)
        if step % 25 == 24:
            said = ", ".join(f"{form.name} {form.errors.mean():.4f}" for form in forms)
            print(f"step {step + 1}, {time.process_time() - began:.0f} s: {said}", flush=True)


@torch.no_grad()
def judge(model: nn.Module, pictures: dict[str, list[tuple[Tensor, Tensor]]]) -> dict[str, float]:
    """Accuracy by condition."""
    model.eval()
    found = {}
    for condition, batches in pictures.items():
        right = [(model(pixels.float() / 255).argmax(-1) == labels).float() for pixels, labels in batches]
        found[condition] = torch.cat(right).mean().item()
    return found


def shown(
    source: Source, size: int, corrupted: tuple[str, ...], severity: int
) -> dict[str, list[tuple[Tensor, Tensor]]]:
    """Held-out pictures as they are and corrupted, in batches of 8 bit."""
    draws = [
        [Draw(index, 0) for index in range(first, min(first + 50, len(source)))] for first in range(0, len(source), 50)
    ]
    found = {name: [] for name in ("clean", *corrupted)}
    for batch in load(Pictures(source, Shown(size)), draws):
        labels = torch.as_tensor(batch.labels)
        pixels = batch.pixels.float() / (255 if batch.pixels.dtype == torch.uint8 else 1)
        found["clean"].append(((pixels * 255).round().to(torch.uint8), labels))
        for name in corrupted:
            changed = corrupt(pixels, name, severity, batch.identities)
            found[name].append(((changed * 255).round().to(torch.uint8), labels))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--data", required=True)
    parser.add_argument("--forms", nargs="+", required=True, metavar="NAME[:KEY=VALUE,...]")
    parser.add_argument("--img-size", type=int, default=144)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rate", type=float, default=3e-3, help="peak of the learning rate")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pictures", type=int, help="learn from so many of the pictures only, again and again")
    parser.add_argument("--images", type=int, default=500, help="held-out pictures")
    parser.add_argument("--severity", type=int, default=3)
    parser.add_argument(
        "--replaced", type=int, nargs="+", default=[12], help="numbers of layers replaced, from the last"
    )
    parser.add_argument(
        "--auto-augment", metavar="NAME", help="timm's name, such as rand-m9-mstd0.5-inc1 (default: none)"
    )
    parser.add_argument("--precision", choices=["no", "bf16"], default="no")
    parser.add_argument("--output", type=Path, help="JSON")
    arguments = parser.parse_args()
    keep_freed_memory()

    name, original = open_classifier(arguments.model)
    if arguments.img_size != original.model.patch_embed.img_size[0]:
        resized(name, original, arguments.img_size)
    pictures, held_out = open_source(arguments.data, "train"), open_source(arguments.data, "val")
    pictures = limited(pictures, arguments.pictures)
    known = class_names(original)
    cut_head(original.model, [known.index(each) for each in pictures.classes])
    original.classes = tuple(pictures.classes)
    original.eval()
    forms = [build(each, original, arguments.rate, arguments.seed) for each in arguments.forms]
    transform = picture_transform(
        arguments.img_size,
        training=True,
        auto_augment=arguments.auto_augment,
        color_jitter=None,
        scale=(0.35, 1.0),
        erase=0.0,
        crop="random resized",
    )
    order = Order(len(pictures), arguments.batch, arguments.seed, 1, 0, 1)
    batches = load(Pictures(pictures, transform), order.batches(0, arguments.steps), 1)
    learn(forms, batches, arguments.steps, arguments.precision)

    conditions = shown(limited(held_out, arguments.images), arguments.img_size, CORRUPTED, arguments.severity)
    kept = {"original": {"accuracy": {"0": judge(original, conditions)}}}
    for form in forms:
        names = list(converted_layers(form.model))
        accuracy = {}
        for count in arguments.replaced:
            with originals_in(form.model, names[: len(names) - count]):
                accuracy[str(count)] = judge(form.model, conditions)
        kept[form.name] = {"errors": form.errors.tolist(), "accuracy": accuracy}
        if arguments.output:
            arguments.output.write_text(
                json.dumps(
                    {"arguments": {key: str(value) for key, value in vars(arguments).items()}, "kept": kept}, indent=1
                )
            )
    rows = [
        [
            form,
            f"{sum(of['errors']) / len(of['errors']):.4f}" if "errors" in of else "",
            count,
            *(f"{100 * value:.1f}" for value in found.values()),
            f"{100 * sum(found[each] for each in CORRUPTED) / len(CORRUPTED):.1f}",
        ]
        for form, of in kept.items()
        for count, found in of["accuracy"].items()
    ]
    table(["form", "relative error", "layers replaced", *conditions, "mean of corrupted"], rows)


if __name__ == "__main__":
    main()
