"""The mathematics: operators, the sparse coding problem, its solvers and their gradients. Tensors only."""

from .dynamics import LCA, NeuralDynamics
from .equilibrium import Equilibrium
from .forms import plain
from .operators import Convolution, Dense, Joint, Operator, Partition, SoftPartition
from .penalty import L1, Shrinkage
from .problem import SparseCoding
from .reconstruct import reconstruct
from .settings import SOLVERS, settings_of, solver_from, solver_names
from .solvers import FISTA, ISTA, LearnedISTA, Solution, Solver, SpaRSA, Status
from .steps import STEP_RULES, Learned, RowSum, Spectral, StepRule
from .threshold import gelu, soft

__all__ = [
    "FISTA",
    "ISTA",
    "L1",
    "LCA",
    "SOLVERS",
    "STEP_RULES",
    "Convolution",
    "Dense",
    "Equilibrium",
    "Joint",
    "Learned",
    "LearnedISTA",
    "NeuralDynamics",
    "Operator",
    "Partition",
    "RowSum",
    "Shrinkage",
    "SoftPartition",
    "Solution",
    "Solver",
    "SpaRSA",
    "SparseCoding",
    "Spectral",
    "Status",
    "StepRule",
    "gelu",
    "plain",
    "reconstruct",
    "settings_of",
    "soft",
    "solver_from",
    "solver_names",
]
