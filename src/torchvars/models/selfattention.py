"""Self-attentions of several libraries: their projections, the place of their tokens, and their signatures.

To add a kind: a test, a reader and a line in `KINDS`, and a subclass of `Placed` if its signature differs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from timm.models.vision_transformer import Attention as TimmAttention
from torch import Tensor, nn

from ..attention import Attention, Hedgehog, Performer, Reconstruction, Softmax
from ..attention.tokens import Place
from .backbone import Backbone, sides

# Self-attentions of transformers 5 and their prefix tokens, by name, so that transformers need not be installed.
TRANSFORMERS: dict[str, Callable] = {
    "transformers.models.vit.modeling_vit.ViTAttention": lambda config: 1,
    "transformers.models.deit.modeling_deit.DeiTAttention": lambda config: 2,
    "transformers.models.clip.modeling_clip.CLIPAttention": lambda config: 1,
    "transformers.models.dinov2.modeling_dinov2.Dinov2Attention": lambda config: 1,
    "transformers.models.dinov2_with_registers.modeling_dinov2_with_registers.Dinov2WithRegistersAttention": (
        lambda config: 1 + config.num_register_tokens
    ),
}
TORCHVISION = "torchvision.models.vision_transformer.VisionTransformer"
SUPPORTED = (
    "Softmax, Performer and Hedgehog of torchvars, timm's Attention, torch.nn.MultiheadAttention (as in torchvision's "
    "ViT), and ViT, DeiT, CLIP and DINOv2 of transformers 5"
)


class Projection(NamedTuple):
    """Weight (out, in) and bias (out) of a linear layer, read-only; `requires_grad` is as in the layer."""

    weight: Tensor
    bias: Tensor | None


@dataclass(frozen=True)
class Source:
    """The parts of a self-attention."""

    heads: int
    query: Projection
    key: Projection
    value: Projection
    proj: Projection
    place: Place
    wrap: Callable[
        [Attention, int], nn.Module
    ]  # attention and number of prefix tokens -> module with the signature of the source


# Signatures


class Placed(nn.Module):
    """An attention on the grid of the patches, with prefix tokens before them: each gets its own projected value."""

    def __init__(self, mixer: Attention, prefix: int):
        super().__init__()
        # Without a prefix only `proj` is used, which Softmax has, too.
        self.mixer, self.prefix = cast(Reconstruction, mixer), prefix

    def forward(self, tokens: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        """Tokens (batch, prefix + N, dim) -> the same."""
        prefix, patches = tokens[:, : self.prefix], tokens[:, self.prefix :]
        mixed = self.mixer(patches, attn_mask=attn_mask, is_causal=is_causal)
        return torch.cat([self.mixer.proj(self.mixer.value(prefix)), mixed], dim=1) if self.prefix else mixed


class PlacedInTransformers(Placed):
    """A placed attention with the signature of transformers; it returns no attention weights."""

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None, **kwargs) -> tuple[Tensor, None]:
        return super().forward(hidden_states, attention_mask), None


class PlacedInTorch(Placed):
    """A placed attention with the signature of `torch.nn.MultiheadAttention`; it returns no attention weights.

    Args:
        batch_first: whether tokens are (batch, N, dim), not (N, batch, dim).
    """

    # Prevents torch.nn.TransformerEncoderLayer from computing the attention itself.
    _qkv_same_embed_dim = False

    def __init__(self, mixer: Attention, prefix: int, *, batch_first: bool):
        super().__init__(mixer, prefix)
        self.batch_first = batch_first

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, None]:
        if query is not key or key is not value:
            raise ValueError(
                "this attention was converted, and is self-attention only: query, key and value have to be one tensor; "
                "leave attention between two sequences as it is, by layers=[...] of convert"
            )
        if key_padding_mask is not None or query.is_nested:
            raise ValueError(f"{type(self.mixer).__name__} mixes all tokens: key_padding_mask must be None")
        tokens = query.unsqueeze(0) if query.ndim == 2 else query if self.batch_first else query.transpose(0, 1)
        mixed = super().forward(tokens, attn_mask, is_causal)
        return mixed.squeeze(0) if query.ndim == 2 else mixed if self.batch_first else mixed.transpose(0, 1), None

    # torch.nn.TransformerEncoder only reads whether these are trained.
    @property
    def in_proj_weight(self) -> Tensor:
        return self.mixer.proj.weight

    @property
    def in_proj_bias(self) -> Tensor:
        return self.mixer.proj.weight

    @property
    def out_proj(self) -> nn.Linear:
        return self.mixer.proj


# Parts


def is_known(module: nn.Module) -> bool:
    """Whether a module is a self-attention that can be converted."""
    return any(matches(module) for matches, _ in KINDS)


def read(model: nn.Module, name: str) -> Source:
    """The self-attention with a name. Raises a ValueError if it has more parts than projections."""
    module = model.get_submodule(name)
    source = next(reader for matches, reader in KINDS if matches(module))(model, name)
    rows, columns = source.query.weight.shape
    if not rows == columns == len(source.proj.weight):
        raise ValueError(
            f"{name} goes from {columns} to {rows} and to {len(source.proj.weight)} channels: only attention that "
            "keeps the width is supported; choose others by layers=[...]"
        )
    return source


def class_path(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _is_timm(module: nn.Module) -> bool:
    """Whether a module is timm's attention, not a subclass that computes something else."""
    return isinstance(module, TimmAttention) and type(module).forward is TimmAttention.forward


