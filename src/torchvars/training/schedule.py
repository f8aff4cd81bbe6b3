"""The learning rate schedule, and the parameter groups of the optimizer."""

import math
from typing import cast

from timm.optim import param_groups_layer_decay, param_groups_weight_decay
from torch import nn

from ..models.origin import Described
from .recipe import Recipe


def learning_rate(recipe: Recipe, step: int, steps_of_epoch: int) -> float:
    """The learning rate at a step: linear warm-up, half a cosine, and the final rate."""
    scale = recipe.batch / 512
    peak, low, final = (
        rate * scale for rate in (recipe.learning_rate, recipe.warmup_learning_rate, recipe.final_learning_rate)
    )
    warmup = recipe.warmup_epochs * steps_of_epoch
    fall = (recipe.epochs - recipe.cooldown_epochs) * steps_of_epoch
    if step < warmup:
        return low + (peak - low) * step / warmup
    if step >= fall:
        return final
    return final + (peak - final) * (1 + math.cos(math.pi * (step - warmup) / (fall - warmup))) / 2


def parameter_groups(model: nn.Module, recipe: Recipe) -> list[dict]:
    """Groups for an optimizer, each with the factor of its learning rate in `lr_scale`."""
    exempt = cast(Described, model).no_weight_decay() if hasattr(model, "no_weight_decay") else set()
    if recipe.layer_decay is None:
        groups = param_groups_weight_decay(model, recipe.weight_decay, no_weight_decay_list=exempt)
    else:
        groups = param_groups_layer_decay(
            model, recipe.weight_decay, no_weight_decay_list=exempt, layer_decay=recipe.layer_decay
        )
    return [{"lr_scale": 1.0, **group} for group in groups]
