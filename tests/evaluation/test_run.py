"""The loop: numbers do not depend on how it is run, nothing is done twice, and nothing is passed over in silence."""

import argparse
import json
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import torchvars
from evaluation.halves import HALVES, Halves, build, counted, save_weights, subject, write
from torchvars.cli import compare as compare_command
from torchvars.cli import evaluate as evaluate_command
from torchvars.cli import verify as verify_command
from torchvars.cli.main import main
from torchvars.data import open_source
from torchvars.evaluation import metrics, run
from torchvars.evaluation.attacks import PGD, Square
from torchvars.evaluation.benchmarks import BENCHMARKS, Benchmark, Data, Member
from torchvars.evaluation.benchmarks import build as build_all
from torchvars.evaluation.benchmarks.attacks import attacks_known
from torchvars.evaluation.corruptions import PUBLISHED
from torchvars.evaluation.results import Results
from torchvars.evaluation.run import Evaluation, evaluate
from torchvars.evaluation.subjects import Subject, open_subject, subject_of
from torchvars.evaluation.tasks.classification import match_classes
from torchvars.evaluation.watch import watching

FEW = {
    "corruptions": ("gaussian_noise", "fog", "saturate"),
    "severities": (1, 4),
    "radii": (8 / 255,),
    "queries": 5,
    "attack_steps": (5,),
}


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def _rough_intervals(monkeypatch):
    monkeypatch.setattr(metrics, "RESAMPLES", 50)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory) -> str:
    """Eleven, which fill no whole number of batches."""
    folder = write(tmp_path_factory.mktemp("pictures"), count=3)
    (folder / "left" / "2.png").unlink()
    return str(folder)


@pytest.fixture(scope="module")
def weights(tmp_path_factory) -> Path:
    return save_weights(tmp_path_factory.mktemp("weights") / "tiny")


def benchmarks(pictures: str, model: Subject, *names: str, options: dict = FEW) -> list[Benchmark]:
    return [build(name, pictures, model, options) for name in names]


def tried(model: Subject, chosen: list[Benchmark], output: Path, **options) -> Results:
    return evaluate(model, chosen, output, **{"partial_ok": True, "workers": 0, "batch": 4, **options})


# Numbers do not depend on how they are found


@pytest.mark.parametrize(("batch", "workers"), [(1, 0), (64, 2)])
def test_numbers_do_not_depend_on_batches_and_workers(batch, workers, pictures, weights, tmp_path):
    model = open_subject(str(weights))
    names = ("corruptions", "pgd", "square")
    first = tried(model, benchmarks(pictures, model, *names), tmp_path / "first.json")
    second = tried(model, benchmarks(pictures, model, *names), tmp_path / "second.json", batch=batch, workers=workers)
    assert 0 < first.value("corruptions", "accuracy", "clean").value < 100
    for one, other in zip(first.rows, second.rows, strict=True):
        assert replace(one, value=0, low=0, high=0) == replace(other, value=0, low=0, high=0)
        # What is right or wrong is the same; of the logits the last digits are not.
        tolerance = 1e-3 if one.metric in ("loss", "calibration error") else 0
        assert (other.value, other.low, other.high) == pytest.approx((one.value, one.low, one.high), abs=tolerance)


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def test_two_processes_give_the_numbers_of_one(pictures, weights, tmp_path, capsys, monkeypatch):
    monkeypatch.undo()
    arguments = ["evaluate", str(weights), "--data", pictures, "--benchmark", "clean,corruptions,pgd,square"]
    arguments += ["--corruptions=fog,gaussian_noise", "--severities=4", "--radii=8/255", "--queries=5"]
    arguments += ["--attack-steps=5", "--batch=4", "--workers=0"]
    main([*arguments, "--output", str(tmp_path / "one.json")])
    shown = capsys.readouterr()
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone", "-m", "torchvars"]
    second = ["--output", str(tmp_path / "two.json")]
    done = subprocess.run([*torchrun, *arguments, *second], env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    one, two = (json.loads((tmp_path / name).read_text()) for name in ("one.json", "two.json"))
    assert one.pop("environment").keys() == two.pop("environment").keys()  # threads may differ
    assert two == one
    # Only one of them speaks, and says what all of them found.
    assert done.stdout == shown.out.replace("one.json", "two.json")
    assert [line for line in done.stderr.splitlines() if line.endswith(" %")] == shown.err.splitlines()
    assert [line.split()[0] for line in shown.err.splitlines()] == ["1/8", "3/8", "4/8", "6/8", "8/8"]


# Nothing is done twice


def test_what_is_finished_is_not_tried_again(pictures, tmp_path, monkeypatch):
    model, output = subject(), tmp_path / "results.json"
    chosen = benchmarks(pictures, model, "clean", "corruptions", "pgd")
    tried(model, chosen, output)
    before = output.read_bytes()
    keys = counted(monkeypatch)
    tried(model, chosen, output, batch=2)
    assert keys == []
    assert output.read_bytes() == before


def test_clean_pictures_are_tried_once_for_all_benchmarks(pictures, tmp_path, monkeypatch):
    model, output, keys = subject(), tmp_path / "results.json", counted(monkeypatch)
    results = tried(model, benchmarks(pictures, model, "clean", "corruptions", "pgd"), output)
    assert keys.count("clean") == 1
    values = [results.value(name, "loss", "clean").value for name in ("clean", "corruptions", "pgd")]
    assert len(set(values)) == 1
    # Of other pictures they are others.
    few = FEW | dict(limit=5)
    tried(model, benchmarks(pictures, model, "square", options=few), output)
    assert keys.count("clean") == 2


def test_benchmarks_are_added_to_a_file(pictures, tmp_path, monkeypatch):
    model, output = subject(), tmp_path / "results.json"
    tried(model, benchmarks(pictures, model, "clean", "corruptions"), tmp_path / "together.json")
    tried(model, benchmarks(pictures, model, "clean"), output)
    keys = counted(monkeypatch)
    tried(model, benchmarks(pictures, model, "corruptions"), output)
    assert keys == [f"{name} {severity}" for name in FEW["corruptions"] for severity in FEW["severities"]]
    assert output.read_bytes() == (tmp_path / "together.json").read_bytes()
    # More of a benchmark as well; but what it has is not to be lost.
    keys.clear()
    more = FEW | dict(severities=(1, 2, 4), corruptions=("gaussian_noise", "fog", "saturate"))
    tried(model, benchmarks(pictures, model, "corruptions", options=more), output)
    assert keys == [f"{name} 2" for name in FEW["corruptions"]]
    before = output.read_bytes()
    with pytest.raises(ValueError, match=r"holds more of corruptions than is asked for now, such as gaussian_noise 2"):
        tried(model, benchmarks(pictures, model, "corruptions"), output)
    assert output.read_bytes() == before


def killing(model: Subject, chosen: list[Benchmark], output: Path, times: int, half: bool) -> None:
    """Goes on until the file was written so often, the last time by half if so asked, and is killed."""
    write, left = Results.write, times

    def counting(self: Results, path: Path) -> None:
        nonlocal left
        left -= 1
        if left == 0 and half:
            Path(f"{path}.part").write_text('{\n"torchvars_results": 1,\n"mod')
            os.kill(os.getpid(), signal.SIGKILL)
        write(self, path)
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    Results.write = counting
    tried(model, chosen, output)


@pytest.mark.parametrize(
    ("written", "half", "left"),  # each benchmark is written once more when it is finished
    [(1, True, 8), (2, False, 7), (10, False, 0)],
)
def test_killed_it_goes_on_where_it_was(written, half, left, pictures, weights, tmp_path, monkeypatch):
    model, output = open_subject(str(weights)), tmp_path / "results.json"
    chosen = benchmarks(pictures, model, "clean", "corruptions", "pgd")
    keys = counted(monkeypatch)
    tried(model, chosen, tmp_path / "undisturbed.json")
    every = ["clean", *(f"{name} {number}" for name in FEW["corruptions"] for number in (1, 4)), "linf 8/255, 5 steps"]
    assert keys == every
    process = multiprocessing.get_context("fork").Process(target=killing, args=(model, chosen, output, written, half))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    keys.clear()
    tried(model, chosen, output)
    assert keys == every[len(every) - left :]
    assert output.read_bytes() == (tmp_path / "undisturbed.json").read_bytes()
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".part"] == []


