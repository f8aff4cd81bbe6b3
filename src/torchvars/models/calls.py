"""Parts of a model that are written once in an ONNX graph, however often they are called.

A graph is traced operation by operation, and each takes its time in three programs. The steps of a solver are the same
operations in every layer: they are traced once, as a function of what differs (values, atoms and constants), and a
layer is one node that calls it.
"""

from collections.abc import Callable, Iterable
from functools import partial

import torch
from torch import Tensor, nn

from ..attention.folded import Reconstruct

DOMAIN = "torchvars"


class Body(nn.Module):
    """A part as a function of its inputs, then of its tensors by their names."""

    def __init__(self, part: Reconstruct):
        super().__init__()
        self._part = [part]  # not as a submodule: its tensors are to be inputs
        self.names = list(tensors_of(part))

    def forward(self, inputs: tuple[Tensor, ...], tensors: tuple[Tensor, ...]) -> Tensor:
        return torch.func.functional_call(self._part[0], dict(zip(self.names, tensors, strict=True)), inputs)


class Call(nn.Module):
    """In place of a part: one node of the graph that is exported."""

    def __init__(self, part: Reconstruct, name: str):
        super().__init__()
        self.part, self.name = part, name

    def forward(self, *inputs: Tensor) -> Tensor:
        value, given = inputs[0], (*inputs, *tensors_of(self.part).values())
        return torch.onnx.ops.symbolic(f"{DOMAIN}::{self.name}", given, dtype=value.dtype, shape=value.shape, version=1)

    def __getattr__(self, name: str):
        """What it stands for, for who looks into it: `pose`, `solver`, `filters`."""
        return super().__getattr__(name) if name == "part" else getattr(self.part, name)


def tensors_of(part: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by their names."""
    return {**dict(part.named_parameters()), **dict(part.named_buffers())}


@torch.no_grad()
def by_calls(model: nn.Module, *inputs: Tensor) -> dict[str, tuple[Body, tuple]]:
    """Replaces the parts of a model by calls, in place.

    Returns:
        By the names of the calls, what each stands for and inputs of it; parts that differ in their tensors only are
        one. Empty where PyTorch has no such nodes, before 2.8.
    """
    if not hasattr(torch.onnx, "ops"):
        return {}
    parts = {name: part for name, part in model.named_modules() if type(part) is Reconstruct}
    given: dict[str, tuple[Tensor, ...]] = {}
    hooks = [part.register_forward_pre_hook(partial(_note_inputs, given, name)) for name, part in parts.items()]
    try:
        model(*inputs)
    finally:
        for hook in hooks:
            hook.remove()
    bodies: dict[str, tuple[Body, tuple]] = {}
    known: dict[tuple, str] = {}
    for path, part in parts.items():
        shapes = [tuple(each.shape) for each in (*given[path], *tensors_of(part).values())]
        name = known.setdefault((repr(part), *shapes), f"Reconstruct{len(known)}")
        bodies.setdefault(name, (Body(part), (given[path], tuple(tensors_of(part).values()))))
        parent, _, last = path.rpartition(".")
        setattr(model.get_submodule(parent), last, Call(part, name))
    return bodies


def _note_inputs(given: dict[str, tuple[Tensor, ...]], name: str, part: nn.Module, inputs: tuple) -> None:
    given[name] = inputs


def add_functions(model, bodies: dict[str, tuple[Body, tuple]], translate: Callable) -> None:
    """Adds what calls stand for to a model of onnx_ir, and puts it in their place.

    Args:
        translate: (module, inputs) -> a model of onnx_ir.
    """
    import onnx_ir
    from onnx_ir.passes import common

    for name, (body, inputs) in bodies.items():
        graph = translate(body, inputs).graph
        _constants_as_nodes(graph, graph.initializers.values())
        function = onnx_ir.Function(DOMAIN, name, "", graph=graph, attributes=())
        model.functions[function.identifier()] = function
    common.InlinePass()(model)


def _constants_as_nodes(graph, initializers: Iterable) -> None:
    """Functions of ONNX have no initializers: theirs are nodes."""
    import onnx_ir

    for value in list(initializers):
        node = onnx_ir.Node("", "Constant", [], [onnx_ir.AttrTensor("value", value.const_value)])
        graph.insert_before(graph[0], node)
        value.replace_all_uses_with(node.outputs[0])
        del graph.initializers[value.name]
