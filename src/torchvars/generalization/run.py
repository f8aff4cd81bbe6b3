"""Leave one domain out: training, model selection, evaluation and results for each target domain and seed.

    generalize.json          the plan
    results.json             all scores, and which pictures of the targets were recognised
    accuracy.png             a figure of the scores
    features.safetensors     features of all pictures by the original model, for the linear probes
    runs/<target>/seed_0/    an ordinary training run, with its evaluations in results/ and its scores in scores.json
    runs/<target>/probe/     weights of the linear probe, and its scores.json

A run with scores.json is complete; any other resumes from its last checkpoint and its last evaluated condition.
"""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from rich.console import Console
from safetensors.torch import load_file, save_file

from ..data import (
    Order,
    Source,
    check_domains,
    domainbed_part,
    leave_out,
    open_source,
    read_split_lists,
)
from ..data import Part as SourcePart
from ..data.domains import check_sources, domain_of
from ..evaluation import run as evaluation
from ..evaluation.benchmarks.base import Benchmark, ClassOptions, Data, Showing, centred
from ..evaluation.benchmarks.corruptions import CorruptionBenchmarkOptions, corruptions
from ..evaluation.benchmarks.shifts import DomainOptions, pacs
from ..evaluation.conditions import ALL_CORRUPTIONS, CLEAN, Condition
from ..evaluation.corruptions import PUBLISHED
from ..evaluation.labels import digest_of
from ..evaluation.metrics import bootstrap
from ..evaluation.subjects import check_size, digest_weights, subject_of
from ..models import Classifier
from ..models import weights as stored
from ..models.classifier import own_size
from ..models.environment import environment
from ..models.lock import held
from ..models.peers import takes_size
from ..models.sources import Weights, find_weights
from ..models.unfinished import CHECKPOINTS, GENERALIZATION
from ..scoring import Processes
from ..training.checkpoint import Checkpoints
from ..training.folder import RunFolder
from ..training.loop import RELEASE, check_processes, from_anywhere, train_on
from ..training.processes import join_restarted
from ..training.recipe import Recipe
from ..training.recipe import pacs as pacs_recipe
from ..training.report import Bar, make_bar
from .plan import GIVEN, Plan, changes, extended, read_plan
from .probe import choose, features_of, only_head, set_head
from .results import CHOSEN, LAST, PLAIN, PROBE, Generalization, Part, Score, read_parts

RESULTS, SCORES, FEATURES = "results.json", "scores.json", "features.safetensors"
BATCH = 64  # batch size of evaluations


def generalize(plan: Plan) -> Generalization | signal.Signals:
    """Runs a plan, or the rest of it.

    Returns:
        The results, or the signal that stopped it, after a checkpoint.

    Raises:
        ValueError: the pictures, the model or the settings do not fit; raised before anything is trained.
    """
    join_restarted()
    AcceleratorState._reset_state()
    plan = plan.resolved()
    if plan.output.exists() and not plan.output.is_dir():
        raise NotADirectoryError(f"{plan.output} is a file: give --output a folder")
    begun = (plan.output / GENERALIZATION).exists()
    whole = extended(plan, read_plan(plan.output)) if begun else plan
    precision = replace(pacs_recipe(""), **changes(plan.changed)).precision
    accelerator = Accelerator(mixed_precision=precision, cpu=not torch.accelerator.is_available())
    first = accelerator.is_main_process
    refusal = f"another process is writing {plan.output}: wait for its end, stop it, or take another folder"
    with held(plan.output, refusal, RELEASE) if first else nullcontext():
        work = Work(plan, accelerator)
        work.check()
        if first:
            whole.write()
        accelerator.wait_for_everyone()
        stopped_by = work.go()
        accelerator.wait_for_everyone()
        outcome = stopped_by or work.results()
    accelerator.end_training()
    return outcome


