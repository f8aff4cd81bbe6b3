"""How near to the optimum a few steps come, for each solver, start and step rule.

    python benchmarks/solvers.py
    python benchmarks/solvers.py --weights deit_tiny_patch16_224.safetensors    (needs timm)

The problems are those that layers of 192 channels and 6 heads pose on 14 x 14 tokens with strength .3, at their
initialisation: of Gaussian tokens, of patches of two photographs (which come with scikit-learn), and with --weights
those made of the queries and values in layers of a pretrained DeiT-Ti that looks at the same photographs.

The gap is (objective - optimum) / (objective of the zero code - optimum), all signals together: 0 is the optimum, 1 is
no better than answering nothing. Violation is the median over signals of max |u - S(u - gradient, strength)|; zeros is
the share of the code that is exactly zero. Time is that of the layer before its output projection, the median of
interleaved runs, as a ratio to three steps of ISTA from P^T x, which alone has a fast form. LearnedISTA is trained on
half of the pictures to lower the objective; all figures are of the other half.
"""

import argparse
import json
import statistics
from collections.abc import Callable, Iterator
from dataclasses import asdict, astuple, dataclass
from functools import partial
from pathlib import Path

import torch
from sklearn.datasets import load_sample_images
from torch import Tensor

from torchvars.attention import PositiveFeatures, create
from torchvars.models.speed import interleaved, seconds_of
from torchvars.sparse import (
    FISTA,
    ISTA,
    LCA,
    Dense,
    LearnedISTA,
    NeuralDynamics,
    Solver,
    SpaRSA,
    SparseCoding,
    reconstruct,
)

DIM, HEADS, GRID, STRENGTH = 192, 6, (14, 14), 0.3
STEPS = (0, 1, 3, 5, 10)

Pose = Callable[[], SparseCoding]


@dataclass(frozen=True)
class Measurement:
    problem: str
    solver: str
    start: str
    rule: str
    steps: int
    gap: float
    violation: float
    zeros: float
    time_ratio: float | None


# Problems


def problems(weights: Path | None) -> Iterator[tuple[str, Pose, Pose]]:
    """Name, the problem to learn on and the one to measure; they are posed anew each time, so that all is timed."""
    torch.manual_seed(0)
    for kind, count in (("vars_d", 8), ("vars_s", 2), ("vars_sd", 4)):
        layer = create(kind, DIM, heads=HEADS, grid=GRID, strength=STRENGTH)
        for source, tokens in (("Gaussian tokens", torch.randn(count, 196, DIM)), ("photographs", patches(count))):
            seen, held_out = tokens.chunk(2)
            yield f"{kind}, {source}", partial(layer.pose, seen, GRID), partial(layer.pose, held_out, GRID)
    if weights is not None:
        yield from deit_problems(weights)


def patches(count: int) -> Tensor:
    """Crops of photographs as tokens: (count, 196, 192), patches of 16 x 16 pixels in their principal axes."""
    rows = photographs(count).unfold(2, 16, 16).unfold(3, 16, 16).permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)
    rows = rows - rows.mean((0, 1))
    _, _, axes = torch.linalg.svd(rows.flatten(0, 1), full_matrices=False)
    return torch.nn.functional.layer_norm(rows @ axes[:DIM].T, (DIM,))


def photographs(count: int) -> Tensor:
    """Random crops of 224 pixels, the two photographs in turn: (count, 3, 224, 224) in [0, 1]."""
    generator = torch.Generator().manual_seed(0)
    pictures = [torch.tensor(picture).permute(2, 0, 1) / 255 for picture in load_sample_images().images]
    crops = []
    for index in range(count):
        picture = pictures[index % len(pictures)]
        top, left = (int(torch.randint(0, size - 223, (), generator=generator)) for size in picture.shape[1:])
        crops.append(picture[:, top : top + 224, left : left + 224])
    return torch.stack(crops)


def deit_problems(weights: Path) -> Iterator[tuple[str, Pose, Pose]]:
    """Queries and values of layers 1, 6, 12 of DeiT-Ti without the class token: 3 heads of 64 channels, 128 atoms."""
    import timm
    from safetensors.torch import load_file

    model = timm.create_model("deit_tiny_patch16_224").eval()
    model.load_state_dict({name: tensor.float() for name, tensor in load_file(weights).items()})
    projected = {}
    for layer in (0, 5, 11):
        model.blocks[layer].attn.qkv.register_forward_hook(lambda *call, key=layer: projected.update({key: call[2]}))
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    model((photographs(8) - mean[:, None, None]) / std[:, None, None])

    def pose(features: PositiveFeatures, queries: Tensor, values: Tensor) -> SparseCoding:
        return SparseCoding(Dense(features.atoms(queries), nonnegative=True), values, STRENGTH)

    for layer, qkv in projected.items():
        queries, _, values = qkv[:, 1:].unflatten(-1, (3, 3, -1)).permute(2, 0, 3, 1, 4)
        features = PositiveFeatures(64, 3, 128)
        halves = zip(queries.chunk(2), values.chunk(2), strict=True)
        yield f"vars_d, DeiT-Ti layer {layer + 1}", *(partial(pose, features, *half) for half in halves)


def with_row_sums(pose: Pose) -> SparseCoding:
    """The released step rule: the largest absolute row sum of P^T P, plus one."""
    problem = pose()
    gram = problem.operator.gram_matrix
    problem.operator.find_bound = lambda: gram.abs().sum(-1).amax(-1)[..., None, None] + 1
    return problem


# Methods


@dataclass(frozen=True)
class Method:
    name: tuple[str, str, str]  # solver, start, step rule
    build: Callable[[int], Solver]
    pose: Pose


