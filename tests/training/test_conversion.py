"""Whole conversions of a tiny model on a few pictures, in stages that are killed and go on."""

import argparse
import json
import os
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import load_file

import torchvars
from torchvars.attention import Reconstruction
from torchvars.cli.convert import configure
from torchvars.cli.main import main
from torchvars.data import Draw, Pictures, open_source
from torchvars.models.pixels import centre_pixels
from torchvars.models.sources import open_classifier
from torchvars.training import conversion, loop
from torchvars.training.conversion import Plan, recipes_of, run
from torchvars.training.folder import RunFolder

pytestmark = pytest.mark.usefixtures("one_thread")

CLASSES = ["blue", "green", "red"]  # the pictures have the first and the last
LAYERS = ["blocks.0.attn", "blocks.1.attn"]
# Few steps on few pictures show something only without augmentation.
PLAIN = [
    f"{stage}.{change}"
    for stage in ("match", "join", "tune")
    for change in ("auto_augment=None", "erase=0", "mixup=0", "cutmix=0")
]


@pytest.fixture(scope="module")
def original(tmp_path_factory) -> Path:
    """Weights of a small model that knows three classes."""
    torch.manual_seed(0)
    vit = timm.create_model("test_vit", img_size=32, num_classes=3, depth=2)
    vit.origin = {"name": "timm:test_vit", "options": {"img_size": 32, "num_classes": 3, "depth": 2}}
    with torch.no_grad():
        for parameter in vit.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    folder = tmp_path_factory.mktemp("weights") / "vit"
    torchvars.Classifier(vit, classes=CLASSES).save_pretrained(folder)
    return folder


@pytest.fixture
def plan(original, pictures, tmp_path) -> Plan:
    return Plan(
        str(original), str(pictures), tmp_path / "out", batch=8, match_steps=6, join_steps=4, workers=0, sizes=(),
        period=3,
    )  # fmt: skip


@pytest.fixture(scope="module")
def undisturbed(original, pictures, tmp_path_factory) -> Path:
    """A conversion through all stages, by command."""
    output = tmp_path_factory.mktemp("converted") / "out"
    main(arguments(original, pictures, output))
    return output


def arguments(original, pictures, output) -> list[str]:
    words = (
        f"convert {original} --data {pictures} --output {output} --classes present --stages match,join,tune --batch 8"
    )
    budget = "--match-steps 6 --join-steps 4 --tune-epochs 2 --workers 0 --timing 32,64"
    return [*words.split(), *budget.split(), "--judge-every=3", "--set", "join.groups=2", "tune.ema=0.5", *PLAIN]


def outcome(output: Path) -> list[bytes]:
    files = ["weights/model.safetensors", *(f"{stage}/metrics.jsonl" for stage in ("match", "join", "tune"))]
    return [(output / file).read_bytes() for file in files]


def metrics(output: Path, stage: str) -> list[dict]:
    return RunFolder(output / stage).metrics()


def test_a_command_leaves_weights_that_load_and_what_was_kept(undisturbed, original, pictures):
    classifier = torchvars.Classifier.from_pretrained(undisturbed / "weights")
    assert classifier.classes == ("blue", "red")
    found = [name for name, module in classifier.model.named_modules() if isinstance(module, Reconstruction)]
    assert found == LAYERS
    config = json.loads((undisturbed / "weights" / "config.json").read_text())
    assert config["conversion"]["attention"] == "vars_p"
    kept = json.loads((undisturbed / "kept.json").read_text())
    source = open_source(str(pictures), "val")
    before = torchvars.Classifier.from_pretrained(undisturbed / "original")
    for name, model in (("val_accuracy", classifier), ("val_accuracy_before", before)):
        shown = Pictures(source, lambda image: centre_pixels(image, 32))
        right = [
            model(shown[Draw(index, 0)].pixels[None]).argmax().item() == label
            for index, label in enumerate(source.labels)
        ]
        assert kept[name] == pytest.approx(np.mean(right))
    assert kept["images"] == 7
    assert set(kept["seconds"]) == {"32", "64"}
    card = (undisturbed / "weights" / "README.md").read_text()
    assert "accuracy of the converted model" in card
    assert conversion.command_of(conversion.read_plan(undisturbed)) in card
    assert str(original.parent) not in card  # where things lie on this machine is nobody's business


def test_the_original_keeps_its_weights_but_for_rows_of_the_head(undisturbed, original):
    before, kept = (load_file(folder / "model.safetensors") for folder in (original, undisturbed / "original"))
    assert before.keys() == kept.keys()
    for name, tensor in before.items():
        assert torch.equal(kept[name], tensor[[0, 2]] if name.startswith("head.") else tensor)


