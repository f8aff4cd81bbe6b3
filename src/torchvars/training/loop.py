"""The training loop."""

import math
import signal
import time
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal, cast

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedType, gather_object
from torch import Tensor, nn

from ..attention import Reconstruction, look
from ..data import (
    Batch,
    Draw,
    Order,
    Part,
    Pictures,
    Shown,
    Source,
    absolute,
    check_workers,
    derive_seed,
    held_out_tenth,
    leave_out,
    limited,
    load,
    open_source,
    open_unlabelled,
    read_split_lists,
)
from ..models import Classifier, convert, create
from ..models import weights as stored
from ..models.classifier import own_size
from ..models.lock import held
from ..models.origin import Described
from ..models.peers import Among, class_names, takes_size
from ..models.sources import find_weights, open_classifier
from ..models.unfinished import CHECKPOINTS, resuming
from ..scoring import Asked, Processes, score
from ..sparse import solver_from
from .augment import Mix, picture_transform
from .average import Average
from .checkpoint import Checkpoints, optimizer_tensors, restore_optimizer
from .folder import RunFolder
from .matching import Join, Match
from .norms import share_statistics
from .objectives import Labels, Objective
from .processes import join_restarted
from .recipe import Recipe
from .report import Bar, Report
from .schedule import learning_rate, parameter_groups
from .sharding import shard, whole, whole_state
from .stopping import Stopping


@dataclass(frozen=True)
class Settings:
    """Settings that do not change the result of a run."""

    data: str
    """Folder or tar with train/<class>/<picture> and val/<class>/<picture>, wds/FOLDER of shards, or hfds/NAME."""
    output: Path
    """Folder of the run."""
    workers: int = 1
    """Number of data loading processes for each training process."""
    shard: bool = False
    """Shard the weights over the processes (FSDP2), for models that are too large for one device."""
    max_steps: int | None = None
    """Maximum number of steps, even if epochs are left."""
    checkpoint_every: int = 500
    """Number of steps between checkpoints."""
    keep_every: int | None = None
    """Keep checkpoints at multiples of this number of steps, besides the last two and the best."""
    unreadable_share: float = 0.01
    """Largest share of unreadable pictures; the run stops if there are more."""

    def __post_init__(self):
        object.__setattr__(self, "output", Path(self.output).expanduser())
        least = {"workers": 0, "checkpoint_every": 1, "max_steps": 1, "keep_every": 1}
        for name, number in least.items():
            if getattr(self, name) is not None and getattr(self, name) < number:
                raise ValueError(f"{name} must be at least {number}, got {getattr(self, name)}")
        check_workers(self.workers)
        if not 0 <= self.unreadable_share <= 1:
            raise ValueError(f"unreadable_share must be between 0 and 1, got {self.unreadable_share}")


@dataclass
class Progress:
    """Progress of a run, and sums since the beginning of the epoch."""

    step: int = 0
    best: float | None = None
    loss: float = 0.0
    correct: float = 0.0
    seen: int = 0
    unreadable: dict[str, str] = field(default_factory=dict)
    held_out_unreadable: dict[str, str] = field(default_factory=dict)
    errors: list[float] = field(default_factory=list)
    stale: int = 0
    """Number of epochs since the last one that was 1 % better."""

    def add(self, loss: float, correct: float, errors: Sequence[float]) -> None:
        """Adds the sums over the pictures of a step."""
        self.loss, self.correct = self.loss + loss, self.correct + correct
        before = self.errors or [0.0] * len(errors)
        self.errors = [old + new for old, new in zip(before, errors, strict=True)]

    def means(self) -> tuple[float, float, list[float]]:
        """Means of loss, accuracy and errors since the beginning of the epoch."""
        return self.loss / self.seen, self.correct / self.seen, [error / self.seen for error in self.errors]

    def begin_epoch(self) -> None:
        self.loss, self.correct, self.seen, self.errors = 0.0, 0.0, 0, []

    def judge(self, line: dict[str, float], metric: str, sign: int) -> bool:
        """Whether an epoch is the best so far by a metric; the sign is 1 if more of it is better, else -1."""
        score, before = sign * line[metric], self.best
        first = before is None
        clearly = first or score > before + 0.01 * abs(before)
        self.stale = 0 if clearly else self.stale + 1
        self.best = score if first else max(before, score)
        return first or score > before