def methods(seen: Pose, held_out: Pose) -> Iterator[Method]:
    """Every solver from every start, with the step rules that its dictionary knows."""
    starts = ("analysis", "zero", "scaled")
    for kind in (ISTA, FISTA):
        for start in starts:
            yield Method((kind.__name__, start, "spectral"), partial(kind, start=start), held_out)
            if isinstance(held_out().operator, Dense):
                posed = partial(with_row_sums, held_out)
                yield Method((kind.__name__, start, "row sum"), partial(kind, start=start), posed)
    for start in starts:
        yield Method(("SpaRSA", start, "curvature"), partial(SpaRSA, start=start), held_out)
    for kind in (LCA, NeuralDynamics):
        for start in ("analysis", "zero"):
            yield Method((kind.__name__, start, "spectral"), partial(kind, start=start), held_out)
    for start in ("analysis", "scaled"):
        yield Method(("LearnedISTA", start, "learned"), partial(trained, seen(), start=start), held_out)


@torch.enable_grad()
def trained(problem: SparseCoding, steps: int, start: str) -> LearnedISTA:
    solver = LearnedISTA(steps, start)
    optimizer = torch.optim.Adam(solver.parameters(), lr=0.05)
    scale = problem.objective(torch.zeros_like(problem.analysis)).sum()
    for _ in range(60):
        optimizer.zero_grad()
        (problem.objective(solver.solve(problem)).sum() / scale).backward()
        optimizer.step()
    return solver.requires_grad_(False)


# Measuring


def measure(name: str, seen: Pose, held_out: Pose, repeats: int) -> tuple[str, list[Measurement]]:
    """A line on the problem, and all figures."""
    problem = held_out()
    optimum = FISTA(2000, "scaled", tolerance=1e-4).solve(problem)
    best = problem.objective(optimum).sum().item()
    nothing = problem.objective(torch.zeros_like(optimum)).sum().item()
    unit = Method(("unit", "", ""), lambda _: ISTA(3), held_out)
    rows = []
    for steps in STEPS:
        runs = {method: method.build(max(steps, 1)) for method in [unit, *methods(seen, held_out)]}
        actions = {method: partial(layer_seconds, method, solver) for method, solver in runs.items()}
        seconds = interleaved(actions, repeats) if steps else None
        for method, solver in list(runs.items())[1:]:
            code = solver.solve(method.pose()) if steps else next(solver.trajectory(method.pose()))
            gap = (problem.objective(code).sum().item() - best) / (nothing - best)
            violation, zeros = problem.violation(code).median().item(), (code == 0).float().mean().item()
            time_ratio = statistics.median(seconds[method]) / statistics.median(seconds[unit]) if steps else None
            rows.append(Measurement(name, *method.name, steps, gap, violation, zeros, time_ratio))
    return describe(problem, optimum), rows


def layer_seconds(method: Method, solver: Solver) -> float:
    return seconds_of(lambda: reconstruct(method.pose(), solver))


# Printing


def describe(problem: SparseCoding, optimum: Tensor) -> str:
    active = (optimum != 0).float().sum(-2).mean().item()
    zeros = 100 * (1 - active / optimum.shape[-2])
    eigenvalue = problem.operator.lipschitz().mean().item()
    return (
        f"{problem.operator.size} atoms on {problem.signal.shape[-2]} positions, largest eigenvalue {eigenvalue:.1f}. "
        f"At the optimum {zeros:.0f} % of the code is zero and {active:.0f} atoms are active "
        f"(violation {problem.violation(optimum).max().item():.0e})."
    )


def show(name: str, description: str, rows: list[Measurement]) -> None:
    print(f"\n### {name}\n\n{description}\n")
    headings = [*(f"gap {steps}" for steps in STEPS), "violation 3", "zeros 3", "time 3"]
    print("| solver | start | step | " + " | ".join(headings) + " |")
    print("|---" * (3 + len(headings)) + "|")
    for kind in dict.fromkeys((row.solver, row.start, row.rule) for row in rows):
        own = {row.steps: row for row in rows if (row.solver, row.start, row.rule) == kind}
        gaps = " | ".join(f"{own[steps].gap:.3g}" for steps in STEPS)
        figures = f"{own[3].violation:.2g} | {100 * own[3].zeros:.0f} % | {own[3].time_ratio:.2f}"
        print(f"| {' | '.join(kind)} | {gaps} | {figures} |", flush=True)


def summarize(rows: list[Measurement]) -> None:
    """The gap after three steps, all problems side by side."""
    names = list(dict.fromkeys(row.problem for row in rows))
    print("\n### The gap after three steps\n")
    print("| solver | start | step | " + " | ".join(names) + " |")
    print("|---" * (3 + len(names)) + "|")
    for kind in dict.fromkeys((row.solver, row.start, row.rule) for row in rows):
        gaps = {row.problem: f"{row.gap:.3g}" for row in rows if row.steps == 3 and kind == astuple(row)[1:4]}
        print(f"| {' | '.join(kind)} | " + " | ".join(gaps.get(name, "") for name in names) + " |")


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=Path, help="DeiT-Ti in timm's names, .safetensors")
    parser.add_argument("--repeats", type=int, default=5, help="timed runs of each (default: 5)")
    parser.add_argument("--output", type=Path, default=Path("output/solvers.json"), help="where all figures go as JSON")
    arguments = parser.parse_args()
    if arguments.weights is not None and not arguments.weights.is_file():
        parser.error(f"--weights: no file {arguments.weights}")
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    rows = []
    for name, seen, held_out in problems(arguments.weights):
        description, measured = measure(name, seen, held_out, arguments.repeats)
        show(name, description, measured)
        rows += measured
    summarize(rows)
    arguments.output.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    print(f"\nall figures: {arguments.output}")


if __name__ == "__main__":
    main()
