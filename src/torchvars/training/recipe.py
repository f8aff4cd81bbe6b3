"""Recipes: everything except the pictures that determines the result of a training run."""

import ast
import difflib
import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import tyro

from ..models import MODELS

TENTHS = tuple(number / 10 for number in range(1, 10))
# Limits of numeric fields: names, text and check. No check holds for NaN.
LIMITS: list[tuple[tuple[str, ...], str, Callable[[float], bool]]] = [
    (("img_size", "patch_size", "epochs", "batch", "accumulate", "repeats"), "at least 1", lambda value: value >= 1),
    (
        ("smoothing", "switch", "erase", "patches", "distillation_weight", "drop_path", "smallest_crop"),
        "between 0 and 1",
        lambda value: 0 <= value <= 1,
    ),
    (("ema",), "a decay from 0 to below 1, or none", lambda value: 0 <= value < 1),
    (
        ("learning_rate", "layer_decay", "clip", "temperature"),
        "positive and finite",
        lambda value: 0 < value < math.inf,
    ),
    (
        (
            "warmup_learning_rate",
            "final_learning_rate",
            "warmup_epochs",
            "cooldown_epochs",
            "weight_decay",
            "color_jitter",
            "mixup",
            "cutmix",
            "strength",
            "steps",
        ),
        "zero or positive, and finite",
        lambda value: 0 <= value < math.inf,
    ),
]


