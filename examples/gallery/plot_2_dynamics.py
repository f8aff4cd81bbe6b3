"""
Neurons that settle at the solution of a lasso problem
======================================================

The recurrent equations that the paper starts from, integrated by Euler steps. Their energy never rises, and
they come to rest at the solution of the problem. ISTA reaches it in fewer steps.
"""

import matplotlib.pyplot as plt
import torch

from torchvars.sparse import FISTA, ISTA, LCA, Dense, NeuralDynamics, SparseCoding

torch.manual_seed(0)
atoms = torch.randn(32, 24, dtype=torch.float64)
atoms /= atoms.norm(dim=0)
problem = SparseCoding(Dense(atoms), torch.randn(32, 1, dtype=torch.float64), strength=0.3)
solution = FISTA(2000, tolerance=1e-9).solve(problem)

# %%
# Left: the activity g(u) of each neuron; the dots are the solution. Many neurons fall silent. Middle: the
# energy above its final value. Right: the distance from the solution, for three solvers.

steps = 250
dynamics = NeuralDynamics(steps)
figure, axes = plt.subplots(1, 3, figsize=(12, 3.5), layout="constrained")
activity = torch.cat(list(dynamics.trajectory(problem)), dim=1)
axes[0].plot(activity.T, linewidth=1)
axes[0].scatter([steps] * len(solution), solution, color="black", s=12, zorder=3)
axes[0].set(xlabel="Euler step", ylabel="activity g(u)")

states = dynamics.states(problem)
energy = [float(dynamics.energy(problem, z, u)) for (z, u), _ in zip(states, range(steps + 1), strict=False)]
rest = float(problem.objective(solution) - problem.signal.square().sum())
axes[1].semilogy([each - rest for each in energy])
axes[1].set(xlabel="Euler step", ylabel="energy above rest")

for solver in (dynamics, LCA(steps), ISTA(steps)):
    distances = [float((code - solution).norm() / solution.norm()) for code in solver.trajectory(problem)]
    axes[2].semilogy(distances, label=type(solver).__name__)
axes[2].set(xlabel="step", ylabel="relative distance from the solution")
axes[2].legend(frameon=False)
plt.show()
