"""Inspection of the layers of a model as it runs."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..sparse import Operator, SparseCoding
from .reconstruction import Reconstruction


@dataclass(frozen=True)
class Inspection:
    """The last run of one layer, with its graph. Shapes are (batch, heads, ..., channels of a head)."""

    problem: SparseCoding
    code: Tensor  # (batch, heads, M, channels)
    reader: Operator  # R, which reads out the code; the dictionary itself if the layer has no reader
    output: Tensor  # R u, the input of the output projection: (batch, heads, N, channels)

    @property
    def reconstruction(self) -> Tensor:
        """P u, the part of the signal that the code explains: (batch, heads, N, channels)."""
        return self.output if self.reader is self.operator else self.operator.synthesize(self.code)

    @property
    def operator(self) -> Operator:
        return self.problem.operator

    @property
    def signal(self) -> Tensor:
        """The values x that are reconstructed: (batch, heads, N, channels)."""
        return self.problem.signal

    @property
    def objective(self) -> Tensor:
        """1/2 |P u - x|^2 + strength |u|_1, also if the threshold is not `soft`: (batch, heads, channels)."""
        return SparseCoding(self.operator, self.signal, self.problem.strength).objective(self.code)

    @property
    def violation(self) -> Tensor:
        """The distance of the code from optimality: (batch, heads, channels)."""
        return self.problem.violation(self.code)

    @property
    def sparsity(self) -> Tensor:
        """The share of entries of the code that are exactly zero, a scalar."""
        return (self.code == 0).to(torch.get_default_dtype()).mean()


class Layers(dict[str, Inspection]):
    """Inspections by the name of the layer, added as the model runs."""

    def __init__(self, names: list[str]):
        super().__init__()
        self.names = names

    def __missing__(self, name: str) -> Inspection:
        if name in self.names:
            raise KeyError(f"{name!r} has not run yet: call the model inside the `with` block")
        known = ", ".join(map(repr, self.names)) or "none in this model"
        raise KeyError(f"no reconstruction layer named {name!r}; there are: {known}")


@contextmanager
def inspect(model: nn.Module) -> Iterator[Layers]:
    """A context that records code, operator, objective and sparsity of every `Reconstruction` of a model.

        with torchvars.inspect(model) as layers:
            model(images)
        layers["blocks.3.attn"].code

    If the model itself is the layer, its name is "". If a layer runs several times, the last run is kept.
    """
    modules = {name: module for name, module in model.named_modules() if isinstance(module, Reconstruction)}
    layers = Layers(list(modules))

    before = {name: module.observer for name, module in modules.items()}

    def observer_of(name: str):
        outer = before[name]  # the observer of an enclosing inspection

        def observe(problem: SparseCoding, code: Tensor, reader: Operator, output: Tensor) -> None:
            layers[name] = Inspection(problem, code, reader, output)
            if outer is not None:
                outer(problem, code, reader, output)

        return observe

    try:
        for name, module in modules.items():
            module.observer = observer_of(name)
        yield layers
    finally:
        for name, module in modules.items():
            module.observer = before[name]
