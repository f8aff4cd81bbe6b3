"""`torchvars maps` and `torchvars figures`: what is drawn are the maps, and what cannot be drawn is told of."""

import shutil

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file

import torchvars
from evaluation.halves import HALVES, picture, save_weights
from torchvars.cli.main import main
from torchvars.evaluation import CORRUPTIONS, Results, Subject, corrupt, open_subject
from torchvars.evaluation.conditions import Condition
from torchvars.evaluation.results import Outcome, Row
from torchvars.figures import curves, maps
from torchvars.figures.maps import MapRequest, draw, find_atoms, response

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """Two small models for 16 pixels, without a class token, and one of timm for 32 with one."""
    folder = tmp_path_factory.mktemp("weights")
    for attention in ("softmax", "vars_sd"):
        save_weights(folder / attention, attention)
    torch.manual_seed(0)
    model = timm.create_model("test_vit", num_classes=1000)
    save_file(model.state_dict(), folder / "vit.safetensors")
    return {
        "softmax": folder / "softmax",
        "vars_sd": folder / "vars_sd",
        "vit": f"timm:test_vit:{folder}/vit.safetensors",
    }


@pytest.fixture
def photograph(tmp_path):
    (tmp_path / "pictures").mkdir()
    path = tmp_path / "pictures/left.png"
    Image.fromarray(picture("left")).save(path)
    return path


def words(stored, *names):
    return [str(stored[name]) for name in names]


def is_png(path):
    with Image.open(path) as image:
        return image.format == "PNG" and len(set(image.convert("L").tobytes())) > 20


def test_what_is_drawn_are_the_maps(stored, photograph, tmp_path, capsys):
    output = tmp_path / "new/figures"
    main(["maps", *words(stored, "softmax", "vars_sd", "vit"), "--pictures", str(photograph), "--output", str(output)])
    assert {path.name for path in output.iterdir()} == {"left.png", "left.pdf", "left.npz"}
    assert capsys.readouterr().out.splitlines() == [str(output / f"left.{each}") for each in ("png", "pdf", "npz")]
    assert is_png(output / "left.png")
    assert (output / "left.pdf").read_bytes().startswith(b"%PDF")
    arrays = np.load(output / "left.npz")
    for name in ("softmax", "vars_sd", "vit"):
        classifier = torchvars.Classifier.from_pretrained(stored[name])
        pixels = classifier.transform(Image.open(photograph))[None]
        key = "timm:test_vit" if name == "vit" else name
        np.testing.assert_allclose(arrays[key], torchvars.attention_maps(classifier, pixels)[0], rtol=1e-6)
    assert arrays["picture"].shape == (160, 160, 3)  # as the model with the largest pictures sees it


def test_views_and_options_change_what_is_drawn(stored, photograph, tmp_path):
    command = ["maps", *words(stored, "softmax", "vars_sd"), "--pictures", str(photograph), "--output", str(tmp_path)]
    main([*command, "--steps", "--layers", "--heads", "--atoms", "--corruptions", "fog,contrast", "--severity", "5"])
    views = {path.name for path in tmp_path.glob("left_*.png")}
    expected = ("steps", "layers", "heads", "corruptions", "atoms_vars_sd")
    assert views == {f"left_{each}.png" for each in expected}
    assert all(is_png(tmp_path / name) for name in views)
    classifier = torchvars.Classifier.from_pretrained(stored["vars_sd"])
    pixels = classifier.transform(Image.open(photograph))[None]

    def close(view, key, **how):
        found = torchvars.attention_maps(classifier, pixels if "pixels" not in how else how.pop("pixels"), **how)[0]
        np.testing.assert_allclose(np.load(tmp_path / f"left_{view}.npz")[key], found, rtol=1e-5)

    for step in range(4):
        close("steps", f"vars_sd/{'start' if step == 0 else f'step {step}'}", step=step)
    assert not any("softmax" in key for key in np.load(tmp_path / "left_steps.npz"))
    for layer in range(2):
        close("layers", f"vars_sd/layer {layer}", layer=layer)
        close("heads", f"vars_sd/head {layer}", head=layer)
    fog = corrupt(pixels, "fog", 5, ["left"], strengths="cifar")
    close("corruptions", "fog/vars_sd", pixels=fog)
    close("corruptions", "clean/vars_sd")
    np.testing.assert_allclose(
        np.load(tmp_path / "left_corruptions.npz")["picture/fog"], fog[0].permute(1, 2, 0), rtol=1e-6
    )
    more = ["--kind", "gradient", "--layer", "0", "--head", "1", "--target", HALVES[2]]
    main([*command, *more])
    how = {"kind": "gradient", "layer": 0, "head": 1, "target": 2}
    found = torchvars.attention_maps(classifier, pixels, **how)[0]
    np.testing.assert_allclose(np.load(tmp_path / "left.npz")["vars_sd"], found, rtol=1e-5)
    main(["maps", str(stored["vars_sd"]), *command[3:], "--query", ".99,0", "--step", "1"])
    found = torchvars.attention_maps(classifier, pixels, query=(15, 0), step=1)[0]
    np.testing.assert_allclose(np.load(tmp_path / "left.npz")["vars_sd"], found, rtol=1e-5)
    main(["maps", str(stored["vit"]), *command[3:], "--query", "class", "--kind", "rollout"])
    classifier = torchvars.Classifier.from_pretrained(stored["vit"])
    pixels = classifier.transform(Image.open(photograph))[None]
    found = torchvars.attention_maps(classifier, pixels, "rollout", query="class")[0]
    np.testing.assert_allclose(np.load(tmp_path / "left.npz")["timm:test_vit"], found, rtol=1e-5)