# Another question is another file


def refused(message: str, model: Subject, chosen: list[Benchmark], output: Path, **options) -> None:
    before = output.read_bytes()
    with pytest.raises(ValueError, match=message):
        tried(model, chosen, output, **options)
    assert output.read_bytes() == before
    assert not Path(f"{output}.part").exists()


def test_a_file_of_another_question_is_left_alone(pictures, tmp_path, monkeypatch):
    model, output = subject(), tmp_path / "results.json"
    tried(model, benchmarks(pictures, model, "clean", "corruptions", "pgd"), output)
    keys = counted(monkeypatch)
    other = subject(sign=-1)
    told = f"another model .sha256 {model.sha256}, now {other.sha256}.: give another file"
    refused(told, other, benchmarks(pictures, other, "clean"), output)
    other = subject(name="other")
    refused("name halves, now other", other, benchmarks(pictures, other, "clean"), output)
    told = re.escape("solving {}, now {'strength': 0.5}")
    refused(told, model, benchmarks(pictures, model, "clean"), output, solving={"strength": 0.5})
    other = replace(model, size=16)
    refused("size 32, now 16", other, benchmarks(pictures, other, "clean"), output)
    elsewhere = write(tmp_path / "elsewhere")
    told = f"holds clean with other settings: data '{pictures}', now '{elsewhere}'; pictures '.*; images 11, now 8"
    refused(told, model, benchmarks(str(elsewhere), model, "clean"), output)
    told = "pictures '.*', now '.*'; images 11, now 5"
    refused(told, model, benchmarks(pictures, model, "clean", options=FEW | dict(limit=5)), output)
    for name in ("corruptions", "pgd"):
        told = f"holds {name} with other settings: protocol '.*seed 0.*', now '.*seed 1.*'; give --output another file"
        refused(told, model, benchmarks(pictures, model, name, options=FEW | dict(seed=1)), output)
    assert keys == []


@pytest.mark.parametrize(
    "content", ["", "{}", "[1, 2]", "null", '{"torchvars_results": 2}', "\x00\xff", '{"torchvars_results": 1}', "cut"]
)
def test_a_file_of_something_else_is_left_alone(content, pictures, tmp_path):
    model, output = subject(), tmp_path / "results.json"
    if content == "cut":
        tried(model, benchmarks(pictures, model, "clean"), output)
        content = output.read_text()[:-20]
    output.write_text(content)
    refused(f"{output} holds no results of torchvars evaluate", model, benchmarks(pictures, model, "clean"), output)


def test_all_questions_are_checked_before_the_first_is_tried(pictures, tmp_path, monkeypatch):
    model, output, keys = subject(), tmp_path / "results.json", counted(monkeypatch)
    strange = BENCHMARKS["clean"](str(write(tmp_path / "strange", ("a", "b", "c", "d"))), model)
    with pytest.raises(ValueError, match="halves does not know 4 of the 4 classes"):
        tried(model, [*benchmarks(pictures, model, "pgd"), strange], output)
    lacking = [replace(each, missing=("fog",)) for each in benchmarks(pictures, model, "clean")]
    with pytest.raises(ValueError, match="clean is not complete"):
        tried(model, [*benchmarks(pictures, model, "pgd"), *lacking], output, partial_ok=False)
    with pytest.raises(ValueError, match=r"no device 'cuda:99' here: there .* cpu"):
        tried(model, benchmarks(pictures, model, "clean"), output, device="cuda:99")
    with pytest.raises(ValueError, match="batch must be at least 1, got 0"):
        tried(model, benchmarks(pictures, model, "clean"), output, batch=0)
    with pytest.raises(ValueError, match="workers must be from 0 to"):
        tried(model, benchmarks(pictures, model, "clean"), output, workers=100_000)
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"file is a file: give --output a path in a folder"):
        tried(model, benchmarks(pictures, model, "clean"), tmp_path / "file" / "results.json")
    assert keys == []
    assert not output.exists()


