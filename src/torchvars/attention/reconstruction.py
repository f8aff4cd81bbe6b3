"""The VARS layer: attention as the sparse reconstruction of its values."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from ..sparse import Operator, Solver, SparseCoding, reconstruct, soft, solver_from, solver_names
from ..sparse.precision import outside_autocast
from ..sparse.problem import check_strength
from .base import Attention
from .tokens import Grid, merge_heads, precise, split_heads


class Reconstruction(Attention):
    """Attention that reconstructs its values from a few atoms of a dictionary.

        x = value(tokens), P = dictionary(tokens, grid)
        u = solver.solve(1/2 |P u - x|^2 + strength |u|_1)
        output = proj(P u), or proj(R u) with a reader R = reader(tokens, grid)

    The paper's residual z = P u + x is the skip connection of the block around it. `solver`, `solver.steps` and
    `strength` may be changed at any time.

    Args:
        dim: width of the tokens.
        heads: number of heads; each has its own dictionary.
        dictionary: (tokens, grid) -> Operator on signals (batch, heads, N, dim / heads).
        solver: a solver or its name. Its class also decides how the layer is differentiated.
        strength: the paper's lambda.
        bias: whether the value projection has a bias.
        reader: (tokens, grid) -> Operator that reads out the code; the dictionary itself when None.
    """

    solver: Solver
    threshold = staticmethod(soft)
    observer: Callable[[SparseCoding, Tensor, Operator, Tensor], None] | None = None  # set by `inspect`

    def __init__(
        self,
        dim: int,
        heads: int,
        dictionary: nn.Module,
        solver: Solver | str,
        strength: float = 0.3,
        *,
        bias: bool = True,
        reader: nn.Module | None = None,
    ):
        super().__init__(dim, heads)
        self.value = nn.Linear(dim, dim, bias=bias)
        self.dictionary = dictionary
        self.reader = reader
        self.solver = as_solver(solver)
        self.strength = strength
        self.proj = nn.Linear(dim, dim)

    def pose(self, tokens: Tensor, grid: Grid | None = None) -> SparseCoding:
        """The sparse coding problem of the tokens."""
        value = precise(split_heads(self.value(tokens), self.heads))
        operator = self.dictionary(tokens, grid)
        with outside_autocast(tokens):
            return SparseCoding(operator, value, self.penalty(), self.threshold)

    def penalty(self) -> Tensor | float:
        """The strength of the problem."""
        return self.strength

    def reconstruct(self, tokens: Tensor, grid: Grid | None = None) -> Tensor:
        """P u, or R u with a reader, before the output projection: (batch, N, dim)."""
        problem = self.pose(tokens, grid)
        reader = None if self.reader is None else self.reader(tokens, grid)
        with outside_autocast(tokens):
            if self.observer is None:
                output = reconstruct(problem, self.solver, reader)
            else:
                code, reader = self.solver.solve(problem), reader or problem.operator
                output = reader.synthesize(code)
                self.observer(problem, code, reader, output)
        return merge_heads(output).to(tokens.dtype)

    def mix(self, tokens: Tensor, grid: Grid | None) -> Tensor:
        return self.proj(self.reconstruct(tokens, grid))

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "solver":
            value = as_solver(value)
        if name == "strength" and isinstance(value, nn.Parameter):
            raise ValueError("strength is a number, not a parameter: for a learned strength use the solver LearnedISTA")
        super().__setattr__(name, value)

    @property
    def strength(self) -> float:
        return self._strength

    @strength.setter
    def strength(self, strength: float) -> None:
        self._strength = check_strength(strength)

    def extra_repr(self) -> str:
        return f"dim={self.dim}, heads={self.heads}, strength={self.strength}"


def as_solver(solver: Solver | str) -> Solver:
    """A solver, or the one of a name: see `solver_names`."""
    if isinstance(solver, str):
        return solver_from({"name": solver})
    if not isinstance(solver, Solver):
        raise ValueError(
            f"solver must be an object such as FISTA(steps=3), or one of {', '.join(solver_names())}, got {solver}"
        )
    return solver