def test_atoms_are_those_that_are_used_most(stored, photograph):
    subject = open_subject(str(stored["vars_sd"]))
    atoms = find_atoms(subject, Image.open(photograph), layer=0, count=3)
    with torch.no_grad(), torchvars.inspect(subject.classifier) as layers:
        subject.classifier(subject.classifier.transform(Image.open(photograph))[None])
    seen = layers[atoms.layer]
    static = seen.operator.first.size
    weights = seen.code[0, :, static:].norm(dim=-1)  # heads, atoms
    assert len(atoms.dynamic) == len(atoms.filters) == 3
    first, *_ = atoms.dynamic
    head, atom = divmod(int(weights.argmax()), weights.shape[1])
    assert first == f"head {head}, atom {atom}"
    expected = seen.operator.second.atoms[0, head, :, atom].unflatten(0, (4, 4))
    np.testing.assert_allclose(atoms.dynamic[first], expected)
    # Each filter is one of the layer's own, and explains what it says: its share of the code is the largest.
    first, *_ = atoms.filters
    head, channel, number = (int(part.split()[1]) for part in first.split(", "))
    filters = dict(subject.classifier.named_modules())[atoms.layer].dictionary.static.filters
    np.testing.assert_allclose(atoms.filters[first], filters[head, channel, number].detach())
    code = seen.code[0, :, :static].unflatten(1, (filters.shape[2], -1)).norm(dim=2)
    assert float(code[head, number, channel]) == float(code.max())
    np.testing.assert_allclose(atoms.reconstruction, seen.output[0].norm(dim=(0, 2)).unflatten(0, (4, 4)), rtol=1e-5)


def test_the_frequency_response_of_a_wave_is_at_its_frequency():
    rows, columns = np.indices((8, 8))
    found = response(np.cos(2 * np.pi * (2 * rows + columns) / 8))
    assert {(int(row), int(column)) for row, column in np.argwhere(found > 1e-9)} == {(6, 5), (2, 3)}  # 4 is zero
    np.testing.assert_allclose(found[6, 5], 32)


def test_a_scale_of_colours_is_one_for_a_row_a_column_or_all(tmp_path, monkeypatch):
    from matplotlib.axes import Axes

    shown, imshow = [], Axes.imshow

    def watched(self, values, **how):
        shown.append((values, how.get("vmin"), how.get("vmax")))
        return imshow(self, values, **how)

    monkeypatch.setattr(Axes, "imshow", watched)
    monkeypatch.setattr(maps, "_save", lambda *_: [])
    generator = np.random.default_rng(0)
    grids = [[generator.random((3, 3)) * 10**row, generator.random((3, 3)) ** 4, None] for row in range(2)]
    blank = [np.zeros((4, 4, 3))] * 2
    for scale, members in (("row", 2), ("column", 2), ("all", 4)):
        shown.clear()
        draw(maps.Sheet(["a", "b"], ["x", "y", "z"], grids, blank, scale), tmp_path / f"{scale}.png")
        drawn = [(values, tuple(ends)) for values, *ends in shown if ends[0] is not None]
        for values, ends in drawn:
            assert values.mean() == pytest.approx(1)  # so that models can be compared
            same = np.concatenate([other.ravel() for other, theirs in drawn if theirs == ends])
            assert ends == pytest.approx((same.min(), np.percentile(same, 99.5)))
        assert [sum(theirs == ends for _, theirs in drawn) for _, ends in drawn] == [members] * 4


