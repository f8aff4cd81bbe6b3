"""What the attentions of a model make of pictures, to be looked at."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from .base import Attention
from .inspect import inspect
from .modes import evaluating


class Views(NamedTuple):
    """What the layers of a model make of a few pictures, by the names of the layers."""

    sparsity: dict[str, float]  # share of exact zeros in the code, where there is one
    energy: dict[str, Tensor]  # norm over channels of what the attention passes on: (batch, H, W)
    steps: dict[str, list[Tensor]]  # the same after each step of the solver, where there is one, the start first


@torch.no_grad()
def look(model: nn.Module, pixels: Tensor) -> Views:
    """Sparsity and energy of every attention on a few pictures, in evaluation mode.

    The energy is that of the reconstruction, or of the output where nothing is reconstructed.

    Raises:
        ValueError: a layer does not know the grid of its tokens, as in a converted model of timm.
    """
    outputs = {}

    def note(name: str) -> Callable:
        def hook(layer: nn.Module, tokens: tuple, output: Tensor) -> None:
            if output.ndim == 4:  # (batch, H, W, dim)
                outputs[name] = output.float().norm(dim=-1)

        return hook

    attentions = {name: layer for name, layer in model.named_modules() if isinstance(layer, Attention)}
    hooks = [layer.register_forward_hook(note(name)) for name, layer in attentions.items()]
    try:
        with evaluating(model), inspect(model) as layers:
            model(pixels)
    finally:
        for hook in hooks:
            hook.remove()
    if missing := [name for name in layers if name not in outputs]:
        raise ValueError(
            f"{missing[0]} is given tokens without their grid, so that there is nothing to draw: take a model of "
            "torchvars.create, whose layers pass on (batch, H, W, dim)"
        )
    steps = {}
    for name, layer in layers.items():
        codes = attentions[name].solver.trajectory(layer.problem)
        reconstructions = [layer.operator.synthesize(code) for code in codes]
        steps[name] = [each.norm(dim=(1, 3)).unflatten(-1, outputs[name].shape[1:]) for each in reconstructions]
    energy = outputs | {name: energies[-1] for name, energies in steps.items()}
    return Views({name: layer.sparsity.item() for name, layer in layers.items()}, energy, steps)
