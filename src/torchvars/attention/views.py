"""What the attentions of a model make of pictures, to be looked at."""

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
    """What the layers of a model make of a few pictures, by the names of the layers."""

    sparsity: dict[str, float]  # share of exact zeros in the code, where there is one
    energy: dict[str, Tensor]  # norm over channels of what the attention passes on: (batch, H, W)
    steps: dict[str, list[Tensor]]  # the same after each step of the solver, where there is one, the start first


@torch.no_grad()
def look(model: nn.Module, pixels: Tensor) -> Views:
    """Sparsity and energy of every attention on a few pictures, in evaluation mode.

    The energy is that of the reconstruction as it is read out, or of the output where nothing is reconstructed. Class,
    register and distillation tokens of a converted model are left out. Patches that come without their grid are taken
    for the one that the model was built for, if they are as many, else for a square.

    Raises:
        ValueError: the grid of the patches is not known.
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
    """The grid of the patches among the tokens of a layer: by their shape, as it was told, or by their number."""
    if output.ndim == 4:
        return as_grid(output.shape[1:3])
    if given is not None:
        return as_grid(given)
    built_for, prefix = layer.place or Place(None, 0)
    if prefix is None:
        raise ValueError(f"{name} is not told how many tokens come before the patches, so that it cannot be drawn")
    count = output.shape[1] - prefix
    if built_for is not None and math.prod(built_for) == count:
        return built_for
    side = math.isqrt(max(count, 0))
    if side == 0 or side * side != count:
        raise ValueError(
            f"{name} is given {count} patches without their grid, and no square, so that they cannot be drawn: show "
            "pictures of the size the model was built for"
        )
    return side, side


def _on_grid(energy: Tensor, grid: Grid) -> Tensor:
    """Energies of tokens (batch, prefix + H W) -> those of the patches, (batch, H, W)."""
    return energy[:, -math.prod(grid) :].unflatten(-1, grid)
