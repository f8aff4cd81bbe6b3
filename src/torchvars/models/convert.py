"""Put an attention into a model somebody else wrote, and take it out again.

    model = timm.create_model("deit_tiny_patch16_224", pretrained=True)
    convert(model, "vars_d", layers=[-2, -1], strength=0.1)
    restore(model)

The pretrained projections are kept: queries make the dictionary, values are what is reconstructed, the output
projection stays. Keys have no part in VARS.

Class, register and distillation tokens (the prefix) have no place on the grid of the patches. Attentions that see a set
of tokens (`vars_d`, `performer`, `softmax`) mix them with the patches as self-attention does. Those with filters
(`vars_s`, `vars_sd`) mix the patches alone: a prefix token gets its own value through the output projection, so that
nothing flows between it and the patches in such a layer. With filters in every layer, a class token never sees the
picture: a head that reads it needs some layers left as they are (`layers`), or the mean over patches instead.
"""

import copy
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from timm.layers import to_2tuple
from timm.models.vision_transformer import Attention as TimmAttention
from torch import Tensor, nn

from ..attention import Attention, Dynamic, Softmax, Static, create
from ..attention.tokens import Grid

# The released forms and global_filter are not here: they were not made of a self-attention's projections.
TARGETS = ("vars_d", "vars_s", "vars_sd", "performer", "softmax")

# Self-attentions of transformers, known by name so that transformers need not be there, and their prefix tokens.
TRANSFORMERS = {
    "transformers.models.vit.modeling_vit.ViTAttention": 1,
    "transformers.models.deit.modeling_deit.DeiTAttention": 2,
}


def convert(
    model: nn.Module,
    attention: str = "vars_d",
    *,
    layers: Sequence[int | str] | None = None,
    interpolate: bool = False,
    **options,
) -> nn.Module:
    """Replaces self-attention of a timm or transformers ViT, in place; `restore` undoes it.

    The originals are set aside, neither trained nor in the state dict. A saved state of the converted model is loaded
    into a model converted in the same way. Dropout inside the originals is not carried over.

    Args:
        model: holds timm's `Attention`, or transformers' `ViTAttention` or `DeiTAttention`.
        attention: one of `TARGETS`.
        layers: which of the self-attentions, by index in order or by name; all if None.
        interpolate: start at the original attention and move to the new one, see `Interpolated`.
        options: of the attention: solver, strength, atoms, ...; each layer has its own copy. Biases follow the model,
            and so does `grid` where it is not given. Filters take patches that do not fill it for those of a square.
    """
    if attention not in TARGETS:
        raise ValueError(f"cannot convert to {attention!r}: pretrained projections fit {', '.join(TARGETS)}")
    if any(hasattr(module, "replaced") for module in model.modules()):
        raise ValueError("this model is converted already: call restore(model) first")
    found = {name: module for name, module in model.named_modules() if name and _supported(module)}
    if not found:
        raise ValueError(_nothing_found(model))
    # All are built before any is placed: an error leaves the model as it was.
    replacements = {}
    for name in _chosen(list(found), layers):
        replacement = _replacement(read(model, name), attention, options)
        if interpolate:
            replacement = Interpolated(found[name], replacement)
        replacement.replaced = (found[name],)  # in a tuple, so that it is not registered as a submodule
        replacements[name] = replacement.train(found[name].training)
    if len(replacements) == len(found) and all(
        isinstance(each, Placed) and each.prefix for each in replacements.values()
    ):
        warnings.warn(
            f"with {attention} in every layer nothing flows from the patches to class or register tokens: a head that "
            "reads one sees no picture; leave some layers as they are (layers=[...]) or pool over patches",
            stacklevel=2,
        )
    if any(map(_has_filters, replacements.values())) and any(
        getattr(part, "dynamic_img_size", False) for part in model.modules()
    ):
        warnings.warn(
            f"this model takes pictures of any shape, and {attention} is not told which: patches as many as it was "
            "built for are taken for that grid, others for a square; show it pictures of one shape, or take vars_d",
            stacklevel=2,
        )
    for name, replacement in replacements.items():
        model.set_submodule(name, replacement)
    return model


