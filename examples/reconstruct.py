"""A photograph explained by templates made of itself: what the recurrent steps of a VARS layer do.

    python examples/reconstruct.py [--output output/reconstruct]

The tokens are 56 x 56 patches of 4 x 4 pixels. Positive random features of their colours and places make 96 atoms, as
in VARS-D; each colour of each pixel of a patch is a signal that a few atoms should explain. Printed: how near the code
is to the optimum after each step. Drawn: the reconstruction after some of them, and the atoms that explain most.
"""

import argparse
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_sample_image
from torch import Tensor

from torchvars.attention import PositiveFeatures
from torchvars.sparse import FISTA, ISTA, Dense, Solver, SpaRSA, SparseCoding

SIDE, PATCH, ATOMS, STRENGTH = 56, 4, 96, 0.3
SHOWN = (0, 1, 3, 10)


def photograph() -> Tensor:
    """(3, 224, 224) in [0, 1]: the middle of a photograph that comes with scikit-learn."""
    picture = torch.tensor(load_sample_image("flower.jpg")).permute(2, 0, 1) / 255
    picture = torch.nn.functional.interpolate(picture[None], scale_factor=0.6, mode="area")[0]
    top, left = (size // 2 - 112 for size in picture.shape[1:])
    return picture[:, top : top + 224, left : left + 224]


def to_tokens(picture: Tensor) -> Tensor:
    """(3, 224, 224) -> (3136, 48): one patch a token."""
    return torch.nn.functional.unfold(picture[None], PATCH, stride=PATCH)[0].T


def to_picture(tokens: Tensor) -> Tensor:
    return torch.nn.functional.fold(tokens.T[None], SIDE * PATCH, PATCH, stride=PATCH)[0].clamp(0, 1)


def dictionary(tokens: Tensor) -> Dense:
    """Atoms are positive features of what a patch shows and of where it is."""
    place = torch.linspace(-1, 1, SIDE)
    rows, columns = torch.meshgrid(place, place, indexing="ij")
    colours = torch.nn.functional.avg_pool1d(tokens.unflatten(1, (3, -1)), PATCH * PATCH)[..., 0]
    looks = (colours - colours.mean(0)) / colours.std(0)
    queries = 2 * torch.cat([looks, torch.stack([rows.flatten(), columns.flatten()], dim=1)], dim=1)
    features = PositiveFeatures(queries.shape[1], heads=1, count=ATOMS)
    return Dense(features.atoms(queries)[0], nonnegative=True)


def steps_of(solver: Solver, problem: SparseCoding, best: float) -> list[Tensor]:
    print(f"\n{type(solver).__name__} from {solver.start}\n step       gap   zeros   violation")
    nothing = problem.objective(torch.zeros_like(problem.analysis)).sum().item()
    codes = list(solver.trajectory(problem))
    for step in SHOWN:
        gap = (problem.objective(codes[step]).sum().item() - best) / (nothing - best)
        zeros = (codes[step] == 0).float().mean().item()
        print(f"{step:5d}{gap:10.3f}{100 * zeros:7.0f} %{problem.violation(codes[step]).max().item():11.3g}")
    return codes


def draw(
    picture: Tensor,
    mean: Tensor,
    problem: SparseCoding,
    optimum: Tensor,
    runs: dict[str, list[Tensor]],
    path: Path,
) -> None:
    figure, axes = plt.subplots(3, len(SHOWN) + 1, figsize=(11, 6.8), layout="constrained")
    for ax in axes.flat:
        ax.axis("off")
    explained = to_picture(problem.operator.synthesize(optimum) + mean)
    for row, (title, shown) in enumerate({"the photograph": picture, "at the optimum": explained}.items()):
        axes[row, 0].imshow(shown.permute(1, 2, 0).numpy())
        axes[row, 0].set_title(title, fontsize=9)
    for row, (name, codes) in enumerate(runs.items()):
        for column, step in enumerate(SHOWN):
            shown = to_picture(problem.operator.synthesize(codes[step]) + mean)
            axes[row, column + 1].imshow(shown.permute(1, 2, 0).numpy())
            axes[row, column + 1].set_title(f"{name}, step {step}", fontsize=9)
    strongest = optimum.norm(dim=-1).argsort(descending=True)
    for column in range(len(SHOWN) + 1):
        atom = problem.operator.atoms[:, strongest[column]].unflatten(0, (SIDE, SIDE))
        axes[2, column].imshow(atom.numpy(), cmap="magma")
        axes[2, column].set_title(f"atom {column + 1} by weight", fontsize=9)
    figure.savefig(path, dpi=110)


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("output/reconstruct"), help="folder for the picture")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)

    picture = photograph()
    tokens = to_tokens(picture)
    mean = tokens.mean(0)
    problem = SparseCoding(dictionary(tokens), tokens - mean, STRENGTH)
    optimum = FISTA(5000, "scaled", tolerance=1e-4).solve(problem)
    best = problem.objective(optimum).sum().item()
    print(f"{problem.operator.size} atoms on {SIDE} x {SIDE} tokens, strength {STRENGTH}")
    print(f"largest eigenvalue {problem.operator.lipschitz().item():.1f}")
    print(f"at the optimum {100 * (optimum == 0).float().mean().item():.0f} % of the code is zero")
    print("gap: 0 at the optimum, 1 for the zero code")
    last = max(SHOWN)
    runs = {
        "ISTA": steps_of(ISTA(last), problem, best),
        "SpaRSA": steps_of(SpaRSA(last), problem, best),
    }
    path = arguments.output / "reconstruct.png"
    draw(picture, mean, problem, optimum, runs, path)
    print(f"\npicture: {path}")


if __name__ == "__main__":
    main()
