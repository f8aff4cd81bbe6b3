"""A run does what its recipe says: what is in the recipe arrives where it acts."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import nn

import torchvars
from torchvars.data import Batch, derive_seed, open_source
from torchvars.training import loop
from torchvars.training.augment import Mix, augment_patches
from torchvars.training.checkpoint import Checkpoints
from torchvars.training.folder import RunFolder
from torchvars.training.loop import train
from torchvars.training.objectives import Labels
from torchvars.training.schedule import learning_rate
from training.tiny import RECIPE, settings


def test_what_is_done_to_the_pictures(pictures, tmp_path, monkeypatch):
    """Crops and changes, mixing, copies and seeds are those of the recipe, and chance is another at each step."""
    seen = {"transform": [], "mix": [], "order": [], "mix seed": [], "step seed": []}
    transform, learn, order = loop.picture_transform, loop.learn, loop.Order

    def transforming(size, *, training, **options):
        seen["transform"] += [(size, options)] if training else []
        return transform(size, training=training, **options)

    class Recorded(Mix):
        def __call__(self, pixels, labels, seed):
            seen["mix"].append((self.mixup, self.cutmix, self.switch, self.smoothing, self.classes))
            seen["mix seed"].append(seed)
            return super().__call__(pixels, labels, seed)

    def ordering(count, batch, seed, repeats, rank, world):
        seen["order"].append((count, batch, seed, repeats, rank, world))
        return order(count, batch, seed, repeats, rank, world)

    def learning(*arguments):
        seen["step seed"].append(torch.initial_seed())
        return learn(*arguments)

    for name, value in {
        "picture_transform": transforming,
        "Mix": Recorded,
        "Order": ordering,
        "learn": learning,
    }.items():
        monkeypatch.setattr(loop, name, value)
    recipe = replace(
        RECIPE,
        auto_augment="rand-m3-n1",
        color_jitter=0.11,
        smallest_crop=0.37,
        erase=0.23,
        crop="random resized",
        mixup=0.41,
        cutmix=0.52,
        switch=0.63,
        smoothing=0.07,
        repeats=2,
        batch=4,
        seed=3,
    )
    train(recipe, settings(pictures, tmp_path / "run", max_steps=3))
    expected = {
        "auto_augment": "rand-m3-n1",
        "color_jitter": 0.11,
        "scale": (0.37, 1.0),
        "erase": 0.23,
        "crop": "random resized",
    }
    assert seen["transform"] == [(16, expected)]
    assert seen["mix"] == [(0.41, 0.52, 0.63, 0.07, 2)] * 3
    assert seen["order"] == [(20, 4, 3, 2, 0, 1)]
    for seeds in ("mix seed", "step seed"):
        assert len(set(seen[seeds])) == 3


def test_the_learning_rate_of_each_layer_at_each_step(pictures, tmp_path, monkeypatch):
    recipe, learn, seen = replace(RECIPE, layer_decay=0.5, clip=None), loop.learn, []

    def learning(accelerator, model, optimizer, *rest):
        rates = {id(each): group["lr"] for group in optimizer.param_groups for each in group["params"]}
        blocks = model.model.blocks
        watched = (model.model.head.weight, blocks[-1].norm1.weight, blocks[0].norm1.weight)
        seen.append([rates[id(parameter)] for parameter in watched])
        return learn(accelerator, model, optimizer, *rest)

    monkeypatch.setattr(loop, "learn", learning)
    train(recipe, settings(pictures, tmp_path / "run"))
    rates = [learning_rate(recipe, step, 2) for step in range(6)]
    assert len(set(rates)) == 6
    depth = 6
    for (head, last, first), rate in zip(seen, rates, strict=True):
        assert [head, last, first] == pytest.approx([rate, rate / 2, rate / 2**depth])
    told = [line["learning_rate"] for line in RunFolder(tmp_path / "run").metrics()]
    assert told == pytest.approx(rates[1::2])  # of the last step of an epoch


@pytest.mark.parametrize("averaged", [True, False])
def test_the_weights_that_are_judged_are_those_that_are_kept(averaged, pictures, tmp_path):
    output = tmp_path / "run"
    train(replace(RECIPE, ema=0.5 if averaged else None), settings(pictures, output))
    checkpoints = Checkpoints(output / "checkpoints")
    tensors, _ = checkpoints.read(checkpoints.latest())
    own = tensors["model"]
    expected = own | tensors["average"] if averaged else own
    kept = load_file(output / "weights" / "model.safetensors")
    assert {f"model.{name}" for name in kept} == set(own)
    for name, weight in kept.items():
        assert torch.equal(weight, expected[f"model.{name}"])
    assert averaged == any(not torch.equal(kept[name.removeprefix("model.")], weight) for name, weight in own.items())
    # The last figures are theirs.
    classifier, losses, right = torchvars.Classifier.from_pretrained(output / "weights").eval(), [], []
    for label, name in enumerate(("blue", "red")):
        for path in (pictures / "val" / name).iterdir():
            pixels = torch.tensor(np.asarray(Image.open(path)) / 255, dtype=torch.float32).movedim(-1, 0)
            log = classifier(pixels[None]).log_softmax(-1)[0]
            losses.append(-log[label].item())
            right.append(log.argmax().item() == label)
    line = RunFolder(output).metrics()[-1]
    assert line["val_loss"] == pytest.approx(np.mean(losses), rel=1e-4)
    assert line["val_accuracy"] == pytest.approx(np.mean(right))


def test_pictures_that_cannot_be_read_have_no_loss_and_are_not_recognised(accelerator, tmp_path):
    for name, level in (("blue", 10), ("red", 200)):
        (tmp_path / "val" / name).mkdir(parents=True)
        for number in range(2):
            Image.new("RGB", (16, 16), (level + number,) * 3).save(tmp_path / "val" / name / f"{number}.png")
    (tmp_path / "val" / "red" / "0.png").write_bytes(b"no picture")

    class Grey(nn.Module):
        def forward(self, images):
            mean = images.mean((1, 2, 3))
            return torch.stack([torch.zeros_like(mean), 4 * mean - 1], -1)

    classifier = torchvars.Classifier(Grey(), mean=(0.0,) * 3, std=(1.0,) * 3)
    source = open_source(str(tmp_path), "val")
    recipe = replace(RECIPE, batch=3)
    objective = Labels(classifier, Mix(0.0, 0.0, 0.5, 0.1, 2), None, recipe)
    metrics, problems = loop.evaluate(accelerator, objective, source, recipe, 0)
    margins = [-(4 * 10 / 255 - 1), -(4 * 11 / 255 - 1), 4 * 201 / 255 - 1]  # of the right class over the other
    assert metrics["val_loss"] == pytest.approx(np.mean([math.log1p(math.exp(-margin)) for margin in margins]))
    assert metrics["val_accuracy"] == 3 / 4
    assert [key.rpartition(": ")[2] for key in problems] == ["red/0.png"]


def test_hyperparameters_are_chosen_without_looking_at_val(pictures, tmp_path):
    data = tmp_path / "pictures"
    for path in pictures.rglob("*.png"):
        copy = data / path.relative_to(pictures)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes() if "train" in path.parts else b"no picture")
    for number in range(10, 60):  # so that a tenth of them are some
        for name in ("red", "blue"):
            copy = data / "train" / name / f"{number}.png"
            copy.write_bytes((data / "train" / name / f"{number % 10}.png").read_bytes())
    recipe = replace(RECIPE, hold_out=True)
    parts = [set(loop.open_split(str(data), split, recipe).identities) for split in ("train", "val")]
    assert not parts[0] & parts[1]
    assert parts[0] | parts[1] == set(open_source(str(data), "train").identities)
    assert 0 < len(parts[1]) < len(parts[0]) / 4
    train(recipe, settings(data, tmp_path / "run", max_steps=1, unreadable_share=0.0))
    assert not (tmp_path / "run" / "unreadable.txt").exists()


def linear(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 3))


def batch() -> Batch:
    pixels = torch.rand(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    return Batch(pixels, torch.tensor([0, 1, 2, 1]), list("abcd"), {})


def probabilities(model: nn.Module, pixels: torch.Tensor, temperature: float = 1.0) -> np.ndarray:
    powers = np.exp(model(pixels).detach().double().numpy() / temperature)
    return powers / powers.sum(-1, keepdims=True)


@pytest.mark.parametrize("kind", ["soft", "hard"])
@pytest.mark.parametrize("patches", [0.0, 0.5])
def test_what_the_loss_is_made_of(kind, patches, accelerator):
    """The labels' cross-entropy, that of changed patches beside it, and the teacher's share of it all."""
    model, teacher, given = linear(1), linear(2), batch()
    recipe = replace(RECIPE, distillation=kind, distillation_weight=0.2, temperature=2.0, patches=patches, clip=None)
    targets = 0.9 * np.eye(3)[given.labels] + 0.1 / 3
    own = -(targets * np.log(probabilities(model, given.pixels))).sum(-1).mean()
    if patches:
        seed = derive_seed(recipe.seed, "patches", 5, 0, 0)
        changed = augment_patches(given.pixels, probability=patches, seed=seed)
        own -= (targets * np.log(probabilities(model, changed))).sum(-1).mean()
    if kind == "soft":
        student, taught = (probabilities(each, given.pixels, 2.0) for each in (model, teacher))
        other = 4 * (taught * np.log(taught / student)).sum(-1).mean()
    else:
        decided = probabilities(teacher, given.pixels).argmax(-1)
        other = -np.log(probabilities(model, given.pixels)[np.arange(4), decided]).mean()
    right = (probabilities(model, given.pixels).argmax(-1) == given.labels.numpy()).sum()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    objective = Labels(model, Mix(0.0, 0.0, 0.5, 0.1, 3), teacher, recipe)
    loss, correct = loop.learn(accelerator, model, optimizer, given, objective, recipe, 5)
    assert loss == pytest.approx(0.8 * own + 0.2 * other, rel=1e-5)
    assert correct == right


@pytest.mark.parametrize("clip", [None, 0.1])
def test_the_gradient_is_clipped(clip, accelerator):
    model, given = linear(1), batch()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    recipe = replace(RECIPE, clip=clip)
    objective = Labels(model, Mix(0.0, 0.0, 0.5, 0.1, 3), None, recipe)
    loop.learn(accelerator, model, optimizer, given, objective, recipe, 0)
    change = sum((old - new).square().sum() for old, new in zip(before, model.parameters(), strict=True)).sqrt().item()
    assert change == pytest.approx(0.1, rel=1e-4) if clip else change > 1