@dataclass(frozen=True)
class Conversion:
    """How the attention of a trained model is replaced, and what the new one learns of the model, without labels."""

    stage: Literal["match", "join"]
    """Each layer by itself from the attention that it replaces, or the whole from the logits and features."""
    original: str
    """The trained model: a folder of weights, a name that ships, timm:NAME or timm:NAME:FILE."""
    attention: str = "vars_p"
    """Attention to convert to; its options are those of the recipe."""
    layers: tuple[int | str, ...] | None = None
    """Attentions to convert, by index in order or by name; none: all."""
    joined: int | None = None
    """Join: number of the last converted layers to join, the others are still matched; none: all."""
    groups: int = 1
    """Join: groups in which the layers are joined, from the last to the first, during the first half of the run."""
    trained: Literal["all", "layers"] = "all"
    """Join: all weights are trained, or those of the converted layers only."""
    features: float = 1.0
    """Join: weight of the relative error of the final features; that of the logits is 1."""
    errors: float = 1.0
    """Join: weight of the mean relative error of the layers."""
    epoch_steps: int | None = None
    """Number of steps of an epoch; none: one pass over the pictures."""
    patience: int | None = None
    """Number of epochs without an improvement by 1 % after which the run ends; none: no limit."""
    judged: int | None = 256
    """Number of held-out pictures for evaluation, always the same ones; none: all."""

    def __post_init__(self):
        if self.layers is not None:
            object.__setattr__(self, "layers", tuple(self.layers))  # a list, if it was read from JSON
        object.__setattr__(self, "original", _at_home(self.original))
        for name in ("joined", "groups", "epoch_steps", "patience", "judged"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("features", "errors"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be zero or positive, and finite, got {getattr(self, name)}")


@dataclass(frozen=True)
class Recipe:
    """How a model is trained. Rates and sizes are those of the whole run, however many processes share it."""

    model: str
    """Name of the model: torchvars list models."""
    img_size: int
    """Side of the pictures in pixels."""
    patch_size: int | None = field(default=None, kw_only=True)
    """Side of a patch in pixels; none: the model's own."""
    epochs: int
    """Number of passes over the training pictures."""
    batch: int
    """Number of pictures in a step, summed over all processes."""
    accumulate: int = 1
    """Number of portions into which each process divides its part of a batch to save memory (gradient accumulation)."""
    seed: int = 0
    """Random seed for data order, augmentation and initialisation."""
    hold_out: bool = False
    """Hold out a tenth of the training pictures for validation instead of using the val split."""
    left_out: str | None = None
    """Domain to leave out of training, for pictures in <domain>/<class>; validation is on a share of the others."""
    held_out_share: float = 0.1
    """With left_out: share of the other domains that is held out for validation; whole tenths."""
    split_lists: str | None = None
    """With left_out: folder of the split lists that PACS is published with, which then determine the validation set."""
    keep: Literal["last", "best"] = "last"
    """Weights to keep: the last, or those with the best validation accuracy."""

    strength: float | None = None
    """Strength of the sparse penalty in VARS layers; none: the model's own."""
    steps: int | None = None
    """Number of solver steps in VARS layers; none: the model's own."""
    start: str | None = None
    """Start of the solver: analysis, zero, scaled or thresholded; none: the solver's own."""
    solver: str | None = None
    """Solver of VARS layers: ista, fista, learned_ista, sparsa, neural_dynamics or lca; equilibrium_NAME, such as
    equilibrium_fista, takes the gradient at the optimum; none: the model's own."""
    attention_options: tuple[str, ...] = ()
    """Options of the attention, such as atoms=1 centered=True for vars_d, or filters=2 for vars_s."""
    drop_path: float = 0.1
    """Drop path rate of the last block (stochastic depth); it rises linearly from zero at the first block."""
    initial: str | None = None
    """Initial weights for the same model: a name that ships, a folder of weights or of a run, OWNER/NAME on the
    hub, a checkpoint of the authors, timm:NAME or timm:NAME:FILE; a head for other classes is new. Of a model of timm,
    the recipe's model is timm:NAME."""

    learning_rate: float = 5e-4
    """Peak learning rate for a batch of 512 pictures; it is scaled linearly with the batch."""
    warmup_epochs: float = 5
    """Number of epochs of linear learning rate warm-up."""
    warmup_learning_rate: float = 1e-6
    """Learning rate at the start of the warm-up; scaled in the same way."""
    final_learning_rate: float = 1e-5
    """Learning rate at the end of the cosine schedule; scaled in the same way."""
    cooldown_epochs: float = 0
    """Number of epochs at the end that are trained with the final learning rate."""
    weight_decay: float = 0.05
    """Weight decay; not applied to biases, norms and parameters that the model exempts."""
    layer_decay: float | None = None
    """Layer-wise learning rate decay: factor from each block to the one before, for fine-tuning."""
    clip: float | None = None
    """Maximum norm of the gradient (gradient clipping)."""
    ema: float | None = 0.99996
    """Decay of the exponential moving average of the weights, which is evaluated and saved; none: no averaging."""
    precision: Literal["no", "bf16", "fp16"] = "no"
    """Mixed precision: none, bfloat16 or float16."""

    crop: Literal["random resized", "pad"] = "random resized"
    """Cropping: a random resized crop, or a random crop of the padded picture."""
    smallest_crop: float = 0.08
    """Smallest area of a random resized crop, as a share of the picture."""
    auto_augment: str | None = "rand-m9-mstd0.5-inc1"
    """RandAugment policy in timm's notation; none: colour jitter instead."""
    color_jitter: float | None = 0.4
    """Strength of colour jitter (brightness, contrast and saturation), used where RandAugment is off."""
    erase: float = 0.25
    """Probability of random erasing: a rectangle is replaced by noise."""
    repeats: int = 1
    """Number of differently augmented copies of each picture (repeated augmentation)."""
    mixup: float = 0.8
    """Mixup alpha, the parameter of its beta distribution; 0: no mixup."""
    cutmix: float = 1.0
    """CutMix alpha, the parameter of its beta distribution; 0: no CutMix."""
    switch: float = 0.5
    """Probability of CutMix instead of mixup where both are enabled."""
    smoothing: float = 0.1
    """Label smoothing."""
    patches: float = 0.0
    """Probability of each change in RVT's patch-wise augmentation, whose loss is added; 0: off."""

    teacher: str | None = None
    """Teacher for distillation, named in the same way as the initial weights."""
    distillation: Literal["soft", "hard"] = "soft"
    """Distillation from the teacher's probabilities (soft) or from its predicted classes (hard)."""
    distillation_weight: float = 0.5
    """Weight of the distillation loss; that of the labels is 1 minus it."""
    temperature: float = 3.0
    """Temperature of soft distillation."""

    conversion: tyro.conf.Suppress[Conversion | None] = None
    """Learn without labels from a model whose attention is replaced: see `torchvars convert`."""

    def __post_init__(self):
        if isinstance(self.conversion, dict):  # read from JSON
            object.__setattr__(self, "conversion", Conversion(**self.conversion))
        object.__setattr__(self, "attention_options", tuple(self.attention_options))  # a list, if it was read from JSON
        self.options_of_attention()
        for name in ("initial", "teacher"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, _at_home(getattr(self, name)))
        if self.held_out_share not in TENTHS:
            raise ValueError(f"held_out_share must be one of {', '.join(map(str, TENTHS))}, got {self.held_out_share}")
        for names, limit, holds in LIMITS:
            for name in names:
                value = getattr(self, name)
                if value is not None and not holds(value):
                    raise ValueError(f"{name} must be {limit}, got {value}")
        if self.warmup_epochs + self.cooldown_epochs > self.epochs:
            raise ValueError(
                f"warm-up ({self.warmup_epochs}) and cool-down ({self.cooldown_epochs}) take more than "
                f"the {self.epochs} epochs there are: shorten them"
            )

    def options_of_attention(self) -> dict[str, Any]:
        """`attention_options` by name."""
        options = {}
        for option in self.attention_options:
            name, _, value = option.partition("=")
            try:
                options[name] = ast.literal_eval(value)
            except (ValueError, SyntaxError) as error:
                raise ValueError(f"attention_options are like atoms=1 centered=True, got {option!r}") from error
        if misplaced := [name for name in ("strength", "solver") if name in options]:
            raise ValueError(f"{misplaced[0]} is a field of the recipe: set it by --{misplaced[0]}, not as an option")
        return options


def _at_home(word: str) -> str:
    """The name of a model with the home folder in place of a ~ at the beginning of its path."""
    before, colon, path = word.rpartition(":") if word.startswith("timm:") else ("", "", word)
    return before + colon + os.path.expanduser(path)


def imagenet(model: str) -> Recipe:
    """ImageNet as RVT and the paper train on it."""
    return Recipe(
        model,
        img_size=224,
        epochs=300,
        batch=1024,
        warmup_learning_rate=5e-7,  # 1e-6 with this batch, as there, where only the peak is scaled
        final_learning_rate=5e-6,
        cooldown_epochs=10,
        repeats=3,
        patches=0.1,
    )


def imagenette(model: str) -> Recipe:
    """Imagenette at 112 pixels, which gives the small models a grid of 14 x 14: hours on two cores."""
    return Recipe(
        model,
        img_size=112,
        epochs=20,
        batch=64,
        learning_rate=8e-3,
        warmup_epochs=2,
        ema=0.998,
        precision="bf16",
        smallest_crop=0.35,
        mixup=0.2,
        cutmix=0.0,
        erase=0.0,
    )


def cifar10(model: str) -> Recipe:
    """CIFAR-10 at 32 pixels: hours on two cores."""
    return Recipe(
        model,
        img_size=32,
        patch_size=4,
        epochs=10,
        batch=128,
        learning_rate=8e-3,
        warmup_epochs=1,
        ema=0.998,
        precision="bf16",
        crop="pad",
        auto_augment=None,
        color_jitter=None,
        mixup=0.0,
        cutmix=0.0,
        erase=0.0,
    )


def pacs(model: str) -> Recipe:
    """Fine-tuning on three domains of PACS, by default all but sketches: minutes on two cores."""
    return Recipe(
        model,
        img_size=224,
        left_out="sketch",
        keep="best",
        epochs=3,
        batch=64,
        learning_rate=8e-3,
        warmup_epochs=0.3,
        ema=0.99,
        precision="bf16",
        smallest_crop=0.5,
        auto_augment=None,
        color_jitter=0.3,
        erase=0.0,
        mixup=0.0,
        cutmix=0.0,
    )


# Options of attentions, chosen on a tenth of the training pictures: docs/results.md. Strengths scale with the root of
# the number of tokens, as the products of atoms and signals do.
CHOSEN: dict[tuple[str, str], dict] = {
    ("imagenette", "rvt_micro_vars_s"): {"attention_options": ("filters=2",)},
    ("imagenette", "rvt_micro_vars_d"): {"strength": 1.0},
    ("imagenette", "rvt_micro_vars_sd"): {"attention_options": ("filters=1",), "strength": 1.0},
    ("cifar10", "rvt_micro_vars_s"): {"attention_options": ("filters=2",)},
    ("cifar10", "rvt_micro_vars_d"): {"attention_options": ("atoms=0.5",), "strength": 0.5},
    ("cifar10", "rvt_micro_vars_sd"): {"attention_options": ("atoms=0.5", "filters=1"), "strength": 0.5},
}
DATA: dict[str, Callable[[str], Recipe]] = {recipe.__name__: recipe for recipe in (imagenet, imagenette, cifar10, pacs)}


def is_recipe(name: str) -> bool:
    """Whether a name is that of a recipe, see `find_recipe`."""
    pictures, _, model = name.partition("_")
    return pictures in DATA and model in MODELS


def find_recipe(name: str, **changed) -> Recipe:
    """The recipe of a name, pictures_model: "cifar10_rvt_micro_vars_d"; some of its fields may be changed."""
    pictures, _, model = name.partition("_")
    if not is_recipe(name):
        names = [f"{pictures}_{model}" for pictures in DATA for model in MODELS]
        close = difflib.get_close_matches(name, names, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ValueError(
            f"no recipe named {name!r}: a name is one of {', '.join(DATA)}, an underscore and a model{hint}"
        )
    return replace(DATA[pictures](model), **{**CHOSEN.get((pictures, model), {}), **changed})