def test_weights_that_solve_in_another_way_are_another_model(pictures, tmp_path):
    """Though all their tensors are the same."""
    folder, output = save_weights(tmp_path / "tiny"), tmp_path / "results.json"
    model = open_subject(str(folder))
    tried(model, benchmarks(pictures, model, "clean"), output)
    before, classifier = output.read_bytes(), model.classifier
    for layer in classifier.model.blocks:
        layer.attn.strength = 5.0
    classifier.save_pretrained(folder)
    model = open_subject(str(folder))
    with pytest.raises(ValueError, match=r"holds results of another model \(layers .*'strength': 0.3.*now .* 5.0"):
        tried(model, benchmarks(pictures, model, "clean"), output)
    assert output.read_bytes() == before


def test_two_evaluations_do_not_write_one_file(pictures, tmp_path):
    model, output, refused = subject(), tmp_path / "results.json", []

    def meanwhile(*_) -> None:
        with pytest.raises(ValueError, match=r"another evaluation is writing .*results.json: wait for its end"):
            tried(model, benchmarks(pictures, model, "square"), output)
        refused.append(True)

    tried(model, benchmarks(pictures, model, "clean"), output, watch=meanwhile)
    assert refused
    tried(model, benchmarks(pictures, model, "square"), output)
    assert set(Results.read(output).outcomes) == {"clean", "square"}


def test_what_is_said_of_a_picture_is_named_with_its_probability_and_loss(tmp_path):
    """Three greys, and logits that are known: confidences, losses and the calibration error by hand."""
    for name, levels in {"bright": (200, 120), "dark": (20,)}.items():
        (tmp_path / "val" / name).mkdir(parents=True)
        for number, level in enumerate(levels):
            Image.new("RGB", (8, 8), (level,) * 3).save(tmp_path / "val" / name / f"{number}.png")

    class Grey(nn.Module):
        def forward(self, pixels):
            mean = pixels.mean((1, 2, 3))
            return torch.stack([8 * mean - 4, torch.zeros_like(mean)], -1)

    model = replace(subject(), classifier=Grey(), classes=("bright", "dark"), size=8)
    results = tried(model, benchmarks(str(tmp_path), model, "clean"), tmp_path / "results.json")
    bright = 1 / (1 + np.exp(4 - 8 * np.array([200, 120, 20]) / 255))  # the second is taken for dark
    losses = -np.log([bright[0], bright[1], 1 - bright[2]])
    confidences, right = np.array([bright[0], 1 - bright[1], 1 - bright[2]]), np.array([1, 0, 1])
    bins = np.floor(confidences * 15)
    gap = sum(abs((confidences - right)[bins == each].sum()) for each in set(bins)) / 3
    assert results.value("clean", "accuracy", "clean").value == pytest.approx(200 / 3)
    assert results.value("clean", "loss", "clean").value == pytest.approx(losses.mean(), rel=1e-5)
    assert results.value("clean", "calibration error", "clean").value == pytest.approx(100 * gap, rel=1e-4)


def test_a_model_in_training_mode_is_evaluated_as_it_will_be_used(pictures, tmp_path):
    torch.manual_seed(0)
    norm, head = nn.BatchNorm2d(3), nn.Linear(3 * 32 * 32, 4)
    model = nn.Sequential(norm, nn.Dropout(0.9), nn.Flatten(), head).train()
    before = norm.running_mean.clone()
    mine = replace(subject_of("mine", torchvars.Classifier(model, classes=HALVES)), size=32)
    results = tried(mine, benchmarks(pictures, mine, "clean"), tmp_path / "results.json")
    assert torch.equal(norm.running_mean, before)
    model.eval()
    again = tried(mine, benchmarks(pictures, mine, "clean"), tmp_path / "again.json")
    assert results.value("clean", "loss", "clean") == again.value("clean", "loss", "clean")


def test_versions_of_all_that_took_part_are_kept(pictures, tmp_path, monkeypatch):
    model, output = subject(), tmp_path / "results.json"
    own = tried(model, benchmarks(pictures, model, "clean"), output).environment
    monkeypatch.setattr(run, "environment", lambda: {"torch": "3"})
    for _ in range(2):
        later = tried(model, benchmarks(pictures, model, "clean", "square"), output).environment
        assert later == {"torch": "3", "earlier": [own]}


def test_only_the_first_of_several_processes_shows_a_bar(monkeypatch, capsys):
    now = run.Progress("pgd", "clean", number=3, count=7, done=10, total=10, value=50.0, unit=" %", share=0.1)
    for rank, said in (("0", "3/7 pgd, clean: 50.00 %\n"), ("1", "")):
        monkeypatch.setenv("RANK", rank)
        with watching() as watch:
            watch(now)
        assert capsys.readouterr().err == said


# Pictures that cannot be read