def test_matching_changes_the_converted_layers_only_and_lowers_their_error(undisturbed):
    original, matched = (
        load_file(undisturbed / stage / "model.safetensors") for stage in ("original", "match/weights")
    )
    for name, tensor in original.items():
        if ".attn." not in name:
            assert torch.equal(matched[name], tensor)
    first, last = metrics(undisturbed, "match")
    assert all(last[f"val_error/{layer}"] < first[f"val_error/{layer}"] for layer in LAYERS)  # of the same pictures
    assert last["val_error"] == pytest.approx(np.mean([last[f"val_error/{layer}"] for layer in LAYERS]))


def test_joining_trains_the_whole(undisturbed):
    matched, joined = (load_file(undisturbed / stage / "weights/model.safetensors") for stage in ("match", "join"))
    assert not torch.equal(matched["patch_embed.proj.weight"], joined["patch_embed.proj.weight"])
    assert not torch.equal(matched["blocks.1.attn.value.weight"], joined["blocks.1.attn.value.weight"])
    assert [line["step"] for line in metrics(undisturbed, "join")] == [2, 4]


@pytest.mark.parametrize(("stage", "step"), [("match", 4), ("join", 2), ("tune", 3)])
def test_a_conversion_that_is_killed_goes_on_to_the_same_bits(
    stage, step, undisturbed, original, pictures, tmp_path, monkeypatch
):
    learn, output = loop.learn, tmp_path / "out"

    def breaking(*arguments):
        if (output / stage).exists() and arguments[-1] == step:
            raise KeyboardInterrupt
        return learn(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "learn", breaking)
        with pytest.raises(SystemExit):
            main(arguments(original, pictures, output))
    assert not (output / "weights").exists()
    main(["convert", "--resume", str(output)])
    assert outcome(output) == outcome(undisturbed)


def test_a_conversion_that_is_done_is_not_begun_again(undisturbed, original, pictures, capsys):
    with pytest.raises(SystemExit):
        main(arguments(original, pictures, undisturbed))
    assert (
        f"holds a conversion already: resume it with torchvars convert --resume {undisturbed}"
        in capsys.readouterr().err
    )
    before = outcome(undisturbed)
    with pytest.raises(SystemExit):
        main(["convert", "--resume", str(undisturbed), "--batch", "4"])
    assert "--resume takes no other option, got batch 4" in capsys.readouterr().err
    main(["convert", "--resume", str(undisturbed)])
    assert outcome(undisturbed) == before


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"layers": (-2, "blocks.3.attn"), "sizes": (), "options": ("atoms=1", "bias=False"), "judged": 9},
        {"stages": ("match",), "sizes": (64, 96), "changed": ("join.groups=2",), "img_size": 32, "precision": "bf16"},
        {"strength": 0.05, "steps": 1, "solver": "fista", "classes": "present", "period": 7, "match_steps": 5},
    ],
)
def test_the_command_in_the_model_card_says_all_that_was_asked_for(options, tmp_path):
    plan = Plan("timm:test_vit:" + str(tmp_path / "file"), str(tmp_path / "pictures"), tmp_path / "out", **options)
    program, command, *words = shlex.split(conversion.command_of(plan))
    assert (program, command) == ("torchvars", "convert")
    parser = argparse.ArgumentParser()
    configure(parser)
    found = vars(parser.parse_args([*words, "--output", str(plan.output)]))
    assert found.pop("resume") is None
    assert Plan(**found) == replace(plan, model="timm:test_vit:file", data="pictures")


def test_options_that_are_not_given_are_those_of_the_plan(undisturbed, original, pictures):
    found = conversion.read_plan(undisturbed)
    given = {"classes", "stages", "batch", "match_steps", "join_steps", "workers", "sizes", "period", "changed"}
    default = Plan(str(original), str(pictures.resolve()), undisturbed)
    assert {name for name, value in vars(found).items() if value != getattr(default, name)} == given
    assert (found.sizes, found.period, found.changed) == ((32, 64), 3, ("join.groups=2", "tune.ema=0.5", *PLAIN))


