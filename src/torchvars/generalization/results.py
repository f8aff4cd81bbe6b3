"""Results: scores, which pictures were recognised, and the file of both."""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from ..evaluation.results import Outcome
from ..models.weights import write_whole

VERSION = 1  # of the file
CHOSEN, LAST, PROBE = "chosen", "last", "linear probe"
PLAIN = ", not averaged"
METRICS = ("target", "target, DomainBed's 80 %", "source validation", "gap", "corrupted", "before corruption")


@dataclass(frozen=True)
class Score:
    """One number of one run.

    Attributes:
        target: domain that was left out.
        seed: seed of the run; None for a linear probe.
        weights: "chosen" or "last" epoch, followed by ", not averaged" without the running average; or "linear probe".
        epoch: epoch of the weights; None for a linear probe.
        metric: one of `METRICS`, in percent; the gap is source validation less target, in points.
        low, high: ends of the 95 % interval over pictures; None where there is none.
        images: number of pictures.
    """

    target: str
    seed: int | None
    weights: str
    epoch: int | None
    metric: str
    value: float
    low: float | None
    high: float | None
    images: int


@dataclass(frozen=True)
class Spread:
    """Mean and spread of a score over seeds.

    Attributes:
        value: mean over seeds.
        deviation: standard deviation over seeds (n - 1); None for one seed.
        low, high: ends of the 95 % interval over pictures, of one seed; None for several.
        seeds: number of seeds.
    """

    value: float
    deviation: float | None
    low: float | None
    high: float | None
    seeds: int

    def __str__(self) -> str:
        if self.deviation is not None:
            return f"{self.value:.1f} ± {self.deviation:.1f}"
        return f"{self.value:.1f}" if self.low is None else f"{self.value:.1f} ({self.low:.1f} to {self.high:.1f})"


@dataclass(frozen=True)
class Part:
    """The results of one run, or of one probe: its scores, and which pictures of the target were recognised.

    Attributes:
        right: weights -> (N,), in the order of the names of the pictures; equal weights are stored once.
    """

    target: str
    seed: int | None
    scores: tuple[Score, ...]
    right: dict[str, np.ndarray]

    def to_json(self) -> dict:
        packed = Outcome(self.right, {}).to_json()["columns"]
        return {
            "target": self.target,
            "seed": self.seed,
            "scores": [{n: v for n, v in asdict(s).items() if n not in ("target", "seed")} for s in self.scores],
            "right": packed,
        }

    @classmethod
    def from_json(cls, content: dict) -> "Part":
        place = {"target": content["target"], "seed": content["seed"]}
        scores = tuple(Score(**place, **score) for score in content["scores"])
        right = Outcome.from_json({"columns": content["right"], "figures": {}}).columns
        return cls(content["target"], content["seed"], scores, right)

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(self.to_json(), indent=1) + "\n"
        write_whole(path, lambda temporary: temporary.write_text(text))


@dataclass
class Generalization:
    """The accuracy of one model on domains that were left out of training.

    Attributes:
        model: its name, architecture and the hash of its original weights.
        asked: settings that determine the numbers.
        domains: domain -> class -> number of pictures.
        pictures: domain -> hash of the names of its pictures.
        parts: the results of each run and probe.
        notes: remarks on the numbers.
        environment: versions and the machine.
    """

    model: dict
    asked: dict
    domains: dict[str, dict[str, int]]
    pictures: dict[str, str]
    parts: list[Part] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    environment: dict = field(default_factory=dict)

    @property
    def scores(self) -> list[Score]:
        return [score for part in self.parts for score in part.scores]

    @property
    def targets(self) -> list[str]:
        """Domains that were left out, in the order of the runs."""
        return list(dict.fromkeys(part.target for part in self.parts))

    @property
    def weights(self) -> list[str]:
        """Names of all weights that have scores."""
        return list(dict.fromkeys(score.weights for score in sorted(self.scores, key=_order)))

    def over_seeds(self, weights: str, metric: str, target: str | None = None) -> Spread | None:
        """A score of one target, or its mean over all domains; None unless each of them has it.

        The deviation of the mean over domains is that of the means of each seed.
        """
        targets = self.domains if target is None else [target]
        by_seed: dict[int | None, dict[str, Score]] = {}
        for score in self.scores:
            if (score.weights, score.metric) == (weights, metric) and score.target in targets:
                by_seed.setdefault(score.seed, {})[score.target] = score
        whole = [list(each.values()) for each in by_seed.values() if len(each) == len(targets)]
        if not whole:
            return None
        means = [sum(score.value for score in scores) / len(scores) for scores in whole]
        mean = sum(means) / len(means)
        if len(means) > 1:
            deviation = math.sqrt(sum((value - mean) ** 2 for value in means) / (len(means) - 1))
            return Spread(mean, deviation, None, None, len(means))
        intervals = [(score.low, score.high) for score in whole[0] if score.low is not None and score.high is not None]
        if len(intervals) < len(whole[0]):
            return Spread(mean, None, None, None, 1)
        if len(whole[0]) == 1:
            return Spread(mean, None, whole[0][0].low, whole[0][0].high, 1)
        half = math.hypot(*((high - low) / 2 for low, high in intervals)) / len(targets)
        return Spread(mean, None, mean - half, mean + half, 1)

    def write(self, path: Path) -> None:
        """Writes the file as a whole: after an interruption the previous one is there."""
        content = {"torchvars_generalization": VERSION, **vars(self), "parts": [part.to_json() for part in self.parts]}
        text = json.dumps(content, indent=1) + "\n"
        write_whole(path, lambda temporary: temporary.write_text(text))

    @classmethod
    def read(cls, path: Path) -> "Generalization":
        try:
            content = json.loads(Path(path).read_text())
            if content.pop("torchvars_generalization") != VERSION:
                raise ValueError(f"expected version {VERSION}")
            return cls(**{**content, "parts": [Part.from_json(part) for part in content["parts"]]})
        except FileNotFoundError as error:
            raise FileNotFoundError(f"no results at {path}: torchvars generalize writes them") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path} holds no results of torchvars generalize: {error!r}") from error


def is_generalization(path: str | Path) -> bool:
    """Whether a file holds results of `torchvars generalize`."""
    try:
        with Path(path).open() as file:
            return '"torchvars_generalization"' in file.read(100)
    except (OSError, UnicodeDecodeError):
        return False


def _order(score: Score) -> int:
    order = (CHOSEN, CHOSEN + PLAIN, LAST, LAST + PLAIN, PROBE)
    return order.index(score.weights)


def read_parts(files: Iterable[Path]) -> list[Part]:
    """Results in those files that exist."""
    return [Part.from_json(json.loads(file.read_text())) for file in files if file.exists()]


def paired(first: Generalization, second: Generalization, weights: str, target: str) -> np.ndarray | None:
    """Accuracy of the second less the first on each picture of a target, means over seeds: (N,), in points.

    None unless both were evaluated on the same pictures.
    """
    if first.pictures.get(target) is None or first.pictures.get(target) != second.pictures.get(target):
        return None
    columns = [
        [part.right[weights] for part in each.parts if part.target == target and weights in part.right]
        for each in (first, second)
    ]
    if not all(columns):
        return None
    means: Sequence[np.ndarray] = [np.mean(each, 0) for each in columns]
    return 100 * (means[1] - means[0])
