"""Records: what is claimed of weights is under one hash, and comes out again."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluation.halves import counted, save_weights, write
from torchvars.cli.main import main
from torchvars.evaluation import metrics
from torchvars.evaluation.benchmarks import BENCHMARKS
from torchvars.evaluation.conditions import CLEAN
from torchvars.evaluation.record import Measured, Record, Trial, check, options_of, read_results, trial_of
from torchvars.evaluation.results import Results, Row
from torchvars.evaluation.run import evaluate
from torchvars.evaluation.subjects import open_subject
from torchvars.models.weights import digest

pytestmark = pytest.mark.usefixtures("one_thread")

PROTOCOL = {
    "clean": {},
    "corruptions": {"limit": 8, "corruptions": ["gaussian_noise", "fog"], "severities": [1, 4]},
    "pgd": {"radii": [8 / 255], "attack_steps": [2]},
}
FILES = ("model.safetensors", "config.json", "results.json")
CONDITIONS = ["clean", "gaussian_noise 1", "gaussian_noise 4", "fog 1", "fog 4", "linf 8/255, 2 steps"]


@pytest.fixture(autouse=True)
def _rough_intervals(monkeypatch):
    monkeypatch.setattr(metrics, "RESAMPLES", 50)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory) -> str:
    return str(write(tmp_path_factory.mktemp("pictures") / "halves", count=3))


@pytest.fixture(scope="module")
def measured(pictures, tmp_path_factory) -> tuple[Path, Results]:
    """Weights with their record and the results that it was made of, and these."""
    folder = save_weights(tmp_path_factory.mktemp("recorded") / "tiny")
    model = open_subject(str(folder))
    chosen = [BENCHMARKS[name](pictures, model, **options_of(name, options)) for name, options in PROTOCOL.items()]
    results = evaluate(model, chosen, folder.parent / "kept.json", partial_ok=True, workers=0)
    trials = {name: trial_of(results, name, options) for name, options in PROTOCOL.items()}
    recipe, trained = {"model": "deit_micro_vars_d", "seed": 3}, {"last": {"step": 10, "loss": 0.5}}
    results.write(folder / "results.json")
    record_of(folder, recipe, trained, trials).write(folder)
    return folder, results


def record_of(folder: Path, *rest) -> Record:
    return Record(*(digest(folder / file) for file in FILES), *rest)


@pytest.fixture
def weights(measured, tmp_path) -> Path:
    """A copy that may be changed."""
    return Path(shutil.copytree(measured[0], tmp_path / "tiny"))


@pytest.fixture
def tried(monkeypatch) -> list[str]:
    """Conditions as they are tried."""
    return counted(monkeypatch)


def verify(weights: Path | str, *arguments: str) -> None:
    main(["verify", str(weights), "--workers=0", *arguments])


def refused(capsys, weights: Path, *arguments: str) -> str:
    """What is said of a call that is wrong."""
    with suppress(SystemExit):
        verify(weights, *arguments)
        raise AssertionError("it did not fail")
    return capsys.readouterr().err


def change_trial(weights: Path, benchmark: str, **changed) -> None:
    """Claims something else, under a hash that is right."""
    record = Record.read(weights)
    trials = {**record.trials, benchmark: replace(record.trials[benchmark], **changed)}
    replace(record, trials=trials).write(weights)


# What is recorded


def test_every_figure_but_those_of_single_classes_is_claimed(measured):
    folder, results = measured
    record, seen = Record.read(folder), 0
    for row in results.rows:
        claims = [
            each for each in record.trials[row.benchmark].rows if each[:3] == (row.label, row.severity, row.metric)
        ]
        if row.condition.subset is not None:
            assert claims == []
        else:
            assert [claims[0].value, claims[0].low, claims[0].high] == pytest.approx([row.value, row.low, row.high])
            seen += 1
    assert seen == sum(len(trial.rows) for trial in record.trials.values())
    assert {name: trial.images for name, trial in record.trials.items()} == {"clean": 12, "corruptions": 8, "pgd": 12}
    claimed, found = record.value("corruptions", "accuracy"), results.value("corruptions", "accuracy")
    assert claimed.value == pytest.approx(found.value)
    assert record.value("clean", "accuracy", "clean").value == pytest.approx(100 * found_right(results))
    assert record.value("clean", "accuracy") is None
    assert record.value("square", "accuracy") is None


def found_right(results: Results) -> float:
    return results.outcome("clean", "clean").columns["right"].mean()


def test_the_label_space_is_recorded_and_asked_for_again(pictures, tmp_path, capsys):
    folder = save_weights(tmp_path / "tiny", classes=("left", "right", "top", "bottom", "wall"))
    model = open_subject(str(folder))
    for space in ("present", "model"):
        chosen = BENCHMARKS["clean"](pictures, model, label_space=space)
        results = evaluate(model, [chosen], folder / "results.json", workers=0)
        trial = trial_of(results, "clean", {})
        assert trial.options == ({"label_space": "present"} if space == "present" else {})
        record_of(folder, {}, {}, {"clean": trial}).write(folder)
        verify(folder, "--data", pictures)
        assert "clean: 12 of 12 pictures were recognised, or not, as it is recorded" in capsys.readouterr().out
        (folder / "results.json").unlink()


def test_what_was_not_evaluated_is_not_recorded(measured):
    with pytest.raises(ValueError, match="there are no results of square: it was not evaluated to its end"):
        trial_of(measured[1], "square", {})


TEXT = st.text(max_size=8)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | NUMBERS | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
CLAIMS = st.builds(
    Measured, TEXT, st.none() | st.integers(1, 5), TEXT, NUMBERS, st.none() | NUMBERS, st.none() | NUMBERS
)
FACTS = st.dictionaries(TEXT, PLAIN, max_size=3)
TRIALS = st.builds(Trial, FACTS, TEXT, TEXT, st.integers(0), st.lists(CLAIMS, max_size=3))


@given(recipe=FACTS, trained=FACTS, trials=st.dictionaries(TEXT, TRIALS, max_size=3))
def test_what_is_written_is_read(recipe, trained, trials):
    with tempfile.TemporaryDirectory() as folder:
        for name in FILES:
            (Path(folder) / name).write_text(name)
        record = record_of(Path(folder), recipe, trained, trials)
        record.write(Path(folder))
        assert Record.read(Path(folder)) == record
        assert [path.name for path in Path(folder).glob("record*")] == ["record.json"]


def test_a_figure_is_a_line_of_the_file(measured):
    record, lines = Record.read(measured[0]), (measured[0] / "record.json").read_text().splitlines()
    for trial in record.trials.values():
        for row in trial.rows:
            assert json.dumps(row) in {line.strip().rstrip(",]}") + "]" for line in lines}


# Under one hash


@pytest.mark.parametrize(
    "place",
    [
        ("weights",),
        ("recipe", "seed"),
        ("trained", "last", "loss"),
        ("trials", "clean", "pictures"),
        ("trials", "clean", "images"),
        ("trials", "corruptions", "protocol"),
        ("trials", "corruptions", "options", "limit"),
        ("trials", "corruptions", "rows", 3, 0),
        ("trials", "pgd", "rows", -1, 3),
        ("trials", "pgd", "rows", -1, 5),
    ],
    ids=lambda place: " ".join(map(str, place)),
)
def test_a_record_that_was_changed_by_hand_is_refused(place, weights, pictures, capsys, tried):
    path = weights / "record.json"
    content = json.loads(path.read_text())
    *way, last = place
    inner = content
    for step in way:
        inner = inner[step]
    inner[last] = f"{inner[last]}0" if isinstance(inner[last], str) else inner[last] + 1
    path.write_text(json.dumps(content))
    seal = content["seal"]
    told = f"{path} was changed after it was sealed: its seal is {seal}, not "
    assert told in refused(capsys, weights, "--data", pictures)
    assert tried == []


def test_the_hash_is_of_what_is_said_not_of_how_it_is_written(weights):
    record = Record.read(weights)
    content = json.loads((weights / "record.json").read_text())
    (weights / "record.json").write_text(json.dumps(dict(reversed(content.items())), indent=3))
    assert Record.read(weights) == record


def test_other_weights_are_refused(weights, tmp_path, pictures, capsys, tried):
    other = save_weights(tmp_path / "other", seed=1)
    shutil.copy(weights / "record.json", other)
    hashes = [digest(folder / "model.safetensors") for folder in (weights, other)]
    told = "record.json is of another model.safetensors, sha256 {}: that of the folder has {}".format(*hashes)
    assert told in refused(capsys, other, "--data", pictures)
    assert tried == []


def test_weights_that_were_told_to_solve_otherwise_are_refused(weights, capsys):
    settings = json.loads((weights / "config.json").read_text())
    settings["layers"] = {name: {**layer, "strength": 3.0} for name, layer in settings["layers"].items()}
    (weights / "config.json").write_text(json.dumps(settings))
    assert "record.json is of another config.json" in refused(capsys, weights)


def test_weights_of_which_nothing_was_measured_are_not_what_is_claimed(weights, pictures, capsys):
    replace(Record.read(weights), trials={}).write(weights)
    assert "nothing was measured of these weights" in refused(capsys, weights, "--data", pictures)


def test_other_results_are_refused(weights, capsys):
    path = weights / "results.json"
    path.write_text(path.read_text().replace("tiny", "huge"))
    assert "record.json is of another results.json" in refused(capsys, weights)


@pytest.mark.parametrize("file", FILES)
def test_files_that_are_missing_are_named(file, weights, capsys):
    claimed = digest(weights / file)
    (weights / file).unlink()
    assert f"record.json is of {file}, sha256 {claimed}, and the folder has none" in refused(capsys, weights)


@pytest.mark.parametrize(
    "content",
    ["", "{}", "[]", "null", '"record"', "\x00\xff", '{"trials": {"clean": 1}}', '{"trials": []}', "cut"],
)
def test_what_is_no_record_is_refused(content, weights, capsys):
    path = weights / "record.json"
    path.write_text(path.read_text()[:-20] if content == "cut" else content)
    assert f"{path} is no record of weights" in refused(capsys, weights)


def test_a_record_of_a_later_format_is_refused(weights, capsys):
    path = weights / "record.json"
    path.write_text(path.read_text().replace('"torchvars_record": 1', '"torchvars_record": 2'))
    assert "its format is 2, and this version of torchvars reads 1" in refused(capsys, weights)


def test_weights_without_a_record_are_refused(weights, capsys):
    (weights / "record.json").unlink()
    assert f"{weights} has no record.json: nothing was recorded of these weights" in refused(capsys, weights)


# What is claimed comes out


def test_weights_that_are_what_is_claimed(weights, pictures, tmp_path, capsys, tried):
    moved = shutil.copytree(pictures, tmp_path / "elsewhere")  # the names of the pictures count, not where they lie
    verify(weights, "--data", str(moved))
    said = capsys.readouterr().out
    for name, trial in Record.read(weights).trials.items():
        count = len([row for row in trial.rows if row.low is not None])
        assert f"{name}: {count} of {count} figures met, the largest difference " in said
        others = len(trial.rows) - count
        assert f"{name}: {others} without an interval, not judged, the largest difference" in said
    assert said.endswith("tiny is what is claimed\n")
    assert list(dict.fromkeys(tried)) == CONDITIONS


def test_weights_that_ship_by_their_name(weights, pictures, monkeypatch, capsys):
    monkeypatch.setattr("torchvars.models.embedded.EMBEDDED", weights.parent)
    verify("tiny", "--data", pictures, "--benchmark=clean")
    assert capsys.readouterr().out.endswith("tiny is what is claimed\n")
    assert "huge has no weights here; names that have: tiny" in refused(capsys, Path("huge"))


def test_without_pictures_only_hashes_are_compared(weights, capsys, tried):
    verify(weights)
    said = capsys.readouterr().out
    assert f"under one hash, {Record.read(weights).seal[:12]}\n" in said
    assert "nothing was evaluated: give the pictures with --data" in said
    assert "what is claimed" not in said
    assert tried == []


def test_a_figure_that_is_not_met_is_named(weights, pictures):
    """And the command fails."""
    rows = Record.read(weights).trials["corruptions"].rows
    number, claim = next((i, row) for i, row in enumerate(rows) if row[:3] == ("fog", 4, "accuracy"))
    better = claim._replace(value=claim.value + 200, low=claim.high + 150, high=claim.high + 250)
    change_trial(weights, "corruptions", rows=[*rows[:number], better, *rows[number + 1 :]])
    command = [sys.executable, "-m", "torchvars", "verify", str(weights), "--data", pictures, "--workers=0"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, "--benchmark=clean, corruptions"], env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    count = len([row for row in rows if row.low is not None])
    assert f"corruptions: {count - 1} of {count} figures met, the largest difference 200 (fog, acc" in done.stdout
    told = f"found {claim.value:.2f}, claimed {better.value:.2f} ({better.low:.2f} to {better.high:.2f})"
    assert f"not met: corruptions, fog 4, accuracy: {told}" in done.stdout
    assert "what is claimed" not in done.stdout
    total = len(rows) + len(Record.read(weights).trials["clean"].rows)
    assert done.stderr.endswith(f"tiny is not what is claimed: 1 of {total} figures are not met\n")
    assert "Traceback" not in done.stderr


def test_two_processes_say_what_one_says(weights, pictures):
    arguments = ["verify", str(weights), "--data", pictures, "--workers=0", "--batch=4"]
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    one, two = (
        subprocess.run([sys.executable, *start, "-m", "torchvars", *arguments], env=environment, capture_output=True)
        for start in ([], torchrun)
    )
    assert two.returncode == one.returncode == 0, two.stderr
    assert two.stdout == one.stdout
    assert one.stdout.endswith(b"tiny is what is claimed\n")


@pytest.mark.parametrize(
    ("low", "high", "met"),
    [
        (60.0, 80.0, True),
        (70.0, 80.0, True),
        (60.0, 70.0, True),
        (70.1, 80.0, False),
        (60.0, 69.9, False),
        (None, None, True),  # without an interval there is nothing to judge by
    ],
)
def test_a_figure_is_met_within_the_interval_of_its_claim(low, high, met, measured):
    results = measured[1]
    found = results.value("clean", "accuracy", "clean")
    shift = found.value - 70
    ends = [None if each is None else each + shift for each in (low, high)]
    claim = Measured("clean", None, "accuracy", found.value - 5, *ends)
    record = Record("", "", "", {}, {}, {"clean": Trial({}, "", "", 12, [claim])})
    (judged,) = check(record, results, ["clean"])
    assert judged[:3] == ("clean", claim, found.value)
    assert judged.met is met
    assert judged.difference == pytest.approx(5)


@pytest.mark.parametrize(("value", "found", "met"), [(0.0, 1, True), (100.0, 11, True), (0.0, 2, False)])
def test_where_all_or_none_were_right_one_picture_may_be_otherwise(value, found, met):
    """Such an interval has no width, and another machine rounds otherwise."""
    claim = Measured("clean", None, "accuracy", value, value, value)
    record = Record("", "", "", {}, {}, {"clean": Trial({}, "", "", 12, [claim])})
    row = Row("tiny", "clean", CLEAN, "accuracy", 100 * found / 12, None, None, 12, "")
    (judged,) = check(record, Results({}, rows=[row]), ["clean"])
    assert judged.met is met


def test_a_claim_of_which_nothing_came_is_an_error(weights, pictures, capsys):
    change_trial(weights, "clean", rows=[Measured("clean", None, "beauty", 1.0, 0.0, 2.0)])
    told = refused(capsys, weights, "--data", pictures, "--benchmark=clean")
    assert "clean, clean: no beauty was measured" in told


def test_every_picture_is_compared_with_what_is_recorded_of_it(weights, pictures, capsys):
    """Two of them were recorded otherwise, in conditions of one benchmark."""
    record, results = Record.read(weights), read_results(str(weights))
    for condition in ("clean", "fog 4"):
        results.outcome("corruptions", condition).columns["right"][3] ^= True
    results.write(weights / "results.json")
    replace(record, results=digest(weights / "results.json")).write(weights)
    verify(weights, "--data", pictures)
    said = capsys.readouterr().out
    for name, alike, count in (("clean", 12, 12), ("corruptions", 38, 40), ("pgd", 24, 24)):
        assert f"{name}: {alike} of {count} pictures were recognised, or not, as it is recorded" in said
    assert said.endswith("tiny is what is claimed\n")


# Results that come with weights


def test_results_are_read_from_a_file_a_folder_of_weights_or_by_name(weights, measured, tmp_path, monkeypatch):
    monkeypatch.setattr("torchvars.models.embedded.EMBEDDED", weights.parent)
    measured[1].write(tmp_path / "file.json")
    monkeypatch.chdir(tmp_path.parent)
    for word in (str(tmp_path / "file.json"), str(weights), "tiny"):
        assert read_results(word).rows == measured[1].rows


def test_weights_that_ship_are_compared_by_their_names(weights, measured, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("torchvars.models.embedded.EMBEDDED", weights.parent)
    monkeypatch.chdir(tmp_path.parent)
    mine = replace(measured[1], model={**measured[1].model, "name": "mine"})
    mine.write(tmp_path / "mine.json")
    main(["compare", "tiny", str(tmp_path / "mine.json")])
    said = capsys.readouterr().out
    assert "mine less tiny" in said
    assert "+0.00 (+0.00 to +0.00)" in said


def test_results_that_are_not_there(weights, tmp_path, monkeypatch):
    monkeypatch.setattr("torchvars.models.embedded.EMBEDDED", weights.parent)
    with pytest.raises(FileNotFoundError, match=r"no results at huge: .*; and huge has no weights here; .*tiny"):
        read_results("huge")
    with pytest.raises(IsADirectoryError, match="is a folder: expected a file of results"):
        read_results(str(tmp_path.parent))


# What cannot be compared


def test_other_pictures_are_refused_before_anything_is_evaluated(weights, pictures, tmp_path, capsys, tried):
    other = str(write(tmp_path / "other", count=2))
    told = refused(capsys, weights, "--data", other)
    assert f"clean was measured on 12 pictures, and not on those of {other}, whose names are others" in told
    # Also if they are others for the last benchmark only.
    change_trial(weights, "pgd", pictures=Record.read(weights).trials["corruptions"].pictures)
    assert "pgd was measured on 12 pictures, and not on those of" in refused(capsys, weights, "--data", pictures)
    assert tried == []


def test_benchmarks_of_which_nothing_is_recorded_are_refused(weights, pictures, capsys, tried):
    for strange in ("square", "cleen"):
        told = refused(capsys, weights, "--data", pictures, f"--benchmark=clean,{strange}")
        assert f"nothing is recorded of '{strange}': there are figures for clean, corruptions, pgd" in told
    assert tried == []


def test_what_was_evaluated_is_not_evaluated_again(weights, pictures, tmp_path, capsys, tried):
    kept = ["--data", pictures, "--output", str(tmp_path / "new" / "results.json")]
    verify(weights, *kept, "--benchmark=clean")
    assert tried == ["clean"]
    tried.clear()
    verify(weights, *kept)
    # The first pictures as they are, which corruptions were measured on, are others than all of them.
    assert tried == CONDITIONS
    tried.clear()
    capsys.readouterr()
    verify(weights, *kept)
    assert tried == []
    assert capsys.readouterr().out.endswith("tiny is what is claimed\n")


def test_a_file_of_results_may_hold_more_than_is_asked(weights, pictures, tmp_path, capsys, tried):
    output = ["--output", str(tmp_path / "results.json")]
    main(["evaluate", str(weights), "--data", pictures, "--workers=0", "--benchmark=fgsm,clean", *output])
    capsys.readouterr()
    tried.clear()
    verify(weights, "--data", pictures, "--benchmark=clean", *output)
    said = capsys.readouterr().out
    assert said.endswith("tiny is what is claimed\n")
    assert "fgsm" not in said
    assert tried == []


# The list


def claims(**figures: float) -> dict[str, Trial]:
    """A record's trials with these accuracies."""
    places = {"clean": ("clean", "clean"), "corruptions": ("corruptions", "all"), "pgd": ("pgd", "linf 1/255, 5 steps")}
    return {
        name: Trial({}, "", "", 8, [Measured(places[name][1], None, "accuracy", value, None, None)])
        for name, value in figures.items()
    }


