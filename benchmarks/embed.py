"""Puts the weights of a training run or of a conversion into the package, with what they are measured to do.

    python benchmarks/embed.py RUN --pictures imagenette --data PICTURES --results FOLDER
    python benchmarks/embed.py CONVERSION --name deit_tiny_patch16_224_vars_p.imagenet --data PICTURES --results FOLDER
    python benchmarks/embed.py rvt_micro_vars_d.imagenette --data PICTURES --results FOLDER

Writes src/torchvars/weights/MODEL.PICTURES: the weights in half precision, the settings, what came of each picture, and
a record of recipe and figures under one hash; `torchvars verify` takes it from there. What is measured are the weights
as they ship; those that ship already can be measured again, by their name. Results are kept in
FOLDER/MODEL.PICTURES.json, so that this program goes on where it was stopped, or takes what `torchvars verify
MODEL.PICTURES --output` left there; several processes share the measuring (torchrun --nproc-per-node 2
benchmarks/embed.py ...). A run with another seed than 0 is a repetition, MODEL.PICTURES_seedN. Converted models are
larger, and are measured on fewer pictures.
"""

import argparse
import json
import shutil
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from torchvars.cli.memory import keep_freed_memory
from torchvars.evaluation.benchmarks import BENCHMARKS, Data
from torchvars.evaluation.compare import show
from torchvars.evaluation.corruptions import PUBLISHED
from torchvars.evaluation.record import RESULTS, Measured, Record, options_of, trial_of
from torchvars.evaluation.run import evaluate
from torchvars.evaluation.subjects import open_subject
from torchvars.evaluation.watch import watching
from torchvars.models import Classifier, weights
from torchvars.models.embedded import EMBEDDED, TAGS, find_embedded
from torchvars.models.unfinished import CONVERSION
from torchvars.scoring import Processes
from torchvars.training.conversion import KEPT, command_of, read_plan, recipes_of
from torchvars.training.folder import RunFolder

# What is measured of weights that ship, beside all pictures as they are.
PROTOCOL = {
    "clean": {},
    "corruptions": {"limit": 1000, "corruptions": list(PUBLISHED)},
    "pgd": {"limit": 500, "radii": [1 / 255, 2 / 255, 4 / 255], "attack_steps": [5, 20]},
    "square": {"limit": 200, "radii": [2 / 255, 4 / 255], "queries": 200},
}
# The same for converted models, which take ten times as long.
SHORT_PROTOCOL = {
    "clean": {},
    "corruptions": {"limit": 200, "corruptions": list(PUBLISHED)},
    "pgd": {"limit": 100, "radii": [1 / 255], "attack_steps": [5]},
}
CARD = {
    "clean": [("clean", "accuracy"), ("clean", "calibration error")],
    "corruptions": [("all", "accuracy")],
    "pgd": [("linf 1/255, 5 steps", "accuracy"), ("linf 2/255, 20 steps", "accuracy")],
    "square": [("linf 2/255, 200 queries", "accuracy")],
}
PICTURES = {  # as docs/results.md tells where they are from
    "imagenette": "Imagenette, squashed to 144 x 144 and stored as JPEG of quality 60",
    "cifar10": "CIFAR-10, stored as JPEG of quality 75",
    "imagenet": "ImageNet-1K by the authors of DeiT (Touvron et al. 2021; Apache-2.0; LayerNorms rounded to 6 bits)",
}


@dataclass(frozen=True)
class Candidate:
    """Weights that are to ship.

    Attributes:
        name: MODEL.PICTURES.
        recipe: all that decided what they became, besides the pictures.
        last: what was measured at the end of training.
        half: folder in which they are in half precision already; else None.
    """

    name: str
    classifier: Classifier
    recipe: dict
    last: dict
    half: Path | None = None

    @property
    def pictures(self) -> str:
        return self.name.partition(".")[2].partition("_")[0]

    @property
    def protocol(self) -> dict[str, dict]:
        return SHORT_PROTOCOL if self.recipe.get("conversion") else PROTOCOL


def of_run(folder: Path, pictures: str) -> Candidate:
    """The weights of a training run that has ended."""
    run = RunFolder(folder)
    recipe = asdict(run.settings()[0])
    seed = f"_seed{recipe['seed']}" if recipe["seed"] else ""
    name = f"{recipe['model']}.{pictures}{seed}"
    return Candidate(name, weights.load(folder / "weights"), recipe, run.metrics()[-1])


