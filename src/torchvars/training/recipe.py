"""Recipes: all that decides what a training run ends with, besides the pictures."""

import ast
import difflib
import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

import tyro

from ..models import MODELS

# Fields that are numbers: which, what they must be, and whether one is; none of these holds for NaN.
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
    """Join: the last so many of the converted layers, the others are still matched; none: all."""
    groups: int = 1
    """Join: groups in which the layers are joined, from the last to the first, during the first half of the run."""
    trained: Literal["all", "layers"] = "all"
    """Join: all weights are trained, or those of the converted layers only."""
    features: float = 1.0
    """Join: weight of the relative error of the final features; that of the logits is 1."""
    errors: float = 1.0
    """Join: weight of the mean relative error of the layers."""
    epoch_steps: int | None = None
    """Steps of an epoch; none: those of one pass over the pictures."""
    patience: int | None = None
    """Epochs after which a run ends if none of them made the figure it is judged by 1 % better; none: never."""
    judged: int | None = 256
    """Held-out pictures to judge an epoch by, always the same; none: all."""

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
    """Passes over the pictures."""
    batch: int
    """Pictures of a step, all processes together."""
    accumulate: int = 1
    """Portions in which each process works through its part of a batch, one after the other, to save memory."""
    seed: int = 0
    """Of everything that is left to chance."""
    hold_out: bool = False
    """Judge by a tenth of the training pictures, which are not trained on, and leave those of val alone."""
    left_out: str | None = None
    """Domain that is not trained on, of pictures in <domain>/<class>; a tenth of the others is judged by."""
    keep: Literal["last", "best"] = "last"
    """Weights to end with: the last, or those with the best accuracy on the held-out pictures."""

    strength: float | None = None
    """Of the sparse penalty in VARS layers; none: the model's own."""
    steps: int | None = None
    """Of the solvers in VARS layers; none: the model's own."""
    start: str | None = None
    """Where the solvers start: analysis, zero, scaled or thresholded; none: the solver's own."""
    solver: str | None = None
    """In VARS layers: ista, fista, learned_ista, sparsa, neural_dynamics or lca; after equilibrium_, as in
    equilibrium_fista, with the gradient at the optimum; none: the model's own."""
    attention_options: tuple[str, ...] = ()
    """Of the attention, such as atoms=1 centered=True for vars_d, filters=2 for vars_s."""
    drop_path: float = 0.1
    """Probability with which a residual branch is left out; it grows from zero at the first block to about this."""
    initial: str | None = None
    """Weights to begin with, of the same model: a name that ships, a folder of weights or of a run, OWNER/NAME on the
    hub, a checkpoint of the authors, timm:NAME or timm:NAME:FILE; a head for other classes is new. Of a model of timm,
    the recipe's model is timm:NAME."""

    learning_rate: float = 5e-4
    """Peak, for 512 pictures a step; it is scaled with the batch."""
    warmup_epochs: float = 5
    """Over which the learning rate rises."""
    warmup_learning_rate: float = 1e-6
    """Where it rises from; scaled in the same way."""
    final_learning_rate: float = 1e-5
    """Where it falls to, along a cosine; scaled in the same way."""
    cooldown_epochs: float = 0
    """At the end, with the final learning rate."""
    weight_decay: float = 0.05
    """Of weights; not of biases, norms and what the model exempts."""
    layer_decay: float | None = None
    """Factor of the learning rate from each block to the one before, for fine-tuning."""
    clip: float | None = None
    """Largest norm of the gradient."""
    ema: float | None = 0.99996
    """Decay of the running average of the weights, which is evaluated and kept; none: the weights themselves."""
    precision: Literal["no", "bf16", "fp16"] = "no"
    """Mixed precision."""

    crop: Literal["random resized", "pad"] = "random resized"
    """A random part of the picture, or the picture shifted within a margin."""
    smallest_crop: float = 0.08
    """Of the area, for random resized crops."""
    auto_augment: str | None = "rand-m9-mstd0.5-inc1"
    """Timm's name for RandAugment; none: colour jitter instead."""
    color_jitter: float | None = 0.4
    """Of brightness, contrast and saturation, where RandAugment is off."""
    erase: float = 0.25
    """Probability with which a rectangle is replaced by noise."""
    repeats: int = 1
    """Copies of a picture, each changed in its own way (repeated augmentation)."""
    mixup: float = 0.8
    """Parameter of the beta distribution by which two pictures are blended; 0: never."""
    cutmix: float = 1.0
    """The same for rectangles of one in the other."""
    switch: float = 0.5
    """Probability of cutmix where both are on."""
    smoothing: float = 0.1
    """Of labels."""
    patches: float = 0.0
    """RVT's patch-wise augmentation: probability of each change of a patch; its loss is added. 0: off."""

    teacher: str | None = None
    """Model to learn from as well, by the same words."""
    distillation: Literal["soft", "hard"] = "soft"
    """From its probabilities, or from its decisions."""
    distillation_weight: float = 0.5
    """Share of that loss."""
    temperature: float = 3.0
    """Of soft distillation."""

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
        for names, said, holds in LIMITS:
            for name in names:
                value = getattr(self, name)
                if value is not None and not holds(value):
                    raise ValueError(f"{name} must be {said}, got {value}")
        if self.warmup_epochs + self.cooldown_epochs > self.epochs:
            raise ValueError(
                f"warm-up ({self.warmup_epochs}) and cool-down ({self.cooldown_epochs}) take more than "
                f"the {self.epochs} epochs there are: shorten them"
            )

    def options_of_attention(self) -> dict[str, bool | int | float]:
        """`attention_options` by name."""
        options = {}
        for option in self.attention_options:
            name, _, value = option.partition("=")
            try:
                options[name] = ast.literal_eval(value)
            except (ValueError, SyntaxError) as error:
                raise ValueError(f"attention_options are like atoms=1 centered=True, got {option!r}") from error
        if strange := [name for name in ("strength", "solver") if name in options]:
            raise ValueError(f"{strange[0]} is a field of the recipe: set it by --{strange[0]}, not as an option")
        return options


def _at_home(word: str) -> str:
    """A word for a model with the home folder in place of a ~ at the beginning of its path."""
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
    """Fine-tuning on three domains of PACS, all but sketches unless told otherwise."""
    return Recipe(
        model,
        img_size=224,
        left_out="sketch",
        keep="best",
        epochs=30,
        batch=64,
        learning_rate=4e-4,
        warmup_epochs=2,
        layer_decay=0.75,
        ema=0.998,
        mixup=0.0,
        cutmix=0.0,
    )


# What was chosen for attentions, on a tenth of the training pictures: docs/results.md. Strengths go with the root of
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
    """Whether it is a name for `find_recipe`."""
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
