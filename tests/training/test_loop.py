"""Whole runs on a few tiny pictures: they learn, they are interrupted, and they go on as if they had not been."""

import errno
import io
import itertools
import json
import math
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import load_file

import torchvars
from torchvars.attention import Views
from torchvars.cli.main import main
from torchvars.cli.train import evaluating
from torchvars.data import Batch, open_source
from torchvars.models.lock import held
from torchvars.models.sources import open_classifier
from torchvars.sparse import FISTA, ISTA, SOLVERS, Equilibrium, SpaRSA, settings_of
from torchvars.training import checkpoint, loop
from torchvars.training.augment import Mix
from torchvars.training.folder import RunFolder
from torchvars.training.loop import Diverged, train
from torchvars.training.objectives import Labels
from torchvars.training.recipe import find_recipe
from torchvars.training.report import Report
from torchvars.training.stopping import Stopping
from training.tiny import OVERRIDES, RECIPE, settings


def outcome(output: Path) -> tuple[bytes, bytes]:
    """What a run ends with, to the bit."""
    return (output / "weights" / "model.safetensors").read_bytes(), (output / "metrics.jsonl").read_bytes()


@pytest.fixture(scope="module")
def undisturbed(pictures, tmp_path_factory) -> Path:
    output = tmp_path_factory.mktemp("undisturbed") / "run"
    train(RECIPE, settings(pictures, output))
    return output


def test_a_run_learns_and_leaves_a_model(pictures, tmp_path):
    output = tmp_path / "run"
    train(replace(RECIPE, epochs=12, mixup=0.0, erase=0.0), settings(pictures, output))
    lines = RunFolder(output).metrics()
    assert [line["epoch"] for line in lines] == list(range(1, 13))
    assert lines[-1]["loss"] < lines[0]["loss"]
    assert lines[-1]["val_accuracy"] == 1
    classifier = torchvars.Classifier.from_pretrained(output / "weights")
    for index, name in enumerate(("blue", "red")):
        image = np.asarray(Image.open(pictures / "val" / name / "0.png")) / 255
        pixels = torch.tensor(image, dtype=torch.float32).movedim(-1, 0)[None]
        assert classifier.eval()(pixels).argmax().item() == index


def test_a_run_is_decided_by_its_seed(pictures, undisturbed, tmp_path):
    train(RECIPE, settings(pictures, tmp_path / "same", workers=2))
    train(replace(RECIPE, seed=1), settings(pictures, tmp_path / "other"))
    assert outcome(tmp_path / "same") == outcome(undisturbed)
    assert outcome(tmp_path / "other") != outcome(undisturbed)


@pytest.mark.parametrize("step", [0, 1, 2, 3, 5])
def test_a_run_that_breaks_at_any_step_goes_on_as_if_it_had_not(step, pictures, undisturbed, tmp_path, monkeypatch):
    learn = loop.learn

    def breaking(*arguments):
        if arguments[-1] == step:
            raise KeyboardInterrupt
        return learn(*arguments)

    output = tmp_path / "run"
    monkeypatch.setattr(loop, "learn", breaking)
    with pytest.raises(KeyboardInterrupt):
        train(RECIPE, settings(pictures, output))
    monkeypatch.setattr(loop, "learn", learn)
    train(RECIPE, settings(pictures, output), resume=True)
    assert outcome(output) == outcome(undisturbed)


def telling(number: signal.Signals, times: int, at: int):
    """`loop.learn` that gets a signal so many times at a step, as do the processes that read pictures for it."""
    learn = loop.learn

    def told(*arguments):
        if arguments[-1] == at:
            for process in [*(child.pid for child in multiprocessing.active_children()), *[os.getpid()] * times]:
                os.kill(process, number)
        return learn(*arguments)

    return told


def test_a_run_that_is_interrupted_goes_on_as_if_it_had_not_been(pictures, undisturbed, tmp_path, monkeypatch, capfd):
    output, before = tmp_path / "run", signal.getsignal(signal.SIGINT)
    set_up = settings(pictures, output, workers=1, checkpoint_every=1000)
    with monkeypatch.context() as patch:
        patch.setattr(loop, "learn", telling(signal.SIGINT, 1, at=2))
        assert train(RECIPE, set_up) == signal.SIGINT
    said = capfd.readouterr()
    assert "stopping: a checkpoint is written after this step" in said.err
    assert f"stopped at step 3 of 6: resume with torchvars train --resume {output}" in said.out.replace("\n", "")
    assert "Traceback" not in said.err
    assert last_step(output) == 3
    assert signal.getsignal(signal.SIGINT) is before
    assert train(RECIPE, set_up, resume=True) is None
    assert outcome(output) == outcome(undisturbed)


def test_a_second_interrupt_ends_a_run_at_once(pictures, tmp_path, monkeypatch):
    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(loop, "learn", telling(signal.SIGINT, 2, at=1))
    with pytest.raises(KeyboardInterrupt):
        train(RECIPE, settings(pictures, tmp_path / "run"))
    assert last_step(tmp_path / "run") == 0
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_run_that_was_stopped_ends_with_the_status_of_shells(number, status, undisturbed, monkeypatch, capsys):
    monkeypatch.setattr(loop, "train", lambda recipe, settings, resume: number)
    with pytest.raises(SystemExit) as ended:
        main(["train", "--resume", str(undisturbed)])
    assert ended.value.code == status
    assert "evaluate them" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changed", "data", "more"),
    [
        ({}, "/data/my pictures", ""),
        ({"hold_out": True}, "PICTURES", ""),
        ({"left_out": "sketch"}, "/data/my pictures", " --benchmark pacs --left-out sketch"),
    ],
)
def test_a_command_to_evaluate_a_run(changed, data, more):
    recipe, set_up = replace(RECIPE, **changed), settings("/data/my pictures", Path("output/run"))
    expected = f"torchvars evaluate output/run --data '{data}' --output output/run/results.json{more}"
    assert evaluating(recipe, set_up) == expected.replace("'PICTURES'", "PICTURES")


