"""The folder of a run: settings, metrics, times and unreadable pictures."""

import json
from dataclasses import asdict
from pathlib import Path

from ..models.environment import environment
from ..models.unfinished import CHECKPOINTS, RUN, resuming
from ..models.weights import write_whole
from .recipe import Recipe

METRICS, TIMES, UNREADABLE = "metrics.jsonl", "times.jsonl", "unreadable.txt"


class RunFolder:
    """A run's settings, one line of metrics for each epoch, and the pictures it could not read.

    `metrics.jsonl` depends on the recipe, the seed and the pictures only, so that an interrupted and resumed run ends
    with the same file; times are in `times.jsonl`.
    """

    def __init__(self, path: Path):
        self.path = path

    def check_free(self) -> None:
        """Raises a ValueError if the folder holds a run, unless it has neither checkpoints nor metrics."""
        begun = (self.path / METRICS).exists() or any((self.path / CHECKPOINTS).glob("step_*"))
        if self.exists() and begun:
            raise ValueError(
                f"{self.path} holds a run already: resume it with {resuming(self.path)}, or take another folder"
            )

    def begin(self, recipe: Recipe, settings: dict[str, int | float | str | None], classifier: dict) -> None:
        """Writes the settings of the run. Raises a ValueError if the folder holds another run.

        Args:
            classifier: description by which its weights are loaded: `torchvars.models.weights.describe`.
        """
        self.check_free()
        self.path.mkdir(parents=True, exist_ok=True)
        (self.path / UNREADABLE).unlink(missing_ok=True)
        content = {
            "recipe": asdict(recipe),
            "settings": settings,
            "classifier": classifier,
            "environment": environment(),
        }
        _write(self.path / RUN, json.dumps(content, indent=1) + "\n")

    def exists(self) -> bool:
        """Whether a run was begun here."""
        return (self.path / RUN).exists()

    def settings(self) -> tuple[Recipe, dict]:
        """The recipe and the other settings of the run."""
        file = self.path / RUN
        if not self.exists():
            raise FileNotFoundError(f"no run to resume at {self.path}: there is no {RUN}")
        content = json.loads(file.read_text())
        return Recipe(**content["recipe"]), content["settings"]

    def metrics(self) -> list[dict]:
        """Metrics of the epochs so far."""
        file = self.path / METRICS
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def add_metrics(self, line: dict) -> None:
        """Adds the metrics of an epoch; those of the same or a later step, from before a resume, are removed."""
        lines = [old for old in self.metrics() if old["step"] < line["step"]] + [line]
        _write(self.path / METRICS, "".join(json.dumps(line) + "\n" for line in lines))

    def add_times(self, line: dict) -> None:
        with (self.path / TIMES).open("a") as file:
            file.write(json.dumps(line) + "\n")

    def write_unreadable(self, problems: dict[str, str]) -> None:
        text = "".join(f"{identity}\t{problem}\n" for identity, problem in sorted(problems.items()))
        _write(self.path / UNREADABLE, text)


def _write(path: Path, text: str) -> None:
    write_whole(path, lambda temporary: temporary.write_text(text))
