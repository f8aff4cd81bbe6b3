"""Benchmarks: who is always right scores 100 on every one of them, and what is missing is told."""

import re
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from timm.data import ImageNetInfo
from torch import nn

from evaluation.halves import HALVES, Halves, build, picture, subject, write
from torchvars.data import Source, limited
from torchvars.evaluation import metrics
from torchvars.evaluation.benchmarks import BENCHMARKS, Benchmark, Showing, maps
from torchvars.evaluation.benchmarks.base import check_places
from torchvars.evaluation.benchmarks.corruptions import CorruptionBenchmarkOptions, PublishedOptions, summarize
from torchvars.evaluation.conditions import Condition
from torchvars.evaluation.corruptions import CORRUPTIONS, PUBLISHED, STRENGTHS
from torchvars.evaluation.results import Outcome, Results
from torchvars.evaluation.run import evaluate

IMAGENET = ImageNetInfo("imagenet-1k").label_names()
IN_A = ("n01498041", "n01531178", "n01534433", "n01558993")
IN_R = ("n01443537", "n01484850", "n01494475", "n01498041")
CIFAR10 = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
PACS = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
# Mean errors of AlexNet over the five severities, in the order of the corruptions' publication.
ALEXNET = dict(
    gaussian_noise=0.886428,
    shot_noise=0.894468,
    impulse_noise=0.922640,
    defocus_blur=0.819880,
    glass_blur=0.826268,
    motion_blur=0.785948,
    zoom_blur=0.798360,
    snow=0.866816,
    frost=0.826572,
    fog=0.819324,
    brightness=0.564592,
    contrast=0.853204,
    elastic_transform=0.646056,
    pixelate=0.717840,
    jpeg_compression=0.606500,
)


def plain(folder: Path) -> tuple[Path, dict]:
    return write(folder / "val").parent, {}


def imagenet_c(folder: Path) -> tuple[Path, dict]:
    pictures = write(folder / "pictures", IN_A)
    for name in ALEXNET:
        (folder / "c" / name).mkdir(parents=True)
        for severity in range(1, 6):
            (folder / "c" / name / str(severity)).symlink_to(pictures)
    return folder / "c", {"names": IN_A, "classes": IMAGENET}


def imagenet_part(names: tuple[str, ...], favourite: str | None = None):
    def make(folder: Path) -> tuple[Path, dict]:
        return write(folder, names), {"names": names, "classes": IMAGENET, "favourite": favourite}

    return make


def cifar10_c(folder: Path) -> tuple[Path, dict]:
    """Three pictures of four classes, in the reverse order of the model's, at five severities."""
    halves = [half for _ in range(3) for half in HALVES]
    names = ["truck", "cat", "airplane", "dog"]
    np.save(folder / "labels.npy", np.array([CIFAR10.index(names[HALVES.index(half)]) for half in halves] * 5))
    pictures = np.stack([picture(half, number) for severity in range(5) for number, half in enumerate(halves)])
    for name in PUBLISHED:
        np.save(folder / f"{name}.npy", pictures)
    return folder, {"names": names, "classes": CIFAR10[::-1]}


def pacs(folder: Path) -> tuple[Path, dict]:
    for domain in ("art_painting", "cartoon", "photo"):  # wrongly labelled, so that it shows if they are used
        write(folder / domain, PACS[:4][::-1])
    write(folder / "sketch", PACS[:4])
    return folder, {"names": PACS[:4], "classes": PACS}


LAYOUTS = {
    "clean": plain,
    "corruptions": plain,
    "imagenet_c": imagenet_c,
    # A class that is in neither folder gets the largest logit: the answer is looked for among the rest.
    "imagenet_a": imagenet_part(IN_A, "n01440764"),
    "imagenet_r": imagenet_part(IN_R, "n01440764"),
    "imagenet_sketch": imagenet_part(IN_A),
    "cifar10_c": cifar10_c,
    "pacs": pacs,
    "pgd": plain,
    "fgsm": plain,
    "square": plain,
    "autoattack": plain,
}
ATTACKING = ("pgd", "fgsm", "square", "autoattack")
QUICK = {"severities": (2, 5), "queries": 10, "radii": (1 / 255, 8 / 255)}
every_benchmark = pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.skipif(find_spec("autoattack") is None, reason="not installed"))
        if name == "autoattack"
        else name
        for name in LAYOUTS
    ],
)


