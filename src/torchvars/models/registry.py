"""Models by name: every backbone with every attention, registered with timm."""

import difflib
import json
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from timm.models import PretrainedCfg, build_model_with_cfg, generate_default_cfgs, register_model
from torch import nn

from ..attention import ATTENTIONS
from .backbone import sides
from .classifier import IMAGENET_MEAN, IMAGENET_STD
from .deit import DeiT
from .embedded import EMBEDDED, embedded, find_embedded
from .gfnet import GFNet
from .origin import Described
from .rvt import RVT

_MICRO = {"img_size": 112, "patch_size": 8, "num_classes": 10}

# Name -> class and its arguments. The micro models, about a million parameters, are for one CPU and small pictures.
BACKBONES: dict[str, tuple[type[nn.Module], dict]] = {
    "deit_tiny": (DeiT, {"embed_dim": 192, "num_heads": 3}),
    "deit_small": (DeiT, {"embed_dim": 384, "num_heads": 6}),
    "deit_base": (DeiT, {"embed_dim": 768, "num_heads": 12}),
    "deit_micro": (DeiT, {**_MICRO, "embed_dim": 128, "num_heads": 4, "depth": 6}),
    "rvt_tiny": (RVT, {"widths": (32, 32), "heads": (6, 12), "depths": (10, 2)}),
    "rvt_small": (RVT, {"widths": (64,), "heads": (6,), "depths": (12,)}),
    "rvt_base": (RVT, {"widths": (64,), "heads": (12,), "depths": (12,), "conv_mlp": False}),
    "rvt_micro": (RVT, {**_MICRO, "widths": (32,), "heads": (4,), "depths": (6,)}),
    "gfnet_tiny": (GFNet, {"dim": 256, "depth": 12, "heads": 8}),
    "gfnet_xs": (GFNet, {"dim": 384, "depth": 12, "heads": 6}),
    "gfnet_small": (GFNet, {"dim": 384, "depth": 19, "heads": 6}),
    "gfnet_base": (GFNet, {"dim": 512, "depth": 19, "heads": 8}),
    "gfnet_micro": (GFNet, {**_MICRO, "dim": 128, "depth": 6, "heads": 4}),
}

MODELS = {f"{backbone}_{attention}": (backbone, attention) for backbone in BACKBONES for attention in ATTENTIONS}


def create(name: str, *, pretrained: bool = False, **options) -> nn.Module:
    """A model by name: normalised images -> logits.

    Args:
        name: a backbone and an attention, such as "rvt_tiny_vars_d"; with a dot and the training pictures, the model
            with the options of that training: "rvt_micro_vars_d.cifar10".
        pretrained: load the weights that come with the package, for names that have some (torchvars list weights); with
            another `num_classes` the head is new.
        options: options of the backbone: num_classes, img_size, attention_options, drop_path_rate, ...; also `device`
            and `dtype` of the model.
    """
    architecture, _, tag = name.partition(".")
    converted = {each.partition(".")[0] for each in embedded()} - MODELS.keys()  # converted models of other libraries
    if architecture not in MODELS and not (pretrained and architecture in converted):
        close = difflib.get_close_matches(architecture, MODELS, n=3)
        hint = f"did you mean {', '.join(close)}? " if close else ""
        names = f"A name is one of {', '.join(BACKBONES)}, then one of {', '.join(ATTENTIONS)}"
        if architecture in converted:
            names = "it is a converted model, which comes with its weights only: pretrained=True"
        raise ValueError(f"no model named {name!r}: {hint}{names}")
    if not pretrained:
        return _build(name=architecture, pretrained_cfg=tag or None, **options)
    folder = find_embedded(name)
    if architecture in MODELS and options.keys() & {
        "in_chans",
        "features_only",
    }:  # timm adapts the weights to these
        trained_on = folder.name.partition(".")[2]
        return _build(pretrained=True, name=architecture, pretrained_cfg=trained_on, **options).eval()
    from .weights import load  # which builds models by their names

    return load(folder, **options).model


def trained(backbone: str, pictures: str) -> dict[str, str]:
    """Names whose weights come with the package, for one backbone and one set of pictures, by attention."""
    names = {attention: f"{backbone}_{attention}.{pictures}" for attention in ATTENTIONS}
    return {attention: name for attention, name in names.items() if name in embedded()}


