"""Conversion: replaces the attention of a vision transformer of any library, and restores it.

    model = timm.create_model("deit_tiny_patch16_224", pretrained=True)
    convert(model, "vars_d", layers=[-2, -1], strength=0.1)
    restore(model)

The pretrained projections are kept: queries make the dictionary, values are reconstructed, and the output projection is
the same. In `vars_p` keys make the dictionary, and queries read the code out; the others do not use keys.

Class, register and distillation tokens (the prefix) are not on the grid of the patches. Attentions that see a set
of tokens (`vars_p`, `vars_d`, `performer`, `hedgehog`, `softmax`) mix them with the patches as self-attention does.
Those with filters (`vars_s`, `vars_sd`) mix the patches alone: a prefix token gets its own value through the output
projection, so that nothing flows between it and the patches in such a layer. With filters in every layer, a class token
never sees the picture: a head that reads it needs some unconverted layers (`layers`), or the mean over patches.
"""

import copy
import warnings
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn

from ..attention import Attention, Dynamic, Prototypes, Reconstruction, Softmax, Static, create
from ..attention.tokens import Place
from .selfattention import SUPPORTED, Placed, Projection, Source, class_path, is_known, read

# Not the released forms and global_filter, which have no projections of a self-attention.
TARGETS = ("vars_p", "vars_d", "vars_s", "vars_sd", "performer", "hedgehog", "softmax")


class Converted(nn.Module):
    """A layer that `convert` put into a model, for type checkers; it may be of any class."""

    replaced: tuple[nn.Module, ...]  # the original, in a tuple so that it is not registered as a submodule; or empty
    conversion: dict[str, Any]  # arguments of `convert`


def convert(
    model: nn.Module,
    attention: str = "vars_d",
    *,
    layers: Sequence[int | str] | None = None,
    interpolate: bool = False,
    **options,
) -> nn.Module:
    """Replaces self-attention of a vision transformer, in place; `restore` undoes it.

    The originals are kept outside the state dict, and are not trained. Frozen projections stay frozen; new parameters
    are trained. Dropout inside the originals is not carried over. `Classifier(model).save_pretrained(folder)` saves
    a converted model of timm, of transformers or of `torchvars.create` with its conversion; the saved state of any
    other is loaded into a model converted in the same way.

    Args:
        model: holds self-attention of torchvars (softmax, performer, hedgehog), timm's `Attention`,
            `torch.nn.MultiheadAttention` as in torchvision's ViT, or attention of transformers' ViT, DeiT, CLIP or
            DINOv2.
        attention: one of `TARGETS`.
        layers: self-attentions to replace, by index or by name; all if None.
        interpolate: start at the original attention and move to the new one, see `Interpolated`.
        options: options of the attention: solver, strength, atoms, ...; each layer has its own copy. Biases are those
            of the model, and so is `grid` by default. Filters assume a square if the patches do not fill the grid.
    """
    if attention not in TARGETS:
        raise ValueError(f"cannot convert to {attention!r}: pretrained projections fit {', '.join(TARGETS)}")
    if any(hasattr(module, "replaced") for module in model.modules()):
        raise ValueError("this model is converted already: call restore(model) first")
    found = {name: module for name, module in model.named_modules() if name and is_known(module)}
    if not found:
        raise ValueError(_nothing_found(model))
    # All are built before any is placed, so that an error leaves the model unchanged.
    replacements: dict[str, Converted] = {}
    conversion = {"attention": attention, "options": options, "interpolate": interpolate}
    for name in _chosen(list(found), layers):
        replacement = _replacement(read(model, name), attention, options)
        if interpolate:
            replacement = Interpolated(found[name], replacement)
        replacement = cast(Converted, replacement)
        replacement.replaced = (found[name],)
        replacement.conversion = copy.deepcopy(conversion)
        replacements[name] = replacement.train(found[name].training)
    if len(replacements) == len(found) and all(
        isinstance(each, Placed) and each.prefix for each in replacements.values()
    ):
        warnings.warn(
            f"with {attention} in every layer nothing flows from the patches to class or register tokens: a head that "
            "reads one sees no picture; leave some layers as they are (layers=[...]) or pool over patches",
            stacklevel=2,
        )
    # In blocks of this package the shape of the tokens is their grid.
    knows_grid = all(isinstance(each, Attention) for each in found.values())
    if any(map(_has_filters, replacements.values())) and not knows_grid and _takes_any_shape(model):
        warnings.warn(
            f"this model takes pictures of any shape, which {attention} cannot know: as many patches as it was "
            "built for are assumed to have that grid, others a square; use pictures of one shape, or vars_d",
            stacklevel=2,
        )
    for name, replacement in replacements.items():
        model.set_submodule(name, replacement)
    return model


