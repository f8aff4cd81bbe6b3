"""Training, from top to bottom."""

import math
import signal
import time
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

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
    load,
    open_source,
)
from ..models import Classifier, create
from ..models import weights as stored
from ..models.lock import held
from ..models.peers import Among, class_names, open_classifier, own_size
from ..models.unfinished import CHECKPOINTS, resuming
from ..scoring import Asked, Processes, answers, score
from ..scoring.answers import UNREAD
from ..sparse import solver_from
from .augment import Mix, augment_patches, picture_transform
from .average import Average
from .checkpoint import Checkpoints, optimizer_tensors, restore_optimizer
from .distill import distillation_loss, soft_cross_entropy
from .folder import RunFolder
from .norms import share_statistics
from .processes import join_restarted
from .recipe import Recipe
from .report import Report
from .schedule import learning_rate, parameter_groups
from .sharding import shard, whole, whole_state
from .stopping import Stopping


@dataclass(frozen=True)
class Settings:
    """What does not change the result of a run."""

    data: str
    """Folder or tar with train/<class>/<picture> and val/<class>/<picture>, wds/FOLDER of shards, or hfds/NAME."""
    output: Path
    """Folder of the run."""
    workers: int = 1
    """Processes that read pictures, beside each that trains."""
    shard: bool = False
    """Spread the weights over the processes (FSDP2), for models that are too large for one device."""
    max_steps: int | None = None
    """Stop after so many steps, even if epochs are left."""
    checkpoint_every: int = 500
    """Steps."""
    keep_every: int | None = None
    """Checkpoints at multiples of so many steps are kept for good, beside the last two and the best."""
    unreadable_share: float = 0.01
    """Of the pictures; with more that cannot be read the run stops."""

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
    """Where a run is, and what it has summed up since the epoch began."""

    step: int = 0
    best: float = -1.0
    loss: float = 0.0
    correct: float = 0.0
    seen: int = 0
    unreadable: dict[str, str] = field(default_factory=dict)
    held_out_unreadable: dict[str, str] = field(default_factory=dict)


# Seconds to wait for the folder of a run that was killed: processes that read pictures for it notice that within 5, and
# may hold its lock till then.
RELEASE = 6


class Diverged(FloatingPointError):
    """The loss is no longer a number."""


def train(recipe: Recipe, settings: Settings, *, resume: bool = False) -> signal.Signals | None:
    """Trains a model as a recipe says, or goes on where a run was.

    Returns:
        the signal that stopped it before its end, after a checkpoint; None if it came to its end.
    """
    join_restarted()
    AcceleratorState._reset_state()  # a run before this one, in the same process, may have had another precision
    # Told so, it lets several processes on a machine without a GPU work together; else each would run by itself.
    accelerator = Accelerator(mixed_precision=recipe.precision, cpu=not torch.accelerator.is_available())
    check_processes(recipe, settings, accelerator)
    refusal = f"another training run is writing {settings.output}: wait for its end, stop it, or take another folder"
    with held(settings.output, refusal, RELEASE) if accelerator.is_main_process else nullcontext():
        told = _train(recipe, settings, resume, accelerator)
    accelerator.end_training()
    return told


