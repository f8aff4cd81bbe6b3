"""Weights of an unfinished training run: those of its best checkpoint, else of its last."""

import json
import re
import shlex
import sys
from pathlib import Path

from . import weights as stored
from .classifier import Classifier

# Names in the folder of a run, which training writes.
RUN, CHECKPOINTS, FACTS, BEST = "run.json", "checkpoints", "facts.json", "best.json"
CONVERSION = "convert.json"  # in the folder of a conversion, whose stages are runs
GENERALIZATION = "generalize.json"  # in the folder of the runs runs/<target>/seed_<seed>


def resuming(run: Path) -> str:
    """The command that resumes a run, or the conversion or generalisation that it is a part of."""
    if len(run.parts) > 3 and (run.parents[2] / GENERALIZATION).exists():
        return f"torchvars generalize --resume {shlex.quote(str(run.parents[2]))}"
    if (run.parent / CONVERSION).exists():
        return f"torchvars convert --resume {shlex.quote(str(run.parent))}"
    return f"torchvars train --resume {shlex.quote(str(run))}"


def config_of_run(run: Path) -> dict:
    """The configuration of the classifier of an unfinished run, from run.json.

    Raises:
        ValueError: the run has no checkpoint, or run.json has no classifier.
    """
    finish = f"finish it with {resuming(run)}"
    step, kind, checkpoint = find_checkpoint(run / CHECKPOINTS)
    if checkpoint is None:
        raise ValueError(f"the run {run} is not finished, and has no checkpoint to take weights from: {finish}")
    config = json.loads((run / RUN).read_text()).get("classifier")
    if config is None:  # begun by an earlier version
        raise ValueError(
            f"the run {run} is not finished: its {kind} checkpoint is of step {step}, and {RUN} does not say of which "
            f"classes, so that no classifier can be made of it; {finish}"
        )
    return config


def load_unfinished(run: Path, **changed) -> Classifier:
    """The classifier of an unfinished run, in evaluation mode; a note is printed with its step.

    Args:
        changed: as for `weights.load`.
    """
    config, finish = config_of_run(run), f"finish it with {resuming(run)}"
    step, kind, checkpoint = find_checkpoint(run / CHECKPOINTS)
    assert checkpoint is not None  # checked by config_of_run
    digests, state = json.loads((checkpoint / FACTS).read_text())["sha256"], {}
    for file in ("model.safetensors", "average.safetensors"):  # the averaged weights, if there are any, are evaluated
        if file in digests:
            if stored.digest(checkpoint / file) != digests[file]:
                raise ValueError(f"{checkpoint / file} is damaged: {finish}")
            state |= stored.read_safetensors(checkpoint / file)
    state = {name.removeprefix("model."): tensor for name, tensor in state.items()}
    classifier = stored.rebuild(config, state, checkpoint, **changed)
    print(f"{run} is not finished: these are the weights of step {step}, its {kind} so far; {finish}", file=sys.stderr)
    return classifier


def find_checkpoint(folder: Path) -> tuple[int, str, Path | None]:
    """The best checkpoint, else the latest: its step, "best" or "latest", and its folder if there is any."""
    found = {int(match[1]): path for path in folder.glob("step_*") if (match := re.fullmatch(r"step_(\d+)", path.name))}
    marks = json.loads((folder / BEST).read_text()) if (folder / BEST).exists() else {}
    for step in (marks.get("step"), marks.get("before")):
        if step in found:
            return step, "best", found[step]
    step = max(found, default=-1)
    return step, "latest", found.get(step)