def test_pictures_without_labels_will_do(plan, tmp_path, capsys):
    for number in range(12):
        place = tmp_path / "loose" / str(number % 3) / f"{number}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        noise = np.random.default_rng(number).integers(0, 256, (16, 16, 3))
        Image.fromarray(noise.astype(np.uint8)).save(place if number else tmp_path / "loose" / "0.png")
    run(replace(plan, data=str(tmp_path / "loose"), strength=0.01, steps=2, layers=(-1,), options=("atoms=1",)))
    said = capsys.readouterr().out
    assert "relative error" in said
    assert "accuracy" not in said
    classifier = torchvars.Classifier.from_pretrained(plan.output / "weights")
    (layer,) = [module for module in classifier.modules() if isinstance(module, Reconstruction)]
    assert classifier.model.blocks[1].attn is layer
    assert (layer.strength, layer.solver.steps) == (0.01, 2)
    assert (
        layer.dictionary.prototypes.shape == (1, 64, 64)
        or layer.dictionary.prototypes.shape[-1] == layer.dim // layer.heads
    )
    assert classifier.classes == tuple(CLASSES)


def test_a_run_ends_when_the_error_no_longer_falls(plan):
    plan = replace(plan, stages=("match",), match_steps=30)
    plan = replace(plan, changed=("match.patience=2", "match.learning_rate=1e-12"))
    run(plan)
    assert [line["step"] for line in metrics(plan.output, "match")] == [3, 6, 9]  # the first is the best
    assert (plan.output / "match" / "weights").exists()


def test_layers_are_joined_in_groups_from_the_last(original, pictures):
    def joined(**changed):
        recipe = recipes_of(Plan(str(original), "", Path("out"), changed=("join.groups=3",)), 32, "timm:test_vit")[
            "join"
        ]
        recipe = replace(recipe, conversion=replace(recipe.conversion, **changed))
        learning = object.__new__(loop.Join)
        learning.conversion, learning.steps = recipe.conversion, 12
        learning.matching = type("Named", (), {"names": tuple("abcdef")})
        return ["".join(learning.joined(step)) for step in range(12)]

    assert joined() == ["ef"] * 2 + ["cdef"] * 2 + ["abcdef"] * 8
    assert joined(groups=1) == ["abcdef"] * 12
    assert joined(groups=1, joined=2) == ["ef"] * 12
    assert joined(groups=2, joined=4)[:4] == ["ef"] * 3 + ["cdef"]


def test_only_the_layers_are_trained_where_the_recipe_says_so(plan):
    run(replace(plan, stages=("join",), changed=("join.trained=layers",)))
    original, joined = (load_file(plan.output / name / "model.safetensors") for name in ("original", "weights"))
    for name, tensor in original.items():
        if ".attn." not in name:
            assert torch.equal(joined[name], tensor)
    assert not torch.equal(joined["blocks.0.attn.proj.weight"], original["blocks.0.attn.proj.weight"])


def test_a_loss_that_is_no_number_keeps_the_last_good_checkpoint(plan, monkeypatch):
    learn = loop.learn

    def spoiling(*arguments):
        loss, *rest = learn(*arguments)
        return [float("nan") if arguments[-1] == 4 else loss, *rest]

    with monkeypatch.context() as patch:
        patch.setattr(loop, "learn", spoiling)
        with pytest.raises(
            FloatingPointError, match=r"the loss is nan at step 4: the last good checkpoint is .*00000003"
        ):
            run(plan)
    run(plan, resume=True)
    assert (plan.output / "weights").exists()


def test_another_size_of_pictures(plan):
    run(replace(plan, stages=("match",), img_size=64))
    classifier = torchvars.Classifier.from_pretrained(plan.output / "weights")
    assert classifier(torch.rand(1, 3, 64, 64)).shape == (1, 3)
    with pytest.raises(ValueError, match="made for 32 pixels, takes no pictures of 4 x 4"):
        run(replace(plan, output=plan.output / "other", img_size=4))


