"""Export of models to ONNX and to exported programs of PyTorch."""

import copy
import io
import json
import re
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .. import __version__
from ..attention.folded import fold
from .backbone import sides
from .calls import add_functions, by_calls
from .classifier import Classifier
from .origin import image_size, origin_of
from .peers import class_names
from .weights import write_whole

FORMATS = ("onnx", "pt2")


def check_runtime(format: str) -> None:
    """Raises a ModuleNotFoundError if a package that writes or runs a format is not installed."""
    if format == "onnx":
        for module in ("onnx", "onnxscript", "onnxruntime"):
            import_module(module)


def export(
    classifier: Classifier,
    path: str | Path,
    format: str,
    img_size: int | Sequence[int] | None = None,
    *,
    extend: Callable[[Classifier, Tensor], Any] | None = None,
    half: bool = False,
    report: Callable[[str], object] = lambda step: None,
) -> float:
    """Writes a classifier, pixels in [0, 1] -> logits, for batches of pictures of one size, and checks the file.

    The file computes in single precision. The metadata of an ONNX file has the classes and the preprocessing.

    Args:
        format: "onnx" or "pt2" (a `torch.export` program).
        img_size: size of the pictures in pixels; by default that of the model.
        extend: (classifier, pixels) -> a module that returns more than logits, such as `torchvars.maps.WithMaps`, with
            the same attributes `classifier`, `inputs`, `outputs` and `metadata`; for ONNX.
        half: whether large weights are stored in half precision, which halves the file; for ONNX.
        report: called with a line of text before each step.

    Returns:
        The largest difference between the logits of the file and of the model, on random pictures of two batch sizes.
    """
    if format not in FORMATS:
        raise ValueError(f"format must be one of {', '.join(FORMATS)}, got {format!r}")
    if format != "onnx" and (extend is not None or half):
        raise ValueError(f"maps and weights in half precision are for the format onnx, got {format!r}")
    path = Path(path)
    if img_size is None and (img_size := image_size(classifier.model)) is None:
        raise ValueError(
            f"{type(classifier.model).__name__} does not say what pictures it takes: pass img_size in pixels"
        )
    size = sides(img_size)
    if open_ended := [name for name, module in classifier.model.named_modules() if _has_tolerance(module)]:
        raise ValueError(
            f"{len(open_ended)} layers, such as {open_ended[0]}, solve to a tolerance: how many steps they take "
            "depends on the picture, which an exported file cannot express; set their tolerance to None"
        )
    classifier = copy.deepcopy(classifier).cpu().float().eval().requires_grad_(False)  # the caller's is not changed
    generator = torch.Generator().manual_seed(0)
    pictures = [torch.rand(batch, len(classifier.mean), *size, generator=generator) for batch in (2, 3)]
    try:
        expected = [classifier(picture) for picture in pictures]
    except (AssertionError, RuntimeError, ValueError) as error:
        raise ValueError(f"the model takes no pictures of {size[0]} x {size[1]} pixels: {error}") from error
    metadata = describe(classifier, size)
    if extend is not None:
        extended = extend(classifier, pictures[0])
        metadata["maps"] = extended.metadata
        extended.classifier = fold(extended.classifier, pictures[0])
        content = _onnx(extended, pictures[0], metadata, half, report)
        run = _session(content, extended.inputs)
    elif format == "pt2":
        classifier = fold(classifier, pictures[0])
        report("tracing the model")
        program = _trace(classifier, (pictures[0],))
        content = io.BytesIO()
        torch.export.save(program, content, extra_files={"torchvars.json": json.dumps(metadata)})
        content = content.getvalue()
        run = torch.export.load(io.BytesIO(content)).module()
    else:
        content = _onnx(fold(classifier, pictures[0]), pictures[0], metadata, half, report)
        run = _session(content)
    report("comparing its logits with the model's")
    differences = [
        (run(picture) - logits).abs().max().item() for picture, logits in zip(pictures, expected, strict=True)
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, lambda temporary: temporary.write_bytes(content))
    return max(differences)


def _has_tolerance(module: nn.Module) -> bool:
    return getattr(getattr(module, "solver", None), "tolerance", None) is not None


def describe(classifier: Classifier, size: tuple[int, int]) -> dict[str, object]:
    """Metadata of an exported classifier: its classes, and the preprocessing of pictures."""
    origin = origin_of(classifier.model)
    return {
        "torchvars": __version__,
        "architecture": None if origin is None else origin["name"],
        "classes": class_names(classifier),
        "input": "pixels (batch, channels, height, width), RGB, not normalised: the model does that",
        "size": size,
        "range": (0.0, 1.0),
        "resize": round(min(size) * 256 / 224),
        "crop": "centre",
        "interpolation": "bicubic",
        "mean": [round(value, 6) for value in classifier.mean.flatten().tolist()],
        "std": [round(value, 6) for value in classifier.std.flatten().tolist()],
    }


