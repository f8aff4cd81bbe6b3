"""Results side by side: differences, their significance, the paper's figures, and pictures of them."""

import io
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.console import Console
from scipy import stats

from torchvars.cli.main import main
from torchvars.data import Source
from torchvars.evaluation.benchmarks import Benchmark, Showing
from torchvars.evaluation.benchmarks.base import each_condition
from torchvars.evaluation.benchmarks.corruptions import ALEXNET, corruption_errors, groups_of, summarize
from torchvars.evaluation.compare import (
    differences,
    label_spaces_of,
    lines_of,
    print_differences,
    print_table,
    protocols_of,
    relative_lines,
)
from torchvars.evaluation.conditions import CLEAN, Condition
from torchvars.evaluation.corruptions import PUBLISHED
from torchvars.evaluation.labels import LabelSpace
from torchvars.evaluation.metrics import bootstrap
from torchvars.evaluation.paper import PAPER
from torchvars.evaluation.record import read_results
from torchvars.evaluation.results import Outcome, Results
from torchvars.evaluation.run import register, rows_of
from torchvars.evaluation.task import Figure
from torchvars.evaluation.tasks.classification import Judge
from torchvars.figures import robustness
from torchvars.figures.robustness import draw_attacks, draw_corruptions


class Named(Source):
    """Pictures that are names only."""

    def __init__(self, count: int, classes: int):
        names = [f"{number}.png" for number in range(count)]
        super().__init__("named", names, [f"n{n}" for n in range(classes)], [n % classes for n in range(count)])

    def read(self, index: int) -> bytes:
        raise AssertionError("nothing is opened")


def condition_of(name: str, severity: int | None, benchmark: str = "pgd") -> Condition:
    """What a condition is, by its words."""
    if name == "clean":
        return CLEAN
    if name.startswith("l"):
        ball, *steps = name.split(", ")
        norm, radius = ball.split()
        radius = float(radius.removesuffix("/255")) / (255 if norm == "linf" else 1)
        effort = {steps[0].split()[1]: int(steps[0].split()[0])} if steps else {}
        return Condition("attack", benchmark, parameters=tuple({"norm": norm, "radius": radius, **effort}.items()))
    return Condition("corruption", name, severity)


def tried(
    name: str,
    rights: dict[str, dict],
    count: int = 40,
    classes: int = 5,
    protocol: str = "usual",
    change: str = "",
    space: LabelSpace | None = None,
) -> Results:
    """Results of a model by what it recognised: benchmark -> (condition, severity) -> whether (count,)."""
    space = space or LabelSpace(classes, classes, classes, "those of the pictures")
    results, source = Results({"name": name, "size": 224, "solving": {}}), Named(count, classes)
    judge = Judge(None, [], space, len(set(source.labels)), False)
    for benchmark, found in rights.items():
        showings = [Showing(condition_of(*key, benchmark), source) for key in found]
        reference = partial(summarize, reference=ALEXNET) if benchmark == "imagenet_c" else summarize
        asked = Benchmark(
            benchmark, protocol, "somewhere", showings, change=change, summarize=reference, groups=groups_of(showings)
        )
        asked = asked if groups_of(showings) else replace(asked, summarize=each_condition, groups=None)
        register(results, asked, judge)
        results.outcomes[benchmark] = {}
        for key, right in found.items():
            figures = {
                "accuracy": Figure(*bootstrap(100.0 * right), count),
                "calibration error": Figure(12.34, None, None, count),
            }
            results.outcomes[benchmark][condition_of(*key, benchmark)] = Outcome({"right": right}, figures)
        results.rows += rows_of(name, asked, judge, results)
    return results


def first_ones(share: float, count: int = 40) -> np.ndarray:
    return np.arange(count) < round(share * count)


def corrupted(share: float, benchmark: str = "corruptions", name: str = "tiny", count: int = 40) -> Results:
    """Recognises fewer with each severity."""
    rights = {
        (each, severity): first_ones(share - 0.1 * severity, count) for each in PUBLISHED for severity in range(1, 6)
    }
    return tried(name, {benchmark: {("clean", None): first_ones(share, count), **rights}}, count)


def relative_error(result: Results, baseline: Results) -> tuple[float, float, float] | None:
    """CE as tables show it."""
    return next((values[0] for *_, values in relative_lines([result], baseline)), None)