# Seconds to wait for the lock of a folder whose run was killed: its data loading processes end within 5 seconds, and
# may hold the lock until then.
RELEASE = 6


def ended(recipe: Recipe, progress: Progress) -> bool:
    """Whether a run ends because it no longer improves."""
    patience = recipe.conversion and recipe.conversion.patience
    return bool(patience) and progress.stale >= patience


class Diverged(FloatingPointError):
    """The loss is not finite."""


def train(recipe: Recipe, settings: Settings, *, resume: bool = False) -> signal.Signals | None:
    """Trains a model by a recipe, or resumes a run.

    Returns:
        The signal that stopped it, after a checkpoint; None if it is complete.
    """
    join_restarted()
    AcceleratorState._reset_state()  # a run before this one, in the same process, may have had another precision
    # With cpu=True, several processes on a machine without a GPU work together; else each would run by itself.
    accelerator = Accelerator(mixed_precision=recipe.precision, cpu=not torch.accelerator.is_available())
    check_processes(recipe, settings, accelerator)
    refusal = f"another training run is writing {settings.output}: wait for its end, stop it, or take another folder"
    with held(settings.output, refusal, RELEASE) if accelerator.is_main_process else nullcontext():
        stopped_by = train_on(accelerator, recipe, settings, resume)
    accelerator.end_training()
    return stopped_by