def test_what_does_not_fit_is_told_before_anything_is_written(plan, pictures, tmp_path):
    convolutional = torchvars.Classifier(timm.create_model("test_convnext", num_classes=3))
    convolutional.save_pretrained(tmp_path / "convolutional")
    other = torchvars.Classifier(
        torchvars.create("deit_micro_softmax", img_size=32, num_classes=3), classes=list("xyz")
    )
    other.save_pretrained(tmp_path / "other")
    (tmp_path / "none").mkdir()
    tune = ("match", "tune")
    wrong = {
        "no self-attention to convert in this ConvNeXt": {"model": str(tmp_path / "convolutional")},
        "has 2 classes, of which other does not know 2, such as blue; it knows 3, such as x": {
            "model": str(tmp_path / "other"),
            "classes": "present",
        },
        "the classes of the pictures are not those of the head, .* add --classes present": {"stages": tune},
        "none holds no picture": {"data": str(tmp_path / "none")},
        "no pictures at .*nowhere": {"data": str(tmp_path / "nowhere")},
        "cannot convert to 'vars_x'": {"attention": "vars_x"},
        "vars_p takes no filters=3": {"options": ("filters=3",)},
        "no self-attention": {"layers": (7,)},
        "is no trained model": {"model": "nothing"},
        "do not fill one batch of 64": {"batch": 64},
        "has no field 'rate'": {"changed": ("match.rate=1",)},
        "a change is STAGE.FIELD=VALUE": {"changed": ("rate=1",)},
        "tune begins with a converted model": {"stages": ("tune",), "classes": "present"},
    }
    for message, changed in wrong.items():
        with pytest.raises((ValueError, OSError), match=message):
            run(replace(plan, **changed))
        assert not plan.output.exists(), message


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"stages": ("match", "bake")}, "no stage 'bake': stages are match, join, tune"),
        ({"stages": ("join", "match")}, "in the order match, join, tune"),
        ({"stages": ()}, "in the order"),
        ({"classes": "all"}, "classes must be model or present"),
        ({"match_steps": 0}, "match_steps must be at least 1"),
        ({"sizes": (0,)}, "at least 1 pixel"),
    ],
)
def test_plans_that_cannot_be_are_refused(plan, changed, message):
    with pytest.raises(ValueError, match=message):
        replace(plan, **changed)


@pytest.mark.parametrize("change", ["match.mixup=0.8", "join.smoothing=0.1", "match.groups=2"])
def test_fields_that_a_stage_reads_change_its_recipe_and_others_are_refused(plan, change, original):
    plan = replace(plan, changed=(change,))
    if change == "match.mixup=0.8":
        assert recipes_of(plan, 32, "timm:test_vit")["match"].mixup == 0.8
    else:
        stage, name = change.partition("=")[0].split(".")
        with pytest.raises(ValueError, match=f"{name} has no effect in {stage}: it is a field of another stage"):
            run(plan)
        assert not plan.output.exists()


@pytest.mark.parametrize("stage", ["match", "join"])
def test_what_is_learned_from_are_blends_of_neighbours(plan, stage, original, pictures):
    recipe = recipes_of(replace(plan, changed=(f"{stage}.mixup=0.8", f"{stage}.cutmix=0")), 32, "timm:test_vit")[stage]
    recipe = replace(recipe, conversion=replace(recipe.conversion, original=str(original)), initial=None)
    source = open_source(pictures, "train")
    _, classifier = open_classifier(str(original))
    classifier = loop.convert_as(recipe, classifier)
    objective = loop.pose(recipe, classifier, source, torch.device("cpu"), 4)
    pixels, labels = torch.rand(4, 3, 32, 32), torch.zeros(4, dtype=torch.long)
    mixed, _ = objective.prepare(pixels, labels, 1)
    neighbours = pixels[[1, 0, 3, 2]]
    share = ((mixed - neighbours) / (pixels - neighbours)).median()
    assert 0 < share < 1
    torch.testing.assert_close(mixed, share * pixels + (1 - share) * neighbours)
    assert torch.equal(mixed, objective.prepare(pixels, labels, 1)[0])
    assert not torch.equal(mixed, objective.prepare(pixels, labels, 2)[0])


def test_a_stage_is_an_ordinary_run(undisturbed, pictures):
    """Its weights are opened by its folder, and it knows what it was."""
    name, _ = open_classifier(str(undisturbed / "join"))
    assert name == "join"
    recipe, settings = RunFolder(undisturbed / "join").settings()
    assert recipe.conversion.stage == "join"
    assert recipe == recipes_of(conversion.read_plan(undisturbed))["join"]
    assert settings["data"] == str(pictures.resolve())
    before = (undisturbed / "join" / "weights" / "model.safetensors").read_bytes()
    main(["train", "--resume", str(undisturbed / "join")])
    assert (undisturbed / "join" / "weights" / "model.safetensors").read_bytes() == before


@pytest.mark.slow
def test_two_processes_end_where_one_does(original, pictures, undisturbed, tmp_path):
    words = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone", "-m", "torchvars"]
    environment = {**os.environ, "PYTHONPATH": str(Path(torchvars.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    subprocess.run([*words, *arguments(original, pictures, tmp_path / "out")], env=environment, check=True, timeout=500)
    for stage in ("match", "join"):  # ratios of sums are those of each process, so that they differ a little
        for one, two in zip(metrics(undisturbed, stage), metrics(tmp_path / "out", stage), strict=True):
            for name in ("loss", "val_error", "val_loss"):
                assert two[name] == pytest.approx(one[name], rel=0.05)