@pytest.mark.parametrize(
    ("more", "error"),
    [
        (["--kind", "saliency"], "no kind of map named 'saliency': there are implicit, kernel"),
        (["--layer", "7"], "no attention 7: there are 2, 0 to 1"),
        (["--layer", "blocks.7.attn"], "no attention 'blocks.7.attn': there are 2"),
        (["--head", "5"], 'head must be "mean", "all" or a number from 0 to 1'),
        (["--step", "1"], "takes no recurrent steps"),
        (["--steps"], "none of softmax takes recurrent steps in this layer: choose a VARS model"),
        (
            ["--steps", "--kind", "kernel"],
            "a map of kind 'kernel' is not of a recurrent step: take one of implicit",
        ),
        (["--atoms"], "none of softmax has a VARS layer, so that --atoms has nothing to draw"),
        (["--layers", "--layer", "0"], "--layer changes nothing where --layers draws all of them: leave it out"),
        (["--heads", "--head", "0"], "--head changes nothing where --heads draws all of them: leave it out"),
        (["--query", "2,0"], "--query ROW,COLUMN must be from 0 to 1, from the top and the left, got '2,0'"),
        (["--query", "centre"], "--query must be mean, class, or ROW,COLUMN such as .5,.25, got 'centre'"),
        (["--query", "class"], "mixes no class token with the patches"),
        (["--corruptions", "gausian"], "no corruption named 'gausian': there are gaussian_noise"),
        (["--corruptions", "--severity", "6"], "--severity must be from 1 to 5, got 6"),
        (["--kind", "gradient", "--target", "dog"], "softmax has no class 'dog': its classes are left, right, top, bo"),
    ],
)
def test_what_cannot_be_drawn_is_told(more, error, stored, photograph, tmp_path, capsys):
    command = ["maps", str(stored["softmax"]), "--pictures", str(photograph), "--output", str(tmp_path / "out"), *more]
    with pytest.raises(SystemExit):
        main(command)
    assert error in capsys.readouterr().err
    assert not list(tmp_path.glob("out/*"))


def test_pictures_and_places_that_cannot_be_are_told(stored, photograph, tmp_path, capsys):
    model = str(stored["softmax"])
    broken = tmp_path / "some"
    (broken / "more").mkdir(parents=True)
    shutil.copy(photograph, broken)
    shutil.copy(photograph, broken / "more")
    (broken / "bad.png").write_bytes(photograph.read_bytes()[:60])
    with pytest.raises(SystemExit, match=r"1 of 3 pictures could not be read:\n  .*bad.png: "):
        main(["maps", model, "--pictures", str(broken), "--output", str(tmp_path / "out")])
    assert {path.stem for path in (tmp_path / "out").iterdir()} == {"left", "left_2"}  # two of one name
    capsys.readouterr()
    resnet = timm.create_model("resnet10t", num_classes=4)
    save_file(resnet.state_dict(), tmp_path / "resnet.safetensors")
    for command, error in (
        (["maps", model, "--pictures", str(tmp_path / "nowhere"), "--output", str(tmp_path / "out")], "no picture at"),
        (["maps", model, "--pictures", str(photograph), "--output", str(photograph)], "is not a folder: give --output"),
        (["maps", model, "--pictures", str(photograph), "--output", f"{photograph}/x"], "is a file: give --output"),
        (["maps", model, model, "--pictures", str(photograph), "--output", "out"], "softmax is named twice"),
        (
            ["maps", model, "--pictures", str(photograph), "--output", f"{photograph.parent}/."],
            "could be replaced by one",
        ),
        (["figures", "--output", str(tmp_path), "--kind", "saliency"], "no kind of map named 'saliency'"),
        (["figures", "--output", str(photograph.parent), "--pictures", str(photograph)], "could be replaced by one"),
        (["figures", "--output", str(tmp_path), "--results", str(photograph)], "holds no results"),
    ):
        with pytest.raises(SystemExit):
            main(command)
        assert error in capsys.readouterr().err
    plain = Subject("plain", torchvars.Classifier(resnet), 64, None, "")
    with pytest.raises(ValueError, match=r"plain: no attention in this Classifier, made of .*ResNet"):
        maps.compare([plain], Image.open(photograph), MapRequest())


def results(name, solving, clean, **more):
    """A file of results with one accuracy."""
    layers = {"blocks.0.attn": {"strength": 0.3, "solver": {"steps": 3}}}
    row = Row(name, "clean", Condition("clean", "clean"), "accuracy", clean, clean - 1, clean + 1, 10, "")
    return Results({"name": name, "solving": solving, "layers": layers}, rows=[row], **more)