def tried(name: str, folder: Path, sign: int, options: dict = QUICK) -> Results:
    path, classes = LAYOUTS[name](folder)
    model = subject(**classes, sign=sign)
    if name in ("imagenet_c", "cifar10_c"):
        options = options | dict(severities=(1, 2, 3, 4, 5))
    benchmark = build(name, str(path), model, options)
    return evaluate(model, [benchmark], folder / "results.json", partial_ok=True, batch=5, workers=0)


def test_every_benchmark_is_held_to_its_laws():
    """Those of maps in test_map_benchmarks.py, all others here."""
    assert {*LAYOUTS, *maps.MEMBERS} == {*BENCHMARKS}


@every_benchmark
def test_who_is_always_right_scores_100_and_who_is_always_wrong_0(name, tmp_path, monkeypatch):
    monkeypatch.setattr(metrics, "RESAMPLES", 20)
    for folder, sign, accuracy in (("right", 1, 100), ("wrong", -1, 0)):
        (tmp_path / folder).mkdir()
        rows = tried(name, tmp_path / folder, sign).rows
        accuracies = [row for row in rows if row.metric == "accuracy"]
        assert {(row.value, row.low, row.high) for row in accuracies} == {(accuracy, accuracy, accuracy)}
        classes = [row for row in accuracies if row.condition.subset is not None]
        attacked = {row.label for row in accuracies if row.label.startswith("linf")}
        assert len(classes) == 4 * max(len(attacked), 1)
        assert {row.images for row in classes} == {3 if name == "cifar10_c" else 2}
        # The wrong one names the opposite half each time, so that both keep to what they say.
        consistent = {row.label: row.value for row in rows if row.metric == "consistency"}
        compared = {"corruptions": {*CORRUPTIONS, "all"}, **dict.fromkeys(ATTACKING, attacked)}.get(name, set())
        assert consistent == dict.fromkeys(compared, 100)
        if name == "imagenet_c":
            assert len([row for row in rows if row.metric == "CE"]) == 15
            for row in rows:
                if row.metric == "CE":
                    assert row.value == pytest.approx((100 - accuracy) / ALEXNET[row.label])
            (mce,) = [row.value for row in rows if row.metric == "mCE"]
            assert mce == pytest.approx(np.mean([(100 - accuracy) / error for error in ALEXNET.values()]))


@pytest.mark.parametrize(
    ("size", "strengths"), [(32, "cifar"), (85, "cifar"), (86, "imagenet"), (112, "imagenet"), (224, "imagenet")]
)
def test_corruptions_are_as_strong_as_pictures_of_that_size_have_them(size, strengths, tmp_path):
    path, _ = plain(tmp_path)
    model = replace(subject(), size=size)
    by_default = BENCHMARKS["corruptions"](str(path), model)
    asked = {each: BENCHMARKS["corruptions"](str(path), model, strengths=each) for each in STRENGTHS}
    assert [each for each in STRENGTHS if asked[each].change == by_default.change] == [strengths]


def test_an_extra_corruption_is_there_as_a_whole_or_not_at_all(tmp_path):
    path, classes = imagenet_c(tmp_path)
    model = subject(**classes)
    (path / "spatter").mkdir()
    for severity in (1, 3):
        (path / "spatter" / str(severity)).symlink_to(tmp_path / "pictures")
    missing = BENCHMARKS["imagenet_c"](str(path), model).missing
    assert [each for each in missing if not each.startswith("class ")] == ["spatter/2", "spatter/4", "spatter/5"]