def restore(model: nn.Module) -> nn.Module:
    """Puts the original attentions back, unchanged by training after `convert`; in place."""
    converted = converted_layers(model)
    if not converted:
        raise ValueError(f"nothing to restore: no attention of this {type(model).__name__} was converted")
    if not all(module.replaced for module in converted.values()):
        raise ValueError(
            "the original attentions are not there: a saved model holds the converted ones only. Build the original "
            "model anew"
        )
    for name, module in converted.items():
        (original,) = module.replaced
        # The model may have moved in the meantime.
        model.set_submodule(name, original.to(next(module.parameters())).train(module.training))
    return model


def conversion_of(model: nn.Module) -> dict | None:
    """Arguments of `convert` for a converted model: attention, layers, options and interpolate; else None.

    Solvers are left out, since those of the layers may have been changed.
    """
    converted = {
        name: cast(Converted, module) for name, module in model.named_modules() if hasattr(module, "conversion")
    }
    if not converted:
        return None
    conversion = next(iter(converted.values())).conversion
    options = {name: value for name, value in conversion["options"].items() if name != "solver"}
    return {**conversion, "layers": list(converted), "options": options}


def forget_originals(model: nn.Module) -> None:
    """Removes the originals of a model whose weights come from a file, which has none for them."""
    for module in converted_layers(model).values():
        module.replaced = ()


def converted_layers(model: nn.Module) -> dict[str, Converted]:
    """The layers that `convert` put into a model, by their names, in order."""
    return {name: cast(Converted, module) for name, module in model.named_modules() if hasattr(module, "replaced")}


@contextmanager
def originals_in(model: nn.Module, names: Container[str] | None = None) -> Iterator[dict[str, nn.Module]]:
    """A context in which a converted model has its original attentions, all or those with some names."""
    converted = {name: layer for name, layer in converted_layers(model).items() if names is None or name in names}
    originals = {name: layer.replaced[0] for name, layer in converted.items()}
    for name, original in originals.items():
        # The model may have moved in the meantime.
        model.set_submodule(name, original.to(next(converted[name].parameters())).eval())
    try:
        yield originals
    finally:
        for name, layer in converted.items():
            model.set_submodule(name, layer)


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

    `share` is learned and starts at 0, where the output is that of the original. It is clamped to [0, 1] in the forward
    pass, but not in the gradient, so that it can return. A copy of the original is trained too: `restore` puts back the
    unchanged one.
    """

    def __init__(self, original: nn.Module, mixer: nn.Module):
        super().__init__()
        # The configuration of a transformers model is shared by all its layers, and is not copied.
        shared = [original.config] if hasattr(original, "config") else []
        self.original = copy.deepcopy(original, {id(config): config for config in shared})
        self.mixer = mixer
        self.share = nn.Parameter(next(original.parameters()).new_zeros(()))

    def forward(self, *args, **kwargs) -> Tensor | tuple[Tensor, Tensor | None]:
        """Arguments of the original -> tokens, or tokens and attention weights, as the original returns them."""
        share = self.share + (self.share.clamp(0, 1) - self.share).detach()
        before, after = self.original(*args, **kwargs), self.mixer(*args, **kwargs)
        if isinstance(before, tuple):
            return (1 - share) * before[0] + share * after[0], *before[1:]
        return (1 - share) * before + share * after

    def __getattr__(self, name: str):
        """Attributes that torch's encoder reads before it calls an attention, see `PlacedInTorch`."""
        if name in ("batch_first", "_qkv_same_embed_dim", "in_proj_weight", "in_proj_bias", "out_proj"):
            return getattr(self.mixer, name)
        return super().__getattr__(name)