def printed(show, *arguments, width=250) -> str:
    console = Console(file=io.StringIO(), width=width)
    show(*arguments, console=console)
    return console.file.getvalue()


def in_words(lines: list[tuple[str, Condition, str]]) -> list[tuple[str, str, str]]:
    return [(benchmark, condition.label, metric) for benchmark, condition, metric in lines]


# Differences


def test_differences_are_paired_picture_by_picture():
    generator = np.random.default_rng(0)
    right = generator.random(200) < 0.6
    better = right.copy()
    better[np.flatnonzero(~right)[:12]] = True  # twelve more, and none less
    key = ("clean", None)
    (found,) = differences(tried("first", {"clean": {key: right}}, 200), tried("second", {"clean": {key: better}}, 200))
    assert found[:3] == ("clean", CLEAN, "accuracy")
    assert found.value == pytest.approx(6)
    assert found.p == pytest.approx(2 / 2**12)
    # The interval is that of the twelve alone, far narrower than that of either model.
    assert (found.low, found.high) == pytest.approx(tuple(stats.binom.ppf([0.025, 0.975], 200, 0.06) / 2), abs=0.6)
    # The other way round it is the other sign.
    (other,) = differences(tried("second", {"clean": {key: better}}, 200), tried("first", {"clean": {key: right}}, 200))
    assert (other.value, other.low, other.high) == pytest.approx((-found.value, -found.high, -found.low))
    assert other.p == found.p


def test_differences_only_on_the_same_pictures_and_conditions():
    clean, fog, snow = ("clean", None), ("fog", 1), ("snow", 1)
    first = tried("first", {"clean": {clean: first_ones(0.5)}, "corruptions": {fog: first_ones(0.5)}})
    second = tried("second", {"corruptions": {fog: first_ones(0.4), snow: first_ones(0.1)}})
    assert [(each.benchmark, each.condition.key) for each in differences(first, second)] == [("corruptions", "fog 1")]
    fewer = tried("third", {"corruptions": {fog: first_ones(0.5, 30)}}, 30)
    assert differences(first, fewer) == []
    told = printed(print_differences, first, fewer)
    assert "corruptions: not paired, for it was of 40 pictures, and of 30, 30 of which are the same" in told
    assert "first and third have nothing in common that could be paired" in told


def test_names_with_brackets_are_shown_as_they_are():
    results = [tried(name, {"clean": {("clean", None): first_ones(0.5)}}) for name in ("run[final]", "x[/b]")]
    for told in (printed(print_table, results), printed(print_differences, *results)):
        assert "run[final]" in told
        assert "x[/b]" in told


def test_pictures_to_which_something_else_was_done_are_not_the_same():
    clean = {"clean": {("clean", None): first_ones(0.5)}}
    mild, strong = (
        tried(change, clean | {"corruptions": {("fog", 1): first_ones(0.5)}}, change=change)
        for change in ("mild", "strong")
    )
    for result in (mild, strong):
        result.asked["clean"]["change"] = ""
    assert [each.benchmark for each in differences(mild, strong)] == ["clean"]
    told = "corruptions: not paired, for it was done with mild, and with strong"
    assert told in printed(print_differences, mild, strong)
    first, second = corrupted(0.9), corrupted(0.8)
    assert relative_error(first, second) is not None
    second.asked["corruptions"]["change"] = "another seed"
    assert relative_error(first, second) is None


TEN, TEN_OF_1000 = LabelSpace(10, 10, 10, "ten"), LabelSpace(10, 1000, 10, "ten")
ALL_OF_1000 = LabelSpace(1000, 1000, 10, "thousand")


def before_label_spaces(result: Results, named: int, among_present: bool = False) -> Results:
    """The same in a file that has no label spaces, where this is the last of the classes that were named."""
    for name, asked in result.asked.items():
        del asked["task"]["label_space"]
        asked["task"]["among_present"] = among_present
        clean = result.outcomes[name].get(CLEAN)
        if clean is not None:
            clean.columns["named"] = np.full(len(clean), named)
    return result