@pytest.mark.parametrize("name", ["imagenet_c", "cifar10_c"])
def test_published_pictures_are_shown_as_stored_only_if_they_are_of_that_size(name, tmp_path):
    path, classes = LAYOUTS[name](tmp_path)
    for size, said in ((32, "as stored"), (24, "shorter side to 27, centre 24 pixels, or as it is if of that size")):
        protocol = BENCHMARKS[name](str(path), replace(subject(**classes), size=size)).protocol
        assert protocol.partition(", ")[2].partition(";")[0] == said


def test_consistency_is_the_share_of_pictures_of_which_the_same_is_said_and_its_mean_over_severities(
    tmp_path, monkeypatch
):
    """A model that a strong contrast makes say something else of left and right, not of top and bottom."""
    monkeypatch.setattr(metrics, "RESAMPLES", 2)
    path, _ = plain(tmp_path)

    class Fickle(nn.Module):
        def forward(self, pixels):
            logits = Halves(range(4), 4)(pixels)
            weak = pixels.flatten(1).std(1) < 0.1
            return torch.where(weak[:, None], logits[:, [1, 0, 2, 3]], logits)

    model = replace(subject(), classifier=Fickle())
    options = QUICK | dict(corruptions=("contrast",), severities=(1, 5))
    benchmark = build("corruptions", str(path), model, options)
    results = evaluate(model, [benchmark], tmp_path / "results.json", partial_ok=True, workers=0)
    rows = {(row.label, row.severity): row.value for row in results.rows if row.metric == "consistency"}
    assert rows == {("contrast", 1): 100, ("contrast", 5): 50, ("contrast", None): 75, ("all", None): 75}


def test_corruptions_and_attacks_are_conditions_beside_clean_ones(tmp_path, monkeypatch):
    monkeypatch.setattr(metrics, "RESAMPLES", 2)
    results = tried("corruptions", tmp_path, 1)
    expected = {("clean", None), *((name, severity) for name in CORRUPTIONS for severity in (2, 5))}
    assert {(row.label, row.severity) for row in results.rows if row.metric == "loss"} == expected
    # Each corruption does something, and what is worse makes the model less sure.
    losses = {(row.label, row.severity): row.value for row in results.rows if row.metric == "loss"}
    assert len(set(losses.values())) == len(losses)
    for name in ("contrast", "fog"):
        assert losses["clean", None] < losses[name, 2] < losses[name, 5]


@pytest.mark.parametrize("name", ["pgd", "fgsm", "square"])
def test_larger_balls_make_a_model_less_sure(name, tmp_path, monkeypatch):
    monkeypatch.setattr(metrics, "RESAMPLES", 2)
    options = QUICK | dict(radii=(2 / 255, 16 / 255), attack_steps=(3,), queries=10)
    rows = [row for row in tried(name, tmp_path, 1, options).rows if row.metric == "loss"]
    effort = {"pgd": ", 3 steps", "fgsm": "", "square": ", 10 queries"}[name]
    assert [row.label for row in rows] == ["clean", f"linf 2/255{effort}", f"linf 16/255{effort}"]
    assert rows[0].value < rows[1].value < rows[2].value


def frost_pictures(folder: Path) -> Path:
    folder.mkdir()
    for number in range(1, 7):
        Image.fromarray(np.full((64, 64, 3), 40 * number, np.uint8)).save(folder / f"frost{number}.png")
    return folder


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("corruptions", {"seed": 1}),
        ("corruptions", {"strengths": "imagenet"}),
        ("corruptions", {"frost": frost_pictures}),
        ("pgd", {"seed": 1}),
        ("pgd", {"norm": "l2"}),
        ("pgd", {"attack_steps": (2,)}),
        ("fgsm", {"norm": "l2"}),
        ("square", {"queries": 40}),
        ("square", {"norm": "l2"}),
        ("square", {"seed": 1}),
        ("clean", {"limit": 3}),
    ],
    ids=lambda value: value if isinstance(value, str) else next(iter(value)),
)
def test_each_option_changes_the_numbers(name, changed, tmp_path, monkeypatch):
    monkeypatch.setattr(metrics, "RESAMPLES", 2)
    options = QUICK | dict(corruptions=("gaussian_noise", "frost"), severities=(3,), radii=(0.05,), attack_steps=(1,))
    losses = []
    for folder, more in (("before", {}), ("after", changed)):
        (tmp_path / folder).mkdir()
        given = {key: value(tmp_path / "frost") if callable(value) else value for key, value in more.items()}
        rows = tried(name, tmp_path / folder, 1, options | given).rows
        losses.append({row.label: row.value for row in rows if row.metric == "loss"})
    assert sorted(losses[0].values()) != sorted(losses[1].values())
    if "frost" in changed:
        assert losses[0]["gaussian_noise"] == losses[1]["gaussian_noise"]