def test_a_picture_that_cannot_be_read_is_counted_and_named(tmp_path):
    folder = write(tmp_path / "pictures", count=5)
    (folder / "left" / "3.png").write_bytes((folder / "left" / "3.png").read_bytes()[:200])
    (folder / "top" / "0.png").write_bytes(b"nothing")
    model = subject()
    results = tried(model, benchmarks(str(folder), model, "clean", "corruptions", "pgd"), tmp_path / "results.json")
    assert {name.removeprefix(f"{folder}: ") for name in results.unreadable} == {"left/3.png", "top/0.png"}
    for row in results.rows:
        if row.condition.subset is not None:
            expected = 80 if row.label.startswith(("class left", "class top")) else 100
            assert (row.value, row.images) == (pytest.approx(expected), 5)
        elif row.metric in ("accuracy", "consistency"):
            assert (row.value, row.images) == (pytest.approx(90), 20), row
        elif row.metric == "loss":  # of those that were seen
            assert row.value < 0.2
            assert row.images == 18
        elif row.metric == "calibration error":
            assert row.images == 18
    for outcomes in results.outcomes.values():
        for outcome in outcomes.values():
            assert len(outcome.columns["right"]) == 20
            assert [results.pictures["clean"][index] for index in np.flatnonzero(~outcome.columns["right"])] == [
                "left/3.png",
                "top/0.png",
            ]
    assert Results.read(tmp_path / "results.json").unreadable == results.unreadable


def test_a_folder_of_which_nothing_can_be_read_is_an_error(tmp_path):
    folder = write(tmp_path / "pictures", count=1)
    for path in folder.glob("*/*.png"):
        path.write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"no picture of .* can be read"):
        tried(subject(), benchmarks(str(folder), subject(), "clean"), tmp_path / "results.json")


def test_names_that_are_no_utf_8_are_evaluated_and_gone_on_with(pictures, weights, tmp_path, monkeypatch, capsys):
    folder = Path(shutil.copytree(pictures, tmp_path / os.fsdecode(b"caf\xe9")))
    (folder / "left" / "0.png").rename(folder / "left" / os.fsdecode(b"\xff.png"))
    (folder / "top" / os.fsdecode(b"\xfe.png")).write_bytes(b"nothing")
    command = ["evaluate", str(weights), "--data", str(folder), "--output", str(folder / "results.json"), "--workers=0"]
    main(command)
    results = Results.read(folder / "results.json")
    assert {r"left/\xff.png", r"top/\xfe.png"} < set(results.pictures["clean"])
    assert r"top/\xfe.png" in capsys.readouterr().out
    keys = counted(monkeypatch)
    main(command)
    assert keys == []


# Classes


def test_classes_are_matched_by_name(pictures, tmp_path):
    names = ("wall", "right", "bottom", "door", "left", "top")  # more than the pictures have, in another order
    for sign, expected in ((1, 100), (-1, 0)):
        model = subject(classes=names, sign=sign)
        results = tried(model, benchmarks(pictures, model, "clean", "pgd"), tmp_path / f"{sign}.json")
        assert results.value("clean", "accuracy", "clean").value == expected
        assert results.value("pgd", "accuracy", "linf 8/255, 5 steps").value == expected


def test_the_answer_is_looked_for_in_the_label_space_that_is_chosen_and_every_row_says_so(pictures, tmp_path):
    model, output = subject(classes=("wall", *HALVES), favourite="wall"), tmp_path / "among.json"
    (clean,) = benchmarks(pictures, model, "clean", options=FEW | dict(label_space="model"))
    whole = tried(model, [clean], tmp_path / "whole.json")
    assert {row.protocol.partition("top-1")[2] for row in whole.rows} == {
        "; label space: 5 classes, 4 of them in the pictures"
    }
    # As there are fewer classes than the model has, those present are what is meant if nothing is said.
    among = tried(model, benchmarks(pictures, model, "clean"), output)
    assert {row.protocol.partition("top-1")[2] for row in among.rows} == {"; label space: 4 of 5 classes"}
    present = benchmarks(pictures, model, "clean", options=FEW | dict(label_space="present"))
    assert tried(model, present, output).rows == among.rows
    refused("clean with other settings: among_present True, now False", model, [clean], output)
    assert whole.value("clean", "accuracy", "clean").value == 0
    assert among.value("clean", "accuracy", "clean").value == 100
    # The chance of a class is among these as well.
    assert among.value("clean", "loss", "clean").value < 0.1 < 50 < whole.value("clean", "loss", "clean").value


def test_a_model_of_just_the_classes_of_the_pictures_is_asked_as_ever(pictures, tmp_path):
    model, output = subject(), tmp_path / "results.json"
    results = tried(model, benchmarks(pictures, model, "clean"), output)
    assert {row.protocol for row in results.rows} == {results.asked["clean"]["protocol"]}
    assert str(results.label_space("clean")) == "4 classes"
    before = output.read_bytes()
    for space in ("model", "present"):
        tried(model, benchmarks(pictures, model, "clean", options=FEW | dict(label_space=space)), output)
        assert output.read_bytes() == before
    # Files in which nothing is said of it are gone on with.
    content = json.loads(before)
    del content["asked"]["clean"]["task"]["label_space"]
    output.write_text(json.dumps(content))
    assert tried(model, benchmarks(pictures, model, "clean"), output).rows == results.rows
    assert output.read_bytes() == before
    # But a model whose classes were renamed is another question.
    content["asked"]["clean"]["task"]["label_space"] = {"classes": 4, "of": 4, "folders": 4, "names": "others"}
    output.write_text(json.dumps(content))
    refused("holds clean with other settings: label_space", model, benchmarks(pictures, model, "clean"), output)


def test_attacks_on_another_model_look_at_the_same_classes(pictures, tmp_path):
    """The other model, which is the same, would else be attacked for labels that are none of its own."""
    model = subject(classes=("wall", *HALVES), favourite="wall")
    options = FEW | dict(radii=(0.5,), attack_steps=(20,))
    own = tried(model, benchmarks(pictures, model, "pgd", options=options), tmp_path / "own.json")
    options = options | dict(transfer=model)
    other = tried(model, benchmarks(pictures, model, "pgd", options=options), tmp_path / "other.json")
    key = "linf 127.5/255, 20 steps"
    assert own.value("pgd", "accuracy", key).value == other.value("pgd of halves", "accuracy", key).value == 0


class Counted(nn.Module):
    """Says of itself how many classes it has, as timm's models do."""

    num_classes = 5