def train_on(
    accelerator: Accelerator, recipe: Recipe, settings: Settings, resume: bool, bar: Bar | None = None
) -> signal.Signals | None:
    """Trains as `train` does, in a folder that is locked.

    Args:
        bar: progress bar in which the run gets a row; by default it has its own.
    """
    rank, world, device = accelerator.process_index, accelerator.num_processes, accelerator.device
    folder, begins = RunFolder(settings.output), not resume and accelerator.is_main_process
    if begins:
        folder.check_free()
    pictures, held_out = open_splits(settings.data, recipe)
    transform = picture_transform(
        recipe.img_size,
        training=True,
        auto_augment=recipe.auto_augment,
        color_jitter=recipe.color_jitter,
        scale=(recipe.smallest_crop, 1.0),
        erase=recipe.erase,
        crop=recipe.crop,
    )
    _ = Pictures(pictures, transform)[Draw(0, 0)]  # raises an error before the run is begun if they do not fit
    shown = some_pictures(held_out, recipe.img_size).to(device)
    order = Order(len(pictures), recipe.batch // world, recipe.seed, recipe.repeats, rank, world)
    steps = (recipe.conversion and recipe.conversion.epoch_steps) or order.steps  # of an epoch

    torch.manual_seed(derive_seed(recipe.seed, "model"))
    classifier = build(recipe, pictures)
    described = stored.describe(classifier)  # raises an error now if it could not be saved at the end
    objective = pose(recipe, classifier, pictures, device, recipe.epochs * steps)
    # First, since it raises an error if the folder cannot be written.
    checkpoints = Checkpoints(settings.output / CHECKPOINTS, settings.keep_every)
    if begins:  # only now, so that an error above leaves no run behind
        stated = {**asdict(settings), "data": absolute(settings.data), "output": str(settings.output)}
        folder.begin(from_anywhere(recipe), stated, described)
    latest = checkpoints.latest() if resume else None
    tensors, facts = ({}, {}) if latest is None else checkpoints.read(latest)
    if latest is not None:
        classifier.load_state_dict(tensors["model"])
    if world > 1:
        share_statistics(classifier)
    classifier.to(device)
    if latest is None and recipe.initial is None:
        objective.begin(lambda: some_pictures(pictures, recipe.img_size, 64).to(device))
    if settings.shard:
        shard(classifier, classifier.model.get_submodule("blocks"), world, device)
    optimizer = torch.optim.AdamW(parameter_groups(objective.trained, recipe), lr=recipe.learning_rate)
    average = None if recipe.ema is None else Average(classifier, recipe.ema)
    if settings.shard:
        model, optimizer = objective.module, accelerator.prepare(optimizer)
    else:
        model, optimizer = accelerator.prepare(objective.module, optimizer)
    progress = Progress(**facts.get("progress", {}))
    if latest is not None:
        restore_optimizer(model, optimizer, tensors["optimizer"], facts["optimizer"])
        if accelerator.scaler is not None and "scaler" in facts:
            accelerator.scaler.load_state_dict(facts["scaler"])
        if average is not None:
            average.load(tensors["average"])

    last = min(recipe.epochs * steps, settings.max_steps or recipe.epochs * steps)
    if ended(recipe, progress):
        last = progress.step
    batches = load(Pictures(pictures, transform), order.batches(progress.step, last), settings.workers)

    def judged() -> AbstractContextManager:
        """A context with the weights that are evaluated and saved: the averaged ones, if there are any."""
        return nullcontext() if average is None else average.applied(classifier)

    def checkpoint(best: bool = False) -> None:
        """Writes all that is needed to resume; one process writes for all."""
        of_optimizer, values = optimizer_tensors(model, optimizer)
        tensors = {"model": whole_state(classifier), "optimizer": of_optimizer}
        if average is not None:
            tensors["average"] = {name: whole(weight) for name, weight in average.weights.items()}
        facts = {"progress": asdict(progress), "optimizer": values}
        if accelerator.scaler is not None:  # of gradients in half precision
            facts["scaler"] = accelerator.scaler.state_dict()
        if accelerator.is_main_process:
            checkpoints.write(progress.step, tensors, facts, best=best)
        accelerator.wait_for_everyone()

    report = None
    if accelerator.is_main_process:
        report = Report(settings.output, progress.step, last, recipe.epochs, bar)
    clock = Clock()
    with Stopping(loud=report is not None) as stopping, nullcontext() if report is None else closing(report):
        for batch in clock.waiting_for(batches):
            step = progress.step
            rate = learning_rate(recipe, step, steps)
            for group in optimizer.param_groups:
                group["lr"] = rate * group["lr_scale"]
            torch.manual_seed(derive_seed(recipe.seed, "step", step, rank))  # for dropout and drop path
            loss, correct, *errors = learn(accelerator, model, optimizer, batch, objective, recipe, step)
            if average is not None:
                average.update(classifier, step)
            counts = [loss, correct, len(batch.labels), stopping.received is not None, len(batch.problems), *errors]
            counts = cast(Tensor, accelerator.reduce(torch.tensor(counts, device=device)))
            loss, correct, seen, stop, broken, *errors = counts.tolist()  # if one received a signal, all stop
            if not math.isfinite(loss):
                kept = checkpoints.latest()
                raise Diverged(
                    f"the loss is {loss / world} at step {step}: the last good checkpoint is {kept or 'none'}. "
                    "A lower learning rate, a longer warm-up or clip=1 may help"
                )
            progress.step, progress.seen = step + 1, progress.seen + int(seen)
            progress.add(loss * seen / world, correct, [error * seen / world for error in errors])
            if report is not None:
                described = objective.describe(objective.line(*progress.means()))
                report.step(progress.step, described, clock.lap(recipe.batch)["images_per_second"])
            if broken:
                progress.unreadable |= dict(gather_object(list(batch.problems.items())))
                if report is not None:
                    folder.write_unreadable(progress.unreadable | progress.held_out_unreadable)
                check_readable(progress.unreadable, settings.unreadable_share * len(pictures), folder)
            if progress.step % steps == 0 or progress.step == last:
                times = clock.lap(recipe.batch)
                with judged():
                    metrics, progress.held_out_unreadable = evaluate(
                        accelerator, objective, held_out, recipe, settings.workers
                    )
                    views = look(classifier, shown)
                line = {
                    "step": progress.step,
                    "epoch": progress.step / steps,
                    "learning_rate": rate,
                    **objective.line(*progress.means()),
                    **metrics,
                    "unreadable": len(progress.unreadable),
                }
                better = progress.judge(line, *objective.best)
                progress.begin_epoch()
                if report is not None:
                    folder.add_metrics(line)
                    folder.add_times({"step": progress.step, **times})
                    if progress.held_out_unreadable:
                        folder.write_unreadable(progress.unreadable | progress.held_out_unreadable)
                    report.epoch(line, objective.describe(line), times, shown, views)
                checkpoint(best=better)
                clock.restart()
                if ended(recipe, progress):
                    if report is not None and progress.step < last:
                        report.log(f"ended at step {progress.step} of {last}: no 1 % better in {progress.stale} epochs")
                    break
            elif progress.step % settings.checkpoint_every == 0 or stop:
                checkpoint()
            if stop and progress.step < last:
                if report is not None:
                    report.log(f"stopped at step {progress.step} of {last}: resume with {resuming(settings.output)}")
                return stopping.received or signal.SIGTERM  # received by another process
    with judged():
        state = whole_state(classifier)
        if accelerator.is_main_process:
            if recipe.keep == "best" and (best := checkpoints.best()) is not None:
                tensors, _ = checkpoints.read(best)
                state = tensors["model"] | tensors.get("average", {})
            stored.save(classifier, settings.output / "weights", state=state)
    return None


# A step


def learn(
    accelerator: Accelerator,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: Batch,
    objective: Objective,
    recipe: Recipe,
    step: int,
) -> list[float]:
    """One step of the optimizer.

    Returns the mean loss of the batch, the number of correctly classified pictures, and the errors of the layers.
    """
    pixels, labels = batch.pixels.to(accelerator.device), batch.labels.to(accelerator.device)
    pixels, targets = objective.prepare(pixels, labels, step)
    model.train()
    optimizer.zero_grad()
    portions = list(zip(pixels.chunk(recipe.accumulate), targets.chunk(recipe.accumulate), strict=True))
    share = torch.tensor([1 / len(portions), 1.0, *[1 / len(portions)] * len(objective.layers)])
    totals = torch.zeros_like(share)
    for number, portion in enumerate(portions):
        # Processes add up their gradients with the last portion only.
        with accelerator.no_sync(model) if number < len(portions) - 1 else nullcontext():
            with accelerator.autocast():
                learned = objective.learn(model, *portion, step, (accelerator.process_index, number))
            accelerator.backward(learned.loss / len(portions))
        totals = totals + share * torch.cat([torch.stack([learned.loss, learned.right]), learned.errors]).detach().cpu()
    if recipe.clip is not None:
        accelerator.clip_grad_norm_(model.parameters(), recipe.clip)
    optimizer.step()
    return totals.tolist()


@torch.no_grad()
def evaluate(
    accelerator: Accelerator, objective: Objective, source: Source, recipe: Recipe, workers: int
) -> tuple[dict[str, float], dict[str, str]]:
    """Evaluates an objective on held-out pictures, each of them once on any number of processes.

    Returns the metrics, and the pictures that could not be read, which are not evaluated.
    """
    processes = Processes(accelerator.device)
    size = max(1, recipe.batch // processes.world)
    objective.module.eval()

    def ask(batch: Asked) -> dict[str, Tensor]:
        figures = objective.judge(batch.pixels, torch.tensor(batch.targets))
        return dict(zip(objective.columns, figures.unbind(-1), strict=True))

    scores = score(source, Shown(recipe.img_size), ask, None, processes, batch=size, workers=workers, together=True)
    figures = torch.stack([scores.columns[name] for name in objective.columns], -1)
    sums = torch.zeros(len(objective.columns), dtype=torch.float64)
    # Summed batch by batch, so that the last digits agree with those of earlier runs.
    for part, unread in zip(figures.split(size), scores.unread.split(size), strict=True):
        sums += part[~unread].sum(0)
    sums, read = dict(zip(objective.columns, sums.tolist(), strict=True)), int((~scores.unread).sum())
    return objective.metrics(sums, read, len(source)), scores.problems


def some_pictures(source: Source, size: int, count: int = 8) -> Tensor:
    """Pixels of some pictures at equal distances in a source, so of several classes; always the same ones."""
    pictures = Pictures(source, picture_transform(size, training=False))
    count = min(count, len(source))
    return torch.stack([pictures[Draw(number * len(source) // count, 0)].pixels for number in range(count)])


# Before the first step


def check_processes(recipe: Recipe, settings: Settings, accelerator: Accelerator) -> None:
    """Raises a ValueError if the processes cannot share the work in this way."""
    world, kind = accelerator.num_processes, accelerator.distributed_type
    if kind in (DistributedType.FSDP, DistributedType.DEEPSPEED, DistributedType.MEGATRON_LM):
        raise ValueError(f"accelerate is set up for {kind.value}: set it up for several devices only; --shard is FSDP2")
    if recipe.batch % (world * recipe.accumulate):
        raise ValueError(
            f"a batch of {recipe.batch} cannot be shared by {world} processes in {recipe.accumulate} portions each: "
            f"take a multiple of {world * recipe.accumulate}"
        )
    if settings.shard and world == 1:
        raise ValueError("a model is sharded over several processes: start them with torchrun --nproc-per-node N")
    if settings.shard and recipe.precision == "fp16":
        raise ValueError("a sharded model is not trained in fp16, whose scaling does not know shards: take bf16")


def open_splits(data: str, recipe: Recipe) -> tuple[Source, Source]:
    """Training and validation pictures. Raises a ValueError if they do not fit each other."""
    if recipe.conversion is not None:
        return open_without_labels(data, recipe)
    pictures, held_out = open_split(data, "train", recipe), open_split(data, "val", recipe)
    check_apart(pictures, held_out)
    check_classes(pictures, held_out)
    return pictures, held_out


def open_without_labels(data: str, recipe: Recipe) -> tuple[Source, Source]:
    """Training and validation pictures without labels; if there are no splits, a tenth of them is held out."""
    pictures, held_out = (open_unlabelled(data, split) for split in ("train", "val"))
    assert recipe.conversion is not None
    return pictures, limited(held_out, recipe.conversion.judged)


def open_split(data: str, split: Literal["train", "val"], recipe: Recipe) -> Source:
    """The training ("train") or validation ("val") pictures."""
    if recipe.left_out is not None:
        source = open_source(data, "train")
        lists = None if recipe.split_lists is None else read_split_lists(Path(recipe.split_lists), source)
        return leave_out(source, recipe.left_out, split, recipe.held_out_share, lists)
    if recipe.hold_out:
        return held_out_tenth(open_source(data, "train"), split)
    try:
        return open_source(data, split)
    except ValueError as error:
        if split == "train":
            raise
        raise ValueError(f"{error}. Without such pictures, --hold-out validates on a tenth of the others") from error


def from_anywhere(recipe: Recipe) -> Recipe:
    """A recipe with absolute paths, which does not depend on the working directory."""
    lists = None if recipe.split_lists is None else absolute(recipe.split_lists)
    return replace(
        recipe, initial=absolute_word(recipe.initial), teacher=absolute_word(recipe.teacher), split_lists=lists
    )


def absolute_word(word: str | None) -> str | None:
    if word is None:
        return None
    *name, path = word.split(":", 2) if word.startswith("timm:") else [word]
    if len(name) == 1 or not Path(path).exists():  # timm:NAME has no file
        return word
    return ":".join([*name, str(Path(path).resolve())])


def check_classes(pictures: Source, held_out: Source) -> None:
    """Raises a ValueError unless both have the same classes, two at least."""
    if pictures.classes != held_out.classes:
        missing, extra = (
            sorted(set(one.classes) - set(other.classes)) for one, other in ((pictures, held_out), (held_out, pictures))
        )
        raise ValueError(
            f"the classes of {pictures.name} and {held_out.name} differ: "
            f"only in the first {', '.join(missing[:5]) or 'none'}, only in the second {', '.join(extra[:5]) or 'none'}"
        )
    if len(pictures.classes) < 2:
        raise ValueError(f"{pictures.name} has one class only, {pictures.classes[0]}: there is nothing to tell apart")


def check_apart(pictures: Source, held_out: Source) -> None:
    """Raises a ValueError if training and validation share pictures. Parts of one source never do."""
    shared = pictures.stores() & held_out.stores()
    if isinstance(pictures, Part) or not shared:
        return
    if pictures.name == held_out.name:
        found = ", ".join(pictures.classes[:5]) + (", ..." if len(pictures.classes) > 5 else "")
        problem = f"{pictures.name} has no separate train and val: what was found are the classes {found}"
    else:
        problem = f"{pictures.name} and {held_out.name} share pictures, such as those of {min(shared)}"
    raise ValueError(
        f"{problem}. Accuracy on pictures that are trained on says nothing: add --hold-out to validate on a tenth of "
        "them, which is then not trained on, or give pictures in train/<class> and val/<class>"
    )


def build(recipe: Recipe, pictures: Source) -> Classifier:
    """The model to train."""
    if recipe.conversion is not None:
        return set_solving(build_converted(recipe), recipe)
    count = len(pictures.classes)
    options = {"num_classes": count, "img_size": recipe.img_size, "drop_path_rate": recipe.drop_path}
    if recipe.patch_size is not None:
        options["patch_size"] = recipe.patch_size
    if recipe.model.startswith("timm:") and not takes_size(recipe.model):
        del options["img_size"]
    if recipe.attention_options:
        options["attention_options"] = recipe.options_of_attention()
    try:
        if recipe.initial is None:
            classifier = Classifier(create(recipe.model, **options))
        else:
            classifier = build_from(recipe.initial, recipe, pictures, options)
    except TypeError as error:
        raise ValueError(f"{recipe.model} takes no {' '.join(recipe.attention_options)}: {error}") from error
    classifier.classes = tuple(pictures.classes)
    return set_solving(classifier, recipe)


def set_solving(classifier: Classifier, recipe: Recipe) -> Classifier:
    """Sets the solvers and strengths of VARS layers to those of the recipe."""
    layers = [layer for layer in classifier.modules() if isinstance(layer, Reconstruction)]
    changed = [name for name in ("solver", "steps", "start", "strength") if getattr(recipe, name) is not None]
    if changed and not layers:
        raise ValueError(f"{recipe.model} has no VARS layer: leave out {', '.join(changed)}")
    for layer in layers:
        if recipe.solver is not None:
            layer.solver = solver_from({"name": recipe.solver})
        for name in ("steps", "start"):
            if getattr(recipe, name) is not None:
                setattr(layer.solver, name, getattr(recipe, name))
        if recipe.strength is not None:
            layer.strength = recipe.strength
    return classifier


def build_converted(recipe: Recipe) -> Classifier:
    """The original model with its attention replaced, and with initial weights if there are any."""
    assert recipe.conversion is not None
    _, classifier = open_classifier(recipe.conversion.original)
    convert_as(recipe, classifier)
    if recipe.initial is not None:
        folder = Path(recipe.initial)
        stored.load_whole(classifier.model, stored.read_safetensors(folder / stored.WEIGHTS), folder / stored.WEIGHTS)
    return classifier


def convert_as(recipe: Recipe, classifier: Classifier) -> Classifier:
    """Replaces the attention of a model as the recipe says."""
    assert recipe.conversion is not None
    name, layers = recipe.conversion.attention, recipe.conversion.layers
    try:
        convert(classifier.model, name, layers=layers, **recipe.options_of_attention())
    except TypeError as error:
        raise ValueError(f"{name} takes no {' '.join(recipe.attention_options)}: {error}") from error
    return classifier


def pose(recipe: Recipe, classifier: Classifier, pictures: Source, device: torch.device, steps: int) -> Objective:
    """The objective of a run of some steps."""
    if recipe.conversion is None:
        mix = Mix(recipe.mixup, recipe.cutmix, recipe.switch, recipe.smoothing, len(pictures.classes))
        teacher = None if recipe.teacher is None else load_teacher(recipe.teacher, pictures.classes, recipe.img_size)
        return Labels(classifier, mix, None if teacher is None else teacher.to(device), recipe)
    columns = columns_of(classifier, pictures)
    if recipe.conversion.stage == "match":
        return Match(classifier, columns, recipe)
    _, original = open_classifier(recipe.conversion.original)
    return Join(classifier, original.to(device), columns, recipe, steps)


def columns_of(classifier: Classifier, pictures: Source) -> list[int] | None:
    """Index of the logit of each class of the pictures; None if they have no labels that the model knows."""
    known = class_names(classifier)
    if known is None or not pictures.classes or not set(pictures.classes) <= set(known):
        return None
    return [known.index(name) for name in pictures.classes]


def build_from(word: str, recipe: Recipe, pictures: Source, options: dict) -> Classifier:
    """A model with initial weights; its head is new if these are for other classes."""
    found = find_weights(word)
    if found.architecture != recipe.model:
        raise ValueError(
            f"the weights of {word} are of {found.architecture}, and the recipe is for {recipe.model}: take the "
            f"recipe of that model, or this one with --model {found.architecture}"
        )
    classifier = found.load(**options)
    if found.classes not in (None, tuple(pictures.classes)):
        cast(Described, classifier.model).reset_classifier(len(pictures.classes))
    return classifier


def load_teacher(word: str, classes: Sequence[str], size: int) -> nn.Module:
    """A teacher, which is not trained: pixels in [0, 1] -> logits of these classes. It may have more classes."""
    name, teacher = open_classifier(word)
    cfg = getattr(teacher.model, "pretrained_cfg", None) or {}
    if cfg.get("fixed_input_size") and own_size(teacher.model) != size:
        raise ValueError(f"the teacher {name} takes pictures of {own_size(teacher.model)} pixels only, not of {size}")
    known = class_names(teacher)
    found = getattr(teacher.model, "num_classes", len(classes))
    if known is not None and set(classes) <= set(known):
        teacher = Among(teacher, [known.index(each) for each in classes])
    elif found != len(classes) or known is not None:
        unknown = next((each for each in classes if each not in (known or ())), classes[0])
        raise ValueError(
            f"the teacher {name} has {found} classes and the pictures have {len(classes)}, such as {unknown}: "
            "it must know them by their names"
        )
    return teacher.eval().requires_grad_(False)


# Around the steps


def check_readable(problems: dict[str, str], most: float, folder: RunFolder) -> None:
    """Raises a ValueError if too many pictures could not be read."""
    if len(problems) > most:
        identity, problem = next(iter(problems.items()))
        raise ValueError(
            f"{len(problems)} pictures could not be read, more than the {most:.0f} allowed, such as "
            f"{identity} ({problem}): all are listed in {folder.path}; repair them, or allow a larger share"
        )


class Clock:
    """Times of the steps, and of waiting for data."""

    def __init__(self):
        self.restart()

    def restart(self) -> None:
        self.began, self.waited, self.steps = time.perf_counter(), 0.0, 0

    def waiting_for(self, batches: Iterable[Batch]) -> Iterable[Batch]:
        """Yields the batches, and measures the time in which none was ready."""
        batches = iter(batches)
        while True:
            begin = time.perf_counter()
            try:
                batch = next(batches)
            except StopIteration:
                return
            self.waited += time.perf_counter() - begin
            self.steps += 1
            yield batch

    def lap(self, batch: int) -> dict[str, float]:
        """Times since the last restart: seconds, pictures per second, and the share of time spent waiting for data."""
        seconds = time.perf_counter() - self.began
        return {
            "seconds": seconds,
            "images_per_second": self.steps * batch / seconds,
            "waiting_share": self.waited / seconds,
        }
