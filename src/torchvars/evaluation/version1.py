"""Reading results files of version 1, in which conditions are text. No other module parses them from text."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict

from .conditions import ALL_CORRUPTIONS, CLEAN, Condition
from .corruptions import CORRUPTIONS
from .tasks import Classification

SHIFTS = ("imagenet_a", "imagenet_r", "imagenet_sketch", "pacs")
CORRUPTED = {
    Condition("corruption", name, severity).key: Condition("corruption", name, severity)
    for name in CORRUPTIONS
    for severity in range(1, 6)
}
OF_THE_READABLE = ("loss", "calibration error")  # metrics over readable pictures only


def upgraded(content: Mapping) -> dict:
    """The content of a file of version 1, converted to version 2."""
    conditions = {name: conditions_of(name, asked) for name, asked in content["asked"].items()}
    return {
        **content,
        "torchvars_results": 2,
        "asked": {name: _asked(asked, conditions[name].values()) for name, asked in content["asked"].items()},
        "rows": [_row(row, conditions[row["benchmark"]]) for row in content["rows"]],
        "outcomes": [
            {"benchmark": name, "condition": conditions[name][key].to_json(), **_outcome(outcome)}
            for name, outcomes in content["outcomes"].items()
            for key, outcome in outcomes.items()
        ],
    }


def conditions_of(benchmark: str, asked: Mapping) -> dict[str, Condition]:
    """The conditions of a benchmark by their text."""
    rule, _, source = benchmark.partition(" of ")
    found = {}
    for key in asked["conditions"]:
        if key in asked["attacks"]:
            parameters = asked["attacks"][key] | ({"made_against": source} if source else {})
            found[key] = Condition("attack", rule, parameters=tuple(parameters.items()))
        elif benchmark in SHIFTS:
            found[key] = Condition("shift", key)
        else:
            found[key] = CLEAN if key == "clean" else CORRUPTED[key]
    return found


def _asked(asked: Mapping, conditions: Iterable[Condition]) -> dict:
    facts = {name: asked[name] for name in ("classes", "among_present", "label_space") if name in asked}
    kept = {name: value for name, value in asked.items() if name not in (*facts, "attacks")}
    metrics = [asdict(metric) for metric in Classification.metrics]
    task = {"name": Classification.name, "metrics": metrics, **facts}
    return {**kept, "task": task, "conditions": [each.to_json() for each in conditions]}


def _row(row: Mapping, conditions: Mapping[str, Condition]) -> dict:
    name, severity = row["condition"], row["severity"]
    if name.startswith("class "):
        condition = _class(name.removeprefix("class "), conditions)
    elif severity is not None:
        condition = conditions[f"{name} {severity}"]
    elif name == "all" or name in CORRUPTIONS:
        condition = Condition("corruption", name)
    else:
        condition = conditions[name]
    return {name: value for name, value in row.items() if name != "severity"} | {"condition": condition.to_json()}


def _class(words: str, conditions: Mapping[str, Condition]) -> Condition:
    """The condition of a class: of the only condition, of one of several, or of the mean of the corruptions."""
    within = {"": next(iter(conditions.values())), ", mean of the corruptions": ALL_CORRUPTIONS}
    within |= {f", {key}": condition for key, condition in conditions.items()}
    suffix = max((each for each in within if words.endswith(each)), key=len)
    condition = within[suffix]
    return Condition(
        condition.family, condition.name, condition.severity, condition.parameters, words.removesuffix(suffix)
    )


def _outcome(outcome: Mapping) -> dict:
    count, unread = outcome["images"], outcome.get("unread", 0)
    columns = {"right": {"count": count, "bits": outcome["right"]}}
    figures = {
        metric: [*figure, count - unread if metric in OF_THE_READABLE else count]
        for metric, figure in outcome["figures"].items()
    }
    named = {"named": outcome["named"]} if "named" in outcome else {}
    return {"columns": columns | named, "figures": figures, "unread": unread}