def _trace(model: nn.Module, inputs: tuple, of_pictures: bool = True) -> torch.export.ExportedProgram:
    """A program with a dynamic batch dimension, of the first input or of all tensors in it."""
    batch = {0: torch.export.Dim("batch", min=1, max=4096)}
    if of_pictures:
        shapes = (batch, *[None] * (len(inputs) - 1))
    else:
        shapes = (tuple(batch for _ in inputs[0]), tuple(None for _ in inputs[1]))
    return torch.export.export(model, inputs, dynamic_shapes=shapes)


def _onnx(
    module: nn.Module, pictures: Tensor, metadata: dict[str, object], half: bool, report: Callable[[str], object]
) -> bytes:
    """The bytes of an ONNX file; values of the metadata that are not text are written as JSON."""
    import onnx_ir
    from onnx_ir.passes import common

    more: dict[str, Tensor] = getattr(module, "inputs", {})
    inputs = (pictures, *more.values())
    bodies = by_calls(module, *inputs)
    report("tracing the model")
    program = _trace(module, inputs)
    report(f"translating {len(program.graph.nodes)} operations to ONNX")
    names = ["logits", *getattr(module, "outputs", ())]
    model = _translate(program, input_names=["pixels", *more], output_names=names)
    called = {node.op_type for node in model.graph}
    if bodies := {name: body for name, body in bodies.items() if name in called}:
        report(f"adding the solver, once for {len(bodies)} kind{'s' if len(bodies) > 1 else ''} of layers")
        add_functions(model, bodies, lambda body, inputs: _translate(_trace(body, inputs, of_pictures=False)))
    for change in (
        common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        common.DeduplicateInitializersPass(),
        common.CommonSubexpressionEliminationPass(),
        common.RemoveUnusedNodesPass(),
        common.RemoveUnusedOpsetsPass(),
        common.ClearMetadataAndDocStringPass(),  # which has paths of this machine
    ):
        change(model)
    _name_batch(model)
    if half:
        _store_in_half(model)
    for key, value in metadata.items():
        model.metadata_props[key] = value if isinstance(value, str) else json.dumps(value)
    return onnx_ir.to_proto(model).SerializeToString()


def _translate(
    program: torch.export.ExportedProgram, input_names: list[str] | None = None, output_names: list[str] | None = None
):
    """A model of onnx_ir whose constants are folded.

    This is onnxscript's optimiser without its patterns, which are for other models and take nine tenths of the time.
    """
    from onnx_ir.passes import common
    from onnxscript.optimizer import fold_constants

    exported = torch.onnx.export(
        program, verbose=False, optimize=False, input_names=input_names, output_names=output_names
    )
    assert exported is not None  # as it is for a program
    model = exported.model
    common.InlinePass()(model)
    fold_constants(model)
    common.RemoveUnusedNodesPass()(model)
    return model


def _store_in_half(model, least: int = 1024) -> None:
    """Stores initializers with at least so many numbers in half precision, each with one Cast to single precision."""
    import numpy as np
    import onnx_ir

    for value in list(model.graph.initializers.values()):
        if value.dtype != onnx_ir.DataType.FLOAT or value.const_value.size < least:
            continue
        numbers = value.const_value.numpy()
        if not np.abs(numbers).max() < np.finfo(np.float16).max:
            continue
        stored = onnx_ir.tensor(numbers.astype(np.float16), name=f"{value.name}.half")
        half = onnx_ir.Value(
            name=stored.name, shape=value.shape, type=onnx_ir.TensorType(stored.dtype), const_value=stored
        )
        cast = onnx_ir.Node("", "Cast", [half], [onnx_ir.AttrInt64("to", onnx_ir.DataType.FLOAT)])
        cast.outputs[0].shape, cast.outputs[0].type = value.shape, value.type
        value.replace_all_uses_with(cast.outputs[0])
        model.graph.insert_before(model.graph[0], cast)
        del model.graph.initializers[value.name]
        model.graph.initializers.add(half)


def _name_batch(model) -> None:
    """Names the axis of pictures `batch` everywhere, in place of names of the tracer such as s26."""
    import onnx_ir

    values = [*model.graph.inputs, *(value for node in model.graph for value in node.outputs)]
    for value in values:
        if value.shape is not None:
            value.shape = onnx_ir.Shape([_named(dim) for dim in value.shape])


def _named(dim):
    if isinstance(dim, int) or dim.value is None:
        return dim
    return re.sub(r"\bs\d+\b", "batch", str(dim.value))


def _session(content: bytes, more: dict[str, Tensor] | None = None) -> Callable[[Tensor], Tensor]:
    import onnxruntime

    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    inputs = {name: value.numpy() for name, value in (more or {}).items()}

    def run(pixels: Tensor) -> Tensor:
        return torch.from_numpy(session.run(["logits"], {"pixels": pixels.numpy(), **inputs})[0])

    return run