def _build(
    pretrained: bool = False,
    *,
    name: str,
    pretrained_cfg: str | dict | None = None,
    pretrained_cfg_overlay: dict | None = None,
    cache_dir: str | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    **options,
) -> nn.Module:
    """A model by name; the arguments from `pretrained_cfg` to `dtype` are those of timm, not options of the model.

    `pretrained_cfg` may be the name of the training pictures if such weights come with the package.
    """
    backbone, attention = MODELS[name]
    kind, arguments = BACKBONES[backbone]
    configured = lambda model: model  # noqa: E731
    if isinstance(pretrained_cfg, str) or (pretrained and not pretrained_cfg and not pretrained_cfg_overlay):
        from .weights import merged, read_config, set_layers  # which build models by their names

        folder = find_embedded(f"{name}.{pretrained_cfg}" if pretrained_cfg else name)
        config = read_config(folder)
        changed, options = options, merged(config["options"], options)
        configured = partial(set_layers, config=config, folder=folder, changed=changed)
    elif not pretrained and not pretrained_cfg:
        pretrained_cfg = _cfg(name)  # timm would take that of the weights

    def construct(**arguments) -> nn.Module:
        with nullcontext() if device is None else torch.device(device):
            return configured(kind(**arguments)).to(dtype=dtype)

    built = build_model_with_cfg(
        construct,
        name,
        pretrained,
        pretrained_cfg=pretrained_cfg,  # pyright: ignore[reportArgumentType]  # timm takes a name as well
        pretrained_cfg_overlay=pretrained_cfg_overlay,
        cache_dir=cache_dir,
        feature_cfg={"out_indices": 3, "feature_cls": "getter"},
        **{**arguments, "attention": attention, **options},
    )
    model = cast(Described, built)
    model.origin = {"name": name, "options": options}  # to build it again when it is loaded
    if "img_size" in options:
        size = (options.get("in_chans", 3), *sides(options["img_size"]))
        model.pretrained_cfg = model.default_cfg = {**model.pretrained_cfg, "input_size": size}
    return model


def _cfg(name: str, folder: Path | None = None) -> dict:
    """timm's configuration of a name, or of weights that come with the package in a folder."""
    _, arguments = BACKBONES[MODELS[name][0]]
    config, record = (
        json.loads((folder / file).read_text()) if folder is not None and (folder / file).exists() else {}
        for file in ("config.json", "record.json")
    )
    arguments = {**arguments, **config.get("options", {})}
    height, width = sides(arguments.get("img_size", 224))
    stride = arguments.get("patch_size", 16) * 2 ** (len(arguments.get("depths", (1,))) - 1)
    return {
        "url": "",
        "file": None if folder is None else str(folder / "model.safetensors"),
        "num_classes": arguments.get("num_classes", 1000),
        "input_size": (3, height, width),
        "pool_size": (height // stride, width // stride),
        "crop_pct": 1.0
        if record.get("recipe", {}).get("crop") == "pad"
        else 0.875,  # whole pictures after padded crops in training
        "interpolation": "bicubic",
        "mean": tuple(config.get("mean", IMAGENET_MEAN)),
        "std": tuple(config.get("std", IMAGENET_STD)),
        "first_conv": "patch_embed.proj.0",
        "classifier": "head",
        "license": "apache-2.0",
    }


def _cfgs() -> dict[str, dict[str, Any] | PretrainedCfg]:
    """Configurations of all names, or of their weights, name.pictures, of which the first is the default."""
    names = {name: name.partition(".")[0] for name in embedded()}
    shipped: dict[str, dict[str, Any] | PretrainedCfg] = {
        name: _cfg(architecture, EMBEDDED / name) for name, architecture in names.items() if architecture in MODELS
    }
    with_weights = {name.partition(".")[0] for name in shipped}
    return {**shipped, **{name: _cfg(name) for name in MODELS if name not in with_weights}}


default_cfgs = generate_default_cfgs(_cfgs())


def _register() -> None:
    """Registers an entry point for each name: timm expects functions of this module."""
    for name, (backbone, attention) in MODELS.items():
        entry = partial(_build, name=name)
        vars(entry).update(__name__=name, __module__=__name__, __doc__=f"{backbone} with {attention}.")
        register_model(entry)
        globals()[name] = entry


__all__ = ["BACKBONES", "MODELS", "create", "trained"]
_register()
