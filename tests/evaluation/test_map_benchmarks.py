"""Segmentation, fixation and map_stability: who looks at what is bright scores best where that is asked for."""

import runpy
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import torchvars
from evaluation.halves import HALVES, SIZE, picture, write
from torchvars.cli.evaluate import by_benchmark
from torchvars.evaluation import Results, differences, metrics, print_differences, print_table
from torchvars.evaluation.benchmarks import BENCHMARKS, build
from torchvars.evaluation.conditions import CLEAN, Condition
from torchvars.evaluation.map_choice import random_weights
from torchvars.evaluation.run import evaluate
from torchvars.evaluation.subjects import Subject, digest_weights, subject_of
from torchvars.evaluation.tasks.segmentation import THRESHOLDS
from torchvars.maps import Mixing, mixing_of

pytestmark = pytest.mark.usefixtures("one_thread")
OURS = ("segmentation", "fixation", "map_stability")
every_benchmark = pytest.mark.parametrize("name", OURS)


@pytest.fixture(autouse=True)
def _rough_intervals(monkeypatch):
    monkeypatch.setattr(metrics, "RESAMPLES", 20)


class Shine(nn.Module):
    """An attention of two heads, whose weights are the brightness of the tokens, or the darkness."""

    def __init__(self, sign):
        super().__init__()
        self.sign = sign

    def forward(self, tokens):
        return tokens.expand_as(tokens)


class Shining(Mixing):
    def weights(self):
        rows = self.values[:, :1, :, 0]  # batch, 1, N
        return (rows / rows.sum(-1, keepdim=True)).unsqueeze(2).expand(-1, 2, rows.shape[-1], -1)

    def mix(self, values, step=None):  # not by a matrix product, whose rounding depends on the batch
        return (self.weights()[:, :, :1].mT * values).sum(2, keepdim=True).expand_as(values)

    def kernel(self, query):
        return self.weights().mT @ query.to(self.values.dtype).unsqueeze(-1)


@mixing_of.register
def _of_shine(layer: Shine, tokens, grid):
    values = tokens if layer.sign > 0 else 1.01 * tokens.amax(1, keepdim=True) - tokens
    return Shining(values.unsqueeze(1).expand(-1, 2, -1, -1), lambda mixed: mixed)


class Seeing(nn.Module):
    """Patches of 4 x 4 pixels, and four logits."""

    def __init__(self, sign):
        super().__init__()
        self.attn = Shine(sign)

    def forward(self, pixels):
        tokens = nn.functional.avg_pool2d(pixels.mean(1, keepdim=True), 4).flatten(1).unsqueeze(-1)
        return self.attn(tokens)[:, :4, 0]


def seeing(sign=1):
    classifier = Seeing(sign)
    return Subject("bright" if sign > 0 else "dark", classifier, SIZE, None, digest_weights(classifier))


def bright(half):
    rows, columns = np.indices((SIZE, SIZE))
    return {"left": columns < 16, "right": columns >= 16, "top": rows < 16, "bottom": rows >= 16}[half]


def masks(folder):
    """PASCAL VOC, where the bright half is an object, with a void outline."""
    for each in ("JPEGImages", "SegmentationClass"):
        (folder / each).mkdir(parents=True)
    for number, half in enumerate(HALVES):
        Image.fromarray(picture(half)).save(folder / f"JPEGImages/{half}.png")
        labels = np.where(bright(half), number + 1, 0).astype(np.uint8)
        across = bright(half) if half in ("left", "right") else bright(half).T
        edge = np.flatnonzero(np.diff(across[0].astype(int)))[0]
        (labels if half in ("left", "right") else labels.T)[:, edge - 1 : edge + 3] = 255
        Image.fromarray(labels, "L").save(folder / f"SegmentationClass/{half}.png")
    return folder


def looks(folder):
    """Two people who looked at the bright half, one picture at which nobody did, and one that cannot be read."""
    (folder / "stimuli").mkdir(parents=True)
    lines, generator = ["image,subject,x_norm,y_norm"], np.random.default_rng(0)
    for half in HALVES:
        Image.fromarray(picture(half)).save(folder / f"stimuli/{half}.png")
        rows, columns = np.nonzero(bright(half))
        for number in generator.integers(len(rows), size=6):
            lines.append(f"{half},{number % 2},{(columns[number] + 0.5) / SIZE},{(rows[number] + 0.5) / SIZE}")
    (folder / "fixations.csv").write_text("\n".join(lines))
    return folder


def pictures(folder):
    return write(folder / "val").parent


LAYOUTS = {"segmentation": masks, "fixation": looks, "map_stability": pictures}
CHOSEN = {"baselines": False, "corruptions": ("gaussian_noise", "contrast"), "severities": (1, 5)}