def _read_timm(model: nn.Module, name: str) -> Source:
    module = model.get_submodule(name)
    assert isinstance(module, TimmAttention)
    parts = ("q_norm", "k_norm", "norm", "gate")
    extras = [part for part in parts if not isinstance(getattr(module, part, None), nn.Identity | None)]
    if extras:
        raise ValueError(
            f"{name} has {', '.join(extras)}: QK-normalised, scaled or gated attention is not supported yet; "
            "choose others by layers=[...]"
        )
    projections = *_thirds(module.qkv.weight, module.qkv.bias), _whole(module.proj)
    return Source(module.num_heads, *projections, find_place(model, name), _wrap_plainly)


def _is_ours(module: nn.Module) -> bool:
    return type(module) in (Softmax, Performer, Hedgehog)


def _read_ours(model: nn.Module, name: str) -> Source:
    module = model.get_submodule(name)
    assert isinstance(module, Softmax)
    projections = *_thirds(module.qkv.weight, module.qkv.bias), _whole(module.proj)
    return Source(module.heads, *projections, find_place(model, name), _wrap_plainly)


def _is_multihead(module: nn.Module) -> bool:
    return type(module) is nn.MultiheadAttention


def _read_multihead(model: nn.Module, name: str) -> Source:
    module = model.get_submodule(name)
    assert isinstance(module, nn.MultiheadAttention)
    extras = {
        "kdim or vdim": not module._qkv_same_embed_dim,
        "add_bias_kv": module.bias_k is not None,
        "add_zero_attn": module.add_zero_attn,
    }
    if extras := [extra for extra, found in extras.items() if found]:
        raise ValueError(
            f"{name} has {', '.join(extras)}: attention to anything but its own tokens is not supported; choose others "
            "by layers=[...]"
        )
    projections = *_thirds(module.in_proj_weight, module.in_proj_bias), _whole(module.out_proj)
    wrap = partial(PlacedInTorch, batch_first=module.batch_first)
    return Source(module.num_heads, *projections, find_place(model, name), wrap)


def _is_of_transformers(module: nn.Module) -> bool:
    """Whether a module is an attention of transformers 5 for images, not for text, which has the same class in CLIP."""
    known = class_path(type(module)) in TRANSFORMERS
    return known and hasattr(module, "q_proj") and hasattr(module.config, "image_size")


def _read_transformers(model: nn.Module, name: str) -> Source:
    module = cast(Any, model.get_submodule(name))
    heads = module.num_heads if hasattr(module, "num_heads") else module.num_attention_heads
    proj = module.out_proj if hasattr(module, "out_proj") else module.o_proj
    projections = _whole(module.q_proj), _whole(module.k_proj), _whole(module.v_proj), _whole(proj)
    size, patch = sides(module.config.image_size), sides(module.config.patch_size)
    prefix = TRANSFORMERS[class_path(type(module))](module.config)
    place = Place((size[0] // patch[0], size[1] // patch[1]), prefix)
    return Source(heads, *projections, place, PlacedInTransformers)


KINDS = (
    (_is_timm, _read_timm),
    (_is_ours, _read_ours),
    (_is_multihead, _read_multihead),
    (_is_of_transformers, _read_transformers),
)


def _wrap_plainly(layer: Attention, prefix: int) -> nn.Module:
    """The layer for a source with the signature of this package, as in timm."""
    return Placed(layer, prefix) if prefix else layer


def _whole(linear: nn.Linear) -> Projection:
    bias = None if linear.bias is None else _alike(linear.bias, linear.bias)
    return Projection(_alike(linear.weight, linear.weight), bias)


def _thirds(weight: Tensor, bias: Tensor | None) -> tuple[Projection, Projection, Projection]:
    """Queries, keys and values from a linear layer for all three."""
    biases = [None] * 3 if bias is None else [_alike(part, bias) for part in bias.detach().chunk(3)]
    weights = [_alike(part, weight) for part in weight.detach().chunk(3)]
    query, key, value = (Projection(*each) for each in zip(weights, biases, strict=True))
    return query, key, value


def _alike(part: Tensor, whole: Tensor) -> Tensor:
    """A part of a parameter with its `requires_grad`, also without gradient mode."""
    return part.detach().requires_grad_(whole.requires_grad)


def find_place(model: nn.Module, name: str) -> Place:
    """Grid and number of prefix tokens, from the innermost module around a layer that embeds patches.

    None if that module does not have them.
    """
    inner = name
    while inner:
        inner = inner.rpartition(".")[0]
        owner = model.get_submodule(inner)
        if isinstance(owner, Backbone):
            return Place(_grid_of_block(owner, name.removeprefix(f"{inner}.")), 0)
        if hasattr(owner, "patch_embed"):
            grid = getattr(owner.patch_embed, "grid_size", None)
            return Place(grid and tuple(grid), getattr(owner, "num_prefix_tokens", None))
        if class_path(type(owner)) == TORCHVISION:
            vit = cast(Any, owner)
            side = vit.image_size // vit.patch_size
            return Place((side, side), 1)
    return Place(None, 0)


def _grid_of_block(backbone: Backbone, name: str) -> tuple[int, int] | None:
    """The grid of a block for the pictures that a backbone was built for, if it was built by name."""
    size = (getattr(backbone, "pretrained_cfg", None) or {}).get("input_size")
    strides = [block["reduction"] for block in backbone.feature_info if name.startswith(f"{block['module']}.")]
    return (size[1] // strides[0], size[2] // strides[0]) if size and strides else None