def test_answers_among_different_classes_are_not_compared():
    rights = {(name, severity): first_ones(0.5) for name in PUBLISHED for severity in range(1, 6)}
    rights = {"clean": {("clean", None): first_ones(0.7)}, "corruptions": {("clean", None): first_ones(0.7), **rights}}

    def of(name: str, space: LabelSpace) -> Results:
        return tried(name, rights, classes=10, space=space)

    small, peer, whole = of("small", TEN), of("peer", TEN_OF_1000), of("whole", ALL_OF_1000)
    old, old_peer = before_label_spaces(of("old", TEN), 9), before_label_spaces(of("old peer", TEN), 701)
    old_among = before_label_spaces(of("old among", TEN), 9, among_present=True)
    alike = ({0, 1, 3, 5}, {2, 4})
    every = (small, peer, whole, old, old_peer, old_among)
    for one, first in enumerate(every):
        for two, second in enumerate(every):
            paired = any({one, two} <= some for some in alike)
            assert (differences(first, second) != []) == paired, (first.label, second.label)
            assert (relative_error(first, second) is not None) == paired
            told = printed(print_differences, first, second)
            assert ("McNemar" in told) == paired
            assert ("corruptions: not paired, for the label spaces differ, " in told) != paired
            assert ("warning, clean: the label spaces differ" in printed(print_table, [first, second])) != paired
    assert "10 classes and 1000 classes, 10 of them in the pictures" in printed(print_differences, small, whole)
    assert protocols_of([small, peer, whole, old_peer])[::2] == [
        "clean: usual; 10 classes; 40 pictures (small)",
        "clean: usual; label space: 10 of 1000 classes; 40 pictures (peer)",
        "clean: usual; label space: 1000 classes, 10 of them in the pictures; 40 pictures (whole)",
        "clean: usual; at least 702 classes, 10 of them in the pictures; 40 pictures (old peer)",
    ]


def test_results_that_ship_can_be_compared():
    results = [read_results(f"rvt_micro_{name}.cifar10") for name in ("softmax", "vars_d")]
    assert {str(result.label_space(name)) for result in results for name in result.outcomes} == {"10 classes"}
    assert {each.benchmark for each in differences(*results)} == set(results[0].outcomes)
    assert label_spaces_of(results) == []


@pytest.mark.parametrize("benchmark", ["corruptions", "imagenet_c", "cifar10_c"])
def test_the_difference_over_all_corruptions(benchmark):
    first, second = corrupted(0.9, benchmark, "first"), corrupted(0.95, benchmark, "second")
    found = {each.condition.key: each for each in differences(first, second)}
    assert found["all"].value == pytest.approx(5)
    assert found["all"].p is None
    assert len(found) == 77
    shown = printed(print_differences, first, second)
    assert "second less first" in shown
    assert "+5.00" in shown
    # One line stands for all the corruptions.
    assert [line.split()[3] for line in shown.splitlines() if f" {benchmark} " in line] == ["clean", "all"]


def test_the_difference_over_some_corruptions_is_called_partial():
    some = [(name, severity) for name in ("fog", "snow") for severity in (1, 3)]
    rights = {("clean", None): first_ones(0.9), ("spatter", 1): first_ones(0.5)}
    better = {("fog", 1): first_ones(0.9), ("spatter", 1): first_ones(0.9)}
    first = tried("first", {"corruptions": rights | dict.fromkeys(some, first_ones(0.5))})
    second = tried("second", {"corruptions": rights | dict.fromkeys(some, first_ones(0.5)) | better})
    for result in (first, second):
        result.asked["corruptions"]["missing"] = ["frost"]
    found = {each.condition.key: each for each in differences(first, second)}
    assert found["all"].value == pytest.approx(40 / 4)  # one of the four; spatter is not among them
    shown = printed(print_differences, first, second)
    assert [line.split("│")[2].strip() for line in shown.splitlines() if " corruptions " in line] == [
        "clean", "spatter 1", "fog 1", "fog 3", "snow 1", "snow 3", "partial all"
    ]  # fmt: skip
    del second.outcomes["corruptions"][Condition("corruption", "fog", 3)]
    assert "all" not in {each.condition.key for each in differences(first, second)}


