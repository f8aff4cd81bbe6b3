"""Whole generalisations of a tiny model on a few pictures of three domains."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import torchvars
import torchvars.generalization.run as generalize
from torchvars.cli.main import main
from torchvars.data import Shown, leave_out, open_source
from torchvars.data.pictures import Pictures
from torchvars.evaluation import tasks
from torchvars.generalization.plan import read_plan
from torchvars.generalization.results import METRICS, Generalization, Part, Score
from torchvars.generalization.table import mean_difference, print_generalization
from torchvars.training import loop
from torchvars.training.folder import RunFolder

pytestmark = pytest.mark.usefixtures("one_thread")

DOMAINS, CLASSES = ("photo", "sketch", "toy"), ("blue", "red")
RECIPE = ("batch=8", "epochs=3", "ema=0.5", "precision=no", "learning_rate=0.05")


def write(folder: Path, seed: int = 0) -> Path:
    """Noise with a little more of one colour, brighter from domain to domain."""
    generator = np.random.default_rng(seed)
    for number, domain in enumerate(DOMAINS):
        for label, name in enumerate(CLASSES):
            (folder / domain / name).mkdir(parents=True)
            for picture in range(15):
                noise = generator.integers(0, 100 + 20 * number, (16, 16, 3)).astype(float)
                noise[..., 2 * (1 - label)] += generator.normal(8, 12)
                Image.fromarray(noise.clip(0, 255).astype(np.uint8)).save(folder / domain / name / f"{picture}.png")
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return write(tmp_path_factory.mktemp("pictures"))


@pytest.fixture(scope="module")
def original(tmp_path_factory) -> Path:
    """Weights of a small model that knows other classes."""
    torch.manual_seed(0)
    model = torchvars.create("deit_micro_vars_d", num_classes=3, img_size=16, depth=2)
    folder = tmp_path_factory.mktemp("weights") / "tiny_vars_d"
    torchvars.Classifier(model, classes=("a", "b", "c")).save_pretrained(folder)
    return folder


def arguments(original: Path, data: Path, output: Path, *more: str) -> list[str]:
    words = f"generalize {original} --data {data} --output {output} --workers 0 --corrupted-pictures 2"
    return [*words.split(), "--set", *RECIPE, *more]


@pytest.fixture(scope="module")
def undisturbed(original, data, tmp_path_factory) -> Path:
    output = tmp_path_factory.mktemp("generalized") / "out"
    main(arguments(original, data, output, "--targets", "photo,toy"))
    return output


@pytest.fixture(scope="module")
def results(undisturbed) -> Generalization:
    return Generalization.read(undisturbed / "results.json")


def outcome(output: Path) -> dict[str, bytes]:
    names = [path.relative_to(output) for path in output.rglob("*") if path.name in ("results.json", "scores.json")]
    names += [path.relative_to(output) for path in output.rglob("weights/model.safetensors")]
    return {str(name): (output / name).read_bytes() for name in names}


def scored(results: Generalization, target: str, weights: str, seed: int | None = 0) -> dict:
    wanted = (target, weights, seed)
    return {each.metric: each for each in results.scores if (each.target, each.weights, each.seed) == wanted}


# What is measured


@pytest.mark.parametrize(("kind", "weights", "seed"), [("seed_0", "chosen", 0), ("probe", "linear probe", None)])
@pytest.mark.parametrize("target", ["photo", "toy"])
def test_accuracies_are_those_of_the_weights_counted_by_hand(target, kind, weights, seed, undisturbed, results, data):
    classifier = torchvars.Classifier.from_pretrained(undisturbed / "runs" / target / kind / "weights")
    assert classifier.classes == CLASSES

    def right(paths) -> list[bool]:
        pixels = torch.stack([torch.from_numpy(np.array(Image.open(path))).movedim(-1, 0) / 255 for path in paths])
        labels = torch.tensor([CLASSES.index(path.parent.name) for path in paths])
        return (classifier(pixels).argmax(-1) == labels).tolist()

    found = scored(results, target, weights, seed)
    paths = sorted((data / target).rglob("*.png"))
    assert found["target"].images == len(paths) == 30
    assert found["target"].value == pytest.approx(100 * np.mean(right(paths)))
    (part,) = [part for part in results.parts if (part.target, part.seed) == (target, seed)]
    assert part.right[weights].tolist() == right(paths)
    held_out = leave_out(open_source(data, "train"), target, "val")
    paths = [data / identity for identity in held_out.identities]
    assert found["source validation"].value == pytest.approx(100 * np.mean(right(paths)))
    assert found["source validation"].images == len(paths)
    assert found["gap"].value == pytest.approx(found["source validation"].value - found["target"].value)
    assert found["target, DomainBed's 80 %"].images == 24


def test_the_chosen_weights_are_those_of_the_best_epoch_and_the_last_of_the_last(undisturbed, results):
    for target in ("photo", "toy"):
        run = undisturbed / "runs" / target / "seed_0"
        lines = RunFolder(run).metrics()
        best = max(range(len(lines)), key=lambda number: (lines[number]["val_accuracy"], -number))
        chosen, last = (scored(results, target, name)["source validation"] for name in ("chosen", "last"))
        assert (chosen.epoch, last.epoch) == (best + 1, 3)
        assert chosen.value == pytest.approx(100 * lines[best]["val_accuracy"])
        assert last.value == pytest.approx(100 * lines[-1]["val_accuracy"])
        files = {path.stem for path in (run / "results").iterdir()}
        again = set() if best == 2 else {"last", "last_not_averaged"}  # the same weights are evaluated once
        assert files == {"chosen", "chosen_not_averaged"} | again


def test_weights_without_their_average_are_others(undisturbed):
    files = [undisturbed / "runs/photo/seed_0/results" / f"chosen{name}.json" for name in ("", "_not_averaged")]
    one, other = (json.loads(file.read_text())["model"] for file in files)
    assert one["sha256"] != other["sha256"]


def test_corruptions_are_of_photos_that_were_not_trained_on(undisturbed, data, results):
    source = open_source(data, "train")
    for target, untrained in (("photo", "test"), ("toy", "val")):
        allowed = set(leave_out(source, target, untrained).identities)
        content = json.loads((undisturbed / "runs" / target / "seed_0/results/chosen.json").read_text())
        found = content["pictures"]["corruptions"]
        assert len(found) == 2
        assert {name.split("/")[0] for name in found} == {"photo"}
        assert set(found) <= allowed
        assert scored(results, target, "chosen")["corrupted"].images == 2


def test_the_target_is_never_trained_on_and_nothing_held_out_is_augmented(original, data, tmp_path, monkeypatch):
    """By identity of pictures: those that are given to the transform of training, and those that probes are fit on."""
    trained, probed, augmenting, plain = set(), [], [], []
    read, make, choose = Pictures.__getitem__, loop.picture_transform, generalize.choose

    def spied(pictures, draw):
        if any(pictures.transform is each for each in augmenting):
            trained.add(pictures.source.identities[draw.index])
        else:
            assert isinstance(pictures.transform, Shown) or any(pictures.transform is each for each in plain)
        return read(pictures, draw)

    def making(*given, training: bool, **more):
        transform = make(*given, training=training, **more)
        (augmenting if training else plain).append(transform)
        return transform

    monkeypatch.setattr(Pictures, "__getitem__", spied)
    monkeypatch.setattr(loop, "picture_transform", making)
    monkeypatch.setattr(generalize, "choose", lambda *given: probed.append(given) or choose(*given))
    main(arguments(original, data, tmp_path / "out", "--targets", "sketch", "--no-corruptions"))
    source = open_source(data, "train")
    allowed, held_out = (leave_out(source, "sketch", split).identities for split in ("train", "val"))
    assert trained <= set(allowed)
    assert len(trained) > len(allowed) - 8  # what fills no batch is left to chance
    assert not trained & set(held_out)
    assert {name.split("/")[0] for name in trained} == {"photo", "toy"}
    features = load_file(tmp_path / "out" / "features.safetensors")["features"]
    rows = {tuple(row.tolist()): identity for row, identity in zip(features, source.identities, strict=True)}
    assert len(rows) == len(source)
    for (found, _), expected in zip(probed[0][:2], (allowed, held_out), strict=True):
        assert [rows[tuple(row.tolist())] for row in found] == expected


def test_pictures_of_the_target_change_nothing_that_is_learned(undisturbed, original, data, tmp_path):
    """The same, by the weights: with other pictures in the target domain they are the same to the bit."""
    other = shutil.copytree(data, tmp_path / "data")
    shutil.rmtree(other / "photo")
    shutil.copytree(write(tmp_path / "noise", seed=1) / "photo", other / "photo")
    main(arguments(original, other, tmp_path / "out", "--targets", "photo", "--no-corruptions"))
    for kind in ("seed_0", "probe"):
        one, same = (folder / "runs/photo" / kind / "weights" for folder in (undisturbed, tmp_path / "out"))
        assert (one / "model.safetensors").read_bytes() == (same / "model.safetensors").read_bytes()


# Killed, resumed, extended


def test_killed_and_resumed_it_ends_with_the_same_bytes(undisturbed, original, data, tmp_path, monkeypatch):
    output = tmp_path / "out"
    command = arguments(original, data, output, "--targets", "photo,toy")
    for owner, name, number in (
        (generalize, "choose", 2),  # within the second probe
        (loop, "learn", 3),  # within the first epoch of the first run, before its first checkpoint
        (loop, "learn", 12),
        (generalize, "subject_of", 1),  # after the training of the first run
        (tasks.Classification, "score", 30),  # within its corruptions
        (loop, "learn", 5),  # of the second run
    ):
        calls, function = [], getattr(owner, name)

        def breaking(*given, calls=calls, number=number, function=function, **more):
            calls.append(1)
            if len(calls) == number:
                raise KeyboardInterrupt
            return function(*given, **more)

        with monkeypatch.context() as patch:
            patch.setattr(owner, name, breaking)
            with pytest.raises(SystemExit) as stop:
                main(command)
        assert stop.value.code == 130
        command = ["generalize", "--resume", str(output)]
    main(command)
    assert outcome(output) == outcome(undisturbed)


def test_what_is_done_is_not_done_again_and_a_seed_can_be_added(undisturbed, original, data, tmp_path, monkeypatch):
    output = shutil.copytree(undisturbed, tmp_path / "out")
    before, steps, learn = outcome(output), [], loop.learn

    def counting(*given):
        steps.append(given[5].seed)
        return learn(*given)

    monkeypatch.setattr(loop, "learn", counting)
    main(arguments(original, data, output, "--targets", "photo,toy"))
    assert not steps
    assert outcome(output) == before
    main(arguments(original, data, output, "--targets", "photo,toy", "--seeds", "1"))
    assert set(steps) == {1}
    after = outcome(output)
    assert all(after[name] == content for name, content in before.items() if name != "results.json")
    results = Generalization.read(output / "results.json")
    one, other = (scored(results, "photo", "chosen", seed) for seed in (0, 1))
    assert one["target"].epoch is not None
    weights = [output / f"runs/photo/seed_{seed}/weights/model.safetensors" for seed in (0, 1)]
    assert weights[0].read_bytes() != weights[1].read_bytes()
    spread = results.over_seeds("chosen", "target", "photo")
    values = [one["target"].value, other["target"].value]
    assert (spread.value, spread.deviation) == pytest.approx((np.mean(values), np.std(values, ddof=1)))
    assert spread.seeds == 2
    assert results.over_seeds("chosen", "target") is None  # sketch was not left out


def test_other_settings_are_refused_in_the_same_folder(undisturbed, original, data, tmp_path, capsys):
    for more, said in (
        (["--held-out-share", "0.2"], "held_out_share 0.1, now 0.2"),
        (["--set", "epochs=1"], "changed"),
    ):
        with pytest.raises(SystemExit) as stop:
            main(arguments(original, data, undisturbed, *more))
        assert stop.value.code == 2
        assert said in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["generalize", "--resume", str(undisturbed), "--seeds", "1"])
    assert "--resume takes no other option, got seeds (1,)" in capsys.readouterr().err
    assert read_plan(undisturbed).seeds == (0,)


# What is printed and drawn


def test_the_table_fits_80_columns_and_says_what_was_measured(undisturbed, original, data, results, capsys):
    main(["generalize", "--resume", str(undisturbed)])
    printed = capsys.readouterr().out
    lines = printed.splitlines()
    assert max(map(len, [line for line in lines if not line.startswith(("figure", "results"))])) <= 80
    for target in ("photo", "toy"):
        for weights in ("chosen", "linear probe"):
            score = scored(results, target, weights, None if "probe" in weights else 0)["target"]
            assert f"{score.value:.1f} ({score.low:.1f} to {score.high:.1f})" in printed
    assert "paper" not in printed  # of other domains
    assert (undisturbed / "accuracy.png").read_bytes().startswith(b"\x89PNG")


def test_several_models_are_compared_on_the_same_pictures(undisturbed, results, tmp_path, capsys):
    other = Generalization.read(undisturbed / "results.json")
    other.model["name"] = "other"
    for part in other.parts:
        part.right["chosen"] = ~part.right["chosen"] if "chosen" in part.right else None
        part.right.pop("chosen") if part.right["chosen"] is None else None
    other.write(tmp_path / "other.json")
    files = [str(undisturbed / "results.json"), str(tmp_path / "other.json")]
    main(["compare", *files, "--figures", str(tmp_path / "figures")])
    printed = capsys.readouterr().out
    accuracy = scored(results, "photo", "chosen")["target"].value
    assert f"{100 - 2 * accuracy:+.1f} (" in printed
    assert (tmp_path / "figures" / "domains.png").exists()
    with pytest.raises(SystemExit):
        main(["compare", files[0], str(undisturbed / "runs/photo/seed_0/results/chosen.json")])
    assert "holds no results of torchvars generalize" in capsys.readouterr().err


# Errors before anything is trained


def spoil(folder: Path, what: str) -> None:
    if what == "other":
        shutil.rmtree(folder / "toy" / "red")
    elif what == "empty":
        for picture in (folder / "toy" / "red").iterdir():
            picture.unlink()
    elif what == "single":
        for picture in range(1, 15):
            (folder / "toy" / "red" / f"{picture}.png").unlink()
    elif what == "one domain":
        shutil.rmtree(folder / "toy")
        shutil.rmtree(folder / "sketch")
    elif what == "flat":
        for picture in range(15):
            shutil.move(folder / "toy" / "red" / f"{picture}.png", folder / "toy" / f"{picture}.png")
    elif what == "one class":
        for domain in DOMAINS:
            shutil.rmtree(folder / domain / "red")


@pytest.mark.parametrize(
    ("what", "more", "said"),
    [
        ("other", [], "photo and toy .* other classes: only in photo red; only in toy none"),
        ("empty", [], "the class red of the domain toy in .* has no pictures"),
        ("single", [], "the class red of the domain toy in .* has one picture only, expected two at least"),
        ("one domain", [], "has the domain photo only: expected two at least"),
        ("one class", [], "has one class only, blue"),
        ("flat", [], "has no domains: expected <domain>/<class>/<picture>, found toy/0.png"),
        ("", ["--targets", "photo,oil"], "no domain 'oil' in .*: it has photo, sketch, toy"),
        ("", ["--corrupted", "oil"], "no domain 'oil' to corrupt in .*: it has photo, sketch, toy"),
        ("", ["--seeds", "0,x"], "expected whole numbers such as 0,1,2, got '0,x'"),
        ("", ["--seeds", "-1"], "seeds must be 0 or more, got -1|expected one argument"),
        ("", ["--methods", "knn"], "no method 'knn': there are probe, tune"),
        ("", ["--held-out-share", "0.25"], "held_out_share must be one of 0.1, 0.2, .*, got 0.25"),
        ("", ["--set", "rate=1"], "a change of the recipe is FIELD=VALUE, .*: got 'rate=1'"),
        ("", ["--set", "seed=1"], "got 'seed=1', and seed has an option of its own"),
        ("", ["--set", "batch=64"], "do not fill one batch of 64"),
        ("", ["--img-size", "9"], "img_size 9 x 9 is not a multiple of 8"),
        ("", ["--split-lists", "."], "no list .*photo_train_kfold.txt"),
    ],
)
def test_what_cannot_be_done_is_told_before_anything_is_written(what, more, said, original, data, tmp_path, capsys):
    import re

    pictures = shutil.copytree(data, tmp_path / "data")
    spoil(pictures, what)
    with pytest.raises(SystemExit) as stop:
        main(arguments(original, pictures, tmp_path / "out", *more))
    assert stop.value.code == 2
    assert re.search(said, capsys.readouterr().err)
    assert not (tmp_path / "out").exists()


def made(name: str, seeds: int, corrupted: bool = True) -> Generalization:
    """Results on the domains of PACS: target accuracy 50 + 10 domain + seed."""
    domains = ["art_painting", "cartoon", "photo", "sketch"]
    parts = []
    for seed in [None, *range(seeds)]:
        for number, target in enumerate(domains):
            scores = []
            for weights in ("linear probe",) if seed is None else ("chosen", "chosen, not averaged"):
                value = 50.0 + 10 * number + (seed or 0)
                for metric in METRICS[: 6 if corrupted and weights == "chosen" else 4]:
                    ends = (None, None) if metric == "gap" else (value - 3, value + 3)
                    scores.append(Score(target, seed, weights, None, metric, value, *ends, 100))
            parts.append(Part(target, seed, tuple(scores), {}))
    asked = {"corrupted": "photo", "corrupted_pictures": 100}
    counts = {domain: {"dog": 100} for domain in domains}
    return Generalization({"name": name, "architecture": name}, asked, counts, {}, parts, ["a note"])


@pytest.mark.parametrize("seeds", [1, 3])
def test_the_table_of_pacs_has_the_figures_of_the_paper(seeds, capsys):
    print_generalization([made("rvt_micro_vars_sd", seeds)])
    printed = capsys.readouterr().out
    lines = [line.rstrip() for line in printed.splitlines()]
    assert max(map(len, lines)) <= 80
    chosen = [line.split()[-1] for line in lines if line.startswith("  chosen ")]
    assert chosen == ["86.1", "81.0", "96.5", "82.8", "86.6"]
    assert sum("± 1.0" in line for line in lines if line.startswith("  chosen ")) == (5 if seeds == 3 else 0)
    print_generalization([made("rvt_micro_softmax", seeds)])
    assert "RVT*-Ti, its baseline" in " ".join(capsys.readouterr().out.split())


def test_the_mean_over_domains_has_its_spread_over_seeds_and_its_interval():
    """Three seeds: the means of each are 65, 66, 67. One: four independent intervals of half width 3."""
    mean = made("x", 3).over_seeds("chosen", "target")
    assert (mean.value, mean.deviation, mean.seeds) == pytest.approx((66, 1, 3))
    mean = made("x", 1).over_seeds("chosen", "target")
    assert (mean.value, mean.low, mean.high) == pytest.approx((65, 65 - 1.5, 65 + 1.5))
    assert made("x", 1).over_seeds("chosen", "gap").low is None
    assert made("x", 1, corrupted=False).over_seeds("chosen", "corrupted") is None


def test_the_mean_difference_is_that_of_independent_domains():
    """Against the interval of the mean of independent normal differences of one width."""
    assert mean_difference([(1.0, 0.0, 2.0), (3.0, 2.0, 4.0), (2.0, 1.0, 3.0), (2.0, 1.0, 3.0)]) == (2.0, 1.5, 2.5)
    assert mean_difference([(1.0, 0.0, 2.0), None]) is None
