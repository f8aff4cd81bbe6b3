"""Results files of version 1 are read, gone on with, compared and verified as those of today."""

import json
from pathlib import Path

import numpy as np
import pytest

from evaluation.halves import HALVES, build, counted, subject, write
from torchvars.evaluation import metrics
from torchvars.evaluation.compare import differences, print_differences, print_table, relative_lines
from torchvars.evaluation.conditions import CLEAN, Condition
from torchvars.evaluation.record import read_results
from torchvars.evaluation.results import Results
from torchvars.evaluation.run import evaluate
from torchvars.models.embedded import find_embedded

pytestmark = pytest.mark.usefixtures("one_thread")
CHOSEN = {
    "corruptions": ("gaussian_noise", "fog", "saturate"),
    "severities": (1, 4),
    "radii": (0.25, 0.5),
    "norm": "l2",
    "queries": 5,
    "attack_steps": (5, 6),
}


@pytest.fixture(autouse=True)
def _rough_intervals(monkeypatch):
    monkeypatch.setattr(metrics, "RESAMPLES", 50)


@pytest.fixture
def folder(tmp_path) -> Path:
    folder = write(tmp_path / "pictures", count=2)
    (folder / "top" / "1.png").write_bytes(b"nothing")
    return folder


def tried(folder: Path, output: Path, *names: str, **options) -> Results:
    model = subject()
    chosen = [build(name, str(folder), model, CHOSEN | options) for name in names]
    return evaluate(model, chosen, output, partial_ok=True, workers=0)


def as_version_1(content: dict) -> dict:
    """A file as it was written: conditions in words, and only what was right of a picture."""

    def words(condition: dict) -> tuple[str, str]:
        parameters = condition.get("parameters", {})
        name = condition["name"]
        if parameters:
            unit = ("", 1) if parameters["norm"] == "l2" else ("/255", 255)
            name = f"{parameters['norm']} {parameters['radius'] * unit[1]:.6g}{unit[0]}"
            name += "".join(f", {parameters[word]} {word}" for word in ("steps", "queries") if word in parameters)
        return name, f"{name} {condition['severity']}" if "severity" in condition else name

    def row(each: dict) -> dict:
        condition, severity = words(each["condition"])[0], each["condition"].get("severity")
        if (name := each["condition"].get("subset")) is not None:
            within = {"clean": "", "shift": "", "attack": f", {condition}", "corruption": ", mean of the corruptions"}
            condition = f"class {name}{within[each['condition']['family']]}"
        return {**each, "condition": condition, "severity": severity}

    asked, outcomes = {}, {}
    for name, each in content["asked"].items():
        attacks = {
            words(one)[1]: {key: value for key, value in one["parameters"].items() if key != "made_against"}
            for one in each["conditions"]
            if one["family"] == "attack"
        }
        conditions = [words(one)[1] for one in each["conditions"]]
        task = {key: each["task"][key] for key in ("classes", "among_present", "label_space")}
        rest = {key: value for key, value in each.items() if key != "task"}
        asked[name] = {**rest, **task, "conditions": conditions, "attacks": attacks}
    for each in content["outcomes"]:
        columns = each["columns"]
        old = {"images": columns["right"]["count"], "right": columns["right"]["bits"]}
        old |= {"figures": {metric: figure[:3] for metric, figure in each["figures"].items()}}
        old |= {"unread": each["unread"]} if "unread" in each else {}
        old |= {"named": columns["named"]} if "named" in columns else {}
        outcomes.setdefault(each["benchmark"], {})[words(each["condition"])[1]] = old
    rows = [row(each) for each in content["rows"]]
    return {**content, "torchvars_results": 1, "asked": asked, "rows": rows, "outcomes": outcomes}


def rewritten(path: Path, change=as_version_1) -> Path:
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    return path


