"""Time and memory of attentions and models, measured side by side."""

import json
import math
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar, cast

import torch
from torch import Tensor, nn

from ..attention import ATTENTIONS, Reconstruction
from ..attention import create as create_attention
from ..attention.tokens import Grid
from ..sparse import ISTA, Equilibrium, plain, reconstruct
from .origin import build, origin_of
from .registry import create as create_model
from .weights import layers_of, set_layers

DIM, HEADS = 192, 6  # of every layer
REFERENCE = "softmax"  # ratios are to it
PICTURE, PICTURES = 224, 8  # pixels and batch of the models

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Contestant:
    """A module to measure, as module(*inputs) within a context. The first input is a tensor."""

    module: nn.Module
    inputs: tuple
    context: Callable[[], AbstractContextManager] = nullcontext

    def run(self) -> Tensor:
        with self.context():
            return self.module(*self.inputs)

    @property
    def device(self) -> torch.device:
        return self.inputs[0].device


@dataclass(frozen=True)
class Measurement:
    """Times and memory of a contestant: forward without gradients, training with forward and backward.

    Seconds are medians over rounds, a spread is half the interquartile range as a share of the median, a ratio the
    median over rounds of the ratio to softmax in the same round. Peak bytes are those of training above what was
    allocated before. The solver's share is of the forward seconds; None for what has no solver.
    """

    section: str
    contestant: str
    tokens: int | None  # of a layer; None for a model
    batch: int
    rounds: int
    forward_seconds: float
    forward_spread: float
    forward_ratio: float
    training_seconds: float
    training_spread: float
    training_ratio: float
    peak_bytes: int
    peak_ratio: float
    solver_share: float | None


# Sections


def measure_layers(
    attentions: Sequence[str], sizes: Sequence[tuple[int, int]], rounds: int, device: str = "cpu"
) -> list[Measurement]:
    """Single layers, each size (tokens, batch) by itself; at the first also those with a solver in their plain form.

    "projections" are the linear maps of VARS-D alone, a lower bound of its cost.
    """
    rows = []
    for index, (tokens, batch) in enumerate(sizes):
        contestants = {name: layer(name, tokens, batch, device) for name in with_reference(attentions)}
        contestants["projections"] = _of_tokens(Projections(DIM), tokens, batch, device)
        if index == 0:
            for name, contestant in list(contestants.items()):
                if isinstance(contestant.module, Reconstruction):
                    contestants[f"{name}, plain"] = Contestant(contestant.module, contestant.inputs, plain)
        rows += measure("layers", contestants, tokens, batch, rounds)
    return rows


def measure_scaling(
    attentions: Sequence[str], tokens: Sequence[int], rounds: int, device: str = "cpu"
) -> list[Measurement]:
    """Layers on increasing numbers of tokens at batch 1, in at most 5 rounds, or 3 for the largest number."""
    rows = []
    for count in tokens:
        contestants = {name: layer(name, count, 1, device) for name in with_reference(attentions)}
        rows += measure("scaling", contestants, count, 1, min(rounds, 3 if count == max(tokens) else 5))
    return rows


def measure_steps(
    attentions: Sequence[str], tokens: int, batch: int, rounds: int, device: str = "cpu"
) -> list[Measurement]:
    """Layers with a solver in 3 and in 12 steps, differentiated through the steps and at the equilibrium.

    In at most 3 rounds. It shows the memory: at the equilibrium no step is stored.
    """
    contestants = {REFERENCE: layer(REFERENCE, tokens, batch, device)}
    for name in with_reference(attentions):
        for steps in (3, 12):
            for label, solver in (("", ISTA(steps)), (" at the equilibrium", Equilibrium(ISTA(steps)))):
                contestant = layer(name, tokens, batch, device)
                if isinstance(contestant.module, Reconstruction):
                    contestant.module.solver = solver
                    contestants[f"{name}, {steps} steps{label}"] = contestant
    return measure("steps", contestants, tokens, batch, min(rounds, 3))


def measure_models(attentions: Sequence[str], rounds: int, device: str = "cpu") -> list[Measurement]:
    """RVT-Ti with each attention on pictures of 224 pixels: inference, and training without the optimiser.

    In at most 5 rounds.
    """
    images = torch.randn(PICTURES, 3, PICTURE, PICTURE, device=device)
    contestants = {
        name: Contestant(create_model(f"rvt_tiny_{name}").to(device), (images,)) for name in with_reference(attentions)
    }
    rows = measure("models", contestants, None, PICTURES, min(rounds, 5))
    return [replace(row, contestant=f"rvt_tiny_{row.contestant}") for row in rows]


