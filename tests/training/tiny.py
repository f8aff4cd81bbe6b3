"""A recipe for runs of seconds, and how they are set up."""

from dataclasses import replace
from pathlib import Path

from torchvars.training.loop import Settings
from torchvars.training.recipe import find_recipe

RECIPE = find_recipe(
    "cifar10_deit_micro_vars_d",
    img_size=16,
    epochs=3,
    batch=8,
    warmup_epochs=1,
    learning_rate=3e-2,
    ema=0.5,
    mixup=0.2,
    erase=0.5,
    precision="no",
)
OVERRIDES = [
    f"--{name.replace('_', '-')}={getattr(RECIPE, name)}"
    for name in ("img_size", "epochs", "batch", "warmup_epochs", "learning_rate", "ema", "mixup", "erase", "precision")
]


def settings(pictures: Path, output: Path, **changed) -> Settings:
    return replace(Settings(pictures, output, workers=0, checkpoint_every=2), **changed)