def test_the_list_of_weights_shows_their_figures(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("torchvars.models.embedded.EMBEDDED", tmp_path)
    figures = {
        "deit_micro_vars_d.cifar10": {"clean": 91.34, "corruptions": 64.0, "pgd": 7.06},
        "deit_micro_softmax.imagenette": {"clean": 88.0, "pgd": 0.0},
    }
    for name, values in figures.items():
        folder = save_weights(tmp_path / name, name.split("_")[2].split(".")[0].replace("vars", "vars_d"))
        (folder / "results.json").touch()
        record_of(folder, {}, {}, claims(**values)).write(folder)
    main(["list", "weights"])
    head, *lines = capsys.readouterr().out.splitlines()
    columns = {"clean": "clean", "corruptions": "corrupted", "pgd": "PGD 1/255"}
    assert [line.split()[0] for line in lines] == ["deit_micro_softmax.imagenette", "deit_micro_vars_d.cifar10"]
    for line in lines:
        name = line.split()[0]
        end = len(name)
        for benchmark, column in columns.items():
            begin, end = end, head.index(column) + len(column)
            shown = figures[name].get(benchmark)
            assert line[begin:end].strip() == ("" if shown is None else f"{shown:.1f}")
        size = (tmp_path / name / "model.safetensors").stat().st_size
        assert float(line[end:]) == pytest.approx(size / 1e6, abs=0.05)
    main(["list", "weights", "*.cifar10"])
    assert re.findall(r"deit\S+", capsys.readouterr().out) == ["deit_micro_vars_d.cifar10"]
    with pytest.raises(SystemExit, match=r"no name matches 'rvt\*': there are deit_micro_softmax.imagenette, deit"):
        main(["list", "weights", "rvt*"])