def test_cifar10_c_has_its_severities_one_after_the_other(tmp_path, monkeypatch):
    monkeypatch.setattr(metrics, "RESAMPLES", 2)
    path, classes = cifar10_c(tmp_path)
    for name, severity in (("fog", 2), ("snow", 5)):
        pictures = np.load(path / f"{name}.npy")
        block = slice(12 * (severity - 1), 12 * severity)
        pictures[block] = pictures[block, ::-1, ::-1]  # turned round: the opposite half is bright
        np.save(path / f"{name}.npy", pictures)
    model = subject(**classes)
    results = evaluate(model, [BENCHMARKS["cifar10_c"](str(path), model)], tmp_path / "results.json", workers=0)
    wrong = {(row.label, row.severity) for row in results.rows if row.metric == "accuracy" and row.value == 0}
    assert wrong == {("fog", 2), ("snow", 5)}
    assert results.value("cifar10_c", "accuracy", "fog").value == pytest.approx(80)
    assert results.value("cifar10_c", "accuracy").value == pytest.approx(100 * (1 - 2 / 75))


# Sums


def with_errors(benchmark: str, errors: dict[str, float], count: int) -> list[tuple]:
    """What is made of a model that has these mean errors over five severities, the later ones the worse."""
    conditions, outcomes = [], {}
    for name, error in errors.items():
        misses = round(error * 5 * count)
        for severity in (5, 4, 3, 2, 1):
            wrong = min(misses, count)
            misses -= wrong
            conditions.append(Condition("corruption", name, severity))
            outcomes[conditions[-1]] = Outcome({"right": np.arange(count) >= wrong}, {})
    reference = ALEXNET if benchmark == "imagenet_c" else None
    showings = [Showing(condition, None) for condition in conditions]
    return summarize(Benchmark(benchmark, "", "", showings), outcomes, reference)


def test_alexnet_has_a_mean_corruption_error_of_100(monkeypatch, tmp_path):
    monkeypatch.setattr(metrics, "RESAMPLES", 2)
    # Of 50 000 pictures at 5 severities its errors are whole numbers.
    path, classes = imagenet_c(tmp_path)
    published = BENCHMARKS["imagenet_c"](str(path), subject(**classes))
    assert published.summarize.keywords == {"reference": ALEXNET}
    rows = with_errors("imagenet_c", ALEXNET | dict.fromkeys(CORRUPTIONS.keys() - ALEXNET.keys(), 0.5), 50_000)
    found = {condition.name: figure.value for condition, metric, figure in rows if metric == "CE"}
    assert found == pytest.approx(dict.fromkeys(ALEXNET, 100))  # none for the extra ones
    assert [figure[0] for _, metric, figure in rows if metric == "mCE"] == [pytest.approx(100)]
    perfect = with_errors("imagenet_c", dict.fromkeys(ALEXNET, 0), 100)
    assert [figure for _, metric, figure in perfect if metric == "mCE"] == [(0, 0, 0, 100)]