def watched_lines(monkeypatch):
    from matplotlib.axes import Axes

    lines, plot, errorbar = {}, Axes.plot, Axes.errorbar

    def watch(original):
        def watching(self, x, y, *more, **how):
            lines[how["label"]] = (list(map(float, x)), list(map(float, y)))
            return original(self, x, y, *more, **how)

        return watching

    monkeypatch.setattr(Axes, "plot", watch(plot))
    monkeypatch.setattr(Axes, "errorbar", watch(errorbar))
    return lines


def test_ablation_curves_are_of_files_in_which_one_thing_was_changed(tmp_path, monkeypatch):
    lines, path = watched_lines(monkeypatch), tmp_path / "new/ablation.png"
    own = results("a", {}, 80)
    assert not curves.draw_ablation([own, results("b", {"steps": 1}, 3)], path)
    assert not path.exists()
    others = [results("a", {"steps": 5}, 70), results("a", {"steps": 1}, 60), results("a", {"solver": "fista"}, 1)]
    assert curves.draw_ablation([own, *others], path)
    assert lines == {"a, clean": ([1, 3, 5], [60, 80, 70])}
    assert is_png(path)
    assert curves.draw_ablation([own, results("a", {"strength": 0.1}, 75)], path)
    assert lines == {"a, clean": ([0.1, 0.3], [75, 80])}


def test_curves_of_maps_are_those_in_the_files(tmp_path, monkeypatch):
    lines = watched_lines(monkeypatch)
    conditions = [Condition("corruption", name, severity) for name in ("fog", "snow") for severity in (1, 5)]
    columns = [np.array([0.1, 0.3]), np.array([0.5, np.nan]), np.array([0.9, 0.9]), np.array([0.7, 0.1])]
    outcomes = {each: Outcome({"correlation": column}, {}) for each, column in zip(conditions, columns, strict=True)}

    def row(benchmark, condition, metric, value):
        return Row("a", benchmark, condition, metric, value, value, value, 2, "")

    whose = {("map", "vars"): 0, ("baseline", "vars, centred Gaussian"): 5, ("baseline", "vars, random weights"): 9}
    thresholds = [
        row("segmentation", Condition(*who, parameters=(("threshold", at),)), "IoU by threshold", iou + more)
        for who, more in whose.items()
        for at, iou in ((0.0, 10), (0.5, 40))
    ]
    steps = [
        row("map_stability", Condition("step", f"step {step}", parameters=(("steps", step),)), metric, value)
        for step, value in enumerate((0.9, 0.7))
        for metric in ("entropy", "share of the best tenth")
    ]
    result = Results({"name": "a"}, outcomes={"map_stability": outcomes}, rows=[*thresholds, *steps])
    assert curves.draw_thresholds([result], tmp_path / "thresholds.png")
    assert lines == {"a": ([0, 0.5], [10, 40]), "centred Gaussian": ([0, 0.5], [15, 45])}
    lines.clear()
    assert curves.draw_sharpening([result], tmp_path / "sharpening.png")
    assert lines == {"a": ([0, 1], [0.9, 0.7])}
    lines.clear()
    assert curves.draw_stability([result], tmp_path / "stability.png")
    x, y = lines["a"]  # the last panel: by corruption, of the pictures that have a value
    assert x == [0, 1]
    order = [name for name in CORRUPTIONS if name in ("fog", "snow")]
    means = {"fog": (0.1 + 0.5) / 2, "snow": ((0.9 + 0.7) / 2 + (0.9 + 0.1) / 2) / 2}
    assert y == pytest.approx([means[name] for name in order])
    assert not curves.draw_stability([results("b", {}, 1)], tmp_path / "none.png")


def test_figures_draws_all_of_it_with_one_command(stored, photograph, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("torchvars.evaluation.record.read_results", lambda name: results(name, {}, 50))
    names = ",".join(words(stored, "softmax", "vars_sd"))
    main(["figures", "--output", str(tmp_path / "out"), "--models", names, "--pictures", str(photograph)])
    drawn = {path.name for path in (tmp_path / "out").glob("*.png")}
    expected = {f"{each}_left.png" for each in ("maps", "maps_corrupted", "maps_steps")}
    assert drawn == {*expected, "atoms_left_vars_sd.png"}
    printed = capsys.readouterr().out
    for name in ("corruptions", "attacks", "ablation", "thresholds", "stability", "sharpening"):
        assert f"no {name}.png: no file of results has the numbers for it" in printed