def test_an_ignored_signal_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as shells do for what runs in the background
    try:
        with Stopping(loud=False) as stopping:
            os.kill(os.getpid(), signal.SIGINT)
            assert stopping.received is None
            os.kill(os.getpid(), signal.SIGTERM)
            assert stopping.received is signal.SIGTERM
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(("function", "hint"), [("build", ""), ("learn", "; resume with torchvars train --resume {}")])
def test_an_interrupted_command_says_so_in_one_line(function, hint, pictures, tmp_path, monkeypatch, capsys):
    """While the run is set up nothing was begun; a run that was begun can be resumed."""
    output, before = tmp_path / "run", signal.getsignal(signal.SIGINT)

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(loop, function, interrupted)
    begin = ["train", "cifar10_deit_micro_vars_d", "--data", str(pictures), "--output", str(output), *OVERRIDES]
    try:
        with pytest.raises(SystemExit) as ended:
            main([*begin, "--workers", "0"])
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended.value.code == 130
    assert capsys.readouterr().err.strip() == f"torchvars train: interrupted{hint.format(output)}"
    assert output.exists() == (function == "learn")


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "torchvars", "train", *arguments]


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def last_step(output: Path) -> int:
    """Of the last checkpoint of a run."""
    return max((int(path.name[5:]) for path in (output / "checkpoints").glob("step_????????")), default=0)


@pytest.mark.slow
def test_killed_again_and_again_a_run_ends_the_same(pictures, tmp_path):
    begin = ["cifar10_deit_micro_vars_d", "--data", str(pictures), *OVERRIDES, "--workers=0", "--checkpoint-every=1"]
    begin.append("--epochs=20")
    subprocess.run(command(*begin, "--output", str(tmp_path / "whole")), env=environment(), check=True)
    output = tmp_path / "killed"
    generator = np.random.default_rng(0)
    arguments, kills = [*begin, "--output", str(output)], 0
    while True:
        process = subprocess.Popen(command(*arguments), env=environment())
        at = kills * 8 + int(generator.integers(2, 8)) if kills < 4 else 10**9  # of 40 steps, anywhere in one
        while process.poll() is None and last_step(output) < at:
            time.sleep(0.01)
        if process.poll() == 0:
            break
        process.kill()
        process.wait()
        kills += 1
        arguments = ["--resume", str(output)]
    assert kills == 4
    assert outcome(output) == outcome(tmp_path / "whole")