@dataclass(frozen=True)
class Work:
    """A plan with its pictures and model, and the processes that run it."""

    plan: Plan
    accelerator: Accelerator

    @cached_property
    def source(self) -> Source:
        """All pictures of all domains."""
        return open_source(self.plan.data, "train")

    @cached_property
    def domains(self) -> dict[str, dict[str, int]]:
        return check_domains(self.source, self.plan.targets)

    @cached_property
    def classes(self) -> list[str]:
        return sorted(next(iter(self.domains.values())))

    @property
    def targets(self) -> list[str]:
        return [domain for domain in self.domains if not self.plan.targets or domain in self.plan.targets]

    @cached_property
    def lists(self) -> dict[str, str] | None:
        return None if self.plan.split_lists is None else read_split_lists(Path(self.plan.split_lists), self.source)

    @cached_property
    def initial(self) -> Weights:
        """The initial weights."""
        return find_weights(self.plan.model)

    @cached_property
    def original(self) -> Classifier:
        return self.initial.load()

    @cached_property
    def size(self) -> int:
        return self.plan.img_size or own_size(self.original.model)

    def recipe(self, target: str, seed: int) -> Recipe:
        return self.plan.recipe(self.initial.architecture, self.size, target, seed)

    @property
    def corrupted(self) -> str | None:
        """The domain for the evaluation under corruptions, if there is one."""
        return self.plan.corrupted if self.plan.corrupted in self.domains else None

    @property
    def share(self) -> float:
        """Held-out share of the pictures of the source domains."""
        return self.plan.held_out_share or 0.1

    def part(self, target: str, split: Literal["train", "val", "test"]) -> Source:
        return leave_out(self.source, target, split, self.share, self.lists)

    def with_head(self) -> Classifier:
        """The original model for pictures of this size, with a new head for the classes."""
        architecture = self.initial.architecture
        fixed = not architecture.startswith("timm:") or takes_size(architecture)
        size = {"img_size": self.size} if fixed and self.size != own_size(self.original.model) else {}
        torch.manual_seed(0)
        classifier = self.initial.load(num_classes=len(self.classes), **size)
        classifier.classes = tuple(self.classes)
        return classifier

    # Before the first run

    def check(self) -> None:
        """Raises a ValueError if pictures, model or settings do not fit; before anything is trained or written."""
        plan = self.plan
        _ = self.domains
        if (plan.output / RESULTS).exists():
            before, now = Generalization.read(plan.output / RESULTS).model["sha256"], digest_weights(self.original)
            if before != now:
                raise ValueError(f"{plan.output} was begun with other weights of {plan.model}: give another folder")
        if plan.corrupted not in (None, "photo", *self.domains):
            raise ValueError(
                f"no domain {plan.corrupted!r} to corrupt in {self.source.name}: it has {', '.join(self.domains)}"
            )
        for target in self.targets:
            check_sources(self.source, target, self.share, self.lists)
        if self.initial.architecture.startswith("transformers:"):
            raise ValueError(f"{plan.model} is a model of transformers, which is not trained here: take one of timm")
        if self.plan.img_size is not None:
            check_size(self.initial.name, self.with_head(), self.size)
        if "probe" in plan.methods:
            only_head(self.original.model)
        for target in self.targets if "tune" in plan.methods else ():
            recipe, settings = self.recipe(target, plan.seeds[0]), plan.settings(target, plan.seeds[0])
            check_processes(recipe, settings, self.accelerator)
            world = self.accelerator.num_processes
            Order(len(self.part(target, "train")), recipe.batch // world, 0, recipe.repeats, 0, world)

    def notes(self) -> list[str]:
        """Remarks on the pictures that belong to the numbers."""
        lines = []
        held_out = f"{100 * self.share:.0f} % of the pictures of the sources, drawn by their names"
        if self.lists is not None:
            held_out = "the crossval lists"
        lines.append(f"source validation: {held_out}; they are not trained on, and select the epoch")
        if faulty := [each for each in self.source.identities if each.rpartition(".")[0] == FAULTY]:
            lines.append(f"{faulty[0]}, which shows the word ERROR, is treated as any other picture")
        return lines

    # The runs

    def go(self) -> signal.Signals | None:
        """Runs all that is not complete. Returns the signal that stopped it, if any."""
        plan, first = self.plan, self.accelerator.is_main_process
        runs = [(target, "probe") for target in self.targets if "probe" in plan.methods]
        runs += [(target, seed) for seed in plan.seeds for target in self.targets if "tune" in plan.methods]
        with progress(len(runs), first) as (bar, overall):
            for number, (target, kind) in enumerate(runs, 1):
                folder = plan.folder(target, kind)
                name = f"{target}, linear probe" if kind == "probe" else f"{target}, seed {kind}"
                overall(number - 1, name)
                done = (folder / SCORES).exists()
                self.accelerator.wait_for_everyone()  # so that all processes have seen the same files
                if done:
                    continue
                if first and bar is None:
                    print(f"{number} of {len(runs)}: {name}", flush=True)
                part = self.tuned(target, kind, bar) if isinstance(kind, int) else self.probed(target)
                if isinstance(part, signal.Signals):
                    return part
                if first:
                    part.write(folder / SCORES)
                    self.results().write(plan.output / RESULTS)
                    (bar.console.print if bar else print)(summary(part))
                self.accelerator.wait_for_everyone()
            overall(len(runs), "done")
        return None

    def results(self) -> Generalization:
        """The results of all complete runs in the folder."""
        kinds = ["probe", *sorted(read_plan(self.plan.output).seeds)]
        files = [self.plan.folder(target, kind) / SCORES for kind in kinds for target in self.domains]
        names = {domain: [] for domain in self.domains}
        for identity in self.source.identities:
            names[domain_of(identity)].append(identity)
        settings = {**self.plan.describe(), "img_size": self.size}
        for name in ("data", "split_lists"):  # paths are not part of the result
            settings[name] = settings[name] and Path(settings[name]).name
        model = {
            "name": self.initial.name,
            "architecture": self.initial.architecture,
            "sha256": digest_weights(self.original),
        }
        settings["model"] = self.initial.name
        decided = asdict(self.recipe(self.targets[0], 0))
        settings["recipe"] = {name: value for name, value in decided.items() if name not in (*GIVEN, "conversion")}
        pictures = {domain: digest_of(each) for domain, each in names.items()}
        here = environment()
        return Generalization(model, settings, self.domains, pictures, read_parts(files), self.notes(), here)

    def tuned(self, target: str, seed: int, bar: Bar | None) -> Part | signal.Signals:
        """Fine-tunes and evaluates with a domain left out."""
        recipe, settings = self.recipe(target, seed), self.plan.settings(target, seed)
        run = settings.output
        if not (run / "weights" / stored.CONFIG).exists():
            begun = RunFolder(run).exists() and any((run / CHECKPOINTS).glob("step_*"))
            if begun and RunFolder(run).settings()[0] != from_anywhere(recipe):
                raise ValueError(f"{run} holds a run of another recipe: take another --output, or remove that folder")
            self.accelerator.wait_for_everyone()
            if stopped_by := train_on(self.accelerator, recipe, settings, begun, bar):
                return stopped_by
            self.accelerator.wait_for_everyone()  # until the first has written the weights
        checkpoints = Checkpoints(run / CHECKPOINTS)
        chosen, last = checkpoints.best(), checkpoints.latest()
        epochs = {line["step"]: round(line["epoch"]) for line in RunFolder(run).metrics()}
        scores, right = [], {}
        for which, path in ((CHOSEN, chosen), (LAST, last)):
            assert path is not None  # the run has ended
            tensors, facts = checkpoints.read(path)
            epoch = epochs[facts["progress"]["step"]]
            for ending, state in (
                ("", tensors["model"] | tensors.get("average", {})),
                *([(PLAIN, tensors["model"])] if "average" in tensors else []),
            ):
                name = which + ending
                if which == LAST and path == chosen:  # the same weights
                    scores += [
                        replace(score, weights=name)
                        for score in scores
                        if score.weights == CHOSEN + ending and score.metric not in CORRUPTED
                    ]
                    continue
                state = {key.removeprefix("model."): tensor for key, tensor in state.items()}
                classifier = stored.rebuild(stored.read_config(run / "weights"), state, run / "weights")
                new, column = self.evaluated(target, seed, name, epoch, classifier, run, bar)
                scores, right = scores + new, right | {name: column}
        return Part(target, seed, tuple(scores), right)

    def probed(self, target: str) -> Part:
        """Fits and evaluates a linear probe with a domain left out."""
        classifier = self.with_head()
        features, unread = self.features(classifier)
        place = {identity: number for number, identity in enumerate(self.source.identities)}
        parts = {split: self.part(target, split) for split in ("train", "val", "test")}
        rows = {name: torch.tensor([place[identity] for identity in part.identities]) for name, part in parts.items()}
        labels = {name: torch.tensor(part.labels) for name, part in parts.items()}
        read = {name: ~unread[each] for name, each in rows.items()}
        readable = [(features[rows[name][read[name]]], labels[name][read[name]]) for name in ("train", "val")]
        probe = choose(readable[0], readable[1], len(self.classes))
        set_head(classifier.model, probe)
        if self.accelerator.is_main_process:
            stored.save(classifier, self.plan.folder(target, "probe") / "weights")
        right = {
            name: (probe(features[rows[name]]).argmax(-1) == labels[name]) & read[name] for name in ("val", "test")
        }
        scores = self.scores(target, None, PROBE, None, right["test"].numpy(), right["val"].numpy())
        return Part(target, None, tuple(scores), {PROBE: right["test"].numpy()})

    def features(self, classifier: Classifier) -> tuple[torch.Tensor, torch.Tensor]:
        """Features of all pictures, and which could not be read."""
        file = self.plan.output / FEATURES
        if not file.exists():
            features, unread = features_of(
                classifier, self.source, self.size, Processes(), batch=BATCH, workers=self.plan.workers
            )
            if self.accelerator.is_main_process:
                tensors = {"features": features, "unread": unread}
                stored.write_whole(file, lambda path: save_file(tensors, path))
            self.accelerator.wait_for_everyone()
        tensors = load_file(file)
        return tensors["features"], tensors["unread"]

    # Evaluation

    def evaluated(
        self,
        target: str,
        seed: int,
        name: str,
        epoch: int,
        classifier: Classifier,
        run: Path,
        bar: Bar | None,
    ) -> tuple[list[Score], np.ndarray]:
        """The scores of some weights, and which pictures of the target were recognised."""
        label = f"{self.initial.name}, {target} left out, seed {seed}, {name}"
        subject = subject_of(label, classifier, None if own_size(classifier.model) == self.size else self.size)
        plan = self.plan
        whole = pacs(Data(plan.data, self.source), subject, DomainOptions(left_out=target))
        sources = self.part(target, "val")
        validation = Benchmark(
            "source_validation",
            f"{centred(subject)}; top-1 on what is held out of the domains trained on",
            Data(plan.data).name,
            [Showing(CLEAN, sources)],
            ClassOptions().task(sources, subject),
        )
        benchmarks = [whole, validation]
        if name == CHOSEN and self.corrupted is not None:
            untrained = whole.source if target == self.corrupted else self.of_domain(sources, self.corrupted)
            options = CorruptionBenchmarkOptions(limit=plan.corrupted_pictures, corruptions=tuple(PUBLISHED))
            benchmarks.append(corruptions(Data(plan.data, untrained), subject, options))
        file = run / "results" / f"{name.replace(', ', '_').replace(' ', '_')}.json"
        with watching(bar) as watch:
            results = evaluation.evaluate(
                subject, benchmarks, file, batch=BATCH, workers=plan.workers, watch=watch, device=None
            )
        right = results.outcomes["pacs"][Condition("shift", target)].columns["right"]
        held_out = results.outcomes["source_validation"][CLEAN].columns["right"]
        scores = self.scores(target, seed, name, epoch, right, held_out)
        if len(benchmarks) > 2:
            for metric, condition in zip(CORRUPTED, (ALL_CORRUPTIONS, CLEAN), strict=True):
                row = results.value("corruptions", "accuracy", condition.name)
                assert row is not None  # it was evaluated
                scores.append(Score(target, seed, name, epoch, metric, row.value, row.low, row.high, row.images))
        return scores, right

    def scores(
        self, target: str, seed: int | None, name: str, epoch: int | None, right: np.ndarray, held_out: np.ndarray
    ) -> list[Score]:
        """Scores from recognised pictures: of the target, and of the held-out pictures of the other domains."""
        within = domainbed_part(self.source, target, seed or 0)
        some = right[[within(identity) for identity in self.part(target, "test").identities]]
        place = partial(Score, target, seed, name, epoch)
        return [
            place("target", *bootstrap(100.0 * right), len(right)),
            place("target, DomainBed's 80 %", *bootstrap(100.0 * some), len(some)),
            place("source validation", *bootstrap(100.0 * held_out), len(held_out)),
            place("gap", 100 * float(held_out.mean() - right.mean()), None, None, len(right)),
        ]

    def of_domain(self, source: Source, domain: str) -> Source:
        return SourcePart(source, f"{domain} of {source.name}", lambda identity: domain_of(identity) == domain)


CORRUPTED = ("corrupted", "before corruption")
FAULTY = "sketch/dog/n02103406_4068-1"


def summary(part: Part) -> str:
    """The main scores of a run as a line of text."""
    main = part.scores[0].weights
    values = {score.metric: score.value for score in part.scores if score.weights == main}
    name = f"{part.target}, " + (PROBE if part.seed is None else f"seed {part.seed}")
    text = f"{name}: target {values['target']:.1f} %, source validation {values['source validation']:.1f} %"
    return text + (f", corrupted {values['corrupted']:.1f} %" if "corrupted" in values else "")


# Progress


@contextmanager
def progress(total: int, first: bool) -> Iterator[tuple[Bar | None, Callable[[int, str], object]]]:
    """A bar over targets and seeds in a terminal, in which training and evaluation have rows of their own."""
    console = Console()
    if not (first and console.is_terminal):
        yield None, lambda done, text: None
        return
    with make_bar(console) as bar:
        task = bar.add_task("domains and seeds", total=total, text="")
        yield bar, lambda done, text: bar.update(task, completed=done, text=text)


@contextmanager
def watching(bar: Bar | None) -> Iterator[evaluation.Watch | None]:
    """A row of the bar for the conditions of an evaluation."""
    if bar is None:
        yield None
        return
    task = bar.add_task("evaluation", total=None, text="")

    def update(now: evaluation.Progress) -> None:
        text = f"{now.benchmark}, {now.condition}: {now.value:.1f}{now.unit}"
        bar.update(task, total=now.count, completed=now.number - 1 + now.done / max(now.total, 1), text=text)

    try:
        yield update
    finally:
        bar.remove_task(task)
