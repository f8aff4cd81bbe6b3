"""Attacked pictures, and checks of the attacks."""

from collections.abc import Iterable, Set
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor, nn

from ...data import Source, limited
from ...models.peers import Among
from ...scoring import Asked
from ..attacks import ATTACKS, PGD, Attack, Square, Transferred
from ..conditions import CLEAN, Condition
from ..generators import generators_of
from ..masking import masking_signs, zero_gradients
from ..results import Results
from ..subjects import Subject
from ..tasks.classification import Judge
from .base import Ask, Benchmark, ClassOptions, Data, Member, Showing, centred


@dataclass(frozen=True)
class AttackOptions(ClassOptions):
    """The options of all attacks."""

    seed: int = 0
    """The random seed."""
    radii: tuple[float, ...] | None = None
    """The radii, with pixels in [0, 1]; 1, 2, 4 and 8 of 255 for linf by default, required for l2."""
    norm: str = "linf"
    """The norm of the radii, linf or l2."""
    transfer: Subject | None = None
    """Another model to attack; the evaluated model classifies the resulting pictures."""

    def __post_init__(self):
        super().__post_init__()
        if self.norm not in ("linf", "l2"):
            raise ValueError(f"norm must be linf or l2, got {self.norm!r}")
        if self.radii is None and self.norm == "linf":
            object.__setattr__(self, "radii", (1 / 255, 2 / 255, 4 / 255, 8 / 255))
        if self.radii is None:
            raise ValueError("l2 radii have no usual sizes: give --radii, such as .5 for 32 pixels or 3 for 224")
        if self.norm == "linf" and max(self.radii) > 1:
            raise ValueError(
                f"pixels are in [0, 1], and no linf radius is above 1, got {max(self.radii):g}: did you mean "
                f"{max(self.radii):g}/255?"
            )

    def chosen(self) -> tuple[float, ...]:
        """The radii, given or default."""
        assert self.radii is not None
        return self.radii


@dataclass(frozen=True)
class StepOptions(AttackOptions):
    """The options of attacks by many steps."""

    attack_steps: tuple[int, ...] = (5, 20)
    """Numbers of steps; each is a condition of its own."""


@dataclass(frozen=True)
class QueryOptions(AttackOptions):
    """The options of attacks by queries."""

    queries: int = 200
    """Number of queries."""


def pgd(data: Data, subject: Subject, options: StepOptions) -> Benchmark:
    """Accuracy under projected gradient descent (PGD)."""
    balls = [(steps, radius) for steps in options.attack_steps for radius in options.chosen()]
    attacks = [PGD(radius, norm=options.norm, steps=steps) for steps, radius in balls]
    return attacked("pgd", attacks, data, subject, options)


def fgsm(data: Data, subject: Subject, options: AttackOptions) -> Benchmark:
    """Accuracy under one step along the sign of the gradient (FGSM)."""
    attacks = [ATTACKS["fgsm"](radius, norm=options.norm) for radius in options.chosen()]
    return attacked("fgsm", attacks, data, subject, options)


def square(data: Data, subject: Subject, options: QueryOptions) -> Benchmark:
    """Accuracy under random squares, without gradients (Square)."""
    attacks = [Square(radius, norm=options.norm, queries=options.queries) for radius in options.chosen()]
    return attacked("square", attacks, data, subject, options)


def autoattack(data: Data, subject: Subject, options: AttackOptions) -> Benchmark:
    """Accuracy under the ensemble AutoAttack, with the package of its authors."""
    attacks = [ATTACKS["autoattack"](radius, norm=options.norm) for radius in options.chosen()]
    return attacked("autoattack", attacks, data, subject, options)


MEMBERS = {
    "pgd": Member(pgd, StepOptions),
    "fgsm": Member(fgsm, AttackOptions),
    "square": Member(square, QueryOptions),
    "autoattack": Member(autoattack, AttackOptions),
}


@dataclass(frozen=True)
class AttackChange:
    """An attack as a change of pictures.

    Args:
        benchmark, ball: text from which, with `seed`, the random generator of each picture is seeded.
    """

    attack: Attack | Transferred
    benchmark: str
    ball: str
    seed: int
    moves = False

    @property
    def passes(self) -> float:
        return self.attack.passes

    def __call__(self, judge: Judge, asked: Asked) -> Tensor:
        generators = generators_of(asked.identities, self.benchmark, self.ball, self.seed)
        labels, attack = judge.labels(asked.targets).to(asked.pixels.device), self.attack
        if isinstance(attack, Transferred):
            source = attack.source.to(asked.pixels.device)
            if isinstance(judge.model, Among):  # labels are indices of the label space
                source = Among(source, judge.model.columns.tolist()).to(asked.pixels.device)
            attack = replace(attack, source=source)
        return attack(judge.model, asked.pixels, labels, generators)