def test_a_mean_corruption_error_by_hand():
    errors = {name: 0.1 * (1 + number % 5) for number, name in enumerate(ALEXNET)}
    by_hand = sum(errors[name] / ALEXNET[name] for name in ALEXNET) / 15 * 100
    rows = with_errors("imagenet_c", errors | dict.fromkeys(CORRUPTIONS.keys() - ALEXNET.keys(), 1.0), 40)
    ((value, low, high, _),) = [figure for _, metric, figure in rows if metric == "mCE"]
    assert value == pytest.approx(by_hand)
    assert low < value < high
    ((accuracy, *_),) = [each.figure for each in rows if (each.condition.label, each.metric) == ("all", "accuracy")]
    assert accuracy == pytest.approx(70)
    # Without a reference there is no such thing.
    rows = with_errors("corruptions", errors, 40)
    assert {each.metric for each in rows} == {"accuracy"}


# What is missing


def test_missing_corruptions_severities_and_classes_are_listed(tmp_path):
    path, classes = imagenet_c(tmp_path)
    (path / "snow" / "3").unlink()
    (path / "fog").rename(tmp_path / "fog")
    model = subject(**classes)
    missing = BENCHMARKS["imagenet_c"](str(path), model).missing
    gone = {"snow/3", *(f"fog/{severity}" for severity in range(1, 6))}
    assert {*missing} == gone | {f"class {name}" for name in IMAGENET if name not in IN_A}
    fewer = {"severities": (1, 2), "corruptions": ("snow", "frost", "speckle_noise")}
    benchmark = BENCHMARKS["imagenet_c"](str(path), model, **fewer)
    assert all(name.startswith("class") for name in benchmark.missing)
    rest = {"severity 3", "severity 4", "severity 5", *(set(PUBLISHED) - {"snow", "frost"})}
    assert {*benchmark.not_asked} == rest


def test_what_was_not_chosen_is_told_from_what_is_missing(tmp_path):
    fewer, rest = (
        {"severities": (1, 2, 3), "corruptions": PUBLISHED[1:]},
        {"gaussian_noise", "severity 4", "severity 5"},
    )
    path, classes = cifar10_c(tmp_path)
    benchmark = BENCHMARKS["cifar10_c"](str(path), subject(**classes), **fewer)
    assert ({*benchmark.not_asked}, benchmark.missing) == (rest, ())
    (path / "fog.npy").unlink()
    benchmark = BENCHMARKS["cifar10_c"](str(path), subject(**classes), **fewer)
    assert ({*benchmark.not_asked}, benchmark.missing) == (rest, ("fog.npy",))
    benchmark = BENCHMARKS["cifar10_c"](str(path), subject(**classes))
    assert (benchmark.not_asked, benchmark.missing) == ((), ("fog.npy",))
    path = write(tmp_path / "plain")
    benchmark = BENCHMARKS["corruptions"](str(path), subject(), **fewer)
    assert ({*benchmark.not_asked}, benchmark.missing) == (rest, ())
    # The four extra ones are in no sum.
    assert BENCHMARKS["corruptions"](str(path), subject(), corruptions=PUBLISHED).not_asked == ()


def test_parts_of_imagenet_want_their_classes(tmp_path):
    for name, wnids, count in (("imagenet_a", IN_A, 200), ("imagenet_r", IN_R, 200), ("imagenet_sketch", IN_A, 1000)):
        path = write(tmp_path / name, wnids)
        missing = BENCHMARKS[name](str(path), subject(wnids, IMAGENET)).missing
        assert len(missing) == count - 4
        assert not set(missing) & {f"class {each}" for each in wnids}
        assert {each.removeprefix("class ") for each in missing} < set(IMAGENET)
    message = "has 1 classes that are not among the 200 of imagenet_r, such as n01558993"
    with pytest.raises(ValueError, match=message):
        BENCHMARKS["imagenet_r"](str(tmp_path / "imagenet_a"), subject(IN_A, IMAGENET))


def test_imagenet_c_has_the_same_pictures_in_each_condition(tmp_path):
    path, classes = imagenet_c(tmp_path)
    (path / "snow" / "3").unlink()
    write(path / "snow" / "3", IN_A, count=3)
    with pytest.raises(ValueError, match=r"snow/3 has other pictures than the rest: 12 for 8, such as n01498041/2.png"):
        BENCHMARKS["imagenet_c"](str(path), subject(**classes))
    with pytest.raises(ValueError, match=r"holds nothing of ImageNet-C: expected folders <corruption>/<severity>/<cl"):
        BENCHMARKS["imagenet_c"](str(tmp_path / "pictures"), subject(**classes))


