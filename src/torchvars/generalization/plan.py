"""The settings of a generalisation, and the recipe and folder of each of its runs."""

import ast
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from ..data import absolute
from ..models.unfinished import GENERALIZATION
from ..models.weights import write_whole
from ..training.loop import Settings, absolute_word
from ..training.recipe import TENTHS, Recipe, pacs

METHODS = ("probe", "tune")
EXTENSIBLE = ("targets", "seeds", "methods", "output", "workers")  # all others decide the numbers of every run
GIVEN = ("model", "img_size", "left_out", "held_out_share", "split_lists", "seed", "initial")  # set by the plan


@dataclass(frozen=True)
class Plan:
    """The settings of a generalisation: model, pictures, targets, seeds and methods."""

    model: str
    """Initial weights: a name that ships, a folder, timm:NAME or timm:NAME:FILE."""
    data: str
    """Pictures in <domain>/<class>/<picture>: a folder or a tar."""
    output: Path
    targets: tuple[str, ...] = ()
    """Domains to leave out, one at a time; none: each."""
    seeds: tuple[int, ...] = (0,)
    methods: tuple[str, ...] = METHODS
    """A linear probe of the frozen model, and fine-tuning of all its weights."""
    held_out_share: float | None = None
    """Held-out share of the other domains; none: by the lists that come with the pictures, else a tenth."""
    split_lists: str | None = None
    """Folder of the lists that PACS is published with."""
    img_size: int | None = None
    """Side of the pictures in pixels; none: the model's own."""
    corrupted: str | None = "photo"
    """Domain on whose pictures fine-tuned models are evaluated under corruptions; none: no such evaluation."""
    corrupted_pictures: int = 100
    changed: tuple[str, ...] = ()
    """Fields of the recipe, such as epochs=10."""
    workers: int = 1

    def __post_init__(self):
        for name in ("targets", "seeds", "methods", "changed"):  # lists, if they were read from JSON
            object.__setattr__(self, name, tuple(getattr(self, name)))
        object.__setattr__(self, "output", Path(self.output).expanduser())
        if unknown := [name for name in self.methods if name not in METHODS]:
            raise ValueError(f"no method {unknown[0]!r}: there are {', '.join(METHODS)}")
        if not self.methods or not self.seeds:
            raise ValueError(f"give one method (of {', '.join(METHODS)}) and one seed at least")
        for name in ("targets", "seeds", "methods"):
            if len(set(getattr(self, name))) < len(getattr(self, name)):
                raise ValueError(f"{name} must be given once each, got {', '.join(map(str, getattr(self, name)))}")
        if invalid := [seed for seed in self.seeds if seed < 0]:
            raise ValueError(f"seeds must be 0 or more, got {invalid[0]}")
        if self.held_out_share not in (None, *TENTHS):
            raise ValueError(f"held_out_share must be one of {', '.join(map(str, TENTHS))}, got {self.held_out_share}")
        if self.corrupted_pictures < 1:
            raise ValueError(f"corrupted_pictures must be at least 1, got {self.corrupted_pictures}")

    def folder(self, target: str, kind: int | str) -> Path:
        """The folder of the run with a seed, or of the "probe"."""
        return self.output / "runs" / target / (kind if isinstance(kind, str) else f"seed_{kind}")

    def recipe(self, architecture: str, size: int, target: str, seed: int) -> Recipe:
        """The recipe of the run that leaves a domain out."""
        recipe = replace(
            pacs(architecture),
            img_size=size,
            left_out=target,
            held_out_share=self.held_out_share or 0.1,
            split_lists=self.split_lists,
            seed=seed,
            initial=self.model,
        )
        return replace(recipe, **changes(self.changed))

    def settings(self, target: str, seed: int) -> Settings:
        return Settings(self.data, self.folder(target, seed), self.workers, checkpoint_every=50)

    def resolved(self) -> "Plan":
        """The plan with absolute paths, and with the defaults of the split decided."""
        data, lists = absolute(self.data), self.split_lists
        if lists is None and self.held_out_share is None and any(Path(data).glob("*_crossval_kfold.txt")):
            lists = data
        lists, share = lists and absolute(lists), self.held_out_share or 0.1
        return replace(self, model=absolute_word(self.model), data=data, split_lists=lists, held_out_share=share)

    def describe(self) -> dict:
        """The settings that decide the numbers, as values of JSON."""
        settings = {name: value for name, value in asdict(self).items() if name not in EXTENSIBLE}
        return json.loads(json.dumps(settings))

    def write(self) -> None:
        self.output.mkdir(parents=True, exist_ok=True)
        text = json.dumps({**asdict(self), "output": str(self.output)}, indent=1) + "\n"
        write_whole(self.output / GENERALIZATION, lambda path: path.write_text(text))


def read_plan(folder: Path) -> Plan:
    """The plan stored in a folder."""
    file = Path(folder) / GENERALIZATION
    if not file.exists():
        raise FileNotFoundError(f"nothing to resume at {folder}: there is no {GENERALIZATION}")
    return Plan(**{**json.loads(file.read_text()), "output": folder})


def extended(plan: Plan, before: Plan) -> Plan:
    """A plan combined with the one stored in its folder: all targets, seeds and methods of both.

    Raises:
        ValueError: they differ in settings that decide the numbers.
    """
    old, new = before.describe(), plan.describe()
    if differences := [f"{name} {old[name]}, now {new[name]}" for name in new if old[name] != new[name]]:
        raise ValueError(
            f"{plan.output} was begun with other settings ({'; '.join(differences)}): give another folder, or the same "
            "settings; targets, seeds and methods can be added"
        )
    both = {name: tuple(dict.fromkeys([*getattr(before, name), *getattr(plan, name)])) for name in ("seeds", "methods")}
    targets = tuple(dict.fromkeys([*before.targets, *plan.targets])) if before.targets and plan.targets else ()
    return replace(plan, targets=targets, **both)


def changes(words: tuple[str, ...]) -> Mapping[str, object]:
    """Changed fields of the recipe, from FIELD=VALUE."""
    names = {each.name for each in fields(Recipe)} - {*GIVEN, "conversion", "hold_out"}
    values = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or name not in names:
            raise ValueError(
                f"a change of the recipe is FIELD=VALUE, such as epochs=10 or learning_rate=2e-3: got {word!r}"
                + (f", and {name} has an option of its own" if name in GIVEN else "")
            )
        with suppress(ValueError, SyntaxError):  # else it is text
            value = ast.literal_eval(value)
        values[name] = value
    return values