def tried(name, folder, output, subject=None, chosen=CHOSEN, **how):
    subject = subject or seeing()
    path = folder / name
    path = path if path.exists() else LAYOUTS[name](path)
    known = {word: value for word, value in chosen.items() if word in BENCHMARKS[name].takes()}
    benchmarks = build([name], str(path), subject, **known)
    return evaluate(subject, benchmarks, output, **{"workers": 0, "device": "cpu", "batch": 3, **how})


def value(results, name, metric, condition, severity=None):
    row = results.value(name, metric, condition, severity)
    return None if row is None else pytest.approx(row.value)


@pytest.mark.parametrize("kind", ["implicit", "kernel", "rollout"])
def test_who_looks_at_the_object_segments_it_and_who_looks_away_does_not(kind, tmp_path):
    chosen = CHOSEN | {"map_kind": kind}
    right, wrong = (
        tried("segmentation", tmp_path, tmp_path / f"{sign}.json", seeing(sign), chosen) for sign in (1, -1)
    )
    found = {metric: value(right, "segmentation", metric, "vars") for metric in ("IoU", "pooled IoU", "FP", "FN")}
    assert found == {"IoU": 100, "pooled IoU": 100, "FP": 0, "FN": 0}
    assert value(right, "segmentation", "IoU at the best threshold", "vars") == 100
    assert wrong.value("segmentation", "IoU", "vars").value < 5
    if kind != "rollout":  # of which heads have none
        for protocol in ("dino_best_head", "dino_mean_head"):
            (good, bad) = (each.value("segmentation", "Jaccard", protocol).value for each in (right, wrong))
            assert good == pytest.approx(75)  # of the object has 60 % of the mass
            assert bad < 5
    curve = [row for row in right.rows if row.metric == "IoU by threshold"]
    assert [row.condition["threshold"] for row in curve] == list(THRESHOLDS)
    assert {row.condition.name for row in curve} == {"vars"}
    assert max(row.value for row in curve) == value(right, "segmentation", "IoU at the best threshold", "vars")
    with pytest.raises(ValueError, match="no kind of map named 'saliency'"):
        tried("segmentation", tmp_path, tmp_path / "r.json", seeing(), CHOSEN | {"map_kind": "saliency"})


def test_who_looks_where_people_do_has_a_high_score(tmp_path):
    right, wrong = (tried("fixation", tmp_path, tmp_path / f"{sign}.json", seeing(sign)) for sign in (1, -1))
    assert right.value("fixation", "NSS", "clean").value > 0.9 > -0.9 > wrong.value("fixation", "NSS", "clean").value
    assert right.value("fixation", "AUC-Judd", "clean").value > 0.7
    assert wrong.value("fixation", "AUC-Judd", "clean").value < 0.3
    assert right.value("fixation", "shuffled AUC", "clean").value > 0.6
    assert right.value("fixation", "information gain", "clean").value > 0.3
    assert right.value("fixation", "CC", "clean").value > 0.2 > -0.2 > wrong.value("fixation", "CC", "clean").value
    assert right.value("fixation", "KL", "clean").value < wrong.value("fixation", "KL", "clean").value


def test_pictures_at_which_nobody_looked_and_broken_ones_are_left_out(tmp_path):
    folder = looks(tmp_path / "fixation")
    lines = (folder / "fixations.csv").read_text().splitlines()
    (folder / "fixations.csv").write_text("\n".join(each for each in lines if not each.startswith("left")))
    (folder / "stimuli/top.png").write_bytes(b"nothing")
    results = tried("fixation", tmp_path, tmp_path / "results.json")
    assert results.pictures["fixation"] == ["bottom", "right", "top"]
    assert results.value("fixation", "NSS", "clean").images == 2
    assert len(results.unreadable) == 1
    # The metrics of the others are those without it, whatever stands in its place.
    alone = tried("fixation", tmp_path, tmp_path / "alone.json", batch=1)
    assert alone.value("fixation", "NSS", "clean") == results.value("fixation", "NSS", "clean")


def test_maps_that_move_are_told_from_those_that_do_not(tmp_path):
    results = tried("map_stability", tmp_path, tmp_path / "results.json", partial_ok=True)

    def found(metric, corruption, severity=None):
        return results.value("map_stability", metric, corruption, severity).value

    assert found("correlation", "contrast", 1) > found("correlation", "gaussian_noise", 1) > 0.9
    assert found("correlation", "gaussian_noise", 1) > found("correlation", "gaussian_noise", 5)
    name = "Jensen-Shannon distance"
    assert 0 < found(name, "gaussian_noise", 1) < found(name, "gaussian_noise", 5)
    clean = {metric: value(results, "map_stability", metric, "clean") for metric in ("correlation", "entropy")}
    assert clean["correlation"] == 1
    # A map on half of the places has one bit less than the 6 of a uniform map on 8 x 8; here nearly half.
    assert 5 / 6 < results.value("map_stability", "entropy", "clean").value < 1
    assert 10 < results.value("map_stability", "share of the best tenth", "clean").value < 25
    both = [found("correlation", "gaussian_noise", severity) for severity in (1, 5)]
    assert found("correlation", "gaussian_noise") == pytest.approx(np.mean(both))
    assert results.value("map_stability", "correlation", "all").images == 8


