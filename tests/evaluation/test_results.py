"""The file of results: what is written is read, and nothing else is."""

import json
from dataclasses import asdict, fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchvars.evaluation.conditions import ALL_CORRUPTIONS, CLEAN, Condition
from torchvars.evaluation.results import Outcome, Results, Row
from torchvars.evaluation.task import Figure
from torchvars.evaluation.tasks import Classification

FOG = Condition("corruption", "fog", 3)


def results() -> Results:
    right = np.random.default_rng(0).random(13) < 0.5
    outcome = Outcome(
        {"right": right, "named": np.arange(13) - 1, "area": np.r_[np.nan, np.linspace(0, 1, 12)]},
        {"accuracy": Figure(50.0, 40.5, 60.0, 13), "calibration error": Figure(3.0, None, None, 12)},
        1,
    )
    row = Row("tiny", "corruptions", FOG, "accuracy", 100 / 3, 12.5, None, 13, "how it was done; «ß»")
    metrics = [asdict(metric) for metric in Classification.metrics]
    return Results(
        {"name": "tiny", "sha256": "abc", "solving": {"strength": 0.3}},
        {"corruptions": {"protocol": "how it was done", "images": 13, "task": {"name": "a", "metrics": metrics}}},
        {"corruptions": {CLEAN: outcome, FOG: Outcome({"right": right}, outcome.figures)}},
        {"corruptions": [f"a/{number}.png" for number in range(13)]},
        [row, replace(row, condition=ALL_CORRUPTIONS)],
        {"a/3.png": "broken"},
        ["something smells"],
        {"torch": "2"},
    )


def test_what_is_written_is_read(tmp_path):
    path, written = tmp_path / "new" / "results.json", results()
    written.write(path)
    read = Results.read(path)
    for each in fields(Results):
        if each.name != "outcomes":
            assert getattr(read, each.name) == getattr(written, each.name)
    for condition, outcome in written.outcomes["corruptions"].items():
        other = read.outcomes["corruptions"][condition]
        assert other.columns.keys() == outcome.columns.keys()
        for name, values in outcome.columns.items():
            np.testing.assert_array_equal(other.columns[name], values)
            assert other.columns[name].dtype == values.dtype
        assert (other.figures, other.unread) == (outcome.figures, outcome.unread)
    again = tmp_path / "again.json"
    read.write(again)
    assert again.read_bytes() == path.read_bytes()
    # A row is a line, for those who compare files by lines.
    assert sum('"metric": "accuracy"' in line for line in path.read_text().splitlines()) == 2


@given(st.lists(st.booleans(), min_size=1, max_size=70))
def test_answers_are_kept_one_for_each_picture(right):
    outcome = Outcome({"right": np.array(right)}, {})
    assert Outcome.from_json(json.loads(json.dumps(outcome.to_json()))).columns["right"].tolist() == right


@given(
    st.sampled_from(["clean", "corruption", "attack"]),
    st.none() | st.integers(1, 5),
    st.dictionaries(st.text(max_size=3), st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(max_size=3)),
    st.none() | st.text(min_size=1, max_size=3),
)
def test_conditions_are_kept_as_they_are(family, severity, parameters, subset):
    condition = Condition(family, "name", severity, tuple(parameters.items()), subset)
    again = Condition.from_json(json.loads(json.dumps(condition.to_json())))
    assert (again, hash(again)) == (condition, hash(condition))
    assert {name: again[name] for name in parameters} == parameters
    assert again["nothing like it"] is None


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content.pop("outcomes"),
        lambda content: content.update(torchvars_results=3),
        lambda content: content["rows"][0].pop("protocol"),
        lambda content: content["rows"][0].update(condition="fog"),
        lambda content: content["rows"][0]["condition"].pop("family"),
        lambda content: content["outcomes"][0]["columns"]["right"].update(count=700),
        lambda content: content["outcomes"][0]["columns"]["right"].update(count=3),
        lambda content: content["outcomes"][0]["columns"]["right"].update(bits="no hex"),
        lambda content: content["outcomes"][0]["columns"].clear(),
        lambda content: content["outcomes"][0]["columns"].update(named=["one"] * 13),
        lambda content: content["outcomes"][0]["figures"].update(accuracy=[1.0]),
        lambda content: content["outcomes"][0].update(benchmark="another"),
        lambda content: content.update(rows=3),
        lambda content: content.update(model="tiny"),
        lambda content: content["model"].pop("name"),
        lambda content: content["asked"].pop("corruptions"),
        lambda content: content["asked"]["corruptions"].pop("task"),
        lambda content: content["pictures"].pop("corruptions"),
        lambda content: content["pictures"]["corruptions"].pop(),
        lambda content: content.update(pictures=[]),
        lambda content: content["outcomes"][0]["columns"]["named"].pop(),
    ],
)
def test_a_damaged_file_is_not_read(damage, tmp_path):
    path = tmp_path / "results.json"
    results().write(path)
    content = json.loads(path.read_text())
    damage(content)
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"results.json holds no results of torchvars evaluate: "):
        Results.read(path)


def test_a_file_of_another_version_is_told_by_it(tmp_path):
    path = tmp_path / "results.json"
    path.write_text('{"torchvars_results": 3}')
    with pytest.raises(ValueError, match="torchvars_results is 3, expected 1 or 2"):
        Results.read(path)
    with pytest.raises(IsADirectoryError, match="is a folder: expected a file of results"):
        Results.read(tmp_path)


def test_a_file_is_the_old_one_until_the_new_one_is_whole(tmp_path, monkeypatch):
    path = tmp_path / "results.json"
    results().write(path)
    before = path.read_bytes()

    def full(*_):
        raise OSError("no space left")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="no space left"):
        replace(results(), warnings=[]).write(path)
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["results.json"]


def test_numbers_are_found_by_what_they_are_of():
    found = results()
    assert found.value("corruptions", "accuracy", "fog", 3) is found.rows[0]
    assert found.value("corruptions", "accuracy") is found.rows[1]
    assert found.value("corruptions", "accuracy", "fog") is None
    assert found.value("corruptions", "loss") is None
    assert (FOG.key, CLEAN.key) == ("fog 3", "clean")
    assert found.outcome("corruptions", "fog 3") is found.outcomes["corruptions"][FOG]
    assert found.outcome("corruptions", "fog") is found.outcome("clean", "clean") is None


def test_a_model_is_called_by_its_name_and_how_it_was_told_to_solve():
    assert results().label == "tiny (strength 0.3)"
    assert replace(results(), model={"name": "tiny", "solving": {}}).label == "tiny"
    told = {"steps": 7, "adapt": 1.0, "adapt_data": "/somewhere"}
    assert replace(results(), model={"name": "tiny", "solving": told}).label == "tiny (steps 7, adapt 1.0)"
