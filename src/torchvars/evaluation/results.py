"""Numbers, and all that they need to be believed: rows, and the file that keeps them."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

import numpy as np

from ..models.weights import write_whole


@dataclass(frozen=True)
class Row:
    """One number and all that it needs to be believed."""

    model: str
    benchmark: str
    condition: str  # "gaussian_noise", "linf 1/255", "class n01440764", or "all" for an aggregate
    severity: int | None  # None where there is none, or for all of them
    metric: str
    value: float
    low: float | None  # ends of the 95 % interval, where there is one
    high: float | None
    images: int
    protocol: str


Figure = tuple[float, float | None, float | None]  # a value and the ends of its 95 % interval, where it has one


@dataclass(frozen=True)
class Outcome:
    """What came of the pictures in one condition, in their order.

    A picture that could not be read is in it, as one that was not recognised.
    """

    right: np.ndarray  # (N,) bool: whether each was recognised
    named: np.ndarray | None  # (N,) the class named, -1 for none; kept for clean pictures only
    figures: dict[str, Figure]  # by metric
    unread: int = 0  # how many could not be read, and have no loss and no confidence

    def to_json(self) -> dict:
        content = {"images": len(self.right), "right": np.packbits(self.right).tobytes().hex(), "figures": self.figures}
        content |= {"unread": self.unread} if self.unread else {}
        return content if self.named is None else {**content, "named": self.named.tolist()}

    @classmethod
    def from_json(cls, content: dict) -> "Outcome":
        packed = np.frombuffer(bytes.fromhex(content["right"]), np.uint8)
        if len(packed) != -(-content["images"] // 8):  # NumPy would make up the rest
            raise ValueError(f"{8 * len(packed)} answers for {content['images']} pictures")
        right = np.unpackbits(packed, count=content["images"])
        named = np.array(content["named"], dtype=int) if "named" in content else None
        if named is not None and len(named) != len(right):
            raise ValueError(f"{len(named)} classes named for {len(right)} pictures")
        figures = {metric: tuple(figure) for metric, figure in content["figures"].items()}
        return cls(right.astype(bool), named, figures, content.get("unread", 0))


@dataclass(frozen=True)
class LabelSpace:
    """The classes among which the answer is looked for."""

    classes: int  # how many they are
    of: int | None  # how many the model has; None if the file does not say
    folders: int  # how many the data set has
    names: str | None  # hash of their names; None if the file does not say

    def __str__(self) -> str:
        if self.of is not None and self.classes < self.of:
            return f"{self.classes} of {self.of} classes"
        least = "at least " if self.of is None and self.classes > self.folders else ""
        rest = f", {self.folders} of them in the pictures" if self.classes > self.folders else ""
        return f"{least}{self.classes} classes{rest}"

    @property
    def is_plain(self) -> bool:
        """Whether the model and the data set have the same classes, so that there is no other label space."""
        return self.of in (None, self.classes) and self.classes == self.folders


@dataclass
class Results:
    """An evaluation of one model: what was asked, what came out for each picture, and the rows made of it.

    Attributes:
        model: its name, where it came from, and the hash of its weights.
        asked: benchmark -> everything that decides its numbers; an evaluation is only gone on with if this is the same.
        outcomes: benchmark -> `key_of` a condition -> outcome of its pictures.
        pictures: benchmark -> identities of its pictures, in the order of the outcomes.
        unreadable: pictures that could not be read, and why.
        warnings: what a reader of the numbers should know.
    """

    model: dict
    asked: dict[str, dict] = field(default_factory=dict)
    outcomes: dict[str, dict[str, Outcome]] = field(default_factory=dict)
    pictures: dict[str, list[str]] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    unreadable: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    environment: dict = field(default_factory=dict)

    def write(self, path: Path) -> None:
        """The whole file, or the one that was there before."""
        content = {
            "torchvars_results": 1,
            "model": self.model,
            "environment": self.environment,
            "asked": self.asked,
            "warnings": self.warnings,
            "unreadable": self.unreadable,
            "rows": [asdict(row) for row in self.rows],
            "pictures": self.pictures,
            "outcomes": {
                benchmark: {key: outcome.to_json() for key, outcome in outcomes.items()}
                for benchmark, outcomes in self.outcomes.items()
            },
        }
        # One row a line, so that the file can be read and compared by lines too.
        text = "{\n" + ",\n".join(f"{json.dumps(key)}: {_lines(value)}" for key, value in content.items()) + "\n}\n"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, lambda aside: aside.write_text(text))

    @classmethod
    def read(cls, path: Path) -> "Results":
        """A ValueError if the file is none of ours."""
        if Path(path).is_char_device() or Path(path).is_block_device():
            raise ValueError(f"{path} is a device: expected a file of results")
        try:
            text = Path(path).read_text()
        except FileNotFoundError as error:
            raise FileNotFoundError(f"no results at {path}: torchvars evaluate writes them by --output") from error
        except IsADirectoryError as error:
            raise IsADirectoryError(f"{path} is a folder: expected a file of results") from error
        try:
            content = json.loads(text)
            if content.get("torchvars_results") != 1:
                raise ValueError(f"torchvars_results is {content.get('torchvars_results')}, expected 1")
            results = cls(
                content["model"],
                content["asked"],
                {
                    benchmark: {key: Outcome.from_json(outcome) for key, outcome in outcomes.items()}
                    for benchmark, outcomes in content["outcomes"].items()
                },
                content["pictures"],
                [Row(**{each.name: row[each.name] for each in fields(Row)}) for row in content["rows"]],
                content["unreadable"],
                content["warnings"],
                content["environment"],
            )
            results.check()
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path} holds no results of torchvars evaluate: {error!r}") from error
        return results

    def check(self) -> None:
        """A ValueError unless its parts are of each other."""
        for name in ("model", "asked", "pictures", "unreadable", "environment"):
            if not isinstance(getattr(self, name), dict):
                raise ValueError(f"{name} is no object, but {getattr(self, name)!r}")
        if "name" not in self.model:
            raise ValueError("the model has no name")
        for benchmark, outcomes in self.outcomes.items():
            if benchmark not in self.asked or benchmark not in self.pictures:
                raise ValueError(f"{benchmark} has outcomes, but nothing says what was asked, or of which pictures")
            if "label_space" in self.asked[benchmark]:
                LabelSpace(**self.asked[benchmark]["label_space"])
            count = len(self.pictures[benchmark])
            for key, outcome in outcomes.items():
                if len(outcome.right) != count:
                    raise ValueError(f"{benchmark}, {key}: {len(outcome.right)} answers for {count} pictures")

    @property
    def label(self) -> str:
        """The model's name, and how it was told to solve if it was told."""
        solving = self.model.get("solving", {})
        told = ", ".join(f"{name} {value}" for name, value in solving.items() if name != "adapt_data")
        return f"{self.model['name']} ({told})" if told else self.model["name"]

    def label_space(self, benchmark: str) -> LabelSpace:
        """The classes among which the answer was looked for.

        Files written before it was kept tell whether only those of the pictures counted; if not, the largest number
        of a class that was named tells how many there were at least.
        """
        asked = self.asked[benchmark]
        if "label_space" in asked:
            return LabelSpace(**asked["label_space"])
        classes = [asked["classes"]]
        if not asked["among_present"]:
            for name, outcomes in self.outcomes.items():
                named = [each.named for each in outcomes.values() if each.named is not None and len(each.named)]
                classes += [] if self.asked[name]["among_present"] else [int(each.max()) + 1 for each in named]
        return LabelSpace(max(classes), None, asked["classes"], None)

    def value(self, benchmark: str, metric: str, condition: str = "all", severity: int | None = None) -> Row | None:
        """The row, or None."""
        wanted = (benchmark, metric, condition, severity)
        return next((r for r in self.rows if (r.benchmark, r.metric, r.condition, r.severity) == wanted), None)


def say_kept(output: Path) -> str:
    """What a file holds of an evaluation that was stopped, in a line."""
    try:
        results = Results.read(output)
    except (OSError, ValueError):
        return f"stopped before a condition was finished: nothing is in {output}"
    count = sum(map(len, results.outcomes.values()))
    return f"stopped: {count} finished condition{'s are' if count > 1 else ' is'} in {output}; the same command goes on"


def key_of(condition: str, severity: int | None) -> str:
    """What an outcome is kept under."""
    return condition if severity is None else f"{condition} {severity}"


def digest_of(names: Sequence[str]) -> str:
    """A hash of the pictures of a benchmark."""
    return hashlib.sha256("\n".join(names).encode()).hexdigest()


def _lines(value: Mapping | Sequence | str | int) -> str:
    if isinstance(value, list) and value:
        return "[\n" + ",\n".join(json.dumps(each) for each in value) + "\n]"
    return json.dumps(value)