@every_benchmark
def test_batches_and_interruptions_do_not_matter(name, tmp_path):
    tried(name, tmp_path, tmp_path / "one.json", partial_ok=True)

    def killing(now):
        if now.number == (1 if name == "fixation" else 2):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tried(name, tmp_path, tmp_path / "two.json", partial_ok=True, watch=killing)
    tried(name, tmp_path, tmp_path / "two.json", partial_ok=True, batch=2)
    assert (tmp_path / "one.json").read_text() == (tmp_path / "two.json").read_text()


def recurrent():
    torch.manual_seed(0)
    options = {"img_size": 16, "patch_size": 4, "embed_dim": 16, "num_heads": 2, "depth": 2, "num_classes": 4}
    model = torchvars.create("deit_micro_vars_d", **options)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return subject_of("recurrent", torchvars.Classifier(model).eval())


def test_maps_after_each_step_are_conditions(tmp_path):
    subject = recurrent()
    results = tried("map_stability", tmp_path, tmp_path / "results.json", subject, partial_ok=True)
    correlation = [results.value("map_stability", "correlation", f"step {step}").value for step in range(4)]
    assert correlation[3] == pytest.approx(1)
    assert all(each < 1 - 1e-6 for each in correlation[:3])
    assert results.value("map_stability", "entropy", "step 3").value == value(
        results, "map_stability", "entropy", "clean"
    )
    for kind in ("kernel", "gradient"):
        benchmark = build(["map_stability"], str(tmp_path / "map_stability"), subject, map_kind=kind)[0]
        assert not any(each.family == "step" for each in benchmark.conditions)


@pytest.mark.parametrize("name", ["segmentation", "fixation"])
def test_what_must_be_beaten_is_measured_beside(name, tmp_path):
    results = tried(name, tmp_path, tmp_path / "results.json", recurrent(), CHOSEN | {"baselines": True})
    rows = {row.label: row.value for row in results.rows if row.metric == ("IoU" if name == "segmentation" else "NSS")}
    if name == "segmentation":
        # Of a picture in which half is the object and an eighth is void.
        shares = {"vars, all foreground": 100 * 14 / 28}
        assert {label: rows[label] for label in shares} == pytest.approx(shares)
        assert rows["vars"] != rows["vars, random weights"]
        jaccard = {row.label for row in results.rows if row.metric == "Jaccard"}
        assert {"dino_best_head, centred Gaussian", "dino_mean_head, random weights"} < jaccard
    else:
        assert rows["chance"] == 0
        assert rows["one observer"] > rows["centre bias"]
        assert rows["clean"] != rows["random weights"]
        assert value(results, name, "information gain", "centre bias") == 0


def test_random_weights_are_new_and_always_the_same():
    subject = recurrent()
    state = torch.get_rng_state()
    one, two = random_weights(subject), random_weights(subject)
    assert torch.equal(torch.get_rng_state(), state)
    trained = dict(subject.classifier.named_parameters())
    for (name, first), (_, second) in zip(one.named_parameters(), two.named_parameters(), strict=True):
        assert torch.equal(first, second)
        assert first.shape == trained[name].shape
    assert not torch.equal(one.model.blocks[0].attn.value.weight, subject.classifier.model.blocks[0].attn.value.weight)
    with pytest.raises(ValueError, match=r"bright was not built by name, .* \(--no-baselines, baselines=False\)"):
        random_weights(seeing())


def test_models_are_compared_picture_by_picture(tmp_path, capsys):
    right, wrong = (tried("fixation", tmp_path, tmp_path / f"{sign}.json", seeing(sign)) for sign in (1, -1))
    found = {each.metric: each for each in differences(wrong, right)}
    nss = found["NSS"]
    assert (
        nss.value == value(right, "fixation", "NSS", "clean").expected - wrong.value("fixation", "NSS", "clean").value
    )
    assert nss.low > 0
    print_table([right, wrong])
    print_differences(wrong, right)
    assert f"{right.value('fixation', 'NSS', 'clean').value:.3f} (" in capsys.readouterr().out
    baseline = Condition("baseline", "chance")
    for each in (right, wrong):
        each.outcomes["fixation"][baseline] = each.outcomes["fixation"][CLEAN]
    assert baseline in {each.condition for each in differences(wrong, right)}
    print_differences(wrong, right)
    assert "chance" not in capsys.readouterr().out
    other = tried("fixation", tmp_path, tmp_path / "k.json", seeing(), CHOSEN | {"map_kind": "kernel"})
    assert differences(right, other) == []  # another question


