"""Look into the layers of a model as it runs."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..sparse import Operator, SparseCoding
from .reconstruction import Reconstruction


@dataclass(frozen=True)
class Inspection:
    """One layer as it ran last, with the graph it ran with: shapes are (batch, heads, ..., channels of a head)."""

    problem: SparseCoding
    code: Tensor  # (batch, heads, M, channels)
    reader: Operator  # R, which reads the code out; the dictionary itself where the layer has no other
    output: Tensor  # R u, what is passed on before the output projection: (batch, heads, N, channels)

    @property
    def reconstruction(self) -> Tensor:
        """P u, what the code explains of the signal: (batch, heads, N, channels)."""
        return self.output if self.reader is self.operator else self.operator.synthesize(self.code)

    @property
    def operator(self) -> Operator:
        return self.problem.operator

    @property
    def signal(self) -> Tensor:
        """The values that were reconstructed: (batch, heads, N, channels)."""
        return self.problem.signal

    @property
    def objective(self) -> Tensor:
        """1/2 |P u - x|^2 + strength |u|_1, also where the threshold is another: (batch, heads, channels)."""
        return SparseCoding(self.operator, self.signal, self.problem.strength).objective(self.code)

    @property
    def violation(self) -> Tensor:
        """How far the code is from optimal: (batch, heads, channels)."""
        return self.problem.violation(self.code)

    @property
    def sparsity(self) -> Tensor:
        """Share of the code that is exactly zero, a number."""
        return (self.code == 0).to(torch.get_default_dtype()).mean()


class Layers(dict[str, Inspection]):
    """Inspections by the name of the layer, filled as the model runs."""

    def __init__(self, names: list[str]):
        super().__init__()
        self.names = names

    def __missing__(self, name: str) -> Inspection:
        if name in self.names:
            raise KeyError(f"{name!r} has not run yet: call the model inside the `with` block")
        known = ", ".join(map(repr, self.names)) or "none: this model reconstructs nowhere"
        raise KeyError(f"no reconstruction layer named {name!r}; there are: {known}")


@contextmanager
def inspect(model: nn.Module) -> Iterator[Layers]:
    """Collects code, reconstruction, operator, objective and sparsity of every `Reconstruction` in a model.

        with torchvars.inspect(model) as layers:
            model(images)
        layers["blocks.3.attn"].code

    A layer that is the model itself has the name "". Of a layer that runs several times, the last run is kept.
    """
    modules = {name: module for name, module in model.named_modules() if isinstance(module, Reconstruction)}
    layers = Layers(list(modules))

    before = {name: module.observer for name, module in modules.items()}

    def observer_of(name: str):
        outer = before[name]  # that of an inspection around this one

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