def test_means_come_from_the_file_not_from_names():
    keys = [("fog", 1), ("fog", 2), ("spatter", 1)]
    first, second = (
        tried(name, {"corruptions": dict.fromkeys(keys, first_ones(share))})
        for name, share in (("first", 0.5), ("second", 0.6))
    )
    mean = {"family": "shift", "name": "mean of two"}
    for result in (first, second):
        over = [Condition("corruption", *key).to_json() for key in keys[1:]]
        result.asked["corruptions"]["means"] = [{"condition": mean, "over": over}]
    found = {each.condition.key: each.value for each in differences(first, second)}
    assert found["mean of two"] == pytest.approx(10)
    # A file that was written before means were kept is over those of the 15 that it has.
    for result in (first, second):
        del result.asked["corruptions"]["means"]
    assert [each.severity for each in first.means("corruptions")[Condition("corruption", "all")]] == [1, 2]


# Relative to a baseline


def test_a_baseline_relative_to_itself_is_100():
    baseline = corrupted(0.8)
    assert relative_error(baseline, baseline) == (100, 100, 100)
    perfect = tried(
        "perfect",
        {"corruptions": {(name, severity): first_ones(1) for name in PUBLISHED for severity in range(1, 6)}},
    )
    assert relative_error(perfect, perfect) == (100, 100, 100)  # none of none
    assert relative_error(perfect, baseline) == (0, 0, 0)
    assert np.isfinite(relative_error(baseline, perfect)).all()


def test_relative_errors_by_hand():
    # Errors of .5 at all severities, against .2 to .6: .4 on average.
    rights = {(name, severity): first_ones(0.5) for name in PUBLISHED for severity in range(1, 6)}
    rights |= {("fog", severity): first_ones(0.8) for severity in range(1, 6)}
    model, baseline = tried("model", {"corruptions": rights}), corrupted(0.9)
    value, low, high = relative_error(model, baseline)
    assert value == pytest.approx((14 * 0.5 / 0.4 + 0.2 / 0.4) / 15 * 100)
    assert low < value < high
    # Each corruption is put in relation before the mean is taken.
    half = {("fog", severity): first_ones(0.0) for severity in range(1, 6)}
    model = tried("model", {"corruptions": {**rights, **half}})
    other = tried("other", {"corruptions": {**rights, ("fog", 5): first_ones(0.0)}})
    fog = 1 / ((4 * 0.2 + 1) / 5)
    assert relative_error(model, other)[0] == pytest.approx((14 + fog) / 15 * 100)


def test_relative_errors_need_every_corruption_and_the_same_pictures():
    baseline, lacking = corrupted(0.8), corrupted(0.8)
    del lacking.outcomes["corruptions"][Condition("corruption", "frost", 3)]
    assert corruption_errors(lacking) is None
    assert relative_error(lacking, baseline) is relative_error(baseline, lacking) is None
    assert relative_error(corrupted(0.8, count=30), baseline) is None
    errors = corruption_errors(baseline)
    assert errors.shape == (40, 15)
    assert errors[0].tolist() == [0] * 15
    # The 30th is recognised at no severity, the 20th at the first two.
    assert (errors[30].tolist(), errors[20].tolist()) == ([1] * 15, pytest.approx([0.6] * 15))


# Tables


def test_a_table_has_a_line_for_each_sum_and_a_column_for_each_model():
    first, second = corrupted(0.9, name="first"), corrupted(0.8, name="second")
    attacked = {("clean", None): first_ones(0.7), ("linf 1/255, 5 steps", None): first_ones(0.25)}
    third = tried("third", {"pgd": attacked, "clean": {("clean", None): first_ones(0.7)}})
    assert in_words(lines_of([first, second, third])) == [
        ("corruptions", "clean", "accuracy"),
        ("corruptions", "all", "accuracy"),
        ("pgd", "clean", "accuracy"),
        ("pgd", "linf 1/255, 5 steps", "accuracy"),
        ("clean", "clean", "accuracy"),
        ("clean", "clean", "calibration error"),
    ]
    shown = printed(print_table, [first, second, third], 1)
    cells = {tuple(part.strip() for part in line.split("│")[1:4]): line for line in shown.splitlines() if "│" in line}
    assert re.search(r"│ 60.0 \(\S+ to \S+\) +│ 50.0 \(\S+ to \S+\) +│  +│", cells["corruptions", "all", "accuracy"])
    assert re.search(r"│  +│  +│ 25.0 \(\S+ to \S+\) +│", cells["pgd", "linf 1/255, 5 steps", "accuracy"])
    assert "12.3" in cells["clean", "clean", "calibration error"]
    relative = cells["corruptions", "all", "CE, second = 100"]
    assert re.search(r"│ 80.0 \(\S+ to \S+\) +│ 100.0 \(100.0 to 100.0\) +│  +│", relative)
    assert "CE" not in printed(print_table, [first])