def test_another_label_space_is_an_error(pictures):
    source = open_source(pictures, "val")
    with pytest.raises(ValueError, match=r"halves does not know 1 of the 4 classes of .*: bottom; it knows left, "):
        match_classes(subject((*HALVES[:3], "below")), source, False)
    with pytest.raises(ValueError, match="halves has 4 logits and names 3 classes"):
        match_classes(replace(subject(), classes=HALVES[:3]), source, False)
    # It says how many it has, or it shows.
    nameless = replace(subject(), classes=None)
    assert match_classes(nameless, source, False) == (None, list(range(4)))
    nameless.classifier.model = Counted()
    others = (nameless, replace(subject(classes=(*HALVES, "middle")), classes=None))
    for other in others:
        with pytest.raises(ValueError, match=r"5 classes whose names are not known, .* has 4: they cannot be matched"):
            match_classes(other, source, False)


def test_classes_without_names_are_taken_in_order_and_every_row_says_so(pictures, tmp_path):
    nameless = replace(subject(sorted(HALVES)), classes=None)
    results = tried(nameless, benchmarks(pictures, nameless, "clean"), tmp_path / "results.json")
    said = "its classes have no names: logits are taken for the folders in alphabetical order"
    assert all(row.protocol.endswith(said) for row in results.rows)
    named = tried(subject(), benchmarks(pictures, subject(), "clean"), tmp_path / "named.json")
    assert not any(said in row.protocol for row in named.rows)


# What is missing


def test_what_is_missing_is_listed_and_refused_or_said_in_each_row(pictures, tmp_path):
    model = subject()
    options = FEW | dict(corruptions=("fog", "spatter"), severities=(1, 2, 3, 5))
    (chosen,) = benchmarks(pictures, model, "corruptions", options=options)
    message = r"corruptions is not complete: there is no fog/1, fog/2. Sums over the rest mean"
    with pytest.raises(ValueError, match=message):
        tried(model, [replace(chosen, missing=("fog/1", "fog/2"))], tmp_path / "results.json", partial_ok=False)
    # What was not chosen is not missing, but every sum lacks it.
    results = tried(model, [chosen], tmp_path / "results.json", partial_ok=False)
    assert results.rows
    said = "; partial, without gaussian_noise, shot_noise, impulse_noise and 12 more"
    assert all(row.protocol.endswith(said) for row in results.rows)
    missing = Results.read(tmp_path / "results.json").asked["corruptions"]["missing"]
    assert missing == [*(name for name in PUBLISHED if name != "fog"), "severity 4"]
    # What lacks nothing says nothing.
    results = tried(model, benchmarks(pictures, model, "clean"), tmp_path / "clean.json", partial_ok=False)
    assert not any("partial" in row.protocol for row in results.rows)


# What else a reader should know


class Brightness(nn.Module):
    def forward(self, pixels: Tensor) -> Tensor:
        bright = pixels.mean((1, 2, 3))
        return torch.stack([1 - bright, bright], 1)


class Hiding(Brightness):
    """It has a slope, and tells of none."""

    def forward(self, pixels: Tensor) -> Tensor:
        return super().forward(pixels.detach()) + 0 * pixels.sum((1, 2, 3))[:, None]


def write_greys(folder: Path) -> str:
    for name, grey in (("dark", 120), ("bright", 136)):
        (folder / "greys" / name).mkdir(parents=True)
        for number in range(10):
            Image.new("RGB", (8, 8), (grey,) * 3).save(folder / "greys" / name / f"{number}.png")
    return str(folder / "greys")


def test_gradients_that_are_hidden_are_told_of_also_when_attacks_are_added_later(tmp_path):
    model, output = Subject("hiding", Hiding(), 8, ("dark", "bright"), "0"), tmp_path / "results.json"
    greys = write_greys(tmp_path)
    options = FEW | dict(radii=(32 / 255,), queries=200)
    blind = tried(model, benchmarks(greys, model, "pgd", options=options), output)
    assert ["100.0% of the pictures have a gradient of exactly 0" in sign for sign in blind.warnings] == [True]
    square = benchmarks(greys, model, "square", options=options)
    both = tried(model, square, output)
    assert both.value("pgd", "accuracy", "linf 32/255, 5 steps").value == 100
    assert both.value("square", "accuracy", "linf 32/255, 200 queries").value == 0
    assert len(both.warnings) == 2
    assert "Square of radius 32/255 leaves 0.0% without this model's gradient, but PGD" in both.warnings[1]
    assert Results.read(output).warnings == both.warnings
    # Other attacks on these pictures do not make it forget.
    tried(model, benchmarks(greys, model, "clean", options=options), output)
    assert Results.read(output).warnings == both.warnings


def test_attacks_are_compared_on_the_pictures_that_they_share(tmp_path):
    """And what one alone gives away is not forgotten."""
    model, output = Subject("hiding", Hiding(), 8, ("dark", "bright"), "0"), tmp_path / "results.json"
    greys = write_greys(tmp_path)
    options = FEW | dict(radii=(32 / 255, 64 / 255), queries=200)
    tried(model, benchmarks(greys, model, "pgd", options=options), output)
    few = options | dict(limit=12, radii=(32 / 255,))
    warnings = tried(model, benchmarks(greys, model, "square", options=few), output).warnings
    assert "100.0% of the pictures have a gradient of exactly 0" in warnings[0]
    assert warnings[1].startswith("PGD of radius 64/255 and 5 steps leaves ")
    assert warnings[1].endswith("%, though so large a change can hide a picture (of 20 pictures)")
    assert any("Square of radius 32/255 leaves 0.0%" in sign and "(of 12 pictures)" in sign for sign in warnings)


