"""VARS layers for exported graphs, for images of one size and with fixed filters."""

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
    """A `Reconstruction` with filters, solved in the Fourier basis of the grid: see sparse.spectral.

    Args:
        layer: a layer with a `Static` or a `StaticDynamic` dictionary; its weights are shared.
        filters: the filters of that dictionary.
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
        """The values and, for SD, the atoms."""
        value = precise(split_heads(self.value(tokens), self.heads))
        return (value,) if self.dynamic is None else (value, self.dynamic.atoms(tokens, grid))

    # The interface of `Reconstruction` that attention maps use

    reader = None

    @property
    def solver(self) -> Solver:
        return self.reconstruct.solver

    def pose(self, tokens: Tensor, grid: Grid | None = None) -> SparseCoding:
        """The sparse coding problem of the tokens, on the grid."""
        value, *atoms = self.pieces(tokens, grid)
        problem = self.reconstruct.pose(value, *atoms)
        return SparseCoding(Rotated(problem.operator, self.reconstruct.filters.basis), value, problem.penalty)


class Reconstruct(nn.Module):
    """The solver part of a layer: values (batch, heads, N, C) and, for SD, atoms (batch, heads, N, M) -> P u.

    Args:
        filters: the filters of the static dictionary.
        nonnegative: whether all entries of dynamic atoms are nonnegative.
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
            # P^T P is the same as for the atoms on the grid, so `nonnegative` still holds for it.
            operator = Joint(operator, Dense(basis.transform(atoms), nonnegative=self.nonnegative))
        return SparseCoding(operator, basis.transform(value), _L1(self.strength))

    def extra_repr(self) -> str:
        return f"strength={self.strength}, nonnegative={self.nonnegative}"


class _L1(L1):
    """`L1` with a shrinkage of fewer nodes: S(a, t) = a - max(-t, min(a, t))."""

    def prox(self, code: Tensor, step: Tensor | float) -> Tensor:
        amount = self.strength * step
        if not isinstance(amount, Tensor):
            return code - code.clamp(-amount, amount)
        return code - torch.maximum(torch.minimum(code, amount), -amount)


@torch.no_grad()
def fold(model: Model, *inputs: Tensor) -> Model:
    """Replaces, in place, all layers of a model that can be `Folded`, for inputs of this shape and any batch size.

    Other layers, such as the released ones, are not changed.
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
    """Whether a layer is that of the paper, with a solver that does not use single entries of the dictionary."""
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
