"""The benchmark's bookkeeping. No time is asserted: those are the machine's."""

import json
import statistics
import sys
from dataclasses import replace

import pytest
import torch
from torch import nn

from torchvars.cli import benchmark
from torchvars.cli.main import main
from torchvars.figures.speed import draw_time_against_tokens
from torchvars.models import speed
from torchvars.models.speed import Contestant, exponent, interleaved, measure, peak_bytes, ratio, spread

pytestmark = pytest.mark.usefixtures("one_thread")


class Recorded(nn.Module):
    """Says when it runs: forward passes within gradients or without, and backward passes."""

    def __init__(self, name, calls):
        super().__init__()
        self.name, self.calls = name, calls

    def forward(self, tokens):
        self.calls.append((self.name, "training" if torch.is_grad_enabled() else "forward"))
        return tokens * 2


class Allocating(nn.Module):
    """Holds a tensor of so many bytes for a while."""

    def __init__(self, size):
        super().__init__()
        self.size = size

    def forward(self, tokens):
        held = torch.empty(self.size, dtype=torch.uint8)
        del held
        return tokens * 2


def tokens():
    return torch.randn(2, 4, requires_grad=True)


def test_exponent_recovers_a_known_power():
    counts = (196, 784, 3136)
    assert exponent(counts, [1e-7 * count**1.5 for count in counts]) == pytest.approx(1.5)
    assert exponent(counts, [3.0, 3.0, 3.0]) == pytest.approx(0)


def test_ratios_are_taken_within_a_round():
    # Twice as slow in each round, though the machine became ten times slower between them.
    assert ratio([2, 20, 200], [1, 10, 100]) == 2
    assert ratio([0.3, 0.1, 0.7], [0.3, 0.1, 0.7]) == 1


def test_spread_is_half_the_interquartile_range():
    assert spread([1, 2, 3, 4, 5]) == pytest.approx(1 / 3)
    assert spread([7]) == 0


def test_actions_run_in_turns():
    calls = []
    actions = {name: lambda name=name: calls.append(name) or float(len(calls)) for name in "abc"}
    assert interleaved(actions, 2) == {"a": [1, 4], "b": [2, 5], "c": [3, 6]}
    assert calls == list("abcabc")
    with pytest.raises(ValueError, match="rounds must be at least 1, got 0"):
        interleaved(actions, 0)


def test_contestants_run_in_turns_after_a_warm_up():
    calls = []
    contestants = {name: Contestant(Recorded(name, calls), (tokens(),)) for name in ("softmax", "other")}
    rows = measure("layers", contestants, 2, 2, rounds=3)
    warm_up = [(name, kind) for name in contestants for kind in ("forward", "training")]
    a_round = [(name, kind) for kind in ("forward", "training") for name in contestants]
    profiled = [(name, "training") for name in contestants]
    assert calls == warm_up + 3 * a_round + profiled
    softmax, other = rows
    assert (softmax.contestant, other.contestant) == ("softmax", "other")
    assert softmax.forward_ratio == softmax.training_ratio == softmax.peak_ratio == 1
    assert softmax.solver_share is other.solver_share is None


def test_figures_are_those_of_the_rounds(monkeypatch):
    seconds = {"softmax": iter([9, 1, 2, 3]), "other": iter([9, 4, 4, 3])}  # the first warms up
    of_modules = {}
    monkeypatch.setattr(speed, "forward_seconds", lambda contestant: next(seconds[of_modules[contestant.module]]))
    contestants = {name: Contestant(Recorded(name, []), (tokens(),)) for name in seconds}
    of_modules.update({contestant.module: name for name, contestant in contestants.items()})
    _, other = measure("layers", contestants, 2, 2, rounds=3)
    assert other.forward_seconds == 4
    assert other.forward_ratio == statistics.median([4 / 1, 4 / 2, 3 / 3])


@pytest.mark.parametrize("megabytes", [4, 40])
def test_peak_memory_is_what_a_module_allocates(megabytes):
    contestant = Contestant(Allocating(megabytes * 10**6), (tokens(),))
    for _ in range(2):  # whatever an earlier profile left behind
        assert peak_bytes(contestant) == pytest.approx(megabytes * 10**6, rel=0.03)


