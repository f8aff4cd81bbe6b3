"""Trains a model by a recipe, or resumes a run.

    torchvars train cifar10_rvt_micro_vars_d --data PICTURES --output RUN
    torchvars train --resume RUN

A recipe is named after the pictures and the model: imagenet, imagenette, cifar10 or pacs, an underscore and a name of
`torchvars list models`. Every field of it can be changed: torchvars train RECIPE --help. On several processes: torchrun
--nproc-per-node N -m torchvars train ..., or accelerate launch.
"""

import argparse
import shlex
import sys
from pathlib import Path

from .extras import missing_extra
from .memory import keep_freed_memory

TAKES_MORE = True  # options beside those below are fields of the recipe


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "recipe", nargs="?", metavar="RECIPE", help="name of the recipe, such as cifar10_rvt_micro_vars_d"
    )
    parser.add_argument("--resume", type=Path, metavar="RUN", help="folder of the run to resume; takes no other option")


def run(arguments: argparse.Namespace, more: list[str]) -> None:
    if arguments.recipe is None and {"-h", "--help"} & {*more}:
        arguments.print_help()
        return
    keep_freed_memory()
    if arguments.resume is None and arguments.recipe is None:
        raise ValueError("name a recipe, such as cifar10_rvt_micro_vars_d, or a run to resume: --resume RUN")
    if arguments.resume is not None and (arguments.recipe or more):
        options = " ".join([*filter(None, [arguments.recipe]), *more])
        raise ValueError(f"--resume RUN takes no other option, got {options}")
    try:
        import tyro

        from ..training.loop import Settings
    except ModuleNotFoundError as error:
        raise missing_extra(error, "train", "training") from error
    from ..data import most_workers
    from ..training.folder import RunFolder
    from ..training.recipe import DATA, Recipe, find_recipe, is_recipe

    if arguments.resume is not None:
        folder = arguments.resume.expanduser()
        recipe, settings = RunFolder(folder).settings()
        workers = min(settings["workers"], most_workers())  # this machine may have fewer CPUs than the first one
        go(recipe, Settings(**{**settings, "output": folder, "workers": workers}), resume=True)
        return
    assert arguments.recipe is not None  # checked above
    if arguments.recipe.partition("_")[0] not in DATA and (later := [each for each in more if is_recipe(each)]):
        raise ValueError(f"the recipe comes first: torchvars train {later[0]} ..., got {arguments.recipe} before it")
    named = find_recipe(arguments.recipe)

    def command(
        settings: tyro.conf.OmitArgPrefixes[Settings], recipe: tyro.conf.OmitArgPrefixes[Recipe] = named
    ) -> None:
        go(recipe, settings, resume=restarted(settings.output, recipe))

    tyro.cli(command, args=more, prog=f"torchvars train {arguments.recipe}", description="Trains as this recipe says.")


def go(recipe, settings, resume: bool) -> None:
    """Trains, draws the curves, and prints how to resume; the exit status after a signal is that of shells."""
    from ..models.unfinished import resuming
    from ..scoring import is_first
    from ..training.folder import RunFolder
    from ..training.loop import train

    run = settings.output
    try:
        stopped_by = train(recipe, settings, resume=resume)
    except KeyboardInterrupt:
        hint = [f"resume with {resuming(run)}"] if RunFolder(run).exists() else []
        raise KeyboardInterrupt(*hint) from None
    if is_first():
        if recipe.conversion is None:  # a stage of a conversion has other metrics
            draw(run)
        if stopped_by is None:
            print(f"weights: {run / 'weights'}\nevaluate them with: {evaluating(recipe, settings)}")
    if stopped_by is not None:
        sys.exit(128 + stopped_by)


def evaluating(recipe, settings) -> str:
    """The command that evaluates the weights of a run on pictures that it was not trained on."""
    data = "PICTURES" if recipe.hold_out else settings.data  # without splits, the pictures of the run
    command = ["torchvars", "evaluate", settings.output, "--data", data, "--output", settings.output / "results.json"]
    if recipe.left_out is not None:
        command += ["--benchmark", "pacs", "--left-out", recipe.left_out]
    return shlex.join(map(str, command))


def restarted(run: Path, recipe) -> bool:
    """Whether torchrun has restarted this command after one of its processes died during the run."""
    from ..training.folder import RunFolder
    from ..training.loop import from_anywhere
    from ..training.processes import was_restarted

    if not was_restarted() or not RunFolder(run).exists():
        return False
    begun, _ = RunFolder(run).settings()
    if begun != from_anywhere(recipe):
        raise ValueError(f"{run} holds a run of another recipe: take another folder")
    return True


def draw(run: Path) -> None:
    """The curves of a run so far, where matplotlib is installed."""
    from ..figures.training import draw_curves
    from ..training.folder import RunFolder

    lines = RunFolder(run).metrics()
    if not lines:
        return
    try:
        draw_curves(lines, run / "curves.png")
    except ModuleNotFoundError as error:
        print(f"no curves were drawn: {missing_extra(error, 'figures', 'drawing')}")
    else:
        print(f"curves: {run / 'curves.png'}")