@pytest.mark.parametrize("width", [80, 120])
def test_models_that_do_not_fit_beside_each_other_stand_below_each_other(width):
    models = [
        tried(f"a_model_with_a_name_as_long_as_most_{number}", {"clean": {("clean", None): first_ones(number / 10)}})
        for number in range(1, 7)
    ]
    lines = printed(print_table, models, width=width).splitlines()
    assert max(map(len, lines)) <= width
    place = lines.index("clean: accuracy")
    for number, line in enumerate(lines[place + 1 : place + 7], 1):
        name, value, *_ = line.split()
        assert (name, float(value)) == (f"a_model_with_a_name_as_long_as_most_{number}", 10 * number)


def test_models_told_to_solve_differently_are_told_apart():
    first, second = corrupted(0.9), corrupted(0.8)
    second = replace(second, model={"name": "tiny", "solving": {"strength": 0.5}})
    shown = printed(print_table, [first, second])
    assert "│ tiny " in shown.replace("┃", "│")
    assert "tiny (strength 0.5)" in shown
    assert "tiny (strength 0.5) less tiny, on the same" in printed(print_differences, first, second)


def test_a_table_says_how_numbers_came_about():
    key = ("clean", None)
    first = tried("first", {"clean": {key: first_ones(0.5)}})
    same = tried("same", {"clean": {key: first_ones(0.5)}})
    other = tried("other", {"clean": {key: first_ones(0.5)}}, protocol="another crop")
    assert protocols_of([first, same]) == ["clean: usual; 5 classes; 40 pictures"]
    both = ["clean: usual; 5 classes; 40 pictures (first, same)", "clean: another crop; 5 classes; 40 pictures (other)"]
    assert protocols_of([first, same, other]) == both
    shown = printed(print_table, [first, same, other])
    assert all(line in shown for line in both)


def test_extra_corruptions_stand_apart():
    rights = {(name, 1): first_ones(0.5) for name in (*PUBLISHED, "saturate")}
    lines = in_words(lines_of([tried("tiny", {"corruptions": {("clean", None): first_ones(0.9), **rights}})]))
    expected = [("corruptions", condition, "accuracy") for condition in ("clean", "saturate", "all")]
    assert lines == expected


def test_a_table_warns():
    results = tried("tiny", {"clean": {("clean", None): first_ones(0.5)}})
    results = replace(results, warnings=["[bold]it smells[/bold]"], unreadable={"a/1.png": "cut", "b/2.png": "cut"})
    shown = printed(print_table, [results])
    assert "warning, tiny: [bold]it smells[/bold]" in shown
    assert "2 pictures could not be read and count as not recognised, such as a/1.png" in shown


# The paper's figures


def paper_table() -> dict[str, tuple[float, ...]]:
    """Some of its rows: clean, IN-C (mCE), IN-R, IN-SK, PGD, IN-A."""
    return {
        "timm:deit_tiny_patch16_224": (72.2, 71.1, 32.6, 20.2, 6.2, 7.3),
        "deit_tiny_vars_sd": (76.5, 62.5, 40.2, 27.5, 13.4, 11.5),
        "gfnet_tiny_vars_d": (77.8, 58.6, 41.2, 29.0, 15.9, 12.6),
        "rvt_tiny_performer": (77.6, 60.4, 41.7, 28.7, 11.1, 11.1),
        "rvt_tiny_vars_s": (76.8, 61.8, 43.2, 30.1, 7.6, 9.1),
        "rvt_tiny_vars_sd": (78.4, 58.3, 42.5, 30.5, 11.4, 13.4),
        "timm:regnety_040": (79.2, 68.7, 38.8, 25.9, 2.4, 8.9),
        "timm:resnet50": (79.0, 65.5, 42.5, 31.5, 12.5, 5.9),
        "timm:resnext50_32x4d": (79.8, 64.7, 41.5, 29.3, 13.5, 10.7),
        "timm:inception_v3": (77.4, 80.6, 38.9, 27.6, 3.1, 10.0),
        "timm:pit_ti_224": (72.9, 69.1, 34.6, 21.6, 5.1, 6.2),
        "timm:convit_tiny": (73.3, 68.4, 35.2, 22.4, 7.5, 8.9),
    }