def test_interrupted_with_all_its_processes_a_run_leaves_a_checkpoint(pictures, tmp_path):
    output = tmp_path / "run"
    arguments = ["cifar10_deit_micro_vars_d", "--data", str(pictures), "--output", str(output), *OVERRIDES]
    process = subprocess.Popen(
        command(*arguments, "--epochs=10000", "--checkpoint-every=1000000", "--workers=1"),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert "epoch 1 of" in process.stdout.readline()
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the processes that read pictures as well
    said, complaints = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGINT
    assert "Traceback" not in complaints
    assert f"resume with torchvars train --resume {output}" in said
    step = int(said.split("stopped at step ")[1].split(" ")[0])
    assert (output / "checkpoints" / f"step_{step:08d}").is_dir()


def torchrun(*options: str) -> list[str]:
    """Two processes, on a port that is free."""
    return [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone", *options]


# The second process kills itself at a step, the first time it gets there.
DYING = """
import os, signal, sys
from torchvars.attention import Views
from torchvars.cli.main import main
from torchvars.cli.train import evaluating
from torchvars.training import checkpoint, loop

def learn(*arguments, whole=loop.learn):
    if os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and arguments[-1] == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return whole(*arguments)

loop.learn = learn
main(["train", *sys.argv[1:]])
"""


@pytest.fixture(scope="module")
def alone(pictures, tmp_path_factory) -> tuple[list[str], Path]:
    """Arguments of a run of six steps, and its folder after one process has worked on it."""
    # What is dropped by chance is drawn by each process for itself. A high rate would make rounding visible: Adam takes
    # steps of the same length however small a gradient is.
    steps = [*OVERRIDES, "--epochs=3", "--drop-path=0", "--workers=0", "--learning-rate=5e-4", "--clip=1"]
    arguments = ["cifar10_deit_micro_vars_d", "--data", str(pictures), *steps]
    output = tmp_path_factory.mktemp("alone") / "run"
    subprocess.run(command(*arguments, "--output", str(output)), env=environment(), check=True)
    return arguments, output


@pytest.fixture(scope="module", params=[[], ["--shard"]], ids=["ddp", "fsdp2"])
def together(request, alone, tmp_path_factory) -> tuple[list[str], Path]:
    """The same by two processes."""
    arguments, _ = alone
    arguments = [*arguments, *request.param, "--checkpoint-every=1"]
    output = tmp_path_factory.mktemp("together") / "run"
    begin = [*torchrun(), "-m", "torchvars", "train", *arguments, "--output", str(output)]
    subprocess.run(begin, env=environment(), check=True)
    return arguments, output


def test_two_processes_end_where_one_does(alone, together):
    folders = alone[1], together[1]
    weights = [load_file(folder / "weights" / "model.safetensors") for folder in folders]
    # A bias before a norm has no gradient but rounding, of which Adam makes whole steps; the norm takes it away again.
    idle = {"patch_embed.proj.0.bias", "patch_embed.proj.1.running_mean"}
    for name, expected in weights[0].items():
        if name not in idle:
            torch.testing.assert_close(weights[1][name], expected, rtol=0, atol=1e-5)
    for first, second in zip(*(RunFolder(folder).metrics() for folder in folders), strict=True):
        assert second == pytest.approx(first, abs=1e-5)


def test_a_process_that_is_killed_is_started_again_where_the_run_was(together, tmp_path):
    arguments, undisturbed = together
    (tmp_path / "dying.py").write_text(DYING)
    begin = [*torchrun("--max-restarts=1", "--monitor-interval=0.1"), str(tmp_path / "dying.py"), *arguments]
    begin += ["--output", str(tmp_path / "run")]
    done = subprocess.run(begin, env=environment(), check=True, capture_output=True, text=True, timeout=300)
    assert "exitcode: -9" in done.stderr
    assert outcome(tmp_path / "run") == outcome(undisturbed)


def test_portions_of_a_batch_make_the_same_step(accelerator):
    generator = torch.Generator().manual_seed(0)
    pixels = torch.rand(8, 3, 4, 4, generator=generator)
    batch = Batch(pixels, torch.arange(8) % 2, [str(number) for number in range(8)], {})
    weights = []
    for accumulate in (1, 4):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        recipe = replace(RECIPE, accumulate=accumulate)
        objective = Labels(model, Mix(0.2, 0.0, 0.5, 0.1, 2), None, recipe)
        told = loop.learn(accelerator, model, optimizer, batch, objective, recipe, 0)
        weights.append([*model.parameters(), torch.tensor(told)])
    for whole, portions in zip(*weights, strict=True):
        torch.testing.assert_close(portions, whole)


def test_a_run_that_diverges_says_where(pictures, tmp_path):
    recipe = replace(RECIPE, learning_rate=1e30, warmup_epochs=0, clip=None)
    with pytest.raises(Diverged, match=r"the loss is (nan|inf) at step \d+: the last good checkpoint is "):
        train(recipe, settings(pictures, tmp_path / "run"))


def test_a_folder_with_a_run_is_not_taken_for_another(undisturbed, pictures):
    before = outcome(undisturbed)
    with pytest.raises(ValueError, match="holds a run already"):
        train(RECIPE, settings(pictures, undisturbed))
    assert outcome(undisturbed) == before


def test_command_trains_and_resumes(pictures, undisturbed, tmp_path, capsys):
    output = tmp_path / "run"
    begin = ["train", "cifar10_deit_micro_vars_d", "--data", str(pictures), "--output", str(output)]
    main([*begin, *OVERRIDES, "--workers", "0"])
    said = capsys.readouterr().out
    assert "validation accuracy" in said
    told = f"weights: {output / 'weights'}\nevaluate them with: torchvars evaluate {output} --data {pictures} "
    assert said.endswith(f"{told}--output {output / 'results.json'}\n")
    assert outcome(output) == outcome(undisturbed)
    with Image.open(output / "curves.png") as curves:
        assert len(curves.convert("RGB").getcolors(10**6)) > 10  # axes, letters and lines in their colours
    stated = json.loads((output / "run.json").read_text())
    assert stated["recipe"]["img_size"] == 16
    main(["train", "--resume", str(output)])
    assert outcome(output) == outcome(undisturbed)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name a recipe, such as"),
        (["cifar10_rvt_micro_vars_e"], "did you mean 'cifar10_rvt_micro_vars_s'"),
        (["--resume", "nowhere"], "no run to resume at nowhere"),
        (["--resume", "nowhere", "--epochs=3"], "--resume RUN takes no other option, got --epochs=3"),
    ],
)
def test_wrong_calls_are_told(arguments, message, capsys):
    with pytest.raises(SystemExit):
        main(["train", *arguments])
    assert message in capsys.readouterr().err


def test_a_missing_package_is_named_with_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "tyro", None)
    with pytest.raises(SystemExit, match="2"):
        main(["train", "cifar10_deit_micro_vars_d"])
    expected = 'training needs tyro: pip install "torchvars[train]", or pip install -e ".[train]" in a checkout'
    assert capsys.readouterr().err.strip() == f"torchvars train: {expected}"


SOLVING = {"solver": "sparsa", "steps": 5, "start": "zero", "attention_options": ("atoms=1", "centered=True")}