def test_more_pictures_for_an_attack_without_gradients_do_not_hide_that_there_are_none(tmp_path):
    model, output = Subject("hiding", Hiding(), 8, ("dark", "bright"), "0"), tmp_path / "results.json"
    greys, options = write_greys(tmp_path), FEW | dict(radii=(32 / 255,))
    tried(model, benchmarks(greys, model, "pgd", options=options | dict(limit=12)), output)
    warnings = tried(model, benchmarks(greys, model, "square", options=options), output).warnings
    assert "100.0% of the pictures have a gradient of exactly 0" in warnings[0]


class NoGradient(nn.Module):
    def forward(self, pixels: Tensor) -> Tensor:
        with torch.no_grad():
            return Brightness()(pixels).repeat(1, 2)


def test_a_model_without_a_gradient_can_be_tried_by_squares(pictures, tmp_path):
    model = Subject("shy", NoGradient(), 32, HALVES, "0")
    results = tried(model, benchmarks(pictures, model, "square"), tmp_path / "results.json")
    assert results.value("square", "accuracy", "linf 8/255, 5 queries") is not None
    with pytest.raises(ValueError, match="passes no gradient to its pixels"):
        tried(model, benchmarks(pictures, model, "pgd"), tmp_path / "results.json")


def test_attacks_of_a_file_are_known_again(pictures, tmp_path):
    model = subject()
    results = tried(model, benchmarks(pictures, model, "pgd", "square"), tmp_path / "results.json")
    identities = open_source(pictures, "val").identities
    known = {PGD(8 / 255): 1.0, Square(8 / 255, queries=5): 1.0}
    for some in (identities, identities[:4]):
        assert attacks_known(Results.read(tmp_path / "results.json"), set(some)) == known
    assert attacks_known(results, {*identities, "another"}) == {}


class Broken(nn.Module):
    """No numbers for pictures whose left half is bright."""

    def forward(self, pixels: Tensor) -> Tensor:
        logits = Halves(range(4), 4)(pixels)
        return torch.where(logits[:, :1] > 4, torch.nan, logits)


def test_logits_that_are_no_numbers_are_an_error(pictures, tmp_path):
    model = Subject("broken", Broken(), 32, HALVES, "0")
    with pytest.raises(FloatingPointError, match=r"\(clean\): the logits for left/0.png are NaN"):
        tried(model, benchmarks(pictures, model, "clean"), tmp_path / "results.json")
    assert not (tmp_path / "results.json").exists()


def test_progress_ends_with_the_number_that_is_written(pictures, weights, tmp_path):
    model, seen = open_subject(str(weights)), []
    chosen = benchmarks(pictures, model, "corruptions")
    results = tried(model, chosen, tmp_path / "results.json", watch=seen.append)
    assert [now.done for now in seen if now.condition == "fog 4"] == [4, 8, 11]
    for now in seen:
        assert now.total == 11
        if now.done == now.total:
            assert now.value == 100 * results.outcome(now.benchmark, now.condition).columns["right"].mean()


def test_progress_is_of_all_conditions_and_of_the_work_that_is_left(pictures, weights, tmp_path):
    model, seen = open_subject(str(weights)), []
    options = FEW | dict(radii=(1 / 255, 8 / 255))
    chosen = benchmarks(pictures, model, "clean", "pgd", options=options)
    tried(model, chosen, tmp_path / "results.json", watch=seen.append, batch=11)
    assert [(now.number, now.count, now.condition) for now in seen] == [
        (1, 4, "clean"),
        (3, 4, "linf 1/255, 5 steps"),
        (4, 4, "linf 8/255, 5 steps"),
    ]
    assert seen[0].share < 0.1 < 0.4 < seen[1].share < 0.6  # an attack is slow
    assert seen[2].share == 1
    # What is known is no work.
    seen.clear()
    chosen += benchmarks(pictures, model, "fgsm", options=options)
    tried(model, chosen, tmp_path / "results.json", watch=seen.append, batch=11)
    assert [(now.number, now.count, now.share) for now in seen] == [(6, 7, 0.5), (7, 7, 1)]


# The command


def said(capsys, *arguments: str) -> str:
    """What a command that fails says."""
    with suppress(SystemExit):
        main([*arguments])
        raise AssertionError("it did not fail")
    return capsys.readouterr().err


def test_the_command_from_weights_to_a_comparison(pictures, weights, tmp_path, capsys):
    output, other = tmp_path / "new" / "results.json", tmp_path / "other.json"
    common = ["--data", pictures, "--workers=0"]
    main(["evaluate", str(weights), *common, "--benchmark=clean, fgsm", "--radii=1/255,.5", "--output", str(output)])
    shown = capsys.readouterr()
    assert f"results: {output}" in shown.out
    assert "linf 127.5/255" in shown.out
    assert [line.split(":")[0] for line in shown.err.splitlines()] == [
        "1/4 clean, clean",
        "3/4 fgsm, linf 1/255",
        "4/4 fgsm, linf 127.5/255",
    ]
    some = ["--corruptions=fog", "--severities=1"]
    main(["evaluate", str(weights), *common, "--benchmark=corruptions", *some, "--output", str(output)])
    assert set(Results.read(output).outcomes) == {"clean", "fgsm", "corruptions"}
    assert "partial accuracy" in capsys.readouterr().out
    content = json.loads(output.read_text())
    assert content["model"]["name"] == "tiny"
    assert set(content["environment"]) >= {"torch", "torchvars"}
    save_weights(tmp_path / "second", "softmax", seed=1)
    main(["evaluate", str(tmp_path / "second"), *common, "--output", str(other)])
    capsys.readouterr()
    main(["compare", str(output), str(other), "--figures", str(tmp_path / "figures")])
    shown = capsys.readouterr().out
    assert "second less tiny, on the same pictures" in shown
    assert str(tmp_path / "figures" / "attacks.png") in shown
    assert (tmp_path / "figures" / "corruptions.png").read_bytes().startswith(b"\x89PNG")
    main(["compare", str(other), "--figures", str(tmp_path / "none")])
    assert "no corruptions.png: no file has the numbers for it" in capsys.readouterr().out
    assert not (tmp_path / "none").exists()


