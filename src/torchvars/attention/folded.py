"""VARS layers for an exported graph: of pictures of one size, and with filters that no longer change."""

from functools import partial
from typing import TypeGuard, TypeVar

import torch
from torch import Tensor, nn

from ..sparse import L1, Convolution, Dense, Joint, Learned, RowSum, Solver, SparseCoding, soft
from ..sparse.spectral import Basis, FixedFilters, Rotated
from .base import Attention
from .dictionaries import Static, StaticDynamic
from .reconstruction import Reconstruction
from .tokens import Grid, fit, merge_heads, precise, split_heads

Model = TypeVar("Model", bound=nn.Module)


class Folded(Attention):
    """The same answers as a `Reconstruction` with filters, posed in the Fourier basis of the grid: see sparse.spectral.

    Args:
        layer: with a `Static` or a `StaticDynamic` dictionary; the weights are shared with it.
        filters: of that dictionary.
    """

    def __init__(self, layer: Reconstruction, filters: FixedFilters):
        super().__init__(layer.dim, layer.heads)
        self.value, self.proj, self.place = layer.value, layer.proj, layer.place
        self.dynamic = layer.dictionary.dynamic if type(layer.dictionary) is StaticDynamic else None
        nonnegative = self.dynamic is not None and not self.dynamic.centered
        self.reconstruct = Reconstruct(filters, layer.solver, layer.strength, nonnegative=nonnegative)

    def mix(self, tokens: Tensor, grid: Grid | None) -> Tensor:
        return self.proj(merge_heads(self.reconstruct(*self.pieces(tokens, grid))))

    def pieces(self, tokens: Tensor, grid: Grid | None) -> tuple[Tensor, ...]:
        """Values and, of SD, atoms."""
        value = precise(split_heads(self.value(tokens), self.heads))
        return (value,) if self.dynamic is None else (value, self.dynamic.atoms(tokens, grid))

    # As a `Reconstruction` has them, for who looks into it

    reader = None

    @property
    def solver(self) -> Solver:
        return self.reconstruct.solver

    def pose(self, tokens: Tensor, grid: Grid | None = None) -> SparseCoding:
        """The problem that these tokens pose, on the grid itself."""
        value, *atoms = self.pieces(tokens, grid)
        problem = self.reconstruct.pose(value, *atoms)
        return SparseCoding(Rotated(problem.operator, self.reconstruct.filters.basis), value, problem.penalty)


class Reconstruct(nn.Module):
    """What a layer solves: values (batch, heads, N, C) and, of SD, atoms (batch, heads, N, M) -> P u.

    Args:
        filters: of the static dictionary.
        nonnegative: whether no dynamic atom has a negative entry.
    """

    def __init__(self, filters: FixedFilters, solver: Solver, strength: float, *, nonnegative: bool):
        super().__init__()
        self.filters, self.solver, self.strength, self.nonnegative = filters, solver, strength, nonnegative

    def forward(self, value: Tensor, atoms: Tensor | None = None) -> Tensor:
        problem = self.pose(value, atoms)
        return self.filters.basis.inverse(problem.operator.synthesize(self.solver.solve(problem)))

    def pose(self, value: Tensor, atoms: Tensor | None = None) -> SparseCoding:
        """The problem in the basis."""
        basis, operator = self.filters.basis, self.filters()
        if atoms is not None:
            # P^T P is that of the atoms on the grid, so that what is known of its entries still holds.
            operator = Joint(operator, Dense(basis.transform(atoms), nonnegative=self.nonnegative))
        return SparseCoding(operator, basis.transform(value), _L1(self.strength))

    def extra_repr(self) -> str:
        return f"strength={self.strength}, nonnegative={self.nonnegative}"


class _L1(L1):
    """`L1` whose shrinkage takes fewer nodes: S(a, t) = a - max(-t, min(a, t))."""

    def prox(self, code: Tensor, step: Tensor | float) -> Tensor:
        amount = self.strength * step
        if not isinstance(amount, Tensor):
            return code - code.clamp(-amount, amount)
        return code - torch.maximum(torch.minimum(code, amount), -amount)


@torch.no_grad()
def fold(model: Model, *inputs: Tensor) -> Model:
    """Replaces every layer of a model that can be `Folded`, in place, for inputs of the shape of these but any batch.

    Layers of other kinds, such as the released ones, stay as they are.
    """
    layers = {name: layer for name, layer in model.named_modules() if _can_fold(layer)}
    grids: dict[str, set[Grid]] = {name: set() for name in layers}
    hooks = [_static(layer).register_forward_hook(partial(_note_grid, grids[name])) for name, layer in layers.items()]
    try:
        model(*inputs)
    finally:
        for hook in hooks:
            hook.remove()
    bases: dict[Grid, Basis] = {}
    for name, layer in layers.items():
        if len(grids[name]) == 1:
            (grid,) = grids[name]
            filters = precise(fit(_static(layer).filters, grid))
            basis = bases.setdefault(grid, Basis(grid, filters))
            parent, _, last = name.rpartition(".")
            setattr(model.get_submodule(parent), last, Folded(layer, FixedFilters(filters, basis)))
    return model


def _note_grid(grids: set[Grid], static: nn.Module, inputs: tuple, operator: Convolution) -> None:
    grids.add(operator.grid)


def _can_fold(layer: nn.Module) -> TypeGuard[Reconstruction]:
    """Whether it is the paper's layer, with a solver that asks nothing of single entries of the dictionary."""
    return (
        type(layer) is Reconstruction
        and type(layer.dictionary) in (Static, StaticDynamic)
        and layer.reader is None
        and layer.threshold is soft
        and not _takes_row_sums(layer.solver)
        and layer.solver.tolerance is None
    )


def _takes_row_sums(solver: Solver) -> bool:
    rule = getattr(solver, "step", None)
    return isinstance(rule.rule if isinstance(rule, Learned) else rule, RowSum)


def _static(layer: Reconstruction) -> Static:
    static = layer.dictionary.static if isinstance(layer.dictionary, StaticDynamic) else layer.dictionary
    assert isinstance(static, Static)
    return static
