"""Recording the inputs of the attentions of a model in its own, unchanged forward pass."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from ..attention import Attention
from ..attention.modes import evaluating
from ..attention.tokens import Grid, Place, as_grid
from ..models.classifier import run_model
from ..models.origin import image_size
from ..models.selfattention import class_path, find_place, is_known, read
from ..sparse.forms import plain
from ..sparse.precision import outside_autocast
from .mixing import KNOWN, Mixing, is_attention, mixing_of


@dataclass(frozen=True)
class Run:
    """The input of one attention.

    Attributes:
        tokens: (batch, prefix + H W, dim).
        grid: (H, W) of the patches.
        prefix: number of class, register and distillation tokens before them.
    """

    tokens: Tensor
    grid: Grid
    prefix: int


@dataclass
class Observation:
    """The attentions of a model in one forward pass.

    Attributes:
        model: the model.
        pixels: its input, (batch, channels, height, width).
        names: the names of all attentions of the model, in order.
        output: the output of the model.
    """

    model: nn.Module
    pixels: Tensor
    names: list[str]
    output: object = None
    runs: dict[str, Run | ValueError] = field(default_factory=dict)
    mixings: dict[str, Mixing] = field(default_factory=dict)

    def name(self, layer: int | str) -> str:
        """The name of an attention, given by its name or by its index in `names`."""
        known = isinstance(layer, str) and layer in self.names
        if isinstance(layer, int) and not isinstance(layer, bool):
            known = -len(self.names) <= layer < len(self.names)
        if not known:
            count = len(self.names)
            raise ValueError(
                f"no attention {layer!r}: there are {count}, 0 to {count - 1} or -{count} to -1 in order, or by name: "
                f"{', '.join(self.names)}"
            )
        return layer if isinstance(layer, str) else self.names[layer]

    def run(self, name: str) -> Run:
        """The input of an attention."""
        if name not in self.runs:
            raise ValueError(f"{name} is not called when the model runs: choose another of {', '.join(self.runs)}")
        found = self.runs[name]
        if isinstance(found, ValueError):
            raise found
        return found

    def mixing(self, name: str) -> Mixing:
        """The mixing of an attention."""
        if name not in self.mixings:
            run = self.run(name)
            with _separately(run.tokens):
                self.mixings[name] = mixing_of(self.model.get_submodule(name), run.tokens, run.grid)
        return self.mixings[name]

    def derivative(self, name: str, weights: Tensor, step: int | None = None) -> Tensor:
        """The gradient of sum(weights * o) with respect to the values, where o = M(v) with M fixed.

        Args:
            weights: broadcast to (batch, heads, N, C).
        """
        mixing = self.mixing(name)
        with _separately(mixing.values), torch.enable_grad():
            values = mixing.values.detach().requires_grad_()
            mixed = mixing.mix(values, step)
            if not mixed.requires_grad:  # the start of a solver from zero
                return torch.zeros_like(values)
            return torch.autograd.grad(mixed, values, weights.to(mixed.dtype).expand_as(mixed))[0]

    def mixed(self, name: str, step: int | None = None) -> Tensor:
        """o = M(v), before the output projection: (batch, heads, N, C)."""
        mixing = self.mixing(name)
        with _separately(mixing.values):
            return mixing.mix(mixing.values, step)

    def kernel(self, name: str, query: Tensor) -> Tensor:
        """q^T K for a query (N,): (batch, heads, N, C or 1)."""
        mixing = self.mixing(name)
        with _separately(mixing.values):
            return mixing.kernel(query)

    def weights(self, name: str) -> Tensor | None:
        """Attention weights, (batch, heads, N, N); None if the attention has none."""
        mixing = self.mixing(name)
        with _separately(mixing.values):
            return mixing.weights()

    def steps(self, name: str) -> int | None:
        """The number of recurrent steps of an attention; None if it is not recurrent."""
        mixing = self.mixing(name)
        with _separately(mixing.values):
            return mixing.steps

    def slope(self, name: str, target: int | Sequence[int] | Tensor | None) -> Tensor:
        """The gradient of one logit of each image with respect to o, (batch, heads, N, C). Runs the model once more."""
        mixing, given = self.mixing(name), {}

        def restart(layer: nn.Module, args: tuple, output):
            given["output"] = (output[0] if isinstance(output, tuple) else output).detach().requires_grad_()
            return (given["output"], *output[1:]) if isinstance(output, tuple) else given["output"]

        layer = self.model.get_submodule(name)
        handle = layer.register_forward_hook(restart)
        try:
            with evaluating(self.model), torch.inference_mode(False), torch.enable_grad():
                logits = run_model(self.model, self.pixels)
        finally:
            handle.remove()
        with torch.inference_mode(False), torch.enable_grad():
            chosen = logits.gather(1, _classes(target, logits).unsqueeze(1)).sum()
        (slope,) = torch.autograd.grad(chosen, given["output"])
        slope = slope.flatten(1, 2) if slope.ndim == 4 else _batch_first(layer, slope)
        with evaluating(layer), _separately(mixing.values), torch.enable_grad():
            mixed = mixing.mix(mixing.values).detach().requires_grad_()
            finished = mixing.finish(mixed.to(slope.dtype))
            return torch.autograd.grad(finished, mixed, slope)[0]


def observe(model: nn.Module, pixels: Tensor) -> Observation:
    """Runs a model in evaluation mode and records the inputs of its attentions. The model is not changed.

    Args:
        model: pixels -> any output.
        pixels: (batch, channels, height, width), as the model takes them.

    Raises:
        ValueError: if the model has no attention.
    """
    if pixels.ndim != 4:
        raise ValueError(f"pixels must have shape (batch, channels, height, width), got {tuple(pixels.shape)}")
    attentions = {name: module for name, module in model.named_modules() if is_attention(module)}
    if not attentions:
        raise ValueError(_no_attention(model))
    with torch.inference_mode(False):
        observation = Observation(model, pixels.clone() if pixels.is_inference() else pixels, list(attentions))

    def note(name: str) -> Callable:
        def hook(layer: nn.Module, args: tuple, kwargs: dict) -> None:
            try:
                observation.runs[name] = _run(observation, name, layer, args, kwargs)
            except ValueError as error:  # raised when a map of this layer is requested
                observation.runs[name] = error

        return hook

    hooks = [layer.register_forward_pre_hook(note(name), with_kwargs=True) for name, layer in attentions.items()]
    try:
        with evaluating(model), torch.inference_mode(False), torch.no_grad():
            observation.output = model(observation.pixels)
    finally:
        for hook in hooks:
            hook.remove()
    return observation


@contextmanager
def _separately(tensor: Tensor) -> Iterator[None]:
    """A context for computing maps: by the definitions, outside autocast, and without a graph by default."""
    with torch.inference_mode(False), torch.no_grad(), plain(), outside_autocast(tensor):
        yield


def _run(observation: Observation, name: str, layer: nn.Module, args: tuple, kwargs: dict) -> Run:
    """The input of an attention from the arguments of its call.

    Raises:
        ValueError: if it is not self-attention between all tokens, or the grid of the patches is unknown.
    """
    given = dict(zip(("query", "key", "value"), args, strict=False)) | kwargs
    tokens = args[0] if args else next(each for each in kwargs.values() if isinstance(each, Tensor))
    if isinstance(layer, nn.MultiheadAttention) and not given["query"] is given["key"] is given["value"]:
        raise ValueError(f"{name} attends to another sequence, and maps are those of self-attention: choose another")
    if any(given.get(mask) is not None for mask in ("attn_mask", "attention_mask", "key_padding_mask")):
        raise ValueError(f"{name} is given a mask, and maps are those of attention between all tokens: choose another")
    like = next(layer.parameters(), tokens)
    if tokens.ndim == 4:
        return Run(tokens.flatten(1, 2).to(like.dtype), as_grid(tokens.shape[1:3]), 0)
    tokens = _batch_first(layer, tokens).to(like.dtype)
    given = kwargs.get("grid", args[1] if isinstance(layer, Attention) and len(args) > 1 else None)
    if given is not None:
        return Run(tokens, tuple(given), 0)
    place = _place(observation.model, name, layer)
    if place.prefix is None:
        raise ValueError(
            f"the model does not say how many class or register tokens come before the patches of {name} "
            "(num_prefix_tokens), so that there is no map of it"
        )
    grid = find_grid(tokens.shape[1] - place.prefix, place.grid, observation)
    if grid is None:
        raise ValueError(
            f"{name} is given {tokens.shape[1]} tokens, {place.prefix} of them before the patches, and the grid of the "
            "others is not known: pass images of the size for which the model was built"
        )
    return Run(tokens, grid, place.prefix)


def _place(model: nn.Module, name: str, layer: nn.Module) -> Place:
    """The layout of the tokens of an attention, as far as the model says it."""
    if isinstance(layer, Attention) and layer.place is not None:
        return layer.place
    if is_known(layer) and class_path(type(layer)).startswith("transformers."):
        return read(model, name).place
    return find_place(model, name)


def find_grid(count: int, built_for: Grid | None, observation: Observation) -> Grid | None:
    """The grid of `count` patches; None if it is unknown.

    In this order: the grid for which the model was built, if the images have its size; that of square patches; the grid
    for which the model was built; a square grid.
    """
    height, width = observation.pixels.shape[-2:]
    own = as_grid(built_for) if built_for is not None and math.prod(built_for) == count else None
    if own is not None and image_size(getattr(observation.model, "model", observation.model)) == (height, width):
        return own
    if count < 1:
        return None
    side = math.sqrt(height * width / count)
    if side.is_integer() and height % side == width % side == 0:
        return round(height / side), round(width / side)
    if own is not None:
        return own
    side = math.isqrt(count)
    return (side, side) if side * side == count else None


def _batch_first(layer: nn.Module, tokens: Tensor) -> Tensor:
    """The tokens with the batch first: (batch, N, dim)."""
    return tokens if getattr(layer, "batch_first", True) else tokens.transpose(0, 1)


def _classes(target: int | Sequence[int] | Tensor | None, logits: Tensor) -> Tensor:
    """The target class of each image, (batch,)."""
    batch, classes = logits.shape
    if target is None:
        return logits.argmax(-1)
    target = torch.as_tensor(target, device=logits.device)
    fits = not target.is_floating_point() and target.shape in ((), (1,), (batch,))
    if not (fits and bool(((target >= 0) & (target < classes)).all())):
        raise ValueError(
            f"target must be a class from 0 to {classes - 1}, or one for each of {batch} pictures, got "
            f"{target.tolist()}"
        )
    return target.long().expand(batch)


def _no_attention(model: nn.Module) -> str:
    kinds = dict.fromkeys(class_path(type(module)) for module in model.modules())
    close = [kind for kind in kinds if any(word in kind.rpartition(".")[2].lower() for word in ("attention", "attn"))]
    found = close or [class_path(type(child)) for child in model.children()]
    return (
        f"no attention in this {type(model).__name__}, made of {', '.join(dict.fromkeys(found))}: there are maps of "
        f"{KNOWN}"
    )
