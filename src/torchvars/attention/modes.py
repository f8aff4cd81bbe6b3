"""Training and evaluation mode."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """A context in which all modules of a model are in evaluation mode; afterwards their modes are restored."""
    before = {module: module.training for module in model.modules()}
    for module in before:
        module.training = False
    try:
        yield
    finally:
        for module, training in before.items():
            module.training = training
