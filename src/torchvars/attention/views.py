"""Sparsity and energy of the attentions of a model on a few images."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from .base import Attention
from .inspect import inspect
from .modes import evaluating
from .reconstruction import Reconstruction
from .tokens import Grid, Place, as_grid


class Views(NamedTuple):
    """Sparsity and energy of the layers of a model on a few images, by the names of the layers."""

    sparsity: dict[str, float]  # share of exact zeros in the code, for layers that have one
    energy: dict[str, Tensor]  # norm over channels of the reconstruction or output: (batch, H, W)
    steps: dict[str, list[Tensor]]  # the energy after each step of the solver, beginning with the start


@torch.no_grad()
def look(model: nn.Module, pixels: Tensor) -> Views:
    """Sparsity and energy of every attention on a few images, in evaluation mode.

    The energy is that of the reconstruction, or of the output of other layers. Class, register and distillation tokens
    of a converted model are left out. If patches come without their grid, it is the grid for which the model was built
    if their number fits, else a square.

    Raises:
        ValueError: if the grid of the patches is unknown.
    """
    outputs, grids = {}, {}

    def note(name: str) -> Callable:
        def hook(layer: Attention, args: tuple, kwargs: dict, output: Tensor) -> None:
            grids[name] = _find_grid(name, layer, output, kwargs.get("grid", args[1] if len(args) > 1 else None))
            energy = output.float().norm(dim=-1)
            outputs[name] = energy if output.ndim == 4 else _on_grid(energy, grids[name])

        return hook

    attentions = {name: layer for name, layer in model.named_modules() if isinstance(layer, Attention)}
    hooks = [layer.register_forward_hook(note(name), with_kwargs=True) for name, layer in attentions.items()]
    try:
        with evaluating(model), inspect(model) as layers:
            model(pixels)
    finally:
        for hook in hooks:
            hook.remove()
    steps = {}
    for name, layer in layers.items():
        attention = attentions[name]
        assert isinstance(attention, Reconstruction)
        codes = attention.solver.trajectory(layer.problem)
        passed_on = [layer.reader.synthesize(code) for code in codes]
        steps[name] = [_on_grid(each.norm(dim=(1, 3)), grids[name]) for each in passed_on]
    energy = outputs | {name: energies[-1] for name, energies in steps.items()}
    return Views({name: layer.sparsity.item() for name, layer in layers.items()}, energy, steps)


def _find_grid(name: str, layer: Attention, output: Tensor, given: Grid | None) -> Grid:
    """The grid of the patches of a layer: from their shape, as given, or from their number."""
    if output.ndim == 4:
        return as_grid(output.shape[1:3])
    if given is not None:
        return as_grid(given)
    built_for, prefix = layer.place or Place(None, 0)
    if prefix is None:
        raise ValueError(f"the number of tokens before the patches of {name} is unknown, so that it cannot be drawn")
    count = output.shape[1] - prefix
    if built_for is not None and math.prod(built_for) == count:
        return built_for
    side = math.isqrt(max(count, 0))
    if side == 0 or side * side != count:
        raise ValueError(
            f"{name} is given {count} patches without their grid, and no square, so that they cannot be drawn: pass "
            "images of the size for which the model was built"
        )
    return side, side


def _on_grid(energy: Tensor, grid: Grid) -> Tensor:
    """Energies of tokens (batch, prefix + H W) -> those of the patches, (batch, H, W)."""
    return energy[:, -math.prod(grid) :].unflatten(-1, grid)
