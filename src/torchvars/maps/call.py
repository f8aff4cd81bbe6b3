"""Attention maps in one call."""

from collections.abc import Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .kinds import KINDS, Request
from .observe import Observation, Run, observe


def attention_maps(
    model: nn.Module,
    pixels: Tensor,
    kind: str = "implicit",
    layer: int | str = -1,
    head: int | str = "mean",
    step: int | None = None,
    query: str | tuple[int, int] = "mean",
    target: int | Sequence[int] | Tensor | None = None,
    size: tuple[int, int] | str | None = None,
) -> Tensor:
    """Attention maps of a model: one map for each image, on the grid of its tokens.

    The model may be any with attentions of torchvars, converted or not, or with plain self-attention of timm, PyTorch
    or transformers. It runs in evaluation mode, with its own forward pass; maps are computed separately. Maps are not
    normalised: the "implicit" map of softmax attention is its attention weights.

    Args:
        model: pixels -> logits; a `Classifier`, or a model that takes normalised images.
        pixels: (batch, channels, height, width), as the model takes them.
        kind: a key of `torchvars.maps.KINDS`: "implicit", "kernel", "energy", "rollout" or "gradient".
        layer: the attention, by its index or by its name, such as "blocks.3.attn".
        head: the index of a head, "mean" over heads, or "all".
        step: number of recurrent steps, 0 for the start of the solver, None for all steps. For "implicit" and "energy"
            of VARS layers.
        query: the output that is explained, for "implicit", "kernel" and "rollout": "mean" for the mean over patches,
            "class" for the class token, or (row, column) of a pixel.
        target: the class whose logit is explained, or one for each image, for "gradient"; None for the predicted class.
        size: (height, width) to which maps are resized, bilinearly; "pixels" for the size of the images.

    Returns:
        (batch, H, W), or (batch, heads, H, W) for all heads. Nonnegative.

    Raises:
        ValueError: if the model has no such attention, or the attention no such map.
    """
    return find_maps(observe(model, pixels), kind, layer, head, step, query, target, size)


@torch.no_grad()
def find_maps(
    observation: Observation,
    kind: str = "implicit",
    layer: int | str = -1,
    head: int | str = "mean",
    step: int | None = None,
    query: str | tuple[int, int] = "mean",
    target: int | Sequence[int] | Tensor | None = None,
    size: tuple[int, int] | str | None = None,
) -> Tensor:
    """`attention_maps` of an observation, so that several maps need one forward pass."""
    if kind not in KINDS:
        raise ValueError(f"no kind of map named {kind!r}: there are {', '.join(KINDS)}")
    rule, name = KINDS[kind], observation.name(layer)
    run = observation.run(name)
    _check(rule.queried or query == "mean", "query", query, kind)
    _check(rule.targeted or target is None, "target", target, kind)
    _check(rule.stepped or step is None, "step", step, kind)
    _check(rule.heads or head == "mean", "head", head, kind)
    check_step(observation, name, step)
    maps = rule.find(observation, Request(name, _query(run, name, query, observation.pixels), step, target))
    if len(maps) != len(observation.pixels):
        raise ValueError(
            f"{name} is called with {len(maps)} sequences of tokens for {len(observation.pixels)} pictures, so that "
            "there is no map of a picture: choose another attention"
        )
    maps = maps[..., run.prefix :].unflatten(-1, run.grid)
    heads = maps.shape[1]
    if isinstance(head, int) and not isinstance(head, bool) and -heads <= head < heads:
        maps = rule.join(maps[:, [head]])
    elif head == "mean":
        maps = rule.join(maps)
    elif head == "all":
        maps = torch.stack([rule.join(maps[:, [each]]) for each in range(heads)], 1)
    else:
        raise ValueError(f'head must be "mean", "all" or a number from 0 to {heads - 1} of {name}, got {head!r}')
    if size is None:
        return maps
    height, width = observation.pixels.shape[-2:]
    return resize(maps, (height, width) if size == "pixels" else cast(tuple[int, int], size))


def resize(maps: Tensor, size: tuple[int, int]) -> Tensor:
    """Maps (..., H, W) resized bilinearly, with align_corners=False."""
    if not (isinstance(size, Sequence) and len(size) == 2 and min(size) > 0):
        raise ValueError(f'size must be (height, width) in pixels or "pixels", got {size!r}')
    flat = maps.reshape(-1, 1, *maps.shape[-2:])
    return F.interpolate(flat, size=tuple(size), mode="bilinear", align_corners=False).view(*maps.shape[:-2], *size)


def check_step(observation: Observation, name: str, step: int | None) -> None:
    """Raises a ValueError unless an attention takes at least `step` recurrent steps."""
    if step is None:
        return
    steps = observation.steps(name)
    if steps is None:
        kind = type(observation.model.get_submodule(name)).__name__
        raise ValueError(f"{name} ({kind}) takes no recurrent steps: leave step out, or choose a VARS layer")
    if not isinstance(step, int) or not 0 <= step <= steps:
        raise ValueError(f"step must be from 0, the start, to {steps}, the steps that {name} takes, got {step!r}")


def _check(fits: bool, option: str, value: object, kind: str) -> None:
    if not fits:
        kinds = {
            "query": [name for name, each in KINDS.items() if each.queried],
            "target": [name for name, each in KINDS.items() if each.targeted],
            "step": [name for name, each in KINDS.items() if each.stepped],
            "head": [name for name, each in KINDS.items() if each.heads],
        }[option]
        raise ValueError(f"{option}={value!r} changes nothing in a map of kind {kind!r}: it is of {', '.join(kinds)}")


def _query(run: Run, name: str, query: str | tuple[int, int], pixels: Tensor) -> Tensor:
    """The weights of a query for each token, (N,)."""
    weights = torch.zeros(run.tokens.shape[1], device=run.tokens.device, dtype=torch.float64)
    if query == "mean":
        weights[run.prefix :] = 1 / (run.grid[0] * run.grid[1])
    elif query == "class":
        if run.prefix == 0:
            raise ValueError(
                f"{name} mixes no class token with the patches: take query='mean', or (row, column) of a pixel"
            )
        weights[0] = 1
    elif not isinstance(query, str) and len(query) == 2:
        height, width = pixels.shape[-2:]
        row, column = query
        if not (0 <= row < height and 0 <= column < width):
            raise ValueError(f"query (row {row}, column {column}) is outside of pictures of {height} x {width} pixels")
        place = int(row * run.grid[0] // height) * run.grid[1] + int(column * run.grid[1] // width)
        weights[run.prefix + place] = 1
    else:
        raise ValueError(f'query must be "mean", "class" or (row, column) of a pixel, got {query!r}')
    return weights
