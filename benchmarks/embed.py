"""Puts the weights of a training run into the package, with what they are measured to do.

    python benchmarks/embed.py RUN --pictures imagenette --data PICTURES --results FOLDER
    python benchmarks/embed.py rvt_micro_vars_d.imagenette --data PICTURES --results FOLDER

Writes src/torchvars/weights/MODEL.PICTURES: the weights in half precision, the settings, what came of each picture, and
a record of recipe and figures under one hash; `torchvars verify` takes it from there. What is measured are the weights
as they ship; those that ship already can be measured again, by their name. Results are kept in
FOLDER/MODEL.PICTURES.json, so that this program goes on where it was stopped, or takes what `torchvars verify
MODEL.PICTURES --output` left there; several processes share the measuring (torchrun --nproc-per-node 2
benchmarks/embed.py ...). A run with another seed than 0 is a repetition, MODEL.PICTURES_seedN.
"""

import argparse
import shutil
from dataclasses import asdict, replace
from pathlib import Path

from torchvars.cli.memory import keep_freed_memory
from torchvars.evaluation.benchmarks import BENCHMARKS, Data
from torchvars.evaluation.compare import show
from torchvars.evaluation.corruptions import PUBLISHED
from torchvars.evaluation.record import RESULTS, Measured, Record, options_of, trial_of
from torchvars.evaluation.run import evaluate
from torchvars.evaluation.subjects import open_subject
from torchvars.evaluation.watch import watching
from torchvars.models import weights
from torchvars.models.embedded import EMBEDDED, TAGS, find_embedded
from torchvars.scoring import Processes
from torchvars.training.folder import RunFolder

# What is measured of weights that ship, beside all pictures as they are.
PROTOCOL = {
    "clean": {},
    "corruptions": {"limit": 1000, "corruptions": list(PUBLISHED)},
    "pgd": {"limit": 500, "radii": [1 / 255, 2 / 255, 4 / 255], "attack_steps": [5, 20]},
    "square": {"limit": 200, "radii": [2 / 255, 4 / 255], "queries": 200},
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
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="folder of a training run that has come to its end, or a name whose weights ship")
    parser.add_argument("--pictures", choices=TAGS, help="what the run was trained on")
    parser.add_argument("--data", required=True, help="the same pictures, with val")
    parser.add_argument("--results", type=Path, required=True, help="folder of results")
    arguments = parser.parse_args()
    is_folder = Path(arguments.model).is_dir()
    if is_folder != (arguments.pictures is not None):
        parser.error(
            "--pictures goes with the folder of a run, while the name of weights says what they were trained on: "
            f"{arguments.model} is {'a' if is_folder else 'no'} folder"
        )

    processes = Processes()
    if arguments.pictures is None:
        shipped = find_embedded(arguments.model)
        name, before = shipped.name, Record.read(shipped)
        recipe, last, trained = before.recipe, before.trained["last"], weights.load(shipped)
    else:
        run = RunFolder(Path(arguments.model))
        recipe, last, trained = asdict(run.settings()[0]), run.metrics()[-1], weights.load(run.path / "weights")
        seed = f"_seed{recipe['seed']}" if recipe["seed"] else ""
        name = f"{recipe['model']}.{arguments.pictures}{seed}"
    pictures = name.partition(".")[2].partition("_")[0]
    folder = arguments.results / name  # until all is measured
    if processes.rank == 0:
        if arguments.pictures is None:
            shutil.copytree(shipped, folder, dirs_exist_ok=True)
        else:
            weights.save(trained, folder, half=True)
    processes.wait()

    subject = open_subject(str(folder))
    data = Data(arguments.data)
    benchmarks = [BENCHMARKS[each](data, subject, **options_of(each, chosen)) for each, chosen in PROTOCOL.items()]
    with watching() as watch:
        results = evaluate(subject, benchmarks, arguments.results / f"{name}.json", watch=watch)
    if processes.rank:
        return
    # Where the pictures lay concerns nobody else.
    asked = {benchmark: {**each, "data": pictures} for benchmark, each in results.asked.items()}
    replace(results, asked=asked).write(folder / RESULTS)
    record = Record(
        *(weights.digest(folder / file) for file in (weights.WEIGHTS, weights.CONFIG, RESULTS)),
        recipe,
        {"last": last, "evaluated_by": results.environment},
        {each: trial_of(results, each, chosen) for each, chosen in PROTOCOL.items()},
    )
    record.write(folder)
    rows = [
        row_of(benchmark, record.trials[benchmark].images, record.value(benchmark, metric, condition))
        for benchmark, wanted in CARD.items()
        for condition, metric in wanted
    ]
    text = weights.card(trained, weights.read_config(folder), rows, name=name, trained_on=PICTURES[pictures])
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
