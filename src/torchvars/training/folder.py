"""The folder of a run: what it was asked to do, and what it has to show."""

import json
from dataclasses import asdict
from pathlib import Path

from ..models.environment import environment
from ..models.weights import write_whole
from .recipe import Recipe

SETTINGS, METRICS, TIMES, UNREADABLE = "run.json", "metrics.jsonl", "times.jsonl", "unreadable.txt"


class RunFolder:
    """A run's settings, one line of metrics for each epoch, and the pictures it could not read.

    `metrics.jsonl` holds what the recipe, the seed and the pictures decide and nothing else, so that a run that was
    killed and resumed ends with the same file; how long it took goes to `times.jsonl`.
    """

    def __init__(self, path: Path):
        self.path = path

    def begin(self, recipe: Recipe, settings: dict[str, int | float | str | None]) -> None:
        """Writes what the run is to do. A ValueError if the folder holds another run."""
        if self.exists():
            raise ValueError(
                f"{self.path} holds a run already: go on with it by --resume {self.path}, or take another folder"
            )
        self.path.mkdir(parents=True, exist_ok=True)
        content = {"recipe": asdict(recipe), "settings": settings, "environment": environment()}
        _write(self.path / SETTINGS, json.dumps(content, indent=1) + "\n")

    def exists(self) -> bool:
        """Whether a run was begun here."""
        return (self.path / SETTINGS).exists()

    def settings(self) -> tuple[Recipe, dict]:
        """The recipe and the other settings of a run that is to go on."""
        file = self.path / SETTINGS
        if not self.exists():
            raise FileNotFoundError(f"no run to resume at {self.path}: there is no {SETTINGS}")
        content = json.loads(file.read_text())
        return Recipe(**content["recipe"]), content["settings"]

    def metrics(self) -> list[dict]:
        """The lines so far."""
        file = self.path / METRICS
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def add_metrics(self, line: dict) -> None:
        """Adds the line of an epoch; one of the same step, or a later one, is of before a resume and gives way."""
        lines = [old for old in self.metrics() if old["step"] < line["step"]] + [line]
        _write(self.path / METRICS, "".join(json.dumps(line) + "\n" for line in lines))

    def add_times(self, line: dict) -> None:
        with (self.path / TIMES).open("a") as file:
            file.write(json.dumps(line) + "\n")

    def write_unreadable(self, problems: dict[str, str]) -> None:
        text = "".join(f"{identity}\t{problem}\n" for identity, problem in sorted(problems.items()))
        _write(self.path / UNREADABLE, text)


def _write(path: Path, text: str) -> None:
    write_whole(path, lambda aside: aside.write_text(text))
