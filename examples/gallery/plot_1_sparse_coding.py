"""
A photograph explained by few atoms
===================================

What the recurrent steps of a VARS layer do, on a photograph. The tokens are patches of 4 x 4 pixels. The atoms
are positive random features of the tokens themselves, as in VARS-D. Each colour of each pixel of a patch is a
signal that a few atoms should explain.
"""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_sample_image
from torch.nn.functional import fold, unfold

from torchvars.attention import PositiveFeatures
from torchvars.sparse import FISTA, ISTA, Dense, SpaRSA, SparseCoding

side, patch = 48, 4
photograph = torch.tensor(load_sample_image("flower.jpg")[8:392:2, 104:488:2]).permute(2, 0, 1) / 255
tokens = unfold(photograph[None], patch, stride=patch)[0].T  # (2304, 48): one patch a token
mean = tokens.mean(0)

# %%
# The queries of the random features are the mean colour of a patch and its place.

place = torch.linspace(-1, 1, side)
colours = tokens.unflatten(1, (3, -1)).mean(-1)
queries = 2 * torch.cat([(colours - colours.mean(0)) / colours.std(0), torch.cartesian_prod(place, place)], dim=1)
torch.manual_seed(0)
features = PositiveFeatures(queries.shape[1], heads=1, count=96)
problem = SparseCoding(Dense(features.atoms(queries)[0]), tokens - mean, strength=0.3)

# %%
# ISTA, FISTA and SpaRSA solve the same problem. The gap is 0 at the optimum and 1 for the code of zeros.

optimum = FISTA(2000, "scaled", tolerance=1e-3).solve(problem)
best = float(problem.objective(optimum).sum())
zero = float(problem.objective(torch.zeros_like(optimum)).sum())
figure, axis = plt.subplots(figsize=(6, 3.5), layout="constrained")
for solver in (ISTA(30, start="zero"), FISTA(30, start="zero"), SpaRSA(30)):
    gaps = [(float(problem.objective(code).sum()) - best) / (zero - best) for code in solver.trajectory(problem)]
    axis.semilogy(gaps, label=f"{type(solver).__name__}, start {solver.start!r}")
axis.set(xlabel="step", ylabel="gap")
axis.legend(frameon=False)

# %%
# The reconstruction P u after some steps of SpaRSA, how much of the code is zero, and the six atoms with the
# largest weights at the optimum. An atom is a map over the photograph: bright where patches are similar.


def to_image(tokens):
    return fold(tokens.T[None], side * patch, patch, stride=patch)[0].clamp(0, 1).permute(1, 2, 0)


codes = [*SpaRSA(10).trajectory(problem), optimum]
figure, axes = plt.subplots(2, 6, figsize=(11, 4.1), layout="constrained")
axes[0, 0].imshow(photograph.permute(1, 2, 0))
axes[0, 0].set_title("photograph", fontsize=9)
for axis, step in zip(axes[0, 1:], (0, 1, 3, 10, 11), strict=True):
    axis.imshow(to_image(problem.operator.synthesize(codes[step]) + mean))
    title = "optimum" if step == 11 else f"step {step}"
    axis.set_title(f"{title}: {100 * float((codes[step] == 0).float().mean()):.0f} % zeros", fontsize=9)
for index, axis in zip(optimum.norm(dim=-1).argsort(descending=True), axes[1], strict=False):
    axis.imshow(problem.operator.atoms[:, index].unflatten(0, (side, side)), cmap="magma")
for axis in axes.flat:
    axis.axis("off")
plt.show()