def test_peak_memory_counts_what_is_kept_for_the_backward_pass_and_the_gradients():
    layers = nn.Sequential(*(nn.Sigmoid() for _ in range(8)))
    inputs = torch.randn(10**6, requires_grad=True)
    # Eight outputs of 4 MB are kept. One gradient more stands beside them, and another while it is computed.
    assert 8 * 4e6 < peak_bytes(Contestant(layers, (inputs,))) <= 10.1 * 4e6


def test_measuring_leaves_other_gradients_out():
    contestant = speed.layer("vars_d", 16, 1)
    first = peak_bytes(contestant)
    assert peak_bytes(contestant) == first


def test_a_layer_with_a_solver_is_measured_in_its_plain_form_too():
    rows = speed.measure_layers(["vars_d", "performer"], [(16, 2), (25, 1)], rounds=2)
    names = ["softmax", "vars_d", "performer", "projections"]
    assert [row.contestant for row in rows] == [*names, "vars_d, plain", *names]
    assert [row.tokens for row in rows] == [16] * 5 + [25] * 4
    for row in rows:
        assert (row.solver_share is not None) == row.contestant.startswith("vars_d")
        assert row.peak_bytes > 0


def test_models_are_measured(monkeypatch):
    monkeypatch.setattr(speed, "PICTURE", 32)
    monkeypatch.setattr(speed, "PICTURES", 1)
    monkeypatch.setattr(
        speed,
        "create_model",
        lambda name, create=speed.create_model: create(name.replace("tiny", "micro"), img_size=32),
    )
    softmax, other = speed.measure_models(["vars_d"], rounds=1)
    assert (softmax.contestant, other.contestant) == ("rvt_tiny_softmax", "rvt_tiny_vars_d")
    assert softmax.forward_ratio == 1
    assert other.tokens is None


def test_steps_are_kept_unless_differentiated_at_the_equilibrium():
    rows = {row.contestant: row for row in speed.measure_steps(["performer", "vars_d"], 16, 2, rounds=1)}
    kinds = [f"vars_d, {steps} steps{label}" for steps in (3, 12) for label in ("", " at the equilibrium")]
    assert list(rows) == ["softmax", *kinds]
    few, few_at_rest, many, many_at_rest = (rows[kind].peak_bytes for kind in kinds)
    assert many > few
    assert many_at_rest <= 1.1 * few_at_rest


def test_command_prints_its_tables_and_writes_all_figures(tmp_path, capsys):
    folder = tmp_path / "new"
    names = ["vars_s", "global_filter"]
    main(
        f"benchmark --sizes 16x2 --rounds 2 --sections layers --attentions {' '.join(names)} --output {folder}".split()
    )
    printed = capsys.readouterr().out.splitlines()
    assert "device cpu" in printed[0]
    assert ["softmax", "1.00 / 1.00"] in [[cell.strip() for cell in line.strip("|").split("|")] for line in printed]
    results = json.loads((folder / "benchmark.json").read_text())
    assert [row["contestant"] for row in results["rows"]] == ["softmax", *names, "projections", "vars_s, plain"]
    assert {row["tokens"] for row in results["rows"]} == {16}
    assert results["settings"]["rounds"] == 2
    assert results["environment"]["torch"] == torch.__version__
    assert [path.name for path in folder.iterdir()] == ["benchmark.json"]


@pytest.fixture
def _tiny_scaling(monkeypatch):
    monkeypatch.setattr(benchmark, "SCALING", (16, 64))


@pytest.mark.usefixtures("_tiny_scaling")
def test_command_draws_time_against_tokens(tmp_path, capsys):
    image = pytest.importorskip("matplotlib.image")
    main(f"benchmark --sections scaling --attentions vars_d --rounds 2 --output {tmp_path}".split())
    height, width, _ = image.imread(tmp_path / "time_against_tokens.png").shape
    assert (height, width) == (675, 1050)
    results = json.loads((tmp_path / "benchmark.json").read_text())
    assert set(results["exponents"]) == {"softmax", "vars_d"}
    printed = capsys.readouterr().out
    assert f"{results['exponents']['vars_d']['forward']:.2f} / " in printed
    assert str(tmp_path / "time_against_tokens.png") in printed