def restore(model: nn.Module) -> nn.Module:
    """Puts the original attentions back, as they were before `convert`, whatever was trained since; in place."""
    converted = {name: module for name, module in model.named_modules() if hasattr(module, "replaced")}
    if not converted:
        raise ValueError(f"nothing to restore: no attention of this {type(model).__name__} was converted")
    for name, module in converted.items():
        (original,) = module.replaced
        # The model may have moved in the meantime.
        model.set_submodule(name, original.to(next(module.parameters())).train(module.training))
    return model


def set_share(model: nn.Module, share: float) -> None:
    """Sets the share of the new attention in every interpolating layer, from 0 (the original) to 1."""
    if not 0 <= share <= 1:
        raise ValueError(f"share must be from 0 (the original attention) to 1 (the new one), got {share}")
    layers = [module for module in model.modules() if isinstance(module, Interpolated)]
    if not layers:
        raise ValueError("no layer of this model interpolates: call convert(model, ..., interpolate=True) first")
    with torch.no_grad():
        for layer in layers:
            layer.share.fill_(share)


class Interpolated(nn.Module):
    """(1 - share) original(tokens) + share mixer(tokens): from a pretrained attention to another while fine-tuning.

    `share` is learned and starts at 0, where the output is the original's. It counts as the nearest number in [0, 1],
    but its gradient is that of the formula everywhere, so that it can come back. The original is trained too, as a
    copy: what `restore` puts back is untouched.
    """

    def __init__(self, original: nn.Module, mixer: nn.Module):
        super().__init__()
        # The configuration of a transformers model stays the one that all its layers share.
        shared = [original.config] if hasattr(original, "config") else []
        self.original = copy.deepcopy(original, {id(config): config for config in shared})
        self.mixer = mixer
        self.share = nn.Parameter(next(original.parameters()).new_zeros(()))

    def forward(self, *args, **kwargs) -> Tensor | tuple[Tensor, Tensor | None]:
        """What the original takes -> what it gives: tokens, or tokens and its attention weights."""
        share = self.share + (self.share.clamp(0, 1) - self.share).detach()
        before, after = self.original(*args, **kwargs), self.mixer(*args, **kwargs)
        if isinstance(before, tuple):
            return (1 - share) * before[0] + share * after[0], *before[1:]
        return (1 - share) * before + share * after


class Placed(nn.Module):
    """An attention on the grid of the patches, with prefix tokens before them: each gets its own projected value."""

    def __init__(self, mixer: Attention, prefix: int):
        super().__init__()
        self.mixer, self.prefix = mixer, prefix

    def forward(self, tokens: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        """Tokens (batch, prefix + N, dim) -> the same."""
        prefix, patches = tokens[:, : self.prefix], tokens[:, self.prefix :]
        mixed = self.mixer(patches, attn_mask=attn_mask, is_causal=is_causal)
        return torch.cat([self.mixer.proj(self.mixer.value(prefix)), mixed], dim=1) if self.prefix else mixed


class PlacedInTransformers(Placed):
    """The same, called as transformers calls an attention; there are no attention weights to give back."""

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None, **kwargs) -> tuple[Tensor, None]:
        return super().forward(hidden_states, attention_mask), None


@dataclass(frozen=True)
class Source:
    """What a self-attention knows, whoever wrote it."""

    heads: int
    weights: Tensor  # (3, dim, dim): query, key, value
    biases: Tensor | None  # (3, dim)
    proj: nn.Linear
    grid: Grid | None
    prefix: int | None  # tokens before the patches; None if that is not known
    in_transformers: bool