def carry(source: Source, layer: Attention) -> None:
    """Copies the projections that the layer uses; frozen ones stay frozen."""
    if isinstance(layer, Softmax):
        _write(layer.qkv, source.query, source.key, source.value)
    else:
        assert isinstance(layer, Reconstruction)
        _write(layer.value, source.value)
        for part in layer.modules():
            if isinstance(part, Dynamic):
                _write(part.query, source.query)
        if isinstance(layer.dictionary, Prototypes) and isinstance(layer.reader, Prototypes):
            _write(layer.dictionary.project, source.key)
            _write(layer.reader.project, source.query)
    _write(layer.proj, source.proj)


def _write(linear: nn.Linear, *parts: Projection) -> None:
    """Several projections become one below the other."""
    linear.weight = _joined([part.weight for part in parts])
    biases = [part.bias for part in parts if part.bias is not None]
    assert len(biases) in (0, len(parts))
    linear.register_parameter("bias", _joined(biases) if biases else None)


def _joined(tensors: list[Tensor]) -> nn.Parameter:
    return nn.Parameter(torch.cat(tensors).detach(), requires_grad=any(tensor.requires_grad for tensor in tensors))


def _replacement(source: Source, attention: str, options: dict) -> nn.Module:
    """The new attention with projections, device and dtype of the source, and with its signature."""
    options = copy.deepcopy({"grid": source.place.grid, **options})
    dim, bias = source.query.weight.shape[1], source.query.bias is not None
    layer = create(attention, dim, heads=source.heads, bias=bias, **options)
    carry(source, layer)
    layer.to(source.proj.weight)
    grid, prefix = options["grid"] and tuple(options["grid"]), source.place.prefix
    if not _has_filters(layer):
        layer.place = Place(grid, prefix)
        return source.wrap(layer, 0)
    if prefix is None:
        raise ValueError(
            f"{attention} has to know which tokens lie on the grid, and the model does not say how many others come "
            "before them (num_prefix_tokens): take one without filters, such as vars_d"
        )
    layer.place = Place(grid, 0)
    return source.wrap(layer, prefix)


def _takes_any_shape(model: nn.Module) -> bool:
    return any(getattr(part, "dynamic_img_size", False) for part in model.modules())


def _has_filters(layer: nn.Module) -> bool:
    return any(isinstance(part, Static) for part in layer.modules())


def _chosen(names: list[str], layers: Sequence[int | str] | None) -> list[str]:
    """Names of the requested layers, given by index or name, each once."""
    if layers is None:
        return names
    wanted = [layers] if isinstance(layers, int | str) else list(layers)
    valid = {*names, *range(-len(names), len(names))}
    unknown = [layer for layer in wanted if layer not in valid]
    if unknown or not wanted:
        raise ValueError(
            f"no self-attention {unknown}: there are {len(names)}, in order {', '.join(names)}"
            if wanted
            else f"layers={layers!r} chooses none of the {len(names)} self-attentions: leave it out to convert all"
        )
    return list(dict.fromkeys(layer if isinstance(layer, str) else names[layer] for layer in wanted))


def _nothing_found(model: nn.Module) -> str:
    classes = [class_path(type(module)) for module in model.modules()]
    seen = [path for path in classes if any(word in path.rpartition(".")[2].lower() for word in ("attention", "attn"))]
    seen = seen or [class_path(type(child)) for child in model.children()]
    return (
        f"no self-attention to convert in this {type(model).__name__}, made of {', '.join(dict.fromkeys(seen))}: "
        f"supported are {SUPPORTED}"
    )
