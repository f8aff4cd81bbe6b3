"""What the codes of trained VARS models are like, layer by layer.

    python benchmarks/codes.py MODEL [MODEL ...] --data PICTURES

A model is a name whose weights ship, or a folder of weights or of a run. All is measured on 32 pictures of val.

Zeros: share of the code that is exactly zero, as it is after the steps and at the optimum. Gap: (objective - optimum) /
(objective of the zero code - optimum), so 0 is the optimum and 1 is no better than answering nothing. Unexplained:
energy of x - P u over that of x. Signal: root mean square of x.

Gains: how much of the signal comes out along the eigenvectors of P P^T, by the size of their eigenvalues; at the
optimum without a penalty every gain would be 1.

Parts: of a union of dictionaries, the share that is unexplained where three steps of ISTA start, at P^T x, and at their
end, by either part alone and by both, with the bound on the largest eigenvalue of P^T P that the steps go by.
"""

import argparse
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from tables import some, table
from torchvars.attention import Inspection, inspect
from torchvars.evaluation.subjects import open_subject
from torchvars.sparse import FISTA, ISTA, Dense, Joint, SparseCoding

DIRECTIONS = {"1st": 1, "2nd": 2, "4th": 4, "8th": 8, "16th": 16}


@torch.no_grad()
def rows(models: list[str], data: str, measure: Callable[[Inspection], list[str] | None]) -> Iterator[list[str]]:
    """What is measured of every layer of which it can be."""
    for model in models:
        subject = open_subject(model)
        with inspect(subject.classifier) as layers:
            subject.classifier(some(subject, data, 32).pixels)
        if not layers:
            raise SystemExit(f"{model} has no VARS layer")
        for name, layer in layers.items():
            cells = measure(layer)
            if cells is not None:
                yield [subject.name, name.removeprefix("model."), *cells]


def code_of(layer: Inspection) -> list[str]:
    problem = layer.problem
    optimum = FISTA(1000, "scaled", tolerance=1e-4).solve(problem)
    nothing, best = (problem.objective(each).sum() for each in (torch.zeros_like(optimum), optimum))
    gap = (layer.objective.sum() - best) / (nothing - best)
    zeros = [100 * (code == 0).float().mean().item() for code in (layer.code, optimum)]
    size = layer.signal.square().mean().sqrt().item()
    return [
        *(f"{share:.0f} %" for share in zeros),
        f"{gap:.2f}",
        f"{100 * unexplained(problem, layer.code):.0f} %",
        f"{size:.2f}",
    ]


def unexplained(problem: SparseCoding, code: Tensor) -> float:
    rest = problem.operator.synthesize(code) - problem.signal
    return (rest.square().sum() / problem.signal.square().sum()).item()


def gains_of(layer: Inspection) -> list[str] | None:
    if not isinstance(layer.operator, Dense):
        return None
    atoms = layer.operator.atoms.double()
    values, directions = torch.linalg.eigh(atoms @ atoms.mT)
    before, after = (directions.mT @ each.double() for each in (layer.signal, layer.reconstruction))
    gains = (before * after).sum(-1) / before.square().sum(-1)
    return [f"{values[..., -k].mean():.1f}: {gains[..., -k].median():.2f}" for k in DIRECTIONS.values()]


def parts_of(layer: Inspection) -> list[str] | None:
    if not isinstance(layer.operator, Joint):
        return None
    cells = []
    for operator in (layer.operator.first, layer.operator.second, layer.operator):
        problem = SparseCoding(operator, layer.signal, layer.problem.strength)
        start, *_, end = ISTA(3).trajectory(problem)
        bound = operator.lipschitz().mean()
        cells.append(f"{bound:.1f}: {unexplained(problem, start):.0f} to {unexplained(problem, end):.2f}")
    return cells


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument("--data", required=True, metavar="PICTURES", help="with val")
    given = parser.parse_args()
    head = ["model", "layer", "zeros", "at the optimum", "gap", "unexplained", "signal"]
    table(head, rows(given.models, given.data, code_of))
    head = ["model", "layer", *(f"{name} eigenvalue: gain" for name in DIRECTIONS)]
    table(head, rows(given.models, given.data, gains_of))
    head = ["model", "layer", *(f"{part}, bound: unexplained" for part in ("static", "dynamic", "both"))]
    table(head, rows(given.models, given.data, parts_of))


if __name__ == "__main__":
    main()