def test_a_file_of_version_1_says_what_it_said(folder, tmp_path):
    output = tmp_path / "results.json"
    tried(folder, output, "clean", "corruptions", "pgd", "square", transfer=subject(name="other of mine", sign=-1))
    tried(folder, output, "fgsm", norm="linf", radii=(1 / 255, 2.5 / 255))
    new = Results.read(output)
    old = Results.read(rewritten(output))
    assert old.rows == new.rows
    assert old.asked == new.asked
    assert {name: list(found) for name, found in old.outcomes.items()} == {
        name: list(found) for name, found in new.outcomes.items()
    }
    for name, found in new.outcomes.items():
        for condition, outcome in found.items():
            other = old.outcomes[name][condition]
            assert (other.figures, other.unread) == (outcome.figures, outcome.unread)
            for column, values in outcome.columns.items():
                np.testing.assert_array_equal(other.columns[column], values)
    assert old.outcomes.keys() >= {"pgd of other of mine", "fgsm"}


def test_domains_are_read(tmp_path):
    for domain in ("photo", "sketch"):
        write(tmp_path / "pictures" / domain, HALVES)
    new = tried(tmp_path / "pictures", tmp_path / "results.json", "pacs")
    old = Results.read(rewritten(tmp_path / "results.json"))
    assert old.rows == new.rows
    assert list(old.outcomes["pacs"]) == [Condition("shift", "sketch")]


def test_a_file_of_version_1_is_gone_on_with_and_becomes_one_of_today(folder, tmp_path, monkeypatch):
    output, names = tmp_path / "results.json", ("clean", "corruptions", "pgd")
    tried(folder, output, *names)
    whole = output.read_text()

    def older(content: dict) -> dict:
        """Of the time before label spaces were kept, and stopped in the middle of a benchmark."""
        content = as_version_1(content)
        for asked in content["asked"].values():
            del asked["label_space"]
        del content["outcomes"]["corruptions"]["saturate 1"], content["outcomes"]["corruptions"]["saturate 4"]
        content["rows"] = [row for row in content["rows"] if row["benchmark"] != "corruptions"]
        return content

    for change, left in ((as_version_1, []), (older, ["saturate 1", "saturate 4"])):
        output.write_text(whole)
        keys = counted(monkeypatch)
        rewritten(output, change)
        tried(folder, output, *names)
        assert keys == left
        assert output.read_text() == whole


def test_files_of_both_versions_are_compared(folder, tmp_path, capsys):
    for name in ("old", "new"):
        tried(folder, tmp_path / f"{name}.json", "clean", "pgd")
    results = [Results.read(path) for path in (rewritten(tmp_path / "old.json"), tmp_path / "new.json")]
    assert {(each.value, each.p) for each in differences(*results)} == {(0, 1)}
    assert len(differences(*results)) == 6
    print_table(results)
    print_differences(*results)
    assert "not paired" not in capsys.readouterr().out


def test_shipped_results_are_read_as_they_are():
    """Against the file itself."""
    name = "rvt_micro_softmax.cifar10"
    content, results = json.loads((find_embedded(name) / "results.json").read_text()), read_results(name)
    assert content["torchvars_results"] == 1
    assert len(results.rows) == len(content["rows"])
    for row, old in zip(results.rows, content["rows"], strict=True):
        assert (row.label, row.condition.severity if row.condition.subset is None else None, row.value, row.low) == (
            old["condition"],
            old["severity"],
            old["value"],
            old["low"],
        )
        if row.condition.subset is not None:
            assert row.condition.subset in {each.split("/")[0] for each in results.pictures[row.benchmark]}
    for benchmark, outcomes in content["outcomes"].items():
        for key, old in outcomes.items():
            outcome = results.outcome(benchmark, key)
            assert 100 * outcome.columns["right"].mean() == pytest.approx(old["figures"]["accuracy"][0])
            assert ("named" in outcome.columns) == (key == "clean")
    assert results.outcomes["clean"][CLEAN].figures["loss"].images == 10_000
    assert relative_lines([results], read_results("rvt_micro_vars_sd.cifar10")) != []
    attack = next(each for each in results.outcomes["pgd"] if each["steps"] == 20)
    assert (attack.name, attack["radius"], attack["norm"]) == ("pgd", 1 / 255, "linf")