def measure_compiled(
    attentions: Sequence[str], size: tuple[int, int], rounds: int, device: str = "cpu"
) -> list[Measurement]:
    """Layers through `torch.compile`, with ratios to eager softmax. Compiling takes about a minute."""
    eager = {name: layer(name, *size, device) for name in with_reference(attentions)}
    contestants = {REFERENCE: eager[REFERENCE]}
    for name, contestant in eager.items():
        compiled = cast(nn.Module, torch.compile(contestant.module, dynamic=False))
        contestants[f"{name}, compiled"] = Contestant(compiled, contestant.inputs)
    return measure("compiled", contestants, *size, rounds)


@torch.no_grad()
def measure_sizes(
    models: Mapping[str, nn.Module], sizes: Sequence[int], rounds: int = 5, device: str = "cpu"
) -> dict[int, dict[str, float]]:
    """Seconds of a forward pass of one picture, medians over rounds in which the models take turns.

    Models are built again for each size (pixels), with new weights, which do not affect the times.
    """
    seconds = {}
    for size in sizes:
        actions = {}
        for name, model in models.items():
            origin = origin_of(model)
            if origin is None:
                raise ValueError(
                    f"{name} was not built by name, so that it cannot be built for pictures of {size} pixels"
                )
            built = build({**origin, "options": {**origin["options"], "img_size": size}})
            set_layers(built, {"layers": layers_of(model)}, Path(), {})
            picture = torch.randn(1, getattr(model, "in_chans", 3), size, size, device=device)
            actions[name] = partial(forward_seconds, Contestant(built.to(device).eval(), (picture,)))
        for action in actions.values():
            action()
        measured = interleaved(actions, rounds)
        seconds[size] = {name: statistics.median(each) for name, each in measured.items()}
    return seconds


def has_compiler() -> bool:
    """Whether there is a C++ compiler, which compiling for a CPU needs."""
    return any(shutil.which(name) for name in (os.environ.get("CXX"), "g++", "clang++", "cl") if name)


# Contestants


class Projections(nn.Module):
    """The linear maps of VARS-D and no reconstruction: proj(value(tokens) + query(tokens))."""

    def __init__(self, dim: int):
        super().__init__()
        self.value, self.query, self.proj = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, tokens: Tensor, grid: Grid | None = None) -> Tensor:
        return self.proj(self.value(tokens) + self.query(tokens))


def layer(name: str, tokens: int, batch: int, device: str = "cpu") -> Contestant:
    """An attention by name, built for a square grid, with random tokens (batch, tokens, 192) on it."""
    module = create_attention(name, DIM, heads=HEADS, grid=square(tokens))
    return _of_tokens(module, tokens, batch, device)


def _of_tokens(module: nn.Module, tokens: int, batch: int, device: str) -> Contestant:
    inputs = torch.randn(batch, tokens, DIM, device=device, requires_grad=True)
    return Contestant(module.to(device), (inputs, square(tokens)))


def square(tokens: int) -> Grid:
    """The square grid (side, side) of a number of tokens. Raises a ValueError if there is none."""
    side = math.isqrt(max(tokens, 0))
    if side < 1 or side * side != tokens:
        near = max(1, round(math.sqrt(max(tokens, 0))))
        raise ValueError(f"tokens lie on a square grid: {tokens} is no square number, the nearest is {near * near}")
    return side, side


def with_reference(attentions: Iterable[str]) -> list[str]:
    """The names, each once, with softmax first for the ratios. Raises a ValueError if one is unknown."""
    names = list(dict.fromkeys((REFERENCE, *attentions)))
    unknown = [name for name in names if name not in ATTENTIONS]
    if unknown:
        raise ValueError(f"no attention named {', '.join(map(repr, unknown))}: there are {', '.join(ATTENTIONS)}")
    return names


# Measuring


def measure(
    section: str, contestants: Mapping[str, Contestant], tokens: int | None, batch: int, rounds: int
) -> list[Measurement]:
    """Measures contestants in turns, among them "softmax". Tokens and batch are only recorded."""
    _warm_allocator()
    for contestant in contestants.values():
        forward_seconds(contestant)
        training_seconds(contestant)
    # All forward passes of a round come before all backward ones, so that compared runs are close in time.
    actions = {("forward", name): partial(forward_seconds, each) for name, each in contestants.items()}
    actions |= {("training", name): partial(training_seconds, each) for name, each in contestants.items()}
    actions |= {
        ("solver", name): partial(solver_seconds, each)
        for name, each in contestants.items()
        if isinstance(each.module, Reconstruction)
    }
    seconds = interleaved(actions, rounds)
    peaks = {name: peak_bytes(each) for name, each in contestants.items()}
    rows = []
    for name in contestants:
        forward, training, solver = seconds["forward", name], seconds["training", name], seconds.get(("solver", name))
        rows.append(
            Measurement(
                section=section,
                contestant=name,
                tokens=tokens,
                batch=batch,
                rounds=rounds,
                forward_seconds=statistics.median(forward),
                forward_spread=spread(forward),
                forward_ratio=ratio(forward, seconds["forward", REFERENCE]),
                training_seconds=statistics.median(training),
                training_spread=spread(training),
                training_ratio=ratio(training, seconds["training", REFERENCE]),
                peak_bytes=peaks[name],
                peak_ratio=peaks[name] / max(peaks[REFERENCE], 1),
                solver_share=None if solver is None else statistics.median(solver) / statistics.median(forward),
            )
        )
    return rows


