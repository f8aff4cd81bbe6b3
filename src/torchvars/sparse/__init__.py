"""The mathematics: operators, the sparse coding problem, its solvers and their gradients. Tensors only."""

from .dynamics import LCA, NeuralDynamics
from .equilibrium import Equilibrium
from .operators import Convolution, Dense, Joint, Operator
from .problem import SparseCoding
from .solvers import FISTA, ISTA, LearnedISTA, Solver, SpaRSA
from .threshold import gelu, soft

SOLVERS = {
    "ista": ISTA,
    "fista": FISTA,
    "learned_ista": LearnedISTA,
    "sparsa": SpaRSA,
    "neural_dynamics": NeuralDynamics,
    "lca": LCA,
}

__all__ = [
    "FISTA",
    "ISTA",
    "LCA",
    "SOLVERS",
    "Convolution",
    "Dense",
    "Equilibrium",
    "Joint",
    "LearnedISTA",
    "NeuralDynamics",
    "Operator",
    "Solver",
    "SpaRSA",
    "SparseCoding",
    "gelu",
    "soft",
]
