"""An attention map in one call."""

from collections.abc import Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .kinds import KINDS, Ask
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
    """What an attention of a model looks at: one map for each picture, on the grid of its tokens.

    The model may be any with attentions of torchvars, converted or not, or with plain self-attention of timm, PyTorch
    or transformers. It runs in evaluation mode, by its own forward pass, which nothing changes; maps are computed
    beside it. Nothing is normalised: "implicit" of softmax are its attention weights.

    Args:
        model: pixels -> logits; a `Classifier`, or a model of normalised images.
        pixels: (batch, channels, height, width), as the model takes them.
        kind: a name of `torchvars.maps.KINDS`: "implicit", "kernel", "energy", "rollout" or "gradient".
        layer: which attention, by its place in order or by its name, such as "blocks.3.attn".
        head: a number, "mean" over heads, or "all".
        step: number of recurrent steps after which the solver is looked at, 0 for its start; None for all of them. Of
            "implicit" and "energy" of VARS layers.
        query: whose output is asked about, of "implicit", "kernel" and "rollout": "mean" for the mean over patches,
            "class" for the class token, or (row, column) of a pixel.
        target: the class whose logit is asked about, or one for each picture, of "gradient"; None for the class that
            the model names.
        size: (height, width) to which maps are resized, bilinearly; "pixels" for that of the pictures.

    Returns:
        (batch, H, W), or (batch, heads, H, W) of all heads, not negative.

    Raises:
        ValueError: the model has no such attention, or the attention no such map.
    """
    return find_maps(observe(model, pixels), kind, layer, head, step, query, target, size)


@torch.no_grad()
def find_maps(
    seen: Observation,
    kind: str = "implicit",
    layer: int | str = -1,
    head: int | str = "mean",
    step: int | None = None,
    query: str | tuple[int, int] = "mean",
    target: int | Sequence[int] | Tensor | None = None,
    size: tuple[int, int] | str | None = None,
) -> Tensor:
    """`attention_maps` of a model that ran already: several maps need one forward pass."""
    if kind not in KINDS:
        raise ValueError(f"no kind of map named {kind!r}: there are {', '.join(KINDS)}")
    how, name = KINDS[kind], seen.name(layer)
    run = seen.run(name)
    _check(how.queried or query == "mean", "query", query, kind)
    _check(how.targeted or target is None, "target", target, kind)
    _check(how.stepped or step is None, "step", step, kind)
    _check(how.heads or head == "mean", "head", head, kind)
    check_step(seen, name, step)
    maps = how.find(seen, Ask(name, _query(run, name, query, seen.pixels), step, target))
    if len(maps) != len(seen.pixels):
        raise ValueError(
            f"{name} is called with {len(maps)} sequences of tokens for {len(seen.pixels)} pictures, so that there is "
            "no map of a picture: choose another attention"
        )
    maps = maps[..., run.prefix :].unflatten(-1, run.grid)
    heads = maps.shape[1]
    if isinstance(head, int) and not isinstance(head, bool) and -heads <= head < heads:
        maps = how.join(maps[:, [head]])
    elif head == "mean":
        maps = how.join(maps)
    elif head == "all":
        maps = torch.stack([how.join(maps[:, [each]]) for each in range(heads)], 1)
    else:
        raise ValueError(f'head must be "mean", "all" or a number from 0 to {heads - 1} of {name}, got {head!r}')
    if size is None:
        return maps
    height, width = seen.pixels.shape[-2:]
    return resize(maps, (height, width) if size == "pixels" else cast(tuple[int, int], size))  # it refuses other words


def resize(maps: Tensor, size: tuple[int, int]) -> Tensor:
    """Maps (..., H, W) at another size, bilinearly, the edges of pixels aligned."""
    if not (isinstance(size, Sequence) and len(size) == 2 and min(size) > 0):
        raise ValueError(f'size must be (height, width) in pixels or "pixels", got {size!r}')
    flat = maps.reshape(-1, 1, *maps.shape[-2:])
    return F.interpolate(flat, size=tuple(size), mode="bilinear", align_corners=False).view(*maps.shape[:-2], *size)


def check_step(seen: Observation, name: str, step: int | None) -> None:
    """A ValueError unless an attention takes that many recurrent steps."""
    if step is None:
        return
    steps = seen.steps(name)
    if steps is None:
        kind = type(seen.model.get_submodule(name)).__name__
        raise ValueError(f"{name} ({kind}) takes no recurrent steps: leave step out, or choose a VARS layer")
    if not isinstance(step, int) or not 0 <= step <= steps:
        raise ValueError(f"step must be from 0, the start, to {steps}, the steps that {name} takes, got {step!r}")


def _check(fits: bool, option: str, value: object, kind: str) -> None:
    if not fits:
        takers = {
            "query": [name for name, each in KINDS.items() if each.queried],
            "target": [name for name, each in KINDS.items() if each.targeted],
            "step": [name for name, each in KINDS.items() if each.stepped],
            "head": [name for name, each in KINDS.items() if each.heads],
        }[option]
        raise ValueError(f"{option}={value!r} changes nothing in a map of kind {kind!r}: it is of {', '.join(takers)}")


def _query(run: Run, name: str, query: str | tuple[int, int], pixels: Tensor) -> Tensor:
    """A query as a weight for each token, (N,)."""
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