def attacked(name: str, attacks: Iterable[Attack], data: Data, subject: Subject, options: AttackOptions) -> Benchmark:
    """The benchmark of clean pictures and several attacks."""
    source = limited(data.source, options.limit)
    done, other = f"pixels in [0, 1], seed {options.seed}", options.transfer
    title, more = name, {}
    if other is not None:
        check_same_classes(subject, other)
        title, more = f"{name} of {other.name}", {"made_against": other.name}
        done += f"; made against {other.name}, sha256 {other.sha256[:12]}"
    showings = [Showing(CLEAN, source)]
    for attack in attacks:
        condition = Condition("attack", name, parameters=tuple({**asdict(attack), **more}.items()))
        rule = attack if other is None else Transferred(attack, other.classifier)
        showings.append(Showing(condition, source, AttackChange(rule, title, condition.label, options.seed)))
    groups = {showing.condition: [showing.condition] for showing in showings if showing.change is not None}
    return Benchmark(
        title,
        f"{centred(subject)}; {done}",
        data.name,
        showings,
        options.task(source, subject),
        change=done,
        groups=groups,
        warn=partial(warnings_of, source=source),
    )


def check_same_classes(subject: Subject, other: Subject) -> None:
    """Raises a ValueError unless both models have the same classes, since an attack uses the labels."""
    if subject.classes != other.classes:
        spaces = [
            "unknown classes"
            if each.classes is None
            else f"{len(each.classes)} classes, {', '.join(each.classes[:3])}, ..."
            for each in (subject, other)
        ]
        raise ValueError(
            f"{other.name} has {spaces[1]} and {subject.name} has {spaces[0]}: an attack can only be carried over "
            "between models of the same classes in the same order"
        )


# Signs of gradient masking


def warnings_of(results: Results, judge: Judge, ask: Ask, *, source: Source) -> list[str]:
    """Signs of gradient masking in all attacks of the results. Attacks are compared on the same pictures."""
    warnings = []
    if by_gradient(results):
        flat = ask(limited(source, 64), partial(find_flat, judge)).columns["flat"]
        warnings = masking_signs({}, len(flat), zero_gradients=float(flat.float().mean()))
    tried = {frozenset(results.pictures[name]): None for name in results.outcomes if attacks_in(results, name)}
    for pictures in tried:
        signs = masking_signs(attacks_known(results, pictures), len(pictures), floor=1 / len(source.classes))
        warnings += signs if len(tried) == 1 else [f"{sign} (of {len(pictures)} pictures)" for sign in signs]
    return warnings


def find_flat(judge: Judge, asked: Asked) -> dict[str, Tensor]:
    """Whether the gradient of the loss is exactly zero, for each picture."""
    labels = judge.labels(asked.targets).to(asked.pixels.device)
    return {"flat": zero_gradients(judge.model, asked.pixels, labels).cpu()}


def attacks_in(results: Results, benchmark: str) -> list[Condition]:
    """The attacks of a benchmark, evaluated or not."""
    return [condition for condition in results.conditions(benchmark) if condition.family == "attack"]


def by_gradient(results: Results) -> bool:
    """Whether the results contain an attack by the gradient of the evaluated model."""
    return any(
        condition.name in ("pgd", "fgsm") and condition["made_against"] is None
        for outcomes in results.outcomes.values()
        for condition in outcomes
        if condition.family == "attack"
    )


def attacks_known(results: Results, pictures: Set[str]) -> dict[Attack | Transferred, float]:
    """All attacks of the results on these pictures, with the accuracy under each."""
    found = {}
    for name, outcomes in results.outcomes.items():
        tried = results.pictures[name]
        if not pictures <= set(tried):
            continue
        these = np.array([identity in pictures for identity in tried])
        for condition, outcome in outcomes.items():
            # AutoAttack is expected to be the strongest attack, so it is not compared
            if condition.family == "attack" and condition.name != "autoattack":
                parameters: dict[str, Any] = dict(condition.parameters)
                other = parameters.pop("made_against", None)
                attack = ATTACKS[condition.name](**parameters)
                attack = attack if other is None else Transferred(attack, nn.Identity())
                found[attack] = float(outcome.columns["right"][these].mean())
    return found