@pytest.fixture
def interruptible():
    """SIGINT interrupts, also where a shell has started the tests in the background and it is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_command_that_is_stopped_says_what_it_keeps(number, status, pictures, weights, tmp_path, monkeypatch, capsys):
    output, trying, left = tmp_path / "results.json", Evaluation.tried, []

    def stopping(*arguments):
        if left.pop():
            os.kill(os.getpid(), number)
        return trying(*arguments)

    monkeypatch.setattr(Evaluation, "tried", stopping)
    command = [
        "evaluate",
        str(weights),
        "--data",
        pictures,
        "--workers=0",
        "--benchmark=clean,fgsm",
        "--radii=1/255,.5",
    ]
    for until, kept in (
        ([True], "stopped before a condition was finished: nothing is in {}"),
        ([True, False], "stopped: 1 finished condition is in {}; the same command goes on"),
        ([True, False], "stopped: 3 finished conditions are in {}; the same command goes on"),
    ):
        left[:] = until
        handler = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
        with pytest.raises(SystemExit) as stopped:
            main([*command, "--output", str(output)])
        assert stopped.value.code == status
        assert capsys.readouterr().err.splitlines()[-1] == kept.format(output)
        assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == handler
    left[:] = [False]
    main([*command, "--output", str(output)])
    assert "fgsm, linf 127.5/255" in capsys.readouterr().err


def test_the_command_says_what_is_wrong(pictures, weights, tmp_path, capsys):
    output = ["--output", str(tmp_path / "results.json"), "--workers=0"]
    begin = ["evaluate", str(weights), "--data", pictures, *output]
    wrong = {
        "no benchmark named 'cleen': there are clean, corruptions": [*begin, "--benchmark=clean,cleen"],
        "'nothing' is no trained model: expected a folder of weights": [*begin[:1], "nothing", *begin[2:]],
        "timm knows no model 'resnet5'; did you mean": [*begin[:1], "timm:resnet5", *begin[2:]],
        "no pictures at /nowhere": [*begin[:2], "--data", "/nowhere", *output],
        "no device 'tpu:7' here: there ": [*begin, "--device=tpu:7"],
        "--benchmark names none: there are clean, corruptions": [*begin, "--benchmark=,"],
        "no corruption named 'fogg'": [*begin, "--benchmark=corruptions", "--corruptions=fogg"],
        "expected whole numbers such as 1,2,3, got 'x'": [*begin, "--severities=x"],
        "expected radii such as 1/255,.5, got '1/0'": [*begin, "--radii=1/0"],
        "radius must be 0 or more": [*begin, "--benchmark=pgd", "--radii=-1"],
        "no linf radius is above 1, got 8: did you mean 8/255?": [*begin, "--benchmark=pgd", "--radii=1,8"],
        "l2 radii have no usual sizes: give --radii, such as .5": [*begin, "--benchmark=pgd", "--norm=l2"],
        "the side of the pictures (--img-size) must be at least 1, got 0": [*begin, "--img-size=0"],
        "tiny, made for 16 pixels, takes no pictures of 18 x 18 (--img-size)": [*begin, "--img-size=18"],
        "no frost*.png or frost*.jpg in": [*begin, "--benchmark=corruptions", f"--frost={tmp_path}"],
        "limit must be at least 1, got 0": [*begin, "--limit=0"],
        "imagenet_r is evaluated on the classes present, got --label-space model": [
            *begin,
            "--benchmark=clean,imagenet_r",
            "--label-space=model",
        ],
        "no solver named 'newton': there are ista": [*begin, "--solver=newton"],
        "steps must be a whole number of at least 1, got 0": [*begin, "--steps=0"],
        "--adapt needs clean pictures, and imagenet_c has none": [*begin, "--adapt=1", "--benchmark=imagenet_c"],
        "--transfer-from is for pgd, fgsm, square, autoattack: none of them is in --benchmark clean": [
            *begin,
            f"--transfer-from={weights}",
        ],
        "strength must be zero or positive, and finite, got inf": [*begin, "--strength=inf"],
        "the power by which a strength adapts must be a finite number, got nan": [*begin, "--adapt=nan"],
        f"{tmp_path} is a folder: give --output a file in it": [*begin, f"--output={tmp_path}"],
        "unrecognized arguments: --sead=1": [*begin, "--sead=1"],
        "nothing.json: torchvars evaluate writes them by --output": ["compare", str(tmp_path / "nothing.json")],
        "--baseline must be from 1 to 1, got 2": ["compare", str(tmp_path / "nothing.json"), "--baseline=2"],
    }
    if find_spec("autoattack") is None:
        wrong["AutoAttack needs the package of its authors"] = [*begin, "--benchmark=autoattack"]
    for message, arguments in wrong.items():
        assert message in said(capsys, *arguments)
    assert not (tmp_path / "results.json").exists()


def test_every_option_of_the_command_arrives(pictures, weights, tmp_path, monkeypatch, capsys):
    seen = {}

    def look(data: Data, model: Subject, options) -> Benchmark:
        seen.update({"path": data.path, "size": model.size, **vars(options)})
        raise ValueError("seen")

    for name, member in list(BENCHMARKS.items()):
        monkeypatch.setitem(BENCHMARKS, name, Member(look, member.options))
    frost = tmp_path / "frost"
    frost.mkdir()
    Image.new("RGB", (8, 8)).save(frost / "frost1.png")
    begin = ["evaluate", str(weights), "--data", pictures, "--output", str(tmp_path / "results.json")]
    given = {
        "clean": {
            "": {"path": pictures, "size": 16, "limit": None, "label_space": None},
            "--img-size=24": {"size": 24},
            "--limit=5": {"limit": 5},
            "--label-space=model": {"label_space": "model"},
        },
        "corruptions": {
            "--seed=7": {"seed": 7},
            "--corruptions=fog, snow": {"corruptions": ("fog", "snow")},
            "--severities=2,4": {"severities": (2, 4)},
            "--strengths=imagenet": {"strengths": "imagenet"},
            f"--frost={frost}": {"frost": frost},
        },
        "pgd": {
            "--seed=7": {"seed": 7},
            "--radii=1/255,.5": {"radii": (1 / 255, 0.5)},
            "--norm=l2 --radii=2": {"norm": "l2"},
            "--attack-steps=3,9": {"attack_steps": (3, 9)},
        },
        "square": {"--queries=9": {"queries": 9}},
        "pacs": {"--left-out=photo": {"left_out": "photo"}},
    }
    for name, options in given.items():
        for option, expected in options.items():
            words = option.split(" --") if option else []
            words = [word if word.startswith("--") else f"--{word}" for word in words]
            assert "seen" in said(capsys, *begin, f"--benchmark={name}", *words)
            assert {word: seen[word] for word in expected} == expected
    said(capsys, *begin, "--benchmark=pgd", f"--transfer-from={weights}")
    assert seen["transfer"].name == "tiny"


def test_an_option_that_changes_nothing_is_told_of(pictures, tmp_path):
    model = subject()
    with pytest.warns(UserWarning, match="queries changes nothing in clean, pgd: it is for square"):
        build_all(("clean", "pgd"), pictures, model, queries=3, limit=4)
    with pytest.raises(ValueError, match="no benchmark takes 'sead': there are attack_steps, baselines, corr"):
        build_all(("clean",), pictures, model, sead=3)


def test_a_strength_adapts_to_the_pictures_it_is_told_of(pictures, weights, tmp_path, capsys):
    (tmp_path / "flat").mkdir()
    for half in HALVES:
        (tmp_path / "flat" / half).mkdir()
        Image.new("RGB", (32, 32), (90, 90, 90)).save(tmp_path / "flat" / half / "0.png")
    begin = ["evaluate", str(weights), "--data", pictures, "--workers=0", "--adapt=1"]
    losses = []
    for number, more in enumerate(([], ["--adapt-data", pictures], ["--adapt-data", str(tmp_path / "flat")])):
        main([*begin, *more, "--output", str(tmp_path / f"{number}.json")])
        losses.append(Results.read(tmp_path / f"{number}.json").value("clean", "loss", "clean").value)
    assert losses[0] == losses[1]
    assert losses[2] != losses[0]


def test_the_knobs_of_the_command_change_the_numbers_and_are_kept_apart(pictures, weights, tmp_path, capsys):
    begin = ["evaluate", str(weights), "--data", pictures, "--workers=0"]
    losses = {}
    for knob in ("", "--steps=1", "--strength=3", "--solver=fista", "--adapt=0", "--adapt=1"):
        output = tmp_path / f"results{knob}.json"
        main([*begin, *([knob] if knob else []), "--output", str(output)])
        losses[knob] = Results.read(output).value("clean", "loss", "clean").value
    assert losses["--adapt=0"] == pytest.approx(losses[""], abs=1e-6)
    assert len({round(loss, 6) for loss in losses.values()}) == 5
    capsys.readouterr()
    told = said(capsys, *begin, "--strength=2", "--output", str(tmp_path / "results--strength=3.json"))
    assert "solving {'strength': 3.0}, now {'strength': 2.0}" in told
    save_weights(tmp_path / "softmax", "softmax")
    begin = ["evaluate", str(tmp_path / "softmax"), "--data", pictures, "--output", str(tmp_path / "no.json")]
    for knob in ("--steps=1", "--strength=3", "--solver=fista"):
        told = said(capsys, *begin, knob)
        assert "softmax has no VARS layer: steps, strength and solver cannot be set" in told
    told = said(capsys, *begin, "--adapt=1")
    assert "no VARS layer ran: there is no strength to adapt" in told


@pytest.mark.parametrize("command", [evaluate_command, compare_command, verify_command])
def test_help_tells_of_every_option(command, capsys):
    parser = argparse.ArgumentParser()
    command.configure(parser)
    assert [action.dest for action in parser._actions if not action.help] == []
    with pytest.raises(SystemExit, match="0"):
        main([command.__name__.split(".")[-1], "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert " ".join(command.__doc__.split()) in shown
    if command is evaluate_command:
        assert ", ".join(BENCHMARKS) in shown


def test_a_place_that_cannot_be_written_to_is_noticed_before_anything_is_tried(pictures, weights, tmp_path):
    model = open_subject(str(weights))
    tried_on = []

    watch = tried_on.append
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "file").write_text("")
    for output, error in ((tmp_path / "folder.json", IsADirectoryError), (Path("/proc/results.json"), OSError)):
        with pytest.raises(error):
            evaluate(model, benchmarks(pictures, model, "clean"), output, workers=0, watch=watch)
    with pytest.raises(ValueError, match="is a file: give --output a path in a folder"):
        evaluate(model, benchmarks(pictures, model, "clean"), tmp_path / "file" / "r.json", workers=0, watch=watch)
    os.mkfifo(tmp_path / "pipe.json")
    for output in (Path("/dev/full"), tmp_path / "pipe.json"):
        with pytest.raises(ValueError, match="is a device, a pipe or a socket: give --output a file"):
            evaluate(model, benchmarks(pictures, model, "clean"), output, workers=0, watch=watch)
    with pytest.raises(ValueError, match="/dev/zero is a device: expected a file of results"):
        Results.read("/dev/zero")
    assert tried_on == []
    output = tmp_path / "kept.json"
    tried(model, benchmarks(pictures, model, "clean"), output)
    output.chmod(0o444)
    before = output.read_bytes()
    with pytest.raises(PermissionError, match=r"kept.json is read-only: make it writable \(chmod u\+w\)"):
        evaluate(model, benchmarks(pictures, model, "square"), output, workers=0, watch=watch)
    assert tried_on == []
    assert output.read_bytes() == before