def test_cifar10_c_wants_the_labels_of_five_severities(tmp_path):
    path, classes = cifar10_c(tmp_path)
    labels = np.load(path / "labels.npy")
    shuffled = np.concatenate([labels[:12], np.random.default_rng(0).permutation(labels[12:])])
    for wrong, message in (
        (labels[:59], r"labels.npy has 59 labels that are not those of the same pictures at 5 severities"),
        (shuffled, r"labels.npy has 60 labels that are not those of the same pictures at 5 severities"),
        (labels[:20], r"gaussian_noise.npy holds 60 pictures and there are 20 labels: expected as many of both"),
        (labels + 1, r"labels are from 1 to 10: expected from 0 to 9"),
    ):
        np.save(path / "labels.npy", wrong)
        with pytest.raises(ValueError, match=message):
            BENCHMARKS["cifar10_c"](str(path), subject(**classes))
    (path / "labels.npy").unlink()
    with pytest.raises(ValueError, match=r"nothing of CIFAR-10-C: expected labels.npy and <corruption>.npy"):
        BENCHMARKS["cifar10_c"](str(path), subject(**classes))


def test_options_that_cannot_be_are_told_before_anything_runs(tmp_path):
    with pytest.raises(ValueError, match="no corruption named 'gausian_noise': there are gaussian_noise, shot_noise"):
        PublishedOptions(corruptions=("snow", "gausian_noise"))
    with pytest.raises(ValueError, match="severities are 1, 2, 3, 4 and 5, got 6"):
        PublishedOptions(severities=(1, 6))
    with pytest.raises(FileNotFoundError, match=r"no folder of frost pictures at .*nowhere"):
        CorruptionBenchmarkOptions(frost=tmp_path / "nowhere")
    with pytest.raises(ValueError, match="no domain 'oil'"):
        BENCHMARKS["pacs"](str(pacs(tmp_path)[0]), subject(PACS[:4], PACS), left_out="oil")


@pytest.mark.skipif(find_spec("autoattack") is not None, reason="autoattack is installed")
def test_a_package_that_is_not_there_is_told_of(tmp_path):
    with pytest.raises(ImportError, match="AutoAttack needs the package of its authors"):
        build("autoattack", str(write(tmp_path)), subject(), QUICK)


# What decides the numbers is in the protocol


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("corruptions", {"seed": 1}),
        ("corruptions", {"strengths": "imagenet"}),
        ("corruptions", {"frost": Path("frost")}),
        ("pgd", {"seed": 1}),
        ("pgd", {"transfer": subject(name="other", sign=-1)}),
    ],
    ids=["seed", "strengths", "frost", "seed of an attack", "transfer"],
)
def test_what_decides_the_numbers_is_in_the_protocol(name, changed, tmp_path, monkeypatch):
    path = str(write(tmp_path / "pictures"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "frost").mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "frost" / "frost1.png")
    before, after = (build(name, path, subject(), options) for options in (QUICK, QUICK | changed))
    assert before.protocol != after.protocol
    assert before.change != after.change


def test_what_is_asked_for_twice_is_done_once():
    options = CorruptionBenchmarkOptions(corruptions=("fog", "snow", "fog"), severities=(1, 5, 1))
    assert (options.corruptions, options.severities) == (("fog", "snow"), (1, 5))


def test_two_models_of_one_name_are_two_to_transfer_from(tmp_path):
    path = str(write(tmp_path))
    protocols = {
        build("pgd", path, subject(), QUICK | dict(transfer=subject(name="other", sign=sign))).protocol
        for sign in (1, -1)
    }
    assert len(protocols) == 2


