"""The head of a classifier: its name, and a head for some of its classes."""

from collections.abc import Sequence
from typing import cast

import torch
from torch import nn

from .origin import Described

# In transformers, torchvision and timm.
USUAL = ("classifier", "cls_classifier", "distillation_classifier", "heads.head", "head", "head_dist")


def head_names(model: nn.Module) -> tuple[str, ...]:
    """Names of the layers that return logits: those of timm's configuration, else usual names; may be empty."""
    named = (getattr(model, "default_cfg", None) or {}).get("classifier") or USUAL
    modules = dict(model.named_modules())
    return tuple(name for name in ([named] if isinstance(named, str) else named) if name in modules)


def linear_heads(model: nn.Module) -> dict[str, nn.Linear]:
    """The heads by their names. Raises a ValueError unless they are linear layers."""
    heads = {name: model.get_submodule(name) for name in head_names(model)}
    linear = {name: head for name, head in heads.items() if isinstance(head, nn.Linear)}
    others = [type(head).__name__ for name, head in heads.items() if name not in linear]
    if others or not heads:
        raise ValueError(
            f"{type(model).__name__} has {'no known head' if not heads else f'a head of {others[0]}'}: "
            "expected a linear layer from features to logits"
        )
    return linear


@torch.no_grad()
def cut_head(model: nn.Module, columns: Sequence[int]) -> nn.Module:
    """Reduces the logits of a model to those of some classes, in this order, bit for bit; in place."""
    for name, head in linear_heads(model).items():
        smaller = nn.Linear(head.in_features, len(columns), bias=head.bias is not None).to(head.weight)
        smaller.weight.copy_(head.weight[list(columns)])
        if head.bias is not None:
            smaller.bias.copy_(head.bias[list(columns)])
        model.set_submodule(name, smaller.train(head.training).requires_grad_(head.weight.requires_grad))
    described = cast(Described, model)
    if hasattr(model, "config"):  # of transformers, where num_labels counts the names of the labels
        names, config = {number: str(number) for number in range(len(columns))}, described.config
        config.id2label, config.label2id = names, {name: number for number, name in names.items()}
        described.num_labels = len(columns)
    else:
        described.num_classes = len(columns)
    return model
