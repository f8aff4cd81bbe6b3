"""How near to the optimum a few steps come, for each solver, start and step rule.

    python benchmarks/solvers.py
    python benchmarks/solvers.py --weights deit_tiny_patch16_224.safetensors    (needs timm)

Dictionaries and signals come from layers of 192 channels and 6 heads on 14 x 14 tokens, strength .3: of Gaussian
tokens, of patches of two photographs (those that come with scikit-learn), and with --weights of the queries and values
in layers of a pretrained DeiT-Ti on the same photographs.

The gap is (objective - optimum) / (objective of the zero code - optimum), all signals together: 0 is the optimum, 1 is
no better than answering nothing. Violation is the median over signals of max |u - S(u - gradient, strength)|; zeros is
the share of the code that is exactly zero. Times are medians of interleaved runs, as ratios to three steps of ISTA.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from sklearn.datasets import load_sample_images
from torch import Tensor

from torchvars.attention import PositiveFeatures, create
from torchvars.sparse import (
    FISTA,
    ISTA,
    LCA,
    Dense,
    LearnedISTA,
    NeuralDynamics,
    Operator,
    Solver,
    SpaRSA,
    SparseCoding,
)

DIM, HEADS, GRID, STRENGTH = 192, 6, (14, 14), 0.3
STEPS = (1, 3, 5, 10, 30)


class RowSumStep(Dense):
    """The released step rule: the largest absolute row sum of P^T P, plus one."""

    def find_bound(self) -> Tensor:
        return self.gram_matrix.abs().sum(-1).amax(-1)[..., None, None] + 1


@dataclass(frozen=True)
class Method:
    solver: str
    start: str
    rule: str
    build: Callable[[int], Solver]


def methods(problem: SparseCoding) -> list[Method]:
    """Every solver from every start, with the step rules that its dictionary knows."""
    rows = []
    for kind in (ISTA, FISTA, SpaRSA):
        rules = ["spectral", "row sum"] if kind is not SpaRSA and isinstance(problem.operator, Dense) else ["spectral"]
        for rule in rules if kind is not SpaRSA else ["curvature"]:
            for start in ("analysis", "zero", "scaled"):
                rows.append(Method(kind.__name__, start, rule, lambda steps, k=kind, s=start: k(steps, s)))
    for start in ("analysis", "zero"):
        for kind in (LCA, NeuralDynamics):
            rows.append(Method(kind.__name__, start, "spectral", lambda steps, k=kind, s=start: k(steps, s)))
    for start in ("analysis", "scaled"):
        rows.append(Method("LearnedISTA", start, "learned", lambda steps, s=start: trained(problem, steps, s)))
    return rows


def trained(problem: SparseCoding, steps: int, start: str) -> LearnedISTA:
    """Learned on the first half of the pictures; the table is of the second."""
    half = len(problem.signal) // 2
    seen = select(problem, slice(0, half))
    solver = LearnedISTA(steps, start).to(problem.signal.dtype)
    optimizer = torch.optim.Adam(solver.parameters(), lr=0.05)
    scale = seen.objective(torch.zeros_like(seen.analysis)).sum()
    for _ in range(60):
        optimizer.zero_grad()
        (seen.objective(solver.solve(seen)).sum() / scale).backward()
        optimizer.step()
    return solver.requires_grad_(False)


def select(problem: SparseCoding, pictures: slice) -> SparseCoding:
    return SparseCoding(select_operator(problem.operator, pictures), problem.signal[pictures], problem.strength)


def select_operator(operator: Operator, pictures: slice) -> Operator:
    """A static dictionary is the same for every picture; a dynamic one is not."""
    if isinstance(operator, Dense):
        return Dense(operator.atoms[pictures])
    if hasattr(operator, "first"):
        return type(operator)(select_operator(operator.first, pictures), select_operator(operator.second, pictures))
    return operator


def patches(count: int) -> Tensor:
    """Crops of two photographs as tokens: (count, 196, 192), patches of 16 x 16 pixels in their principal axes."""
    generator = torch.Generator().manual_seed(0)
    crops = photographs(count, generator)
    rows = crops.unfold(2, 16, 16).unfold(3, 16, 16).permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)
    rows = rows - rows.mean((0, 1))
    _, _, axes = torch.linalg.svd(rows.flatten(0, 1), full_matrices=False)
    return torch.nn.functional.layer_norm(rows @ axes[:DIM].T, (DIM,))


def photographs(count: int, generator: torch.Generator) -> Tensor:
    """Random crops of 224 pixels: (count, 3, 224, 224) in [0, 1]."""
    pictures = [torch.tensor(picture).permute(2, 0, 1) / 255 for picture in load_sample_images().images]
    crops = []
    for index in range(count):
        picture = pictures[index % len(pictures)]
        top, left = (int(torch.randint(0, size - 223, (), generator=generator)) for size in picture.shape[1:])
        crops.append(picture[:, top : top + 224, left : left + 224])
    return torch.stack(crops)


def problems(weights: Path | None) -> dict[str, SparseCoding]:
    torch.manual_seed(0)
    found = {}
    for kind, count in (("vars_d", 8), ("vars_s", 2), ("vars_sd", 4)):
        layer = create(kind, DIM, heads=HEADS, grid=GRID)
        for source, tokens in (("Gaussian tokens", torch.randn(count, 196, DIM)), ("photographs", patches(count))):
            found[f"{kind}, {source}"] = layer.pose(tokens, GRID)
    if weights is not None:
        found |= deit_problems(weights)
    return found


def deit_problems(weights: Path) -> dict[str, SparseCoding]:
    """Queries and values of layers 1, 6 and 12 of DeiT-Ti without the class token: 3 heads of 64 channels, 128 atoms."""
    import timm
    from safetensors.torch import load_file

    model = timm.create_model("deit_tiny_patch16_224").eval()
    model.load_state_dict({name: tensor.float() for name, tensor in load_file(weights).items()})
    seen = {}
    for layer in (0, 5, 11):
        model.blocks[layer].attn.qkv.register_forward_hook(lambda *call, layer=layer: seen.update({layer: call[2]}))
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    pictures = photographs(8, torch.Generator().manual_seed(0))
    model((pictures - mean[:, None, None]) / std[:, None, None])
    found = {}
    for layer, qkv in seen.items():
        queries, _, values = qkv[:, 1:].unflatten(-1, (3, 3, -1)).permute(2, 0, 3, 1, 4)
        logarithm = PositiveFeatures(64, 3, 128).log(queries)
        atoms = (logarithm - (2 * logarithm).logsumexp(-2, keepdim=True) / 2).exp()
        found[f"DeiT-Ti layer {layer + 1}"] = SparseCoding(Dense(atoms), values, STRENGTH)
    return found


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
    time_ratio: float


def optimum(problem: SparseCoding) -> Tensor:
    return FISTA(2000, "scaled", tolerance=1e-4).solve(problem)


def measure(name: str, problem: SparseCoding, repeats: int) -> list[Measurement]:
    half = len(problem.signal) // 2
    held_out = select(problem, slice(half, None))
    best = held_out.objective(optimum(held_out)).sum().item()
    nothing = held_out.objective(torch.zeros_like(held_out.analysis)).sum().item()
    rows = []
    for steps in STEPS:
        runs = {}
        for method in methods(problem):
            posed = held_out
            if method.rule == "row sum":
                posed = SparseCoding(RowSumStep(held_out.operator.atoms), held_out.signal, STRENGTH)
            with torch.enable_grad():
                runs[method] = method.build(steps), posed
        unit = Method("unit", "", "", ISTA)
        seconds = interleaved({**runs, unit: (ISTA(3), held_out)}, repeats)
        for method, (solver, posed) in runs.items():
            code = solver.solve(posed)
            gap = (posed.objective(code).sum().item() - best) / (nothing - best)
            rows.append(
                Measurement(
                    name,
                    method.solver,
                    method.start,
                    method.rule,
                    steps,
                    gap,
                    posed.violation(code).median().item(),
                    (code == 0).float().mean().item(),
                    seconds[method] / seconds[unit],
                )
            )
    return rows


def interleaved(runs: dict[Method, tuple[Solver, SparseCoding]], repeats: int) -> dict[Method, float]:
    """Median seconds of each, measured in turns."""
    seconds = {method: [] for method in runs}
    for _ in range(repeats):
        for method, (solver, posed) in runs.items():
            begin = time.perf_counter()
            solver.solve(posed)
            seconds[method].append(time.perf_counter() - begin)
    return {method: statistics.median(measured) for method, measured in seconds.items()}


def describe(problem: SparseCoding) -> str:
    code = optimum(problem)
    zeros = (code == 0).float().mean().item()
    top = problem.operator.lipschitz().mean().item()
    violation = problem.violation(code).max().item()
    rank = (code != 0).float().sum(-2).mean().item() / problem.signal.shape[-2]
    return (
        f"{problem.operator.size} atoms on {problem.signal.shape[-2]} positions, bound on the largest eigenvalue "
        f"{top:.1f}; at the optimum {100 * zeros:.0f} % zeros, {rank:.2f} active atoms a position "
        f"(found to a violation of {violation:.0e})"
    )


def show(name: str, description: str, rows: list[Measurement]) -> None:
    print(f"\n### {name}\n\n{description}\n")
    print("| solver | start | step | " + " | ".join(f"gap {s}" for s in STEPS) + " | violation 3 | zeros 3 | time 3 |")
    print("|---|---|---|" + "---|" * (len(STEPS) + 3))
    kinds = dict.fromkeys((row.solver, row.start, row.rule) for row in rows)
    for kind in kinds:
        own = {row.steps: row for row in rows if (row.solver, row.start, row.rule) == kind}
        gaps = " | ".join(f"{own[steps].gap:.3g}" for steps in STEPS)
        three = own[3]
        figures = f"{three.violation:.2g} | {100 * three.zeros:.0f} % | {three.time_ratio:.2f}"
        print(f"| {' | '.join(kind)} | {gaps} | {figures} |", flush=True)


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=Path, help="DeiT-Ti in timm's names, .safetensors")
    parser.add_argument("--repeats", type=int, default=5, help="timed runs of each (default: 5)")
    parser.add_argument("--output", type=Path, default=Path("output/solvers.json"), help="where all figures go as JSON")
    arguments = parser.parse_args()
    if arguments.weights is not None and not arguments.weights.is_file():
        parser.error(f"--weights: no file {arguments.weights}")
    rows = []
    for name, problem in problems(arguments.weights).items():
        measured = measure(name, problem, arguments.repeats)
        show(name, describe(problem), measured)
        rows += measured
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    print(f"\nwritten to {arguments.output}")


if __name__ == "__main__":
    main()