@pytest.mark.usefixtures("_tiny_scaling")
def test_without_matplotlib_there_are_figures_but_no_plot(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    main(f"benchmark --sections scaling --attentions vars_d --rounds 1 --output {tmp_path}".split())
    assert 'no plot was drawn, it needs matplotlib: pip install "torchvars[figures]"' in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["benchmark.json"]


def test_plot_takes_more_contestants_than_there_are_colours(tmp_path):
    pytest.importorskip("matplotlib")
    row = measure("scaling", {"softmax": Contestant(Recorded("softmax", []), (tokens(),))}, 16, 1, rounds=1)[0]
    rows = [replace(row, contestant=f"{index}", tokens=count) for index in range(9) for count in (16, 64)]
    draw_time_against_tokens(rows, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--sizes 196", "a size is TOKENSxBATCH, such as 196x16: got '196'"),
        ("--sizes 16x0", "a size is TOKENSxBATCH, such as 196x16: got '16x0'"),
        ("--sizes 16x2 200x1", "200 is no square number, the nearest is 196"),
        ("--attentions vars_d vars_x", "no attention named 'vars_x': there are softmax, performer"),
        ("--rounds 0", "--rounds must be at least 1, got 0"),
    ],
)
def test_command_says_what_is_wrong_before_it_measures(arguments, message, tmp_path, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["benchmark", "--out", str(tmp_path / "new"), *arguments.split()])
    assert stopped.value.code == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert not captured.out
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("count", [0, -4, 2, 15])
def test_tokens_are_a_square(count):
    with pytest.raises(ValueError, match=f"{count} is no square number"):
        speed.square(count)


def test_stopping_leaves_the_file_before_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "benchmark.json"
    benchmark.write_json({"rows": [1]}, path)

    def stop(*_, **__):
        raise KeyboardInterrupt

    for owner, name in ((benchmark.json, "dumps"), (type(path), "replace")):
        with monkeypatch.context() as patched:
            patched.setattr(owner, name, stop)
            with pytest.raises(KeyboardInterrupt):
                benchmark.write_json({"rows": [1, 2]}, path)
        assert json.loads(path.read_text()) == {"rows": [1]}
        assert list(tmp_path.iterdir()) == [path]


def test_stopping_in_a_later_section_keeps_those_before(tmp_path, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(speed, "measure_models", stop)
    words = "benchmark --sizes 16x1 --rounds 1 --sections models,layers --attentions vars_d --output"
    with pytest.raises(SystemExit, match="130"):
        main([*words.split(), str(tmp_path)])
    assert {row["section"] for row in json.loads((tmp_path / "benchmark.json").read_text())["rows"]} == {"layers"}


def test_no_compiler_is_said(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(speed.shutil, "which", lambda name: None)
    words = "benchmark --sizes 16x1 --rounds 1 --sections layers --attentions softmax --compiled --output"
    main([*words.split(), str(tmp_path)])
    assert "nothing will be compiled: there is no C++ compiler" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.skipif(not speed.has_compiler(), reason="needs a C++ compiler")
def test_compiled_layers_stand_beside_eager_softmax():
    rows = speed.measure_compiled(["vars_d"], (16, 1), rounds=1)
    assert [row.contestant for row in rows] == ["softmax", "softmax, compiled", "vars_d, compiled"]
    assert rows[0].forward_ratio == 1


def test_a_device_that_is_not_there_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["benchmark", "--device", "meta9", "--rounds=1"])
    assert "--device meta9 is not available" in capsys.readouterr().err


def test_lists_take_commas_or_spaces_and_the_old_name_of_output_is_told_of(tmp_path, monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(speed, "measure_layers", lambda *given: asked.append(given[:2]) or iter(()))
    for words in ("--attentions vars_d,vars_s --sizes 16x1,16x2", "--attentions vars_d vars_s --sizes 16x1 16x2"):
        main(f"benchmark --sections layers {words} --out {tmp_path}".split())
        assert "--out is deprecated and will be removed: use --output" in capsys.readouterr().err
        assert (tmp_path / "benchmark.json").exists()
    assert asked == [(["softmax", "vars_d", "vars_s"], [(16, 1), (16, 2)])] * 2
    with pytest.raises(SystemExit):
        main(f"benchmark --sections layers,models,dreams --output {tmp_path}".split())
    assert "got 'dreams'" in capsys.readouterr().err