def of_conversion(folder: Path, name: str) -> Candidate:
    """The weights of a conversion that has ended."""
    plan = read_plan(folder)
    model = name.partition(".")[0]
    recipe = {
        "model": model,
        "seed": plan.seed,
        "conversion": command_of(plan),
        "stages": {stage: _without_places(asdict(each)) for stage, each in recipes_of(plan).items()},
    }
    return Candidate(name, weights.load(folder / "weights"), recipe, json.loads((folder / KEPT).read_text()))


def of_shipped(name: str) -> Candidate:
    """Weights that ship already."""
    folder = find_embedded(name)
    record = Record.read(folder)
    return Candidate(folder.name, weights.load(folder), record.recipe, record.trained["last"], folder)


def _without_places(recipe: dict) -> dict:
    """A recipe that does not say where on a machine the weights were that it began with."""
    conversion = recipe["conversion"] and {**recipe["conversion"], "original": "original"}
    initial = recipe["initial"] and Path(recipe["initial"]).parent.name
    return {**recipe, "conversion": conversion, "initial": initial}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="folder of a run or of a conversion that has ended, or a name whose weights ship")
    parser.add_argument("--pictures", choices=TAGS, help="what the run was trained on")
    parser.add_argument("--name", help="name under which a converted model ships, MODEL.PICTURES")
    parser.add_argument("--data", required=True, help="the same pictures, with val")
    parser.add_argument("--results", type=Path, required=True, help="folder of results")
    arguments = parser.parse_args()
    place = Path(arguments.model)
    if (place / CONVERSION).exists():
        kind, needed = "the folder of a conversion", {"name"}
    elif place.is_dir():
        kind, needed = "the folder of a run", {"pictures"}
    else:
        kind, needed = "no folder, so the name of weights that ship", set()
    if (given := {option for option in ("pictures", "name") if getattr(arguments, option)}) != needed:
        words = [", ".join(f"--{each}" for each in options) or "neither" for options in (needed, given)]
        parser.error(f"{arguments.model} is {kind}: of --pictures and --name it needs {words[0]}, got {words[1]}")

    processes = Processes()
    if arguments.name is not None:
        candidate = of_conversion(place, arguments.name)
    elif arguments.pictures is not None:
        candidate = of_run(place, arguments.pictures)
    else:
        candidate = of_shipped(arguments.model)
    name, trained, protocol = candidate.name, candidate.classifier, candidate.protocol
    folder = arguments.results / name  # until all is measured
    if processes.rank == 0:
        if candidate.half is not None:
            shutil.copytree(candidate.half, folder, dirs_exist_ok=True)
        else:
            weights.save(trained, folder, half=True)
    processes.wait()

    subject = open_subject(str(folder))
    data = Data(arguments.data)
    benchmarks = [BENCHMARKS[each](data, subject, **options_of(each, chosen)) for each, chosen in protocol.items()]
    with watching() as watch:
        results = evaluate(subject, benchmarks, arguments.results / f"{name}.json", watch=watch)
    if processes.rank:
        return
    # Where the pictures lay concerns nobody else.
    asked = {benchmark: {**each, "data": candidate.pictures} for benchmark, each in results.asked.items()}
    replace(results, asked=asked).write(folder / RESULTS)
    record = Record(
        *(weights.digest(folder / file) for file in (weights.WEIGHTS, weights.CONFIG, RESULTS)),
        candidate.recipe,
        {"last": candidate.last, "evaluated_by": results.environment},
        {each: trial_of(results, each, chosen) for each, chosen in protocol.items()},
    )
    record.write(folder)
    rows = [
        row_of(benchmark, record.trials[benchmark].images, record.value(benchmark, metric, condition))
        for benchmark in protocol
        for condition, metric in CARD.get(benchmark, ())
        if record.value(benchmark, metric, condition) is not None
    ]
    words = {"trained_on": PICTURES[candidate.pictures], "made_by": candidate.recipe.get("conversion")}
    text = weights.card(trained, weights.read_config(folder), rows, name=name, **words)
    weights.write_whole(folder / weights.CARD, lambda path: path.write_text(text))
    shutil.copytree(folder, EMBEDDED / name, dirs_exist_ok=True)
    print(f"{EMBEDDED / name}: seal {record.seal[:12]}")


def row_of(benchmark: str, images: int, figure: Measured) -> dict:
    return {
        "benchmark": f"{benchmark}, {figure.condition}",
        "metric": figure.metric,
        "value": show(figure),
        "images": images,
        "command": "`torchvars verify`",
    }


if __name__ == "__main__":
    keep_freed_memory()
    main()