@pytest.mark.parametrize("name", ["vars_d", "vars_sd"])
def test_a_recipe_says_how_the_layers_solve_and_what_they_are_made_of(name, tmp_path):
    recipe = replace(RECIPE, model=f"deit_micro_{name}", **SOLVING)
    classifier = loop.build(recipe, Named(["blue", "red"])).eval()
    by_hand = torchvars.create(
        f"deit_micro_{name}",
        num_classes=2,
        img_size=16,
        patch_size=RECIPE.patch_size,
        attention_options={"atoms": 1, "centered": True, "solver": SpaRSA(5, "zero")},
    ).eval()
    by_hand.load_state_dict(classifier.model.state_dict())
    pixels = torch.rand(2, 3, 16, 16)
    expected = torchvars.Classifier(by_hand)(pixels)
    torch.testing.assert_close(classifier(pixels), expected, rtol=0, atol=0)
    # Each word on solving makes a difference to it, and each layer has a solver of its own.
    for word in ("solver", "steps", "start"):
        other = loop.build(replace(recipe, **{word: None}), Named(["blue", "red"])).eval()
        other.load_state_dict(classifier.state_dict())
        assert not torch.allclose(other(pixels), expected, rtol=0, atol=1e-6)
    assert len({id(block.attn.solver) for block in classifier.model.blocks}) == len(classifier.model.blocks)
    classifier.save_pretrained(tmp_path)
    torch.testing.assert_close(torchvars.Classifier.from_pretrained(tmp_path)(pixels), expected, rtol=0, atol=0)


class Named:
    """All that is asked of pictures before the first is looked at."""

    def __init__(self, classes: list[str]):
        self.classes = classes


def test_without_a_solver_in_the_recipe_the_models_own_is_kept(undisturbed):
    begun = replace(RECIPE, initial=str(undisturbed / "weights"), steps=7)
    classifier = loop.build(begun, Named(["blue", "red"]))
    assert [settings_of(block.attn.solver) for block in classifier.model.blocks] == [settings_of(ISTA(7))] * 6
    classifier = loop.build(replace(begun, solver="fista"), Named(["blue", "red"]))
    assert [settings_of(block.attn.solver) for block in classifier.model.blocks] == [settings_of(FISTA(7))] * 6
    classifier = loop.build(replace(begun, solver="equilibrium_fista"), Named(["blue", "red"]))
    expected = settings_of(Equilibrium(FISTA(7)))
    assert [settings_of(block.attn.solver) for block in classifier.model.blocks] == [expected] * 6


def test_command_takes_a_solver_and_options_of_the_attention(pictures, tmp_path):
    output = tmp_path / "run"
    begin = ["train", "cifar10_deit_micro_vars_d", "--data", str(pictures), "--output", str(output), *OVERRIDES]
    begin += ["--attention-options", "atoms=1.5", "centered=True", "--solver", "sparsa", "--workers", "0"]
    main([*begin, "--max-steps", "1"])
    stated = json.loads((output / "run.json").read_text())["recipe"]
    assert (stated["solver"], stated["attention_options"]) == ("sparsa", ["atoms=1.5", "centered=True"])
    recipe, _ = RunFolder(output).settings()
    assert recipe == replace(RECIPE, solver="sparsa", attention_options=("atoms=1.5", "centered=True"))
    model = torchvars.Classifier.from_pretrained(output / "weights").model
    assert [type(block.attn.solver) for block in model.blocks] == [SpaRSA] * 6
    assert model.blocks[0].attn.dictionary.features.directions.shape[-1] == 48  # of 32 channels
    main(["train", "--resume", str(output)])  # as it was begun
    again = torchvars.Classifier.from_pretrained(output / "weights").model
    assert again.origin == model.origin


def test_whole_numbers_stay_whole(pictures, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(loop, "train", lambda recipe, settings, resume: seen.append(recipe))
    begin = ["train", "cifar10_deit_micro_vars_s", "--data", str(pictures), "--output", str(tmp_path / "run")]
    main([*begin, "--attention-options", "filters=1", "bias=False"])
    main(begin)
    assert [recipe.options_of_attention() for recipe in seen] == [{"filters": 1, "bias": False}, {}]
    assert [type(value) for value in seen[0].options_of_attention().values()] == [int, bool]
    assert [recipe.solver for recipe in seen] == [None, None]


def test_pictures_that_do_not_fit_leave_no_run(pictures, tmp_path, capsys):
    output = tmp_path / "run"
    begin = ["train", "cifar10_deit_micro_vars_d", "--data", str(pictures), "--output", str(output)]
    with pytest.raises(SystemExit, match="2"):
        main(begin)  # 32 pixels, unless told otherwise
    said = 'torchvars train: the crop "pad" takes pictures of 32 x 32, got one of 16 x 16: use "random resized"'
    assert capsys.readouterr().err.strip() == said
    assert not output.exists()


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"batch": 100}, "20 pictures do not fill one batch of 100"),
        ({"keep_every": 0}, "keep_every must be at least 1, got 0"),
        ({"unreadable_share": math.nan}, "unreadable_share must be between 0 and 1, got nan"),
        ({"workers": 1000}, r"workers must be from 0 to \d+, got 1000: .* there are \d+ CPUs for this process"),
        ({"steps": -1}, "steps must be zero or positive"),
    ],
)
def test_a_refused_run_leaves_nothing_behind(changed, told, pictures, tmp_path):
    of_recipe = {name: value for name, value in changed.items() if name in ("batch", "steps")}
    with pytest.raises(ValueError, match=told):
        train(
            replace(RECIPE, **of_recipe),
            settings(pictures, tmp_path / "run", **{each: changed[each] for each in changed.keys() - of_recipe.keys()}),
        )
    assert not (tmp_path / "run").exists()