def test_a_program_prints_the_tables_of_the_documentation(tmp_path, monkeypatch, capsys):
    files, found = [], {}
    for sign, name in ((1, "one"), (-1, "two")):
        subject = replace(seeing(sign), name=name)
        for benchmark in OURS:
            files.append(tmp_path / f"{name} {benchmark}.json")
            found[name, benchmark] = tried(benchmark, tmp_path, files[-1], subject, partial_ok=True)
    folder = Path(__file__).parents[2] / "benchmarks"
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(sys, "argv", ["maps.py", *map(str, files), "--less", "one"])
    runpy.run_path(str(folder / "maps.py"), run_name="__main__")
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("| two | one")]
    ((*_, iou, nss, shuffled, correlation, _),) = rows

    def gained(benchmark, metric, condition):
        one, two = (found[name, benchmark].value(benchmark, metric, condition).value for name in ("one", "two"))
        return two - one

    assert iou.startswith(f"**{gained('segmentation', 'IoU', 'vars'):+.1f} (")
    assert nss.startswith(f"**{gained('fixation', 'NSS', 'clean'):+.3f} (")
    assert shuffled.startswith(f"**{gained('fixation', 'shuffled AUC', 'clean'):+.3f} (")
    stable = float(correlation.strip("*").split(" ")[0])
    assert stable == pytest.approx(gained("map_stability", "correlation", "all"), abs=1e-3)


def test_pictures_of_each_benchmark_by_its_name(tmp_path):
    paths = {name: str(layout(tmp_path / name)) for name, layout in LAYOUTS.items()}
    results = torchvars.evaluate(
        torchvars.Classifier(recurrent().classifier.model),
        OURS,
        {**paths},
        limit=2,
        partial=True,
        device="cpu",
        quiet=True,
        baselines=False,
        corruptions=("fog",),
        severities=(1,),
    )
    assert {row.benchmark for row in results.rows} == {*OURS}
    given = ["all", "segmentation=voc", "a=b"]
    assert by_benchmark(given[:2], BENCHMARKS) == {None: "all", "segmentation": "voc"}
    assert by_benchmark(["./segmentation=voc"], BENCHMARKS) == {None: "./segmentation=voc"}
    with pytest.raises(ValueError, match=r"--data is given twice for all benchmarks: all and a=b"):
        by_benchmark(given, BENCHMARKS)
    with pytest.raises(ValueError, match=r"no pictures for fixation: give --data PATH, or --data fixation=PATH"):
        build(OURS, {"segmentation": "a", "map_stability": "b"}, seeing())
    with pytest.raises(ValueError, match=r"there are pictures for pacs, which is not among the"):
        build(["segmentation"], {None: "a", "pacs": "b"}, seeing())


@every_benchmark
def test_a_model_without_such_a_map_is_refused_by_name(name, tmp_path):
    plain = Subject("plain", nn.Conv2d(3, 4, 1), SIZE, None, "")
    with pytest.raises(ValueError, match="plain: no attention in this Conv2d"):
        tried(name, tmp_path, tmp_path / "results.json", plain, partial_ok=True)
    with pytest.raises(ValueError, match=r"bright: no attention 3: there are 1, 0 to 0"):
        tried(name, tmp_path, tmp_path / "results.json", seeing(), CHOSEN | {"map_layer": "3"}, partial_ok=True)
    with pytest.raises(ValueError, match=r"bright: no attention 'blocks.9': there are 1, .*by name: attn"):
        tried(name, tmp_path, tmp_path / "results.json", seeing(), CHOSEN | {"map_layer": "blocks.9"}, partial_ok=True)
    assert not (tmp_path / "results.json").exists()


def test_other_settings_are_other_results(tmp_path):
    tried("segmentation", tmp_path, tmp_path / "results.json")
    again = tried("segmentation", tmp_path, tmp_path / "results.json")
    assert again.rows == Results.read(tmp_path / "results.json").rows
    with pytest.raises(ValueError, match=r"with other settings: .*kind 'implicit', now 'energy'"):
        tried("segmentation", tmp_path, tmp_path / "results.json", seeing(), CHOSEN | {"map_kind": "energy"})
    wide = replace(seeing(), size=16)
    with pytest.raises(ValueError, match="another model"):
        tried("segmentation", tmp_path, tmp_path / "results.json", wide)