def _train(recipe: Recipe, settings: Settings, resume: bool, accelerator: Accelerator) -> signal.Signals | None:
    rank, world, device = accelerator.process_index, accelerator.num_processes, accelerator.device
    folder, begins = RunFolder(settings.output), not resume and accelerator.is_main_process
    if begins:
        folder.check_free()
    pictures, held_out = (open_split(settings.data, split, recipe) for split in ("train", "val"))
    check_apart(pictures, held_out)
    check_classes(pictures, held_out)
    transform = picture_transform(
        recipe.img_size,
        training=True,
        auto_augment=recipe.auto_augment,
        color_jitter=recipe.color_jitter,
        scale=(recipe.smallest_crop, 1.0),
        erase=recipe.erase,
        crop=recipe.crop,
    )
    _ = Pictures(pictures, transform)[Draw(0, 0)]  # what does not fit is told before a run is begun
    shown = some_pictures(held_out, recipe.img_size).to(device)
    order = Order(len(pictures), recipe.batch // world, recipe.seed, recipe.repeats, rank, world)
    mix = Mix(recipe.mixup, recipe.cutmix, recipe.switch, recipe.smoothing, len(pictures.classes))

    torch.manual_seed(derive_seed(recipe.seed, "model"))
    classifier = build(recipe, pictures)
    described = stored.describe(classifier)  # what could not be saved at the end is told of now
    teacher = None if recipe.teacher is None else load_teacher(recipe.teacher, pictures.classes, recipe.img_size)
    # First: it says so if the folder cannot be written.
    checkpoints = Checkpoints(settings.output / CHECKPOINTS, settings.keep_every)
    if begins:  # only now: what is wrong with the call leaves no run behind
        stated = {**asdict(settings), "data": absolute(settings.data), "output": str(settings.output)}
        folder.begin(from_anywhere(recipe), stated, described)
    latest = checkpoints.latest() if resume else None
    tensors, facts = ({}, {}) if latest is None else checkpoints.read(latest)
    if latest is not None:
        classifier.load_state_dict(tensors["model"])
    if world > 1:
        share_statistics(classifier)
    classifier.to(device)
    if teacher is not None:
        teacher.to(device)
    if settings.shard:
        shard(classifier, classifier.model.blocks, world, device)
    optimizer = torch.optim.AdamW(parameter_groups(classifier.model, recipe), lr=recipe.learning_rate)
    average = None if recipe.ema is None else Average(classifier, recipe.ema)
    if settings.shard:
        model, optimizer = classifier, accelerator.prepare(optimizer)
    else:
        model, optimizer = accelerator.prepare(classifier, optimizer)
    progress = Progress(**facts.get("progress", {}))
    if latest is not None:
        restore_optimizer(model, optimizer, tensors["optimizer"], facts["optimizer"])
        if accelerator.scaler is not None and "scaler" in facts:
            accelerator.scaler.load_state_dict(facts["scaler"])
        if average is not None:
            average.load(tensors["average"])

    last = min(recipe.epochs * order.steps, settings.max_steps or math.inf)
    batches = load(Pictures(pictures, transform), order.batches(progress.step, last), settings.workers)

    def judged() -> AbstractContextManager:
        """The weights that are evaluated and kept: the averaged ones, if there are any."""
        return nullcontext() if average is None else average.applied(classifier)

    def checkpoint(best: bool = False) -> None:
        """Everything from which the run can go on, by one process for all."""
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

    report = Report(settings.output, progress.step, last, recipe.epochs) if accelerator.is_main_process else None
    clock = Clock()
    with Stopping(loud=report is not None) as stopping, nullcontext() if report is None else closing(report):
        for batch in clock.waiting_for(batches):
            step = progress.step
            rate = learning_rate(recipe, step, order.steps)
            for group in optimizer.param_groups:
                group["lr"] = rate * group["lr_scale"]
            torch.manual_seed(derive_seed(recipe.seed, "step", step, rank))  # of what is dropped within the model
            loss, correct = learn(accelerator, model, optimizer, batch, mix, teacher, recipe, step)
            if average is not None:
                average.update(classifier, step)
            counts = [loss, correct, len(batch.labels), stopping.told is not None, len(batch.problems)]
            counts = accelerator.reduce(torch.tensor(counts, device=device))
            loss, correct, seen, stop, broken = counts.tolist()  # if one is told to end, all do
            if not math.isfinite(loss):
                kept = checkpoints.latest()
                raise Diverged(
                    f"the loss is {loss / world} at step {step}: the last good checkpoint is {kept or 'none'}. "
                    "A lower learning rate, a longer warm-up or clip=1 may help"
                )
            progress.step, progress.seen = step + 1, progress.seen + int(seen)
            progress.loss, progress.correct = progress.loss + loss * seen / world, progress.correct + correct
            if report is not None:
                means = progress.loss / progress.seen, progress.correct / progress.seen
                report.step(progress.step, *means, clock.lap(recipe.batch)["images_per_second"])
            if broken:
                progress.unreadable |= dict(gather_object(list(batch.problems.items())))
                if report is not None:
                    folder.write_unreadable(progress.unreadable | progress.held_out_unreadable)
                check_readable(progress.unreadable, settings.unreadable_share * len(pictures), folder)
            if progress.step % order.steps == 0 or progress.step == last:
                times = clock.lap(recipe.batch)
                with judged():
                    metrics, progress.held_out_unreadable = evaluate(
                        accelerator, classifier, held_out, recipe, settings.workers
                    )
                    views = look(classifier, shown)
                line = {
                    "step": progress.step,
                    "epoch": progress.step / order.steps,
                    "learning_rate": rate,
                    "loss": progress.loss / progress.seen,
                    "accuracy": progress.correct / progress.seen,
                    **metrics,
                    "unreadable": len(progress.unreadable),
                }
                better = line["val_accuracy"] > progress.best
                progress.best = max(progress.best, line["val_accuracy"])
                progress.loss, progress.correct, progress.seen = 0.0, 0.0, 0
                if report is not None:
                    folder.add_metrics(line)
                    folder.add_times({"step": progress.step, **times})
                    if progress.held_out_unreadable:
                        folder.write_unreadable(progress.unreadable | progress.held_out_unreadable)
                    report.epoch(line, times, shown, views)
                checkpoint(best=better)
                clock.restart()
            elif progress.step % settings.checkpoint_every == 0 or stop:
                checkpoint()
            if stop and progress.step < last:
                if report is not None:
                    report.say(f"stopped at step {progress.step} of {last}: resume with {resuming(settings.output)}")
                return stopping.told or signal.SIGTERM  # which another process was told
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
    mix: Mix,
    teacher: nn.Module | None,
    recipe: Recipe,
    step: int,
) -> tuple[float, float]:
    """One step of the optimizer. Returns the loss, a mean over the batch, and how many pictures were named rightly."""
    pixels, labels = batch.pixels.to(accelerator.device), batch.labels.to(accelerator.device)
    mixed, targets = mix(pixels, labels, derive_seed(recipe.seed, "mix", step))
    model.train()
    optimizer.zero_grad()
    total, correct = 0.0, 0
    portions = list(zip(mixed.chunk(recipe.accumulate), targets.chunk(recipe.accumulate), strict=True))
    for number, (pixels, targets) in enumerate(portions):
        # Processes add up their gradients with the last portion only.
        with accelerator.no_sync(model) if number < len(portions) - 1 else nullcontext():
            with accelerator.autocast():
                logits = model(pixels)
                loss = soft_cross_entropy(logits.float(), targets)
                if recipe.patches:
                    seed = derive_seed(recipe.seed, "patches", step, accelerator.process_index, number)
                    changed = augment_patches(pixels, probability=recipe.patches, seed=seed)
                    loss = loss + soft_cross_entropy(model(changed).float(), targets)
                if teacher is not None:
                    with torch.no_grad():
                        taught = teacher(pixels)
                    distilled = distillation_loss(
                        logits.float(), taught.float(), recipe.distillation, recipe.temperature
                    )
                    loss = torch.lerp(loss, distilled, recipe.distillation_weight)
            accelerator.backward(loss / len(portions))
        total += loss.detach() / len(portions)
        # A mixed picture counts for the label of its larger share.
        correct += (logits.argmax(-1) == targets.argmax(-1)).sum()
    if recipe.clip is not None:
        accelerator.clip_grad_norm_(model.parameters(), recipe.clip)
    optimizer.step()
    return total.item(), correct.item()