def test_the_paper_is_copied_as_it_is():
    names = ("clean", "imagenet_c", "imagenet_r", "imagenet_sketch", "pgd", "imagenet_a")
    for name, figures in paper_table().items():
        assert tuple(PAPER[name][benchmark] for benchmark in names) == figures


@pytest.mark.parametrize(
    ("benchmark", "condition", "classes", "figure"),
    [
        ("clean", "clean", 1000, "78.4"),
        ("imagenet_r", "clean", 200, "42.5"),
        ("imagenet_a", "clean", 200, "13.4"),
        ("imagenet_sketch", "clean", 1000, "30.5"),
        ("pgd", "linf 1/255, 5 steps", 1000, "11.4"),
    ],
)
def test_the_paper_stands_beside_its_own_pictures_only(benchmark, condition, classes, figure):
    def table(name: str, classes: int, condition: str = condition) -> str:
        rights = {benchmark: {(condition, None): first_ones(0.5, 2 * classes)}}
        return printed(print_table, [tried(name, rights, 2 * classes, classes)])

    shown = table("rvt_tiny_vars_sd", classes)
    assert "paper: RVT* VARS-SD" in shown
    assert f"│ {figure} " in shown
    assert "paper" not in table("rvt_tiny_vars_sd", 10)
    assert "paper" not in table("rvt_tiny_vars_sd", 1200 - classes)
    assert "paper" not in table("somebody_else", classes)
    assert "paper" not in table("rvt_tiny_vars_sd", classes, "linf 2/255, 5 steps")
    assert "paper: DeiT " in table("timm:deit_tiny_patch16_224.fb_in1k", classes)
    assert "paper: ResNet50 " in table("timm:resnet50.a1_in1k", classes)


@pytest.mark.parametrize(
    "changed", [{"solving": {"steps": 7}}, {"size": 112}, {"architecture": "rvt_micro_vars_sd"}], ids=str
)
def test_a_model_that_was_asked_otherwise_is_no_row_of_the_paper(changed):
    results = tried("rvt_tiny_vars_sd", {"clean": {("clean", None): first_ones(0.5, 1000)}}, 1000, 1000)
    assert "paper: RVT* VARS-SD" in printed(print_table, [results])
    results.model |= changed
    assert "paper" not in printed(print_table, [results])


@pytest.mark.parametrize("architecture", ["rvt_tiny_vars_sd", "rvt_tiny_vars_sd_released"])
def test_a_row_of_the_paper_is_known_by_what_was_built_whatever_its_file_is_called(architecture):
    results = tried("epoch_300", {"clean": {("clean", None): first_ones(0.5, 1000)}}, 1000, 1000)
    results.model["architecture"] = architecture
    assert "paper: RVT* VARS-SD" in printed(print_table, [results])


def test_the_paper_has_a_mean_corruption_error():
    results = corrupted(0.9, "imagenet_c", "rvt_tiny_vars_sd")
    results.asked["imagenet_c"]["task"]["classes"] = 1000
    lines = [line for line in printed(print_table, [results]).splitlines() if "58.3" in line]
    assert len(lines) == 1
    assert "mCE" in lines[0]
    results.asked["imagenet_c"]["missing"] = 1
    assert "58.3" not in printed(print_table, [results])


# Pictures


def attacked(name: str, share: float) -> Results:
    radii = (1, 2, 4, 8)
    found = {
        "pgd": {(f"linf {r}/255, {steps} steps", None): share - r * steps / 100 for r in radii for steps in (5, 10)},
        "square": {(f"linf {r}/255, 200 queries", None): share - r / 50 for r in radii},
        "fgsm": {(f"linf {r}/255", None): share - r / 30 for r in radii},
    }
    rights = {
        benchmark: {("clean", None): first_ones(share), **{key: first_ones(value) for key, value in values.items()}}
        for benchmark, values in found.items()
    }
    return tried(name, rights)


