"""Conversion of a trained model to another attention, in stages: see `torchvars convert`.

    original/    weights of the trained model, with the requested head
    match/       the run in which each layer learns the attention that it replaces
    join/        the run in which the whole model learns logits and features
    tune/        the run in which the whole model learns labels
    weights/     the result
    convert.json the plan; kept.json: metrics of the result

Each stage is a run of the one training loop, begins with the weights of the stage before, and can be resumed by itself.
"""

import ast
import json
import math
import shlex
import signal
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from copy import deepcopy
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState

from ..data import Order, Source, absolute, limited, open_unlabelled
from ..models import Classifier
from ..models import weights as stored
from ..models.classifier import own_size
from ..models.head import cut_head, linear_heads
from ..models.lock import held
from ..models.peers import class_names, resized
from ..models.sources import open_classifier
from ..models.speed import measure_sizes
from ..models.unfinished import CHECKPOINTS, CONVERSION
from .folder import RunFolder
from .loop import (
    RELEASE,
    Settings,
    build_converted,
    check_processes,
    columns_of,
    convert_as,
    evaluate,
    open_splits,
    set_solving,
    train_on,
)
from .matching import Join, Matching
from .processes import join_restarted
from .recipe import Conversion, Recipe

KEPT, STAGES = "kept.json", ("match", "join", "tune")


