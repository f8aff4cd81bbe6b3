"""The mathematics: operators, the sparse coding problem, its solvers and their gradients. Tensors only."""

from .dynamics import LCA, NeuralDynamics
from .equilibrium import Equilibrium
from .forms import plain
from .operators import Convolution, Dense, Joint, Operator, Partition
from .penalty import L1, Shrinkage
from .problem import SparseCoding
from .reconstruct import reconstruct
from .settings import SOLVERS, settings_of, solver_from
from .solvers import FISTA, ISTA, LearnedISTA, Solver, SpaRSA
from .threshold import gelu, soft

__all__ = [
    "FISTA",
    "ISTA",
    "L1",
    "LCA",
    "SOLVERS",
    "Convolution",
    "Dense",
    "Equilibrium",
    "Joint",
    "LearnedISTA",
    "NeuralDynamics",
    "Operator",
    "Partition",
    "Shrinkage",
    "Solver",
    "SpaRSA",
    "SparseCoding",
    "gelu",
    "plain",
    "reconstruct",
    "settings_of",
    "soft",
    "solver_from",
]