def test_a_model_that_could_not_be_saved_is_not_trained(pictures, tmp_path, monkeypatch):
    def refuse(model):
        raise ValueError("it would be another one")

    monkeypatch.setattr("torchvars.models.weights.check_rebuilds", refuse)
    with pytest.raises(ValueError, match="it would be another one"):
        train(RECIPE, settings(pictures, tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_a_run_that_came_to_no_checkpoint_gives_way_to_another(pictures, tmp_path, monkeypatch):
    def failing(*_):
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(loop, "learn", failing)
        with pytest.raises(ZeroDivisionError):
            train(RECIPE, settings(pictures, tmp_path / "run"))
    other = replace(RECIPE, seed=1)
    train(other, settings(pictures, tmp_path / "run", max_steps=1))
    assert RunFolder(tmp_path / "run").settings()[0] == other


def test_a_folder_in_which_a_run_is_going_on_is_left_to_it(pictures, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "RELEASE", 0)
    output, tried = tmp_path / "run", []

    def disturbed(*_):
        with pytest.raises(ValueError, match=f"another training run is writing {output}: wait for its end, stop it"):
            train(RECIPE, settings(pictures, output), resume=True)
        tried.append(output)
        raise KeyboardInterrupt

    monkeypatch.setattr(loop, "learn", disturbed)
    with pytest.raises(KeyboardInterrupt):
        train(RECIPE, settings(pictures, output))
    assert tried == [output]
    with held(output, "it is still held"):
        pass


def test_the_recipe_comes_first(pictures, tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["train", "--data", str(pictures), "cifar10_deit_micro_vars_d", "--output", str(tmp_path / "run")])
    assert "the recipe comes first: torchvars train cifar10_deit_micro_vars_d ..., got" in capsys.readouterr().err


def test_an_unknown_solver_is_told_of_and_leaves_no_run(pictures, tmp_path, capsys):
    output = tmp_path / "run"
    begin = ["train", "cifar10_deit_micro_vars_d", "--data", str(pictures), "--output", str(output), *OVERRIDES]
    with pytest.raises(SystemExit, match="2"):
        main([*begin, "--solver", "newton"])
    assert f"no solver named 'newton': there are {', '.join(SOLVERS)}" in capsys.readouterr().err
    assert not (output / "run.json").exists()


@pytest.mark.parametrize(
    ("model", "given", "told"),
    [
        ("deit_micro_softmax", ["--solver", "fista", "--steps", "4"], "has no VARS layer: leave out solver, steps"),
        ("deit_micro_vars_d", ["--attention-options", "atom=1"], "takes no atom=1: "),
        ("deit_micro_vars_d", ["--attention-options", "atoms"], "are like atoms=1 centered=True"),
        ("deit_micro_vars_d", ["--solver", "equilibrium"], "no solver named 'equilibrium'"),
    ],
)
def test_options_that_a_model_does_not_have_are_refused(model, given, told, pictures, tmp_path, capsys):
    begin = ["train", f"cifar10_{model}", "--data", str(pictures), "--output", str(tmp_path / "run"), *OVERRIDES]
    with pytest.raises(SystemExit, match="2"):
        main([*begin, *given])
    assert told in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_weights_to_begin_with_keep_the_options_that_are_not_changed(pictures, tmp_path):
    saved = torchvars.create("deit_micro_vars_d", img_size=16, patch_size=4, attention_options={"centered": True})
    torchvars.Classifier(saved).save_pretrained(tmp_path / "saved")
    recipe = replace(RECIPE, initial=str(tmp_path / "saved"), attention_options=("normalize=True",))
    built = loop.build(recipe, open_source(str(pictures), "train")).model
    assert built.origin["options"]["attention_options"] == {"centered": True, "normalize": True}
    assert built.blocks[0].attn.dictionary.centered


def test_a_converted_model_is_fine_tuned(pictures, tmp_path):
    """The recipe names the model that was converted, and the run ends with a folder of a converted one."""
    name, options = "timm:test_vit", {"img_size": 16, "depth": 1}
    model = torchvars.convert(timm.create_model("test_vit", **options), "vars_d", strength=0.2)
    model.origin = {"name": name, "options": options}
    torchvars.Classifier(model).save_pretrained(tmp_path / "saved")
    recipe = replace(RECIPE, model=name, initial=str(tmp_path / "saved"), patch_size=None, epochs=1, warmup_epochs=0)
    train(recipe, settings(pictures, tmp_path / "run", max_steps=1))
    tuned = torchvars.Classifier.from_pretrained(tmp_path / "run" / "weights")
    assert tuned.classes == ("blue", "red")
    assert tuned.model.blocks[-1].attn.strength == 0.2
    changed, before = tuned.model.blocks[-1].attn.value.weight, model.blocks[-1].attn.value.weight
    assert 0 < (changed - before).abs().max() < 0.1
    with pytest.raises(ValueError, match=f"or this one with --model {name}"):
        loop.build(replace(recipe, model="rvt_micro_vars_d"), open_source(str(pictures), "train"))


def test_weights_to_begin_with_are_of_the_same_model(tmp_path):
    """Also by a name that ships; and the head is new unless the classes are the same."""
    classes = ["cat", "dog"]
    options = {"img_size": 16, "patch_size": 4, "num_classes": 2}
    saved = torchvars.Classifier(torchvars.create("deit_micro_vars_d", **options), classes=classes)
    saved.save_pretrained(tmp_path / "saved")
    begun = replace(RECIPE, initial=str(tmp_path / "saved"))
    same, other = (loop.build(begun, Named(each)).model for each in (classes, ["blue", "red"]))
    assert torch.equal(same.head.weight, saved.model.head.weight)
    assert not torch.equal(other.head.weight, saved.model.head.weight)
    assert torch.equal(other.blocks[0].attn.value.weight, saved.model.blocks[0].attn.value.weight)
    with pytest.raises(ValueError, match=r"saved are of deit_micro_vars_d, and the recipe is for deit_micro_softmax"):
        loop.build(replace(begun, model="deit_micro_softmax"), Named(classes))
    ships = replace(RECIPE, model="rvt_micro_softmax", initial="rvt_micro_softmax.cifar10", img_size=32)
    built, known = (
        loop.build(ships, Named(classes)).model,
        torchvars.create("rvt_micro_softmax.cifar10", pretrained=True),
    )
    assert torch.equal(built.blocks[0].attn.qkv.weight, known.blocks[0].attn.qkv.weight)


def test_words_for_models_mean_the_same_from_elsewhere(tmp_path, monkeypatch):
    (tmp_path / "saved").mkdir()
    (tmp_path / "weights.pth").touch()
    (tmp_path / "resnet50").touch()  # which timm:resnet50 does not mean
    monkeypatch.chdir(tmp_path)
    words = {
        None: None,
        "saved": f"{tmp_path}/saved",
        "weights.pth": f"{tmp_path}/weights.pth",
        "timm:resnet50": "timm:resnet50",
        "timm:resnet50:weights.pth": f"timm:resnet50:{tmp_path}/weights.pth",
        "rvt_micro_softmax.cifar10": "rvt_micro_softmax.cifar10",
    }
    for word, expected in words.items():
        recipe = loop.from_anywhere(replace(RECIPE, initial=word, teacher=word))
        assert (recipe.initial, recipe.teacher) == (expected, expected)


@pytest.mark.parametrize(("name", "value"), [("workers", -1), ("checkpoint_every", 0), ("max_steps", 0)])
def test_settings_that_make_no_sense_are_refused(name, value, tmp_path):
    with pytest.raises(ValueError, match=f"{name} must be at least {value + 1}, got {value}"):
        settings(tmp_path, tmp_path / "run", **{name: value})


def test_a_folder_that_cannot_be_written_is_told_of_before_the_first_step(pictures, tmp_path, capsys):
    (tmp_path / "file").write_text("in the way")
    begin = ["train", "cifar10_deit_micro_vars_d", "--data", str(pictures), "--output", str(tmp_path / "file" / "run")]
    with pytest.raises(SystemExit):
        main([*begin, *OVERRIDES])
    said = capsys.readouterr().err
    assert "could not make the folder" in said
    assert "take another folder" in said
    assert (tmp_path / "file").read_text() == "in the way"


@pytest.mark.parametrize("failing", [1, 2, 3])
def test_a_full_disk_is_told_of_and_costs_no_checkpoint(failing, pictures, undisturbed, tmp_path, monkeypatch):
    output, writes, write = tmp_path / "run", [], checkpoint._write

    def full(path: Path, content: bytes) -> None:
        if path.name == "model.safetensors":
            writes.append(path)
            if len(writes) == failing:
                path.write_bytes(content[: len(content) // 2])
                with checkpoint._doing("write", path):
                    raise OSError(errno.ENOSPC, "No space left on device")
        write(path, content)

    monkeypatch.setattr(checkpoint, "_write", full)
    with pytest.raises(OSError, match="No space left on device; earlier checkpoints are unchanged"):
        train(RECIPE, settings(pictures, output))
    steps = [int(path.name.removeprefix("step_")) for path in (output / "checkpoints").glob("step_*")]
    assert sorted(steps) == [2, 4][: failing - 1]
    train(RECIPE, settings(pictures, output), resume=True)
    assert outcome(output) == outcome(undisturbed)


def test_the_best_weights_are_kept_where_the_recipe_says_so(pictures, tmp_path, monkeypatch):
    evaluate, scores = loop.evaluate, iter([0.2, 0.9, 0.4])

    def scripted(*arguments):
        metrics, problems = evaluate(*arguments)
        return {**metrics, "val_accuracy": next(scores)}, problems

    monkeypatch.setattr(loop, "evaluate", scripted)
    train(replace(RECIPE, keep="best"), settings(pictures, tmp_path / "run"))
    kept = load_file(tmp_path / "run" / "weights" / "model.safetensors")
    tensors, facts = checkpoint.Checkpoints(tmp_path / "run" / "checkpoints").read(
        tmp_path / "run" / "checkpoints" / "step_00000004"
    )
    assert facts["progress"]["best"] == 0.9
    for name, weight in tensors["average"].items():
        assert torch.equal(kept[name.removeprefix("model.")], weight)


def test_a_domain_is_left_out(pictures, tmp_path):
    data = tmp_path / "domains"
    for path in (pictures / "train").rglob("*.png"):
        for domain in ("photo", "sketch"):
            copy = data / domain / path.relative_to(pictures / "train")
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())
    (data / "sketch" / "red" / "0.png").write_bytes(b"no picture")
    recipe = find_recipe("pacs_deit_micro_vars_d", **{**asdict(RECIPE), "left_out": "sketch", "batch": 4})
    train(recipe, settings(data, tmp_path / "run", unreadable_share=0.0))  # would stop if it saw the sketches
    assert torchvars.Classifier.from_pretrained(tmp_path / "run" / "weights").model.num_classes == 2
    with pytest.raises(ValueError, match=r"no domain 'oil' in .*: it has photo, sketch"):
        train(replace(recipe, left_out="oil"), settings(data, tmp_path / "other"))


def test_tensorboard_shows_how_the_attention_of_each_layer_changes(undisturbed, pictures):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(undisturbed / "tensorboard")).Reload()
    names = [f"model.blocks.{number}.attn" for number in range(2)]
    assert {f"energy/{name}" for name in names} <= set(events.Tags()["images"])
    assert {f"zeros/{name}" for name in names} <= set(events.Tags()["scalars"])
    shown = events.Images(f"energy/{names[0]}")
    assert [event.step for event in shown] == [2, 4, 6]
    image = np.asarray(Image.open(io.BytesIO(shown[-1].encoded_image_string)))
    first = np.asarray(Image.open(sorted((pictures / "val" / "blue").iterdir())[0]))
    assert np.abs(image[:16, :16].astype(int) - first).max() <= 1  # the picture above its map
    assert len(np.unique(image[16:, :16])) > 2


def test_tensorboard_keeps_every_epoch_when_a_run_is_resumed(tmp_path, monkeypatch):
    """Killed after the epoch of step 6, resumed from the checkpoint of step 4, and resumed again at its end."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    clock = itertools.count(10**9)
    monkeypatch.setattr(time, "time", lambda: next(clock))  # files are read in the order of the seconds in their names
    for first, losses in ((0, {2: 0.5, 4: 0.4, 6: 0.9}), (4, {6: 0.3}), (6, {})):
        report = Report(tmp_path, first, 6, epochs=3)
        for step, loss in losses.items():
            line = {"step": step, "epoch": step / 2, "loss": loss, "accuracy": 0, "val_loss": 0, "val_accuracy": 0}
            times = {"seconds": 1, "images_per_second": 1, "waiting_share": 0}
            report.epoch(line, "as described", times, torch.zeros(1, 3, 4, 4), Views({}, {}, {}))
        report.close()
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    kept = [(event.step, round(event.value, 6)) for event in events.Scalars("loss")]
    assert kept == [(2, 0.5), (4, 0.4), (6, 0.3)]


@pytest.mark.parametrize("judged", [True, False], ids=["best", "latest"])
def test_an_unfinished_run_is_opened_by_its_checkpoint(judged, undisturbed, tmp_path, capsys):
    """Its best, or the latest if none was judged yet: the very weights that were evaluated at that step."""
    run = tmp_path / "run"
    shutil.copytree(undisturbed, run, ignore=shutil.ignore_patterns("weights"))
    checkpoints = checkpoint.Checkpoints(run / "checkpoints")
    found = checkpoints.best() if judged else checkpoints.latest()
    if not judged:
        (run / "checkpoints" / "best.json").unlink()
    name, classifier = open_classifier(str(run))
    step, kind = int(found.name[5:]), "best" if judged else "latest"
    told = f"{run} is not finished: these are the weights of step {step}, its {kind} so far; finish it with "
    assert capsys.readouterr().err.strip() == f"{told}torchvars train --resume {run}"
    tensors, _ = checkpoints.read(found)
    for each, weight in (tensors["model"] | tensors["average"]).items():
        assert torch.equal(classifier.state_dict()[each], weight)
    assert (name, classifier.classes, classifier.training) == ("run", ("blue", "red"), False)
    finished = torchvars.Classifier.from_pretrained(undisturbed / "weights")
    if step == last_step(undisturbed):
        pixels = torch.rand(2, 3, 16, 16)
        torch.testing.assert_close(classifier(pixels), finished(pixels), rtol=0, atol=0)
    assert classifier.model.origin == finished.model.origin


@pytest.mark.parametrize(
    ("broken", "told"),
    [
        ("checkpoint", "is not finished, and has no checkpoint to take weights from: finish it with torchvars train"),
        ("classes", r"its best checkpoint is of step \d, and run.json does not say of which classes.*; finish it with"),
        ("weights", r"average.safetensors is damaged: finish it with torchvars train --resume"),
    ],
)
def test_an_unfinished_run_of_which_no_classifier_can_be_made(broken, told, undisturbed, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(undisturbed, run, ignore=shutil.ignore_patterns("weights"))
    if broken == "checkpoint":
        shutil.rmtree(run / "checkpoints")
    elif broken == "classes":  # as runs were begun by earlier versions
        stated = json.loads((run / "run.json").read_text())
        (run / "run.json").write_text(json.dumps({name: stated[name] for name in stated if name != "classifier"}))
    else:
        for file in (run / "checkpoints").glob("*/average.safetensors"):
            file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ValueError, match=told):
        open_classifier(str(run))


def test_splits_must_have_the_same_classes(pictures, tmp_path):
    for split, names in (("train", ("a", "b")), ("val", ("a", "c"))):
        for name in names:
            (tmp_path / split / name).mkdir(parents=True)
            Image.new("RGB", (16, 16)).save(tmp_path / split / name / "1.png")
    with pytest.raises(ValueError, match="only in the first b, only in the second c"):
        train(RECIPE, settings(tmp_path, tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def without_splits(kind: str, pictures: Path, folder: Path) -> str:
    """The training pictures, stored so that there is no split around their classes."""
    files = {path.relative_to(pictures / "train").as_posix(): path for path in (pictures / "train").rglob("*.png")}
    if kind in ("folder", "linked"):
        for name, path in files.items():
            copy = folder / ("" if kind == "folder" else "train") / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())
        if kind == "linked":
            (folder / "val").mkdir()
            for name in ("blue", "red"):
                (folder / "val" / name).symlink_to(folder / "train" / name)
        return str(folder)
    folder.mkdir()
    with tarfile.open(folder / "0.tar", "w", format=tarfile.USTAR_FORMAT) as archive:
        for number, (name, path) in enumerate(sorted(files.items())):
            if kind == "tar":
                archive.add(path, name)
            else:
                archive.add(path, f"a{number}.png")
                label = tarfile.TarInfo(f"a{number}.cls")
                label.size = 1
                archive.addfile(label, io.BytesIO(b"0" if "blue" in name else b"1"))
    if kind == "listed":
        shards = {split: {"filenames": ["0.tar"]} for split in ("train", "validation")}
        (folder / "_info.json").write_text(json.dumps({"splits": shards}))
    return str(folder / "0.tar") if kind == "tar" else f"wds/{folder}"


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        ("folder", "pictures has no separate train and val: what was found are the classes blue, red"),
        ("tar", "0.tar has no separate train and val: what was found are the classes blue, red"),
        ("shards", r"pictures \(1 shards, .* has no separate train and val: what was found are the classes 0, 1"),
        ("listed", "has no separate train and val: what was found are the classes 0, 1"),
        ("linked", "train and .*val share pictures, such as those of .*train/blue"),
    ],
)
def test_a_run_is_not_validated_on_the_pictures_it_is_trained_on(kind, found, pictures, tmp_path):
    data = without_splits(kind, pictures, tmp_path / "pictures")
    with pytest.raises(ValueError, match=rf"{found}\. .*: add --hold-out .*, or give .* train/<class> and val/<class>"):
        train(RECIPE, settings(data, tmp_path / "run"))
    assert not (tmp_path / "run").exists()
    parts = [loop.open_split(data, split, replace(RECIPE, hold_out=True)) for split in ("train", "val")]
    loop.check_apart(*parts)
    assert not set(parts[0].identities) & set(parts[1].identities)
    assert len(parts[0]) + len(parts[1]) == 20


def test_a_missing_val_can_be_held_out(pictures, tmp_path):
    (tmp_path / "train").symlink_to(pictures / "train")
    with pytest.raises(ValueError, match=r"none for 'val': .* --hold-out validates on a tenth of the others"):
        train(RECIPE, settings(tmp_path, tmp_path / "run"))
    assert len(loop.open_split(str(tmp_path), "val", replace(RECIPE, hold_out=True))) > 0


def test_pictures_that_cannot_be_read_are_listed_and_in_the_end_too_many(pictures, tmp_path):
    data = tmp_path / "pictures"
    for path in pictures.rglob("*.png"):
        copy = data / path.relative_to(pictures)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    (data / "train" / "red" / "3.png").write_bytes(b"no picture")
    train(RECIPE, settings(data, tmp_path / "run", unreadable_share=0.1))
    assert (tmp_path / "run" / "unreadable.txt").read_text().startswith("red/3.png\t")
    assert RunFolder(tmp_path / "run").metrics()[-1]["unreadable"] == 1
    (data / "val" / "red" / "1.png").write_bytes(b"no picture")
    train(RECIPE, settings(data, tmp_path / "held_out", unreadable_share=0.1))
    assert f"{data / 'val'}: red/1.png\t" in (tmp_path / "held_out" / "unreadable.txt").read_text()
    assert RunFolder(tmp_path / "held_out").metrics()[-1]["val_accuracy"] <= 6 / 7
    with pytest.raises(ValueError, match=r"1 pictures could not be read, more than the 0 allowed, such as red/3.png"):
        train(RECIPE, settings(data, tmp_path / "strict", unreadable_share=0.0))


def test_a_teacher_may_know_more_classes(tmp_path):
    model = torchvars.create("deit_micro_vars_d", num_classes=4, img_size=16, patch_size=4)
    known = torchvars.Classifier(model, classes=("blue", "green", "red", "yellow")).eval()
    known.save_pretrained(tmp_path / "known")
    pixels = torch.rand(2, 3, 16, 16)
    teacher = loop.load_teacher(str(tmp_path / "known"), ["red", "blue"], 16)
    torch.testing.assert_close(teacher(pixels), known(pixels)[:, [2, 0]])
    assert not any(parameter.requires_grad for parameter in teacher.parameters())
    with pytest.raises(ValueError, match="the teacher known has 4 classes and the pictures have 2, such as cyan"):
        loop.load_teacher(str(tmp_path / "known"), ["red", "cyan"], 16)


def test_weights_of_another_run_are_begun_with_and_learned_from(pictures, undisturbed, tmp_path):
    folder = str(undisturbed / "weights")
    recipes = {
        "anew": RECIPE,
        "begun": replace(RECIPE, initial=folder),
        "taught": replace(RECIPE, teacher=folder),
        "patches": replace(RECIPE, patches=0.5),
        "denser": replace(RECIPE, strength=0.0, steps=1),
    }
    first = {}
    for name, recipe in recipes.items():
        train(replace(recipe, mixup=0.0, erase=0.0), settings(pictures, tmp_path / name, max_steps=1))
        (line,) = RunFolder(tmp_path / name).metrics()
        first[name] = line["loss"]
    assert first["begun"] < first["anew"]
    assert len(set(first.values())) == len(first)  # each of them does something


def test_runs_of_other_precision_follow_each_other_in_one_process(pictures, tmp_path):
    for precision in ("bf16", "no"):
        train(replace(RECIPE, precision=precision, epochs=1), settings(pictures, tmp_path / precision))
    losses = [RunFolder(tmp_path / precision).metrics()[-1]["loss"] for precision in ("bf16", "no")]
    assert losses[0] == pytest.approx(losses[1], rel=0.02)
    assert losses[0] != losses[1]