@dataclass(frozen=True)
class Plan:
    """The settings of a conversion."""

    model: str
    """Trained model: a folder of weights, a name that ships, timm:NAME or timm:NAME:FILE."""
    data: str
    """Pictures: as for training; but for `tune`, also a folder or a tar with pictures anywhere in it."""
    output: Path
    attention: str = "vars_p"
    stages: tuple[str, ...] = ("match", "join")
    layers: tuple[int | str, ...] | None = None
    """Attentions to convert; none: all."""
    options: tuple[str, ...] = ()
    """Options of the attention, such as atoms=1."""
    strength: float | None = None
    steps: int | None = None
    solver: str | None = None
    img_size: int | None = None
    """Side of the pictures in pixels; none: the model's own."""
    classes: str = "model"
    """Head of the result: that of the model, or its rows for the classes that are present in the pictures."""
    batch: int = 16
    match_steps: int = 1200
    join_steps: int = 1000
    tune_epochs: int = 2
    period: int = 200
    """Number of steps between evaluations and checkpoints in match and join."""
    seed: int = 0
    precision: str = "no"
    workers: int = 1
    sizes: tuple[int, ...] = (224, 448, 896)
    """Sides of pictures at which original and result are timed."""
    judged: int | None = None
    """Number of held-out pictures to evaluate the result on; none: all."""
    changed: tuple[str, ...] = ()
    """Fields of the recipes of stages, such as match.learning_rate=0.01."""

    def __post_init__(self):
        for name in ("stages", "layers", "options", "sizes", "changed"):  # lists, if they were read from JSON
            if getattr(self, name) is not None:
                object.__setattr__(self, name, tuple(getattr(self, name)))
        object.__setattr__(self, "output", Path(self.output).expanduser())
        if unknown := [stage for stage in self.stages if stage not in STAGES]:
            raise ValueError(f"no stage {unknown[0]!r}: stages are {', '.join(STAGES)}")
        if not self.stages or tuple(stage for stage in STAGES if stage in self.stages) != self.stages:
            raise ValueError(
                f"stages come once each and in the order {', '.join(STAGES)}, got {', '.join(self.stages)}"
            )
        if self.classes not in ("model", "present"):
            raise ValueError(f"classes must be model or present, got {self.classes!r}")
        for name in ("match_steps", "join_steps", "tune_epochs", "period", "batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if bad := [size for size in self.sizes if size < 1]:
            raise ValueError(f"pictures are timed at sizes of at least 1 pixel, got {bad[0]}")


def read_plan(folder: Path) -> Plan:
    """The plan of a conversion that was begun in a folder."""
    file = folder / CONVERSION
    if not file.exists():
        raise FileNotFoundError(f"no conversion to resume at {folder}: there is no {CONVERSION}")
    return Plan(**{**json.loads(file.read_text()), "output": folder})


def run(plan: Plan, *, resume: bool = False) -> signal.Signals | None:
    """Converts a trained model stage by stage, or resumes a conversion.

    Returns:
        The signal that stopped it, after a checkpoint; None if it is complete.
    """
    join_restarted()
    AcceleratorState._reset_state()
    accelerator = Accelerator(mixed_precision=plan.precision, cpu=not torch.accelerator.is_available())
    first = accelerator.is_main_process
    refusal = f"another conversion is writing {plan.output}: wait for its end, stop it, or take another folder"
    with held(plan.output, refusal, RELEASE) if first else nullcontext():
        stopped_by = _run(plan, resume, accelerator)
    accelerator.end_training()
    return stopped_by


def _run(plan: Plan, resume: bool, accelerator: Accelerator) -> signal.Signals | None:
    first = accelerator.is_main_process
    if not resume:
        if (plan.output / CONVERSION).exists() and first:
            raise ValueError(
                f"{plan.output} holds a conversion already: resume it with torchvars convert --resume "
                f"{shlex.quote(str(plan.output))}, or take another folder"
            )
        prepared = prepare(plan, accelerator)
        if first:
            begin(plan, prepared)
    accelerator.wait_for_everyone()
    recipes = recipes_of(plan)
    for stage, recipe in recipes.items():
        settings = settings_of(plan, stage)
        done = (settings.output / "weights" / stored.CONFIG).exists()
        begun = RunFolder(settings.output).exists() and any((settings.output / CHECKPOINTS).glob("step_*"))
        accelerator.wait_for_everyone()  # so that all processes have seen the same files
        if done:
            continue
        if first:
            print(f"{stage}: {DESCRIPTIONS[stage]}", flush=True)
        if stopped_by := train_on(accelerator, recipe, settings, resume=begun):
            return stopped_by
        accelerator.wait_for_everyone()  # until the first has written the weights
    last = plan.output / list(recipes)[-1] / "weights"
    kept = measure(plan, last, accelerator)
    if first:
        finish(plan, last, kept)
    accelerator.wait_for_everyone()
    return None


DESCRIPTIONS = {
    "match": "each layer learns the output of the attention that it replaces",
    "join": "the whole model learns the logits and final features of the original",
    "tune": "the whole model learns the labels",
}


# Before the first stage


def prepare(plan: Plan, accelerator: Accelerator) -> Classifier:
    """The original model with the requested head. Raises a ValueError if the plan cannot be carried out."""
    name, classifier = open_classifier(plan.model)
    if plan.img_size not in (None, own_size(classifier.model)):
        resized(name, classifier, plan.img_size)
    pictures = open_unlabelled(plan.data, "train")
    columns = columns_of(classifier, pictures)
    if plan.classes == "present":
        if columns is None:
            raise ValueError(f"the head cannot be cut to the classes present: {misfit(name, classifier, pictures)}")
        cut_head(classifier.model, columns)
        classifier.classes = tuple(pictures.classes)
    described = stored.describe(classifier)  # raises an error if it could not be saved
    recipes = recipes_of(plan, own_size(classifier.model), described["architecture"])
    for stage, recipe in recipes.items():
        check_processes(recipe, settings_of(plan, stage), accelerator)
        world = accelerator.num_processes
        Order(
            len(pictures), recipe.batch // world, recipe.seed, recipe.repeats, 0, world
        )  # checks that they fill a batch
    if "tune" in recipes:
        check_tuning(recipes["tune"], plan.data, name, classifier)
    recipe = next(iter(recipes.values()))
    trial = deepcopy(classifier)  # raises an error now if it cannot be converted
    set_solving(convert_as(recipe, trial), recipe)
    Matching(trial)
    linear_heads(classifier.model)
    return classifier


def misfit(name: str, classifier: Classifier, pictures: Source) -> str:
    """Text that compares the classes of pictures with those of a model."""
    known = class_names(classifier)
    if not pictures.classes:
        return f"{pictures.name} has no classes; expected <class>/<picture>"
    if known is None:
        return f"{name} does not say what its logits stand for, {pictures.name} has {', '.join(pictures.classes[:3])}"
    unknown = [each for each in pictures.classes if each not in known]
    return (
        f"{pictures.name} has {len(pictures.classes)} classes, of which {name} does not know {len(unknown)}"
        f"{', such as ' + unknown[0] if unknown else ''}; it knows {len(known)}, such as {known[0]}"
    )


def check_tuning(recipe: Recipe, data: str, name: str, classifier: Classifier) -> None:
    """Raises a ValueError if labels cannot be learned with this head."""
    pictures, _ = open_splits(data, recipe)
    if list(pictures.classes) != list(class_names(classifier) or pictures.classes):
        raise ValueError(
            f"the classes of the pictures are not those of the head, so that tune cannot learn their labels: "
            f"{misfit(name, classifier, pictures)}; add --classes present, or leave tune out of --stages"
        )
    if recipe.model.startswith("transformers:"):
        raise ValueError(f"{name} is a model of transformers, which tune does not train: leave it out of --stages")


def begin(plan: Plan, original: Classifier) -> None:
    """Writes the original model and the plan; after that the conversion can be resumed."""
    plan.output.mkdir(parents=True, exist_ok=True)
    stored.save(original, plan.output / "original")
    content = {**asdict(plan), "data": absolute(plan.data), "output": str(plan.output)}
    text = json.dumps(content, indent=1) + "\n"
    stored.write_whole(plan.output / CONVERSION, lambda path: path.write_text(text))


# The stages

# The augmentation with which DeiT is trained on ImageNet. In match and join the original gets the same pictures.
AUGMENTATION = {
    "auto_augment": "rand-m9-mstd0.5-inc1",
    "color_jitter": None,
    "erase": 0.25,
    "mixup": 0.8,
    "cutmix": 1.0,
}


def recipes_of(plan: Plan, size: int | None = None, name: str | None = None) -> dict[str, Recipe]:
    """The recipe of each stage. Size and name of the architecture are those of the original in the folder."""
    folder = plan.output / "original"
    if size is None:
        config = stored.read_config(folder)
        name, size = config["architecture"], own_size(open_classifier(str(folder))[1].model)
    size = plan.img_size or size
    shared = {
        "model": name,
        "img_size": size,
        "batch": plan.batch,
        "seed": plan.seed,
        "precision": plan.precision,
        "strength": plan.strength,
        "steps": plan.steps,
        "solver": plan.solver,
        "attention_options": plan.options,
        "weight_decay": 0.0,
        "drop_path": 0.0,
        "warmup_learning_rate": 0.0,
        "final_learning_rate": 0.0,
        "ema": None,
        "smallest_crop": 0.35,
        **AUGMENTATION,
        "smoothing": 0.0,
    }
    rate = 512 / plan.batch  # learning rates of recipes are for batches of 512
    recipes, before = {}, None
    for stage in plan.stages:
        if stage == "tune":
            recipe = Recipe(
                **{**shared, "attention_options": (), "weight_decay": 0.05, "drop_path": 0.05, "smoothing": 0.1},
                epochs=plan.tune_epochs,
                learning_rate=3e-5 * rate,
                warmup_epochs=0.1 * plan.tune_epochs,
                clip=1.0,
                initial=None if before is None else str(before),
            )
            if before is None:
                raise ValueError("tune begins with a converted model: add match or join to the stages before it")
        else:
            steps = plan.match_steps if stage == "match" else plan.join_steps
            epochs = math.ceil(steps / plan.period)
            period = math.ceil(steps / epochs)
            conversion = Conversion(
                "match" if stage == "match" else "join",
                str(folder),
                plan.attention,
                plan.layers,
                epoch_steps=period,
                patience=4 if stage == "match" else None,
            )
            recipe = Recipe(
                **shared,
                epochs=epochs,
                learning_rate=(3e-3 if stage == "match" else 3e-5) * rate,
                warmup_epochs=min(30, steps / 4) / period,
                clip=None if stage == "match" else 1.0,
                temperature=1.0,
                conversion=conversion,
                initial=None if before is None else str(before),
            )
        recipes[stage] = changed(recipe, stage, plan.changed)
        before = plan.output / stage / "weights"
    return recipes


def settings_of(plan: Plan, stage: str) -> Settings:
    most = {"match": plan.match_steps, "join": plan.join_steps}.get(stage)
    return Settings(plan.data, plan.output / stage, plan.workers, max_steps=most, checkpoint_every=plan.period)


OF_LABELS = ("smoothing", "patches", "teacher", "distillation_weight")
# Fields of recipes that a stage does not read.
WITHOUT_EFFECT = {
    "match": (*OF_LABELS, "distillation", "temperature", "joined", "groups", "trained", "features", "errors"),
    "join": OF_LABELS,
    "tune": (),
}


def changed(recipe: Recipe, stage: str, changes: Sequence[str]) -> Recipe:
    """A recipe with the fields of `stage.field=value` set."""
    for change in changes:
        name, equals, value = change.partition("=")
        where, _, name = name.partition(".")
        if where not in STAGES or not equals:
            raise ValueError(f"a change is STAGE.FIELD=VALUE, such as match.learning_rate=0.01: got {change!r}")
        if where != stage:
            continue
        with suppress(ValueError, SyntaxError):  # else it is a word
            value = ast.literal_eval(value)
        owner = recipe if name in {each.name for each in fields(Recipe)} else recipe.conversion
        if owner is None or name not in {each.name for each in fields(owner)}:
            raise ValueError(f"the recipe of {stage} has no field {name!r}")
        if name in WITHOUT_EFFECT[stage]:
            raise ValueError(f"{name} has no effect in {stage}: it is a field of another stage")
        owner = replace(owner, **{name: value})
        recipe = owner if isinstance(owner, Recipe) else replace(recipe, conversion=owner)
    return recipe


# After the last


def measure(plan: Plan, weights: Path, accelerator: Accelerator) -> dict:
    """Metrics on held-out pictures: relative errors, agreement with the original and, with labels, accuracy."""
    folder = str(plan.output / "original")
    converted = stored.load(weights)
    recipe = Recipe(
        model="",
        img_size=plan.img_size or own_size(converted.model),
        epochs=1,
        batch=plan.batch,
        warmup_epochs=0,
        attention_options=plan.options,
        conversion=Conversion("join", folder, plan.attention, plan.layers, judged=plan.judged),
        initial=str(weights),
    )
    classifier = build_converted(recipe)
    stored.set_layers(classifier.model, stored.read_config(weights), weights, {})
    held_out = open_unlabelled(plan.data, "val")
    held_out = limited(held_out, plan.judged)
    _, original = open_classifier(folder)
    device = accelerator.device
    objective = Join(classifier.to(device), original.to(device), columns_of(classifier, held_out), recipe, 1)
    metrics, _ = evaluate(accelerator, objective, held_out, recipe, plan.workers)
    return {"images": len(held_out), **metrics}


def finish(plan: Plan, weights: Path, kept: dict) -> None:
    """Writes the result and its metrics, and prints the metrics."""
    converted = stored.load(weights)
    original = stored.load(plan.output / "original")
    with torch.no_grad():
        times = measure_sizes({"original": original.model, "converted": converted.model}, plan.sizes)
    kept = {**kept, "seconds": times}
    rows = [
        {"benchmark": "held out", "metric": name, "value": f"{kept[key]:.4f}", "images": kept["images"]}
        for key, name in NAMES.items()
        if key in kept
    ]
    command = command_of(plan)
    stored.save(converted, plan.output / "weights", [{**row, "command": command} for row in rows])
    text = json.dumps(kept, indent=1) + "\n"
    stored.write_whole(plan.output / KEPT, lambda path: path.write_text(text))
    print("\n".join(describe_kept(kept)), flush=True)


# Fields of a plan whose options of `torchvars convert` have other names.
OPTIONS = {"options": "option", "period": "judge-every", "sizes": "timing", "judged": "judge", "changed": "set"}


def command_of(plan: Plan) -> str:
    """The command of a conversion; files and folders are named without their paths."""
    *library, place = plan.model.rpartition(":")
    words = ["torchvars", "convert", "".join([*library, Path(place).name]), "--attention", plan.attention]
    words += ["--data", Path(plan.data).name]
    for each in fields(Plan):
        value, option = getattr(plan, each.name), f"--{OPTIONS.get(each.name, each.name).replace('_', '-')}"
        if each.name in ("model", "attention", "data", "output") or value == each.default:
            continue
        if each.name in ("options", "changed"):
            words += [option, *value]
        elif value == ():
            words.append(f"--no-{option.removeprefix('--')}")
        else:  # an index of a layer may begin with a minus
            words.append(f"{option}={','.join(map(str, value)) if isinstance(value, tuple) else value}")
    return shlex.join(words)


NAMES = {
    "val_accuracy_before": "accuracy of the original",
    "val_accuracy": "accuracy of the converted model",
    "val_agreement": "agreement with the original",
    "val_error": "mean relative error of the layers",
}


def describe_kept(kept: Mapping) -> list[str]:
    """Lines of text for the metrics of the result."""
    lines = [f"on {kept['images']} held-out pictures:"]
    lines += [f"  {name}: {kept[key]:.4f}" for key, name in NAMES.items() if key in kept]
    lines += ["relative error by layer, on the inputs that the original gives it:"]
    lines += [f"  {key.partition('/')[2]}: {value:.4f}" for key, value in kept.items() if key.startswith("val_error/")]
    for size, seconds in kept["seconds"].items():
        ratio = seconds["converted"] / seconds["original"]
        lines.append(
            f"one picture of {size} pixels: {1000 * seconds['converted']:.0f} ms, the original "
            f"{1000 * seconds['original']:.0f} ms ({ratio:.2f} x)"
        )
    return lines