def read(model: nn.Module, name: str) -> Source:
    """The self-attention of that name, or a ValueError if it has more to it than projections."""
    module = model.get_submodule(name)
    if isinstance(module, TimmAttention):
        parts = ("q_norm", "k_norm", "norm", "gate")
        extras = [part for part in parts if not isinstance(getattr(module, part, None), nn.Identity | None)]
        if extras:
            raise ValueError(
                f"{name} has {', '.join(extras)}: QK-normalised, scaled or gated attention is not supported yet; "
                "choose others by layers=[...]"
            )
        weights = module.qkv.weight.unflatten(0, (3, -1))
        biases = None if module.qkv.bias is None else module.qkv.bias.unflatten(0, (3, -1))
        source = Source(module.num_heads, weights, biases, module.proj, *_place(model, name), False)
    else:
        parts = (module.q_proj, module.k_proj, module.v_proj)
        weights = torch.stack([part.weight for part in parts])
        biases = None if module.q_proj.bias is None else torch.stack([part.bias for part in parts])
        height, width = to_2tuple(module.config.image_size)
        patch = to_2tuple(module.config.patch_size)
        grid, prefix = (height // patch[0], width // patch[1]), TRANSFORMERS[_path(type(module))]
        source = Source(module.num_attention_heads, weights, biases, module.o_proj, grid, prefix, True)
    rows, columns = source.weights.shape[1:]
    if not rows == columns == source.proj.out_features:
        raise ValueError(
            f"{name} goes from {columns} to {rows} and to {source.proj.out_features} channels: only attention that "
            "keeps the width is supported; choose others by layers=[...]"
        )
    return source


def carry(source: Source, layer: Attention) -> None:
    """Copies the projections that the layer has use for."""
    biases = [None] * 3 if source.biases is None else source.biases
    if isinstance(layer, Softmax):
        _write(layer.qkv, source.weights.flatten(0, 1), None if source.biases is None else source.biases.flatten())
    else:
        _write(layer.value, source.weights[2], biases[2])
        for part in layer.modules():
            if isinstance(part, Dynamic):
                _write(part.query, source.weights[0], biases[0])
    _write(layer.proj, source.proj.weight, source.proj.bias)


def _write(linear: nn.Linear, weight: Tensor, bias: Tensor | None) -> None:
    linear.weight = nn.Parameter(weight.detach().clone())
    linear.bias = None if bias is None else nn.Parameter(bias.detach().clone())


def _replacement(source: Source, attention: str, options: dict) -> nn.Module:
    """The new attention with the source's projections, device and dtype, called as the source is called."""
    options = copy.deepcopy({"grid": source.grid, **options})
    layer = create(attention, source.weights.shape[-1], heads=source.heads, bias=source.biases is not None, **options)
    carry(source, layer)
    layer.to(source.proj.weight)
    has_filters = _has_filters(layer)
    if has_filters and source.prefix is None:
        raise ValueError(
            f"{attention} has to know which tokens lie on the grid, and the model does not say how many others come "
            "before them (num_prefix_tokens): take one without filters, such as vars_d"
        )
    prefix = source.prefix if has_filters else 0
    if source.in_transformers:
        return PlacedInTransformers(layer, prefix)
    return Placed(layer, prefix) if prefix else layer


def _place(model: nn.Module, name: str) -> tuple[Grid | None, int | None]:
    """Grid and number of prefix tokens, from the innermost part of a timm model around that layer that embeds.

    None where that part does not say it.
    """
    while name:
        name = name.rpartition(".")[0]
        owner = model.get_submodule(name)
        if hasattr(owner, "patch_embed"):
            return getattr(owner.patch_embed, "grid_size", None), getattr(owner, "num_prefix_tokens", None)
    return None, 0


def _has_filters(layer: nn.Module) -> bool:
    return any(isinstance(part, Static) for part in layer.modules())


def _path(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _supported(module: nn.Module) -> bool:
    """Attention as it is known here: not a subclass that computes something else, nor another version's layout."""
    if isinstance(module, TimmAttention):
        return type(module).forward is TimmAttention.forward
    return _path(type(module)) in TRANSFORMERS and hasattr(module, "q_proj")


def _chosen(names: list[str], layers: Sequence[int | str] | None) -> list[str]:
    """Names of the layers asked for, by index or name."""
    if layers is None:
        return names
    wanted = [layers] if isinstance(layers, int | str) else list(layers)
    known = {*names, *range(-len(names), len(names))}
    unknown = [layer for layer in wanted if layer not in known]
    if unknown:
        raise ValueError(f"no self-attention {unknown}: there are {len(names)}, in order {', '.join(names)}")
    return [layer if isinstance(layer, str) else names[layer] for layer in wanted]


def _nothing_found(model: nn.Module) -> str:
    classes = [_path(type(module)) for module in model.modules()]
    seen = [path for path in classes if any(word in path.rpartition(".")[2].lower() for word in ("attention", "attn"))]
    seen = seen or [_path(type(child)) for child in model.children()]
    return (
        f"no self-attention to convert in this {type(model).__name__}, made of {', '.join(dict.fromkeys(seen))}: "
        f"supported are models around {_path(TimmAttention)}, and ViT and DeiT of "
        "transformers 5"
    )
