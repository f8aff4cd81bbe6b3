"""Numbers, and all that they need to be believed: rows, and the file that keeps them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ..models.weights import write_whole
from .conditions import Condition
from .corruptions.means import means_of_corruptions
from .labels import LabelSpace
from .task import Figure, Metric
from .version1 import upgraded

VERSION = 2  # of the file


@dataclass(frozen=True)
class Row:
    """One number and all that it needs to be believed."""

    model: str
    benchmark: str
    condition: Condition
    metric: str
    value: float
    low: float | None  # ends of the 95 % interval, where there is one
    high: float | None
    images: int
    protocol: str

    @property
    def label(self) -> str:
        """The condition in words, without its severity."""
        return self.condition.label

    @property
    def severity(self) -> int | None:
        return self.condition.severity

    def to_json(self) -> dict:
        return {**vars(self), "condition": self.condition.to_json()}

    @classmethod
    def from_json(cls, content: Mapping) -> "Row":
        return cls(**{**content, "condition": Condition.from_json(content["condition"])})


@dataclass(frozen=True)
class Outcome:
    """What came of the pictures in one condition, in their order.

    A picture that could not be read is in it, with the worst value or NaN.

    Attributes:
        columns: what is kept of each picture: (N,) each.
        figures: by metric.
        unread: how many could not be read.
    """

    columns: dict[str, np.ndarray]
    figures: dict[str, Figure]
    unread: int = 0

    def __len__(self) -> int:
        """Pictures."""
        return len(next(iter(self.columns.values())))

    def to_json(self) -> dict:
        content = {"columns": {name: _packed(values) for name, values in self.columns.items()}, "figures": self.figures}
        return content | ({"unread": self.unread} if self.unread else {})

    @classmethod
    def from_json(cls, content: Mapping) -> "Outcome":
        columns = {name: _unpacked(values) for name, values in content["columns"].items()}
        if not columns or len({len(values) for values in columns.values()}) > 1:
            raise ValueError(f"expected columns of one length, got { ({name: len(v) for name, v in columns.items()}) }")
        figures = {metric: Figure(*figure) for metric, figure in content["figures"].items()}
        return cls(columns, figures, content.get("unread", 0))


def shortfall(outcomes: Sequence[Outcome], column: str) -> np.ndarray:
    """How much less than 1 each picture has in a column, in the mean over outcomes: (N,). Of `right`, the error."""
    return np.stack([1.0 - outcome.columns[column] for outcome in outcomes], 1).mean(1)


def _packed(values: np.ndarray) -> dict | list:
    """A column as JSON: eight answers of yes or no to a byte."""
    if values.dtype == bool:
        return {"count": len(values), "bits": np.packbits(values).tobytes().hex()}
    return [None if value != value else value for value in values.tolist()]  # NaN, which JSON does not have


def _unpacked(values: Mapping | Sequence) -> np.ndarray:
    if isinstance(values, Mapping):
        packed = np.frombuffer(bytes.fromhex(values["bits"]), np.uint8)
        if len(packed) != -(-values["count"] // 8):  # NumPy would make up the rest
            raise ValueError(f"{8 * len(packed)} answers for {values['count']} pictures")
        return np.unpackbits(packed, count=values["count"]).astype(bool)
    column = np.array([np.nan if value is None else value for value in values])
    if column.ndim != 1 or column.dtype.kind not in "if":
        raise ValueError(f"expected a column of numbers, got {column.dtype} of shape {column.shape}")
    return column


@dataclass
class Results:
    """An evaluation of one model: what was asked, what came out for each picture, and the rows made of it.

    Attributes:
        model: its name, where it came from, and the hash of its weights.
        asked: benchmark -> everything that decides its numbers; an evaluation is only gone on with if this is the same.
        outcomes: benchmark -> condition -> outcome of its pictures.
        pictures: benchmark -> identities of its pictures, in the order of the outcomes.
        unreadable: pictures that could not be read, and why.
        warnings: what a reader of the numbers should know.
    """

    model: dict
    asked: dict[str, dict] = field(default_factory=dict)
    outcomes: dict[str, dict[Condition, Outcome]] = field(default_factory=dict)
    pictures: dict[str, list[str]] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    unreadable: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    environment: dict = field(default_factory=dict)

    def write(self, path: Path) -> None:
        """The whole file, or the one that was there before."""
        content = {
            "torchvars_results": VERSION,
            "model": self.model,
            "environment": self.environment,
            "asked": self.asked,
            "warnings": self.warnings,
            "unreadable": self.unreadable,
            "rows": [row.to_json() for row in self.rows],
            "pictures": self.pictures,
            "outcomes": [
                {"benchmark": benchmark, "condition": condition.to_json(), **outcome.to_json()}
                for benchmark, outcomes in self.outcomes.items()
                for condition, outcome in outcomes.items()
            ],
        }
        # One row a line, so that the file can be read and compared by lines too.
        text = "{\n" + ",\n".join(f"{json.dumps(key)}: {_lines(value)}" for key, value in content.items()) + "\n}\n"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, lambda aside: aside.write_text(text))

    @classmethod
    def read(cls, path: Path) -> "Results":
        """Results of this version of the format or an earlier one; a ValueError if the file is none of ours."""
        if Path(path).is_char_device() or Path(path).is_block_device():
            raise ValueError(f"{path} is a device: expected a file of results")
        try:
            text = Path(path).read_text()
        except FileNotFoundError as error:
            raise FileNotFoundError(f"no results at {path}: torchvars evaluate writes them by --output") from error
        except IsADirectoryError as error:
            raise IsADirectoryError(f"{path} is a folder: expected a file of results") from error
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} holds no results of torchvars evaluate: it is no text") from error
        try:
            content = json.loads(text)
            if content.get("torchvars_results") == 1:
                content = upgraded(content)
            if content.get("torchvars_results") != VERSION:
                raise ValueError(f"torchvars_results is {content.get('torchvars_results')}, expected 1 or {VERSION}")
            outcomes: dict[str, dict[Condition, Outcome]] = {}
            for each in content["outcomes"]:
                condition = Condition.from_json(each["condition"])
                outcomes.setdefault(each["benchmark"], {})[condition] = Outcome.from_json(each)
            results = cls(
                content["model"],
                content["asked"],
                outcomes,
                content["pictures"],
                [Row.from_json(row) for row in content["rows"]],
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
            self.metrics(benchmark)
            if "means" in self.asked[benchmark]:
                self.means(benchmark)
            if "label_space" in self.asked[benchmark]["task"]:
                LabelSpace(**self.asked[benchmark]["task"]["label_space"])
            count = len(self.pictures[benchmark])
            for condition, outcome in outcomes.items():
                if len(outcome) != count:
                    raise ValueError(f"{benchmark}, {condition.key}: {len(outcome)} answers for {count} pictures")

    @property
    def label(self) -> str:
        """The model's name, and how its layers solve where that was changed."""
        solving = self.model.get("solving", {})
        changes = ", ".join(f"{name} {value}" for name, value in solving.items() if name != "adapt_data")
        return f"{self.model['name']} ({changes})" if changes else self.model["name"]

    def metrics(self, benchmark: str) -> dict[str, Metric]:
        """The metrics of the task of a benchmark; the first is what a model is mostly judged by."""
        return {each["name"]: Metric(**each) for each in self.asked[benchmark]["task"]["metrics"]}

    def conditions(self, benchmark: str) -> list[Condition]:
        """Those in which the pictures of a benchmark are shown, whether it came to its end or not."""
        return [Condition.from_json(each) for each in self.asked[benchmark]["conditions"]]

    def means(self, benchmark: str) -> dict[Condition, list[Condition]]:
        """Conditions that are means over others -> those others, in the order in which they were evaluated."""
        if "means" not in self.asked[benchmark]:  # a file written before they were kept
            return means_of_corruptions(self.conditions(benchmark))
        return {
            Condition.from_json(mean["condition"]): [Condition.from_json(each) for each in mean["over"]]
            for mean in self.asked[benchmark]["means"]
        }

    def label_space(self, benchmark: str) -> LabelSpace | None:
        """The classes among which the answer was looked for; None if it was not a class.

        Files written before it was kept tell whether only those of the pictures counted; if not, the largest number
        of a class that was named tells how many there were at least.
        """
        asked = self.asked[benchmark]["task"]
        if "label_space" in asked:
            return LabelSpace(**asked["label_space"])
        if "among_present" not in asked:
            return None
        classes = [asked["classes"]]
        if not asked["among_present"]:
            for name, outcomes in self.outcomes.items():
                named = [each.columns["named"] for each in outcomes.values() if "named" in each.columns]
                among = self.asked[name]["task"].get("among_present", True)
                classes += [] if among else [int(each.max()) + 1 for each in named if len(each)]
        return LabelSpace(max(classes), None, asked["classes"], None)

    def outcome(self, benchmark: str, condition: str) -> Outcome | None:
        """The outcome of a condition in words, with its severity: "gaussian_noise 3"; None if there is none."""
        outcomes = self.outcomes.get(benchmark, {})
        return next((each for known, each in outcomes.items() if known.key == condition), None)

    def value(self, benchmark: str, metric: str, condition: str = "all", severity: int | None = None) -> Row | None:
        """The row of a condition in words, or None."""
        wanted = (benchmark, metric, condition, severity)
        return next((r for r in self.rows if (r.benchmark, r.metric, r.label, r.severity) == wanted), None)


def say_kept(output: Path) -> str:
    """What a file holds of an evaluation that was stopped, in a line."""
    try:
        results = Results.read(output)
    except (OSError, ValueError):
        return f"stopped before a condition was finished: nothing is in {output}"
    count = sum(map(len, results.outcomes.values()))
    return f"stopped: {count} finished condition{'s are' if count > 1 else ' is'} in {output}; the same command goes on"


def _lines(value: Mapping | Sequence | str | int) -> str:
    if isinstance(value, list) and value:
        return "[\n" + ",\n".join(json.dumps(each) for each in value) + "\n]"
    return json.dumps(value)