def interleaved(actions: Mapping[Key, Callable[[], float]], rounds: int) -> dict[Key, list[float]]:
    """Results of each action, by rounds. In a round each runs once, so that a slow moment affects all of them."""
    if rounds < 1:
        raise ValueError(f"rounds must be at least 1, got {rounds}")
    measured: dict[Key, list[float]] = {key: [] for key in actions}
    for _ in range(rounds):
        for key, action in actions.items():
            measured[key].append(action())
    return measured


def _warm_allocator() -> None:
    """Allocates and frees a few large tensors."""
    # glibc allocates each large block anew from the system until such a block was freed once, up to 32 MB. Without this
    # the first contestant would pay for all.
    for _ in range(3):
        torch.empty(28 * 2**20, dtype=torch.uint8).fill_(0)


@torch.no_grad()
def forward_seconds(contestant: Contestant) -> float:
    """Seconds of one forward pass in eval mode."""
    contestant.module.eval()
    return seconds_of(contestant.run, contestant.device)


def training_seconds(contestant: Contestant) -> float:
    """Seconds of one forward and backward pass in train mode."""
    _prepare_training(contestant)
    return seconds_of(lambda: contestant.run().sum().backward(), contestant.device)


@torch.no_grad()
def solver_seconds(contestant: Contestant) -> float:
    """Seconds in which a `Reconstruction` solves its problem; posing it comes before and is not counted."""
    layer = contestant.module.eval()
    assert isinstance(layer, Reconstruction)
    with contestant.context():
        problem = layer.pose(*contestant.inputs)
        return seconds_of(lambda: reconstruct(problem, layer.solver), contestant.device)


def peak_bytes(contestant: Contestant) -> int:
    """Peak number of bytes of tensors during a forward and backward pass, above those before it."""
    _prepare_training(contestant)
    if contestant.device.type == "cuda":
        before = torch.cuda.memory_allocated(contestant.device)
        torch.cuda.reset_peak_memory_stats(contestant.device)
        contestant.run().sum().backward()
        return torch.cuda.max_memory_allocated(contestant.device) - before
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        contestant.run().sum().backward()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text(errors="replace"))["traceEvents"]
    memory = sorted((event for event in events if event.get("name") == "[memory]"), key=lambda event: event["ts"])
    if not memory:
        return 0
    totals = [event["args"]["Total Allocated"] for event in memory]
    # The profiler's count continues from an earlier profile.
    return max(totals) - (totals[0] - memory[0]["args"]["Bytes"])


def _prepare_training(contestant: Contestant) -> None:
    contestant.module.train()
    contestant.module.zero_grad(set_to_none=True)
    contestant.inputs[0].grad = None


def seconds_of(work: Callable[[], object], device: torch.device | str = "cpu") -> float:
    """Seconds of some work, with that of the device."""
    _synchronize(device)
    begin = time.perf_counter()
    work()
    _synchronize(device)
    return time.perf_counter() - begin


def _synchronize(device: torch.device | str) -> None:
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)


# Summaries


def spread(seconds: Sequence[float]) -> float:
    """Half the interquartile range, as a share of the median."""
    low, middle, high = torch.tensor(seconds, dtype=torch.float64).quantile(
        torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64)
    )
    return ((high - low) / (2 * middle)).item()


def ratio(seconds: Sequence[float], reference: Sequence[float]) -> float:
    """The median over rounds of the ratio within a round."""
    return statistics.median(own / other for own, other in zip(seconds, reference, strict=True))


def exponent(tokens: Sequence[int], seconds: Sequence[float]) -> float:
    """The exponent of time in tokens: the least-squares slope of log(seconds) on log(tokens)."""
    return statistics.linear_regression([math.log(count) for count in tokens], [math.log(s) for s in seconds]).slope


def exponents(rows: Iterable[Measurement]) -> dict[str, dict[str, float]]:
    """Contestant -> the exponents of its forward and training time, of rows on several numbers of tokens."""
    tokens: dict[str, list[int]] = {}
    forward: dict[str, list[float]] = {}
    training: dict[str, list[float]] = {}
    for row in rows:
        assert row.tokens is not None  # of layers
        tokens.setdefault(row.contestant, []).append(row.tokens)
        forward.setdefault(row.contestant, []).append(row.forward_seconds)
        training.setdefault(row.contestant, []).append(row.training_seconds)
    return {
        name: {"forward": exponent(counts, forward[name]), "training": exponent(counts, training[name])}
        for name, counts in tokens.items()
    }