def ink(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"), dtype=float)


def test_heat_maps_show_each_model_and_each_severity(tmp_path):
    def draw(*results: Results) -> np.ndarray:
        assert draw_corruptions(results, tmp_path / "new" / "map.png")
        return ink(tmp_path / "new" / "map.png")

    one = draw(corrupted(0.9))
    # Two runs of one model are two maps.
    assert draw(corrupted(0.9), corrupted(0.9)).shape[1] > 1.4 * one.shape[1]
    changed = corrupted(0.9)
    changed.rows = [
        replace(row, value=3.0) if (row.label, row.severity, row.metric) == ("fog", 4, "accuracy") else row
        for row in changed.rows
    ]
    differing = np.abs(draw(changed) - one).max(-1) > 0
    rows, columns = np.flatnonzero(differing.any(1)), np.flatnonzero(differing.any(0))
    # One cell of 15 by 5, about two thirds down and to the right, and nothing else.
    height, width = differing.shape
    assert 0 < rows.max() - rows.min() < height / 12
    assert 0 < columns.max() - columns.min() < width / 6
    assert 0.5 < rows.mean() / height < 0.75
    # What was not tried is left empty.
    lacking = corrupted(0.9)
    lacking.rows = [row for row in lacking.rows if (row.label, row.severity) != ("fog", 4)]
    assert (draw(lacking) != one).any()


def test_curves_show_each_attack(tmp_path, monkeypatch):
    drawn = []
    save = robustness._save
    monkeypatch.setattr(robustness, "_save", lambda figure, path: drawn.append(figure) or save(figure, path))
    assert draw_attacks([attacked("first", 0.9), attacked("second", 0.8)], tmp_path / "curves.png")
    lines = {line.get_label(): line for line in drawn[0].axes[0].lines}
    efforts = ("pgd, 5 steps", "pgd, 10 steps", "square, 200 queries", "fgsm")
    assert set(lines) == {f"{name}, {effort}" for name in ("first", "second") for effort in efforts}
    # Each begins with clean pictures, and no two look the same.
    assert lines["first, pgd, 10 steps"].get_xydata().tolist() == [[0, 90], [1, 80], [2, 70], [4, 50], [8, 10]]
    assert lines["second, square, 200 queries"].get_xydata()[:2].tolist() == [[0, 80], [1, 77.5]]
    looks = {(line.get_color(), line.get_linestyle(), line.get_marker()) for line in lines.values()}
    assert len(looks) == len(lines)
    assert ink(tmp_path / "curves.png").std() > 10


def test_each_norm_has_its_own_axis(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(robustness, "_save", lambda figure, path: drawn.append(figure) or True)
    balls = {("clean", None): first_ones(0.8), ("l2 0.5, 5 steps", None): first_ones(0.4)}
    both = tried("tiny", {"pgd": {**balls, ("linf 2/255, 5 steps", None): first_ones(0.2)}})
    assert draw_attacks([both], tmp_path / "curves.png")
    points = {line.get_label(): line.get_xydata().tolist() for axes in drawn[0].axes for line in axes.lines}
    assert points == {"tiny, pgd, 5 steps": [[0, 80], [2, 20]], "tiny, pgd, 5 steps, l2": [[0, 80], [0.5, 40]]}
    assert draw_attacks([tried("tiny", {"pgd": balls})], tmp_path / "curves.png")
    assert len(drawn[1].axes) == 1


def test_nothing_is_drawn_of_nothing(tmp_path):
    clean = tried("tiny", {"clean": {("clean", None): first_ones(0.5)}})
    assert not draw_corruptions([clean], tmp_path / "map.png")
    assert not draw_attacks([clean, corrupted(0.9)], tmp_path / "curves.png")
    assert not draw_attacks([tried("tiny", {"pgd": {("clean", None): first_ones(0.5)}})], tmp_path / "curves.png")
    assert not draw_corruptions([], tmp_path / "map.png")
    assert list(tmp_path.iterdir()) == []


def test_the_command_compares_several_files(tmp_path, capsys):
    paths = []
    for name, share in (("first", 0.9), ("second", 0.8), ("third", 0.7)):
        paths.append(str(tmp_path / f"{name}.json"))
        corrupted(share, name=name).write(Path(paths[-1]))
    main(["compare", *paths, "--baseline", "3"])
    shown = capsys.readouterr().out
    assert "CE, third = 100" in shown
    assert "on the same pictures" not in shown  # of two models only
    main(["compare", *paths[:2]])
    assert "second less first, on the same pictures" in capsys.readouterr().out
