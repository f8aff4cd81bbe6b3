"""The record of trained weights: how they were trained and their measured results, under one hash."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple

from ..models.embedded import find_embedded
from ..models.weights import CONFIG, WEIGHTS, digest, write_whole
from .benchmarks import BENCHMARKS, Benchmark, Data
from .labels import digest_of
from .results import Results, Row
from .subjects import Subject

FILE, RESULTS = "record.json", "results.json"
VERSION = 1  # version of the file format


class Measured(NamedTuple):
    """One number of a benchmark."""

    condition: str
    severity: int | None
    metric: str
    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Trial:
    """A benchmark with its settings and its results."""

    options: dict  # the chosen options
    protocol: str
    pictures: str  # hash of the names of the pictures
    images: int
    rows: list[Measured]


@dataclass(frozen=True)
class Record:
    """The record of weights.

    Attributes:
        weights: sha256 of the file of the weights.
        settings: sha256 of the file of the model and its solvers.
        results: sha256 of the results file from which the trials were made.
        recipe: all settings of the training, except the pictures.
        trained: the end of the training, and its environment.
        trials: trials by benchmark.
    """

    weights: str
    settings: str
    results: str
    recipe: dict
    trained: dict
    trials: dict[str, Trial] = field(default_factory=dict)

    @property
    def seal(self) -> str:
        """One hash of the weights, the recipe, the results and their file."""
        return hashlib.sha256(json.dumps(_plain(self), sort_keys=True).encode()).hexdigest()

    def write(self, folder: Path) -> None:
        content = {"torchvars_record": VERSION, "seal": self.seal, **_plain(self)}
        trials = ",\n".join(f"  {json.dumps(name)}: {_trial_text(each)}" for name, each in content["trials"].items())
        rest = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in content.items() if key != "trials"]
        text = "{\n" + ",\n".join([*rest, f'"trials": {{\n{trials}\n}}']) + "\n}\n"
        write_whole(folder / FILE, lambda path: path.write_text(text))

    @classmethod
    def read(cls, folder: Path) -> "Record":
        """Reads the record of a folder of weights.

        Raises:
            ValueError: if there is no valid record, it was changed by hand, or its files are missing or differ.
        """
        path = folder / FILE
        try:
            content = json.loads(path.read_text())
            version = content["torchvars_record"]
            if version != VERSION:
                raise ValueError(f"its format is {version}, and this version of torchvars reads {VERSION}")
            trials = {
                name: Trial(**{**trial, "rows": [Measured(*row) for row in trial["rows"]]})
                for name, trial in content["trials"].items()
            }
            facts = {name: content[name] for name in ("weights", "settings", "results", "recipe", "trained")}
            record = cls(**facts, trials=trials)
            seal = content["seal"]
        except FileNotFoundError as error:
            raise ValueError(f"{folder} has no {FILE}: nothing was recorded of these weights") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path} is no record of weights that can be read here: {error!r}") from error
        if record.seal != seal:
            raise ValueError(f"{path} was changed after it was sealed: its seal is {seal}, not {record.seal}")
        for file, claimed in ((WEIGHTS, record.weights), (CONFIG, record.settings), (RESULTS, record.results)):
            if not (folder / file).is_file():
                raise ValueError(f"{path} is of {file}, sha256 {claimed}, and the folder has none")
            if (found := digest(folder / file)) != claimed:
                raise ValueError(f"{path} is of another {file}, sha256 {claimed}: that of the folder has {found}")
        return record

    def value(self, benchmark: str, metric: str, condition: str = "all") -> Measured | None:
        """The number over all severities; None if there is none."""
        trial = self.trials.get(benchmark)
        rows = [] if trial is None else trial.rows
        return next((r for r in rows if (r.metric, r.condition, r.severity) == (metric, condition, None)), None)


def read_results(word: str) -> Results:
    """Reads results from a file, or those that belong to weights.

    Args:
        word: a results file, a folder of weights, or the name of weights that ship.

    Raises:
        ValueError: if the file is invalid, or the results do not belong to the weights.
    """
    path = Path(word)
    if not path.exists():
        try:
            path = find_embedded(word)
        except ValueError as error:
            raise FileNotFoundError(
                f"no results at {word}: torchvars evaluate writes them by --output; and {error}"
            ) from error
    if not (path / FILE).exists():
        return Results.read(path)
    Record.read(path)
    return Results.read(path / RESULTS)


def trial_of(results: Results, benchmark: str, options: dict) -> Trial:
    """The trial of a benchmark from results, without single classes, which have few pictures."""
    rows = [row for row in results.rows if row.benchmark == benchmark and row.condition.subset is None]
    if not rows:
        raise ValueError(f"there are no results of {benchmark}: it was not evaluated to its end")
    asked = results.asked[benchmark]
    if asked["task"]["among_present"]:
        options = {**options, "label_space": "present"}
    measured = [Measured(row.label, row.severity, row.metric, *_rounded(row)) for row in rows]
    return Trial(options, rows[0].protocol, asked["pictures"], asked["images"], measured)


def benchmarks_of(record: Record, data: str, subject: Subject, names: Sequence[str] | None = None) -> list[Benchmark]:
    """The benchmarks of a record, with the same settings.

    Args:
        data: the pictures on which they were measured.
        names: the benchmarks; by default all.

    Raises:
        ValueError: if nothing is recorded of a name, or the pictures differ.
    """
    chosen = list(record.trials) if names is None else list(names)
    if not record.trials:
        raise ValueError("nothing was measured of these weights: there is nothing to compare with")
    if unknown := [name for name in chosen if name not in record.trials]:
        raise ValueError(f"nothing is recorded of {unknown[0]!r}: there are figures for {', '.join(record.trials)}")
    benchmarks, opened = [], Data(data)
    for name in chosen:
        trial = record.trials[name]
        benchmark = BENCHMARKS[name](opened, subject, **options_of(name, {"label_space": "model", **trial.options}))
        if digest_of(benchmark.source.identities) != trial.pictures:
            raise ValueError(
                f"{name} was measured on {trial.images} pictures, and not on those of {data}, whose names are others: "
                f"give the data of {subject.name} that its weights were measured on (docs/results.md says where those "
                "of weights that ship come from)"
            )
        benchmarks.append(benchmark)
    return benchmarks


def options_of(benchmark: str, chosen: dict) -> dict:
    """The options that a benchmark has, converted from JSON."""
    known = {name: value for name, value in chosen.items() if name in BENCHMARKS[benchmark].takes()}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in known.items()}


def answers_alike(recorded: Results, found: Results, benchmark: str) -> tuple[int, int]:
    """The number of pictures, over all conditions, whose correctness is as recorded; and the number of all."""
    pairs = [
        (recorded.outcomes[benchmark][condition].columns["right"], outcome.columns["right"])
        for condition, outcome in found.outcomes[benchmark].items()
    ]
    return sum(int((one == other).sum()) for one, other in pairs), sum(len(one) for one, _ in pairs)


class Check(NamedTuple):
    """A claimed number, and the one that was measured."""

    benchmark: str
    claimed: Measured
    found: float
    slack: float  # tolerance of the interval

    def __str__(self) -> str:
        severity = "" if self.claimed.severity is None else f" {self.claimed.severity}"
        title = f"{self.benchmark}, {self.claimed.condition}{severity}, {self.claimed.metric}"
        claimed = f"{self.claimed.value:.2f} ({self.claimed.low:.2f} to {self.claimed.high:.2f})"
        return f"{title}: found {self.found:.2f}, claimed {claimed}"

    @property
    def difference(self) -> float:
        return abs(self.found - self.claimed.value)

    @property
    def judged(self) -> bool:
        """Whether the claim has an interval."""
        return self.claimed.low is not None and self.claimed.high is not None

    @property
    def met(self) -> bool:
        """Whether the measured number is in the interval of the claim; true if there is none."""
        low, high = self.claimed.low, self.claimed.high
        return low is None or high is None or low - self.slack <= self.found <= high + self.slack


def check(record: Record, results: Results, benchmarks: Iterable[str]) -> list[Check]:
    """Compares all claims of these benchmarks with the results.

    If all pictures were correct, or none, the interval has no width. Then one picture may differ, since another machine
    may round differently.
    """
    checks = []
    for benchmark in benchmarks:
        trial = record.trials[benchmark]
        for claimed in trial.rows:
            found = results.value(benchmark, claimed.metric, claimed.condition, claimed.severity)
            if found is None:
                raise ValueError(f"{benchmark}, {claimed.condition}: no {claimed.metric} was measured")
            counted = claimed.metric in ("accuracy", "consistency") and claimed.low == claimed.high
            checks.append(Check(benchmark, claimed, found.value, 100 / trial.images + 1e-6 if counted else 1e-6))
    return checks


def _rounded(row: Row) -> tuple[float, float | None, float | None]:
    low, high = (None if each is None else round(each, 6) for each in (row.low, row.high))
    return round(row.value, 6), low, high


def _plain(record: Record) -> dict:
    return json.loads(json.dumps(asdict(record)))


def _trial_text(trial: dict) -> str:
    """A trial as JSON with one number in each line, so that records can be compared line by line."""
    head = json.dumps({key: value for key, value in trial.items() if key != "rows"})[:-1]
    return head + ', "rows": [\n' + ",\n".join("    " + json.dumps(row) for row in trial["rows"]) + "]}"
