"""Results: rows, outcomes, and their file."""

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

VERSION = 2  # version of the file format


@dataclass(frozen=True)
class Row:
    """One number with its interval, condition and protocol."""

    model: str
    benchmark: str
    condition: Condition
    metric: str
    value: float
    low: float | None  # ends of the 95 % interval, if there is one
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
    """The outcome of one condition, with the values of all pictures in their order.

    An unreadable picture is included, with the worst value or NaN.

    Attributes:
        columns: the stored values of each picture, (N,) each.
        figures: figures by metric.
        unread: number of unreadable pictures.
    """

    columns: dict[str, np.ndarray]
    figures: dict[str, Figure]
    unread: int = 0

    def __len__(self) -> int:
        """The number of pictures."""
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
    """1 minus a column, averaged over outcomes: (N,). For the column `right` it is the error."""
    return np.stack([1.0 - outcome.columns[column] for outcome in outcomes], 1).mean(1)


def _packed(values: np.ndarray) -> dict | list:
    """A column as JSON. Booleans are packed, eight to a byte."""
    if values.dtype == bool:
        return {"count": len(values), "bits": np.packbits(values).tobytes().hex()}
    return [None if value != value else value for value in values.tolist()]  # NaN is not valid in JSON


def _unpacked(values: Mapping | Sequence) -> np.ndarray:
    if isinstance(values, Mapping):
        packed = np.frombuffer(bytes.fromhex(values["bits"]), np.uint8)
        if len(packed) != -(-values["count"] // 8):  # NumPy would pad it
            raise ValueError(f"{8 * len(packed)} answers for {values['count']} pictures")
        return np.unpackbits(packed, count=values["count"]).astype(bool)
    column = np.array([np.nan if value is None else value for value in values])
    if column.ndim != 1 or column.dtype.kind not in "if":
        raise ValueError(f"expected a column of numbers, got {column.dtype} of shape {column.shape}")
    return column


@dataclass
class Results:
    """The results of one model: the settings, the outcome of each picture, and summary rows.

    Attributes:
        model: the description of the model, such as its name and the hash of its weights.
        asked: benchmark -> all settings that decide its results. An evaluation is resumed only if they are the same.
        outcomes: benchmark -> condition -> outcome.
        pictures: benchmark -> identities of its pictures, in the order of the outcomes.
        rows: the summary rows.
        unreadable: identities of unreadable pictures -> the error.
        warnings: warnings for the reader.
        environment: versions and machine.
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
        """Writes the file atomically."""
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
        # One row in each line, so that files can be compared line by line.
        text = "{\n" + ",\n".join(f"{json.dumps(key)}: {_lines(value)}" for key, value in content.items()) + "\n}\n"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, lambda aside: aside.write_text(text))

    @classmethod
    def read(cls, path: Path) -> "Results":
        """Reads results of this version of the format or an earlier one. Raises a ValueError for other files."""
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
        """Raises a ValueError unless the parts are consistent."""
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
        """The name of the model, with changed settings of its solvers."""
        solving = self.model.get("solving", {})
        changes = ", ".join(f"{name} {value}" for name, value in solving.items() if name != "adapt_data")
        return f"{self.model['name']} ({changes})" if changes else self.model["name"]

    def metrics(self, benchmark: str) -> dict[str, Metric]:
        """The metrics of the task of a benchmark; the first is the main one."""
        return {each["name"]: Metric(**each) for each in self.asked[benchmark]["task"]["metrics"]}

    def conditions(self, benchmark: str) -> list[Condition]:
        """The conditions of a benchmark, evaluated or not."""
        return [Condition.from_json(each) for each in self.asked[benchmark]["conditions"]]

    def means(self, benchmark: str) -> dict[Condition, list[Condition]]:
        """Conditions that are means over several conditions -> these conditions, in the order of evaluation."""
        if "means" not in self.asked[benchmark]:  # an older file
            return means_of_corruptions(self.conditions(benchmark))
        return {
            Condition.from_json(mean["condition"]): [Condition.from_json(each) for each in mean["over"]]
            for mean in self.asked[benchmark]["means"]
        }

    def label_space(self, benchmark: str) -> LabelSpace | None:
        """The label space; None if the task is not classification.

        Older files contain only whether it was that of the data set. If not, the largest predicted class gives a lower
        bound on the number of classes.
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
        """The outcome of a condition, given in words with its severity: "gaussian_noise 3"; None if there is none."""
        outcomes = self.outcomes.get(benchmark, {})
        return next((each for known, each in outcomes.items() if known.key == condition), None)

    def value(self, benchmark: str, metric: str, condition: str = "all", severity: int | None = None) -> Row | None:
        """The row of a condition, given in words; None if there is none."""
        wanted = (benchmark, metric, condition, severity)
        return next((r for r in self.rows if (r.benchmark, r.metric, r.label, r.severity) == wanted), None)


def say_kept(output: Path) -> str:
    """A line that says what the file of an interrupted evaluation contains."""
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