@torch.no_grad()
def evaluate(
    accelerator: Accelerator, classifier: Classifier, source: Source, recipe: Recipe, workers: int
) -> tuple[dict[str, float], dict[str, str]]:
    """Loss and accuracy on held-out pictures, each counted once however many processes share them.

    Returns them, and the pictures that could not be read, which are counted as not recognised and have no loss.
    """
    processes = Processes(accelerator.device)
    size = max(1, recipe.batch // processes.world)
    classifier.eval()

    def ask(asked: Asked) -> dict[str, Tensor]:
        return answers(classifier(asked.pixels), torch.tensor(asked.targets))

    scores = score(source, Shown(recipe.img_size), ask, UNREAD, processes, batch=size, workers=workers, together=True)
    # Summed a batch at a time, as the curves of all runs were: also their last digits are the same.
    parts = zip(scores.columns["loss"].split(size), scores.unread.split(size), strict=True)
    loss = sum(float(losses[~unread].sum()) for losses, unread in parts)
    read, right = int((~scores.unread).sum()), int(scores.columns["right"].sum())
    return {"val_loss": loss / max(read, 1), "val_accuracy": right / len(source)}, scores.problems


def some_pictures(source: Source, size: int, count: int = 8) -> Tensor:
    """A few pictures from all over a source, so of several classes; the same all along."""
    pictures = Pictures(source, picture_transform(size, training=False))
    count = min(count, len(source))
    return torch.stack([pictures[Draw(number * len(source) // count, 0)].pixels for number in range(count)])


# Before the first step


def check_processes(recipe: Recipe, settings: Settings, accelerator: Accelerator) -> None:
    """A ValueError if these processes cannot share the work as they are told to."""
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


def open_split(data: str, split: str, recipe: Recipe) -> Source:
    """The pictures to train on ("train") or to judge by ("val")."""
    if recipe.left_out is not None:
        return leave_out(open_source(data, "train"), recipe.left_out, split)
    if recipe.hold_out:
        return held_out_tenth(open_source(data, "train"), split)
    try:
        return open_source(data, split)
    except ValueError as error:
        if split == "train":
            raise
        raise ValueError(f"{error}. Without such pictures, --hold-out validates on a tenth of the others") from error


def from_anywhere(recipe: Recipe) -> Recipe:
    """A recipe whose words for models mean the same in whatever folder one is, also if they name files or folders."""
    return replace(recipe, initial=_absolute(recipe.initial), teacher=_absolute(recipe.teacher))


def _absolute(word: str | None) -> str | None:
    if word is None:
        return None
    *name, path = word.split(":", 2) if word.startswith("timm:") else [word]
    if len(name) == 1 or not Path(path).exists():  # timm:NAME has no file
        return word
    return ":".join([*name, str(Path(path).resolve())])


def check_classes(pictures: Source, held_out: Source) -> None:
    """A ValueError unless both have the same classes, two at least."""
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
    """A ValueError if pictures to train on are also there to validate on. Parts of one source never share any."""
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
    """The model that is to be trained."""
    count = len(pictures.classes)
    options = {"num_classes": count, "img_size": recipe.img_size, "drop_path_rate": recipe.drop_path}
    if recipe.patch_size is not None:
        options["patch_size"] = recipe.patch_size
    if recipe.attention_options:
        options["attention_options"] = recipe.options_of_attention()
    try:
        if recipe.initial is None:
            classifier = Classifier(create(recipe.model, **options))
        else:
            classifier = build_from(stored.resolve(recipe.initial), recipe, pictures, options)
    except TypeError as error:
        raise ValueError(f"{recipe.model} takes no {' '.join(recipe.attention_options)}: {error}") from error
    classifier.classes = tuple(pictures.classes)
    layers = [layer for layer in classifier.modules() if isinstance(layer, Reconstruction)]
    told = [name for name in ("solver", "steps", "start", "strength") if getattr(recipe, name) is not None]
    if told and not layers:
        raise ValueError(f"{recipe.model} has no VARS layer: leave out {', '.join(told)}")
    for layer in layers:
        if recipe.solver is not None:
            layer.solver = solver_from({"name": recipe.solver})
        for name in ("steps", "start"):
            if getattr(recipe, name) is not None:
                setattr(layer.solver, name, getattr(recipe, name))
        if recipe.strength is not None:
            layer.strength = recipe.strength
    return classifier


def build_from(folder: Path, recipe: Recipe, pictures: Source, options: dict) -> Classifier:
    """A model with weights to begin with; its head is new if these were of other classes."""
    config = stored.read_config(folder)
    if config["architecture"] != recipe.model:
        raise ValueError(
            f"the weights of {folder} are of {config['architecture']}, and the recipe is for {recipe.model}: take the "
            f"recipe of that model, or this one with --model {config['architecture']}"
        )
    classifier = stored.load(folder, **options)
    if config.get("classes", list(pictures.classes)) != list(pictures.classes):
        classifier.model.reset_classifier(len(pictures.classes))
    return classifier


def load_teacher(word: str, classes: Sequence[str], size: int) -> nn.Module:
    """Pixels in [0, 1] -> logits for these classes of a model that is not trained; it may know more."""
    name, teacher = open_classifier(word)
    cfg = getattr(teacher.model, "pretrained_cfg", None) or {}
    if cfg.get("fixed_input_size") and own_size(teacher.model) != size:
        raise ValueError(f"the teacher {name} takes pictures of {own_size(teacher.model)} pixels only, not of {size}")
    known = class_names(teacher)
    found = getattr(teacher.model, "num_classes", len(classes))
    if known is not None and set(classes) <= set(known):
        teacher = Among(teacher, [known.index(each) for each in classes])
    elif found != len(classes) or known is not None:
        stranger = next((each for each in classes if each not in (known or ())), classes[0])
        raise ValueError(
            f"the teacher {name} has {found} classes and the pictures have {len(classes)}, such as {stranger}: "
            "it must know them by their names"
        )
    return teacher.eval().requires_grad_(False)


# Around the steps


def check_readable(problems: dict[str, str], most: float, folder: RunFolder) -> None:
    """A ValueError if more pictures than that could not be read."""
    if len(problems) > most:
        identity, problem = next(iter(problems.items()))
        raise ValueError(
            f"{len(problems)} pictures could not be read, more than the {most:.0f} allowed, such as "
            f"{identity} ({problem}): all are listed in {folder.path}; mend them, or allow a larger share"
        )


class Clock:
    """How long things take."""

    def __init__(self):
        self.restart()

    def restart(self) -> None:
        self.began, self.waited, self.steps = time.perf_counter(), 0.0, 0

    def waiting_for(self, batches: Iterable[Batch]) -> Iterable[Batch]:
        """The same batches; the time in which none was ready is noted."""
        batches = iter(batches)
        while True:
            asked = time.perf_counter()
            try:
                batch = next(batches)
            except StopIteration:
                return
            self.waited += time.perf_counter() - asked
            self.steps += 1
            yield batch

    def lap(self, batch: int) -> dict[str, float]:
        """Since it was started: seconds, pictures a second, and the share of the time spent waiting for data."""
        seconds = time.perf_counter() - self.began
        return {
            "seconds": seconds,
            "images_per_second": self.steps * batch / seconds,
            "waiting_share": self.waited / seconds,
        }
