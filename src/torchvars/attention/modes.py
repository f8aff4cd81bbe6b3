"""Training and evaluation mode."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Every part of a model in evaluation mode, and then each back in the mode it was in."""
    before = {module: module.training for module in model.modules()}
    for module in before:
        module.training = False
    try:
        yield
    finally:
        for module, training in before.items():
            module.training = training