def test_attacks_are_carried_over_only_between_the_same_classes(tmp_path):
    path, other = str(write(tmp_path)), subject(classes=HALVES[::-1], name="other")
    message = r"other has 4 classes, bottom, top, right, ... and halves has 4 classes, left, right, top, ..."
    with pytest.raises(ValueError, match=re.escape(message)):
        build("pgd", path, subject(), QUICK | dict(transfer=other))
    with pytest.raises(ValueError, match="other has unknown classes and halves has 4 classes"):
        build("pgd", path, subject(), QUICK | dict(transfer=replace(other, classes=None)))


def test_pictures_made_against_another_model_are_shown_to_this_one(tmp_path, monkeypatch):
    monkeypatch.setattr(metrics, "RESAMPLES", 2)
    path = str(write(tmp_path))
    options = QUICK | dict(radii=(8 / 255,))
    losses = {}
    for word, transfer in (("own", None), ("opposite", subject(sign=-1, name="opposite"))):
        benchmark = build("pgd", path, subject(), options | dict(transfer=transfer))
        results = evaluate(subject(), [benchmark], tmp_path / f"{word}.json", workers=0)
        losses[word] = [row.value for row in results.rows if row.metric == "loss"]
    assert benchmark.name == "pgd of opposite"
    # What fools a model that is always wrong helps the one that is always right.
    assert losses["own"][1] > losses["own"][0] == losses["opposite"][0] > losses["opposite"][1]


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("pgd", {"radii": (1 / 255,), "attack_steps": (5,)}, "linf 1/255, 5 steps"),
        ("pgd", {"radii": (0.5 / 255,), "attack_steps": (20,)}, "linf 0.5/255, 20 steps"),
        ("fgsm", {"radii": (4 / 255,)}, "linf 4/255"),
        ("square", {"radii": (0.5,), "norm": "l2", "queries": 30}, "l2 0.5, 30 queries"),
        ("pgd", {"radii": (8 / 255,), "attack_steps": (5,), "transfer": subject()}, "linf 8/255, 5 steps"),
    ],
)
def test_attacks_in_words(name, options, words, tmp_path):
    clean, condition = BENCHMARKS[name](str(write(tmp_path)), subject(), **options).conditions
    assert (clean.label, condition.label) == ("clean", words)
    assert condition["made_against"] == ("halves" if "transfer" in options else None)


def test_what_moves_in_a_picture_is_refused_where_targets_have_a_place(tmp_path):
    path = str(write(tmp_path))
    made = BENCHMARKS["corruptions"](path, subject(), corruptions=("fog", "elastic_transform"))
    check_places(made)

    class Placed(type(made.task)):
        name, placed = "segmentation", True

    with pytest.raises(ValueError, match="corruptions: elastic_transform moves the content of pictures"):
        check_places(replace(made, task=Placed()))
    for name, chosen in (("corruptions", {"corruptions": ("fog", "frost")}), ("pgd", {}), ("clean", {})):
        check_places(replace(BENCHMARKS[name](path, subject(), **chosen), task=Placed()))


# Some of the pictures


class Named(Source):
    def __init__(self, identities: list[str]):
        super().__init__("named", identities, ["one"], [0] * len(identities))

    def read(self, index: int) -> bytes:
        return self.identities[index].encode()


@given(st.integers(1, 60), st.integers(1, 60), st.integers(1, 60))
def test_some_pictures_are_always_the_same_and_within_more(total, some, more):
    every = [f"one/{number}.png" for number in range(total)]
    few, many = (limited(Named(every), limit) for limit in sorted((some, more)))
    assert len(few) == min(some, more, total)
    assert set(few.identities) <= set(many.identities)
    assert few.identities == sorted(few.identities, key=every.index)
    assert [few.read(index).decode() for index in range(len(few))] == few.identities
    # Nor does it matter what order they come in.
    assert set(limited(Named(every[::-1]), min(some, more)).identities) == set(few.identities)


def test_some_pictures_are_at_least_one():
    with pytest.raises(ValueError, match="limit must be at least 1, got 0"):
        limited(Named(["one/1.png"]), 0)
    chosen = limited(Named([f"one/{number:03}.png" for number in range(500)]), 100).identities
    assert len({name[4:5] for name in chosen}) == 5  # from all over, and not the first ones
