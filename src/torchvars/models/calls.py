"""Parts of a model that are traced once for an ONNX graph and called several times.

Tracing takes time for each operation. The steps of a solver are the same operations in every layer: they are traced
once, as a function of what differs (values, atoms and constants), and each layer is one node that calls it.
"""

from collections.abc import Callable, Iterable
from functools import partial

import torch
from torch import Tensor, nn

from ..attention.folded import Reconstruct

DOMAIN = "torchvars"


class Body(nn.Module):
    """A part as a function of its inputs and of its tensors."""

    def __init__(self, part: Reconstruct):
        super().__init__()
        self._part = [part]  # in a list, not as a submodule: its tensors are inputs
        self.names = list(tensors_of(part))

    def forward(self, inputs: tuple[Tensor, ...], tensors: tuple[Tensor, ...]) -> Tensor:
        return torch.func.functional_call(self._part[0], dict(zip(self.names, tensors, strict=True)), inputs)


class Call(nn.Module):
    """A call in place of a part: one node of the exported graph."""

    def __init__(self, part: Reconstruct, name: str):
        super().__init__()
        self.part, self.name = part, name

    def forward(self, *inputs: Tensor) -> Tensor:
        value, arguments = inputs[0], (*inputs, *tensors_of(self.part).values())
        return torch.onnx.ops.symbolic(
            f"{DOMAIN}::{self.name}", arguments, dtype=value.dtype, shape=value.shape, version=1
        )

    def __getattr__(self, name: str):
        """Attributes of the part, such as `pose`, `solver` and `filters`."""
        return super().__getattr__(name) if name == "part" else getattr(self.part, name)


def tensors_of(part: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by their names."""
    return {**dict(part.named_parameters()), **dict(part.named_buffers())}


@torch.no_grad()
def by_calls(model: nn.Module, *inputs: Tensor) -> dict[str, tuple[Body, tuple]]:
    """Replaces the parts of a model by calls, in place.

    Returns:
        Body and inputs of each call by its name; parts that differ in their tensors only have one. Empty before
        PyTorch 2.8, which has no such nodes.
    """
    if not hasattr(torch.onnx, "ops"):
        return {}
    parts = {name: part for name, part in model.named_modules() if type(part) is Reconstruct}
    noted: dict[str, tuple[Tensor, ...]] = {}
    hooks = [part.register_forward_pre_hook(partial(_note_inputs, noted, name)) for name, part in parts.items()]
    try:
        model(*inputs)
    finally:
        for hook in hooks:
            hook.remove()
    bodies: dict[str, tuple[Body, tuple]] = {}
    names: dict[tuple, str] = {}
    for path, part in parts.items():
        shapes = [tuple(each.shape) for each in (*noted[path], *tensors_of(part).values())]
        name = names.setdefault((repr(part), *shapes), f"Reconstruct{len(names)}")
        bodies.setdefault(name, (Body(part), (noted[path], tuple(tensors_of(part).values()))))
        parent, _, last = path.rpartition(".")
        setattr(model.get_submodule(parent), last, Call(part, name))
    return bodies


def _note_inputs(noted: dict[str, tuple[Tensor, ...]], name: str, part: nn.Module, inputs: tuple) -> None:
    noted[name] = inputs


def add_functions(model, bodies: dict[str, tuple[Body, tuple]], translate: Callable) -> None:
    """Adds the bodies of calls to a model of onnx_ir, and inlines them.

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
    """Turns initializers into nodes, since functions of ONNX cannot have them."""
    import onnx_ir

    for value in list(initializers):
        node = onnx_ir.Node("", "Constant", [], [onnx_ir.AttrTensor("value", value.const_value)])
        graph.insert_before(graph[0], node)
        value.replace_all_uses_with(node.outputs[0])
        del graph.initializers[value.name]
