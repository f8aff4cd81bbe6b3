"""Origins: how a model was built, by a name of this package, of timm or of transformers, and a conversion.

An origin is {"name": ..., "options": {...}}, and "conversion" where the model was converted. Names are those of
`torchvars.create`, "timm:ARCHITECTURE" with the arguments of `timm.create_model`, and "transformers:CLASS" with the
entries of its configuration. A model has its own in `origin`; those of models of timm and transformers are derived.
"""

import warnings
from collections.abc import Callable
from typing import Any, cast

import timm
from torch import nn

from .backbone import sides
from .convert import conversion_of, convert, forget_originals

_IN_TRANSFORMERS = {"num_classes": "num_labels", "img_size": "image_size"}


class Described(nn.Module):
    """Attributes of models of this package, of timm or of transformers, for type checkers.

    No class has all of them: check by `hasattr` or `getattr` first.
    """

    origin: dict[str, Any]
    num_classes: int
    no_weight_decay: Callable[[], set[str]]
    # of timm
    pretrained_cfg: dict[str, Any]
    default_cfg: dict[str, Any]
    set_input_size: Callable[..., None]
    reset_classifier: Callable[..., None]
    # of transformers
    config: Any
    num_labels: int


def origin_of(model: nn.Module) -> dict | None:
    """The current origin of a model; None if it is unknown."""
    origin = getattr(model, "origin", None) or _origin_in_timm(model) or _origin_in_transformers(model)
    if origin is None:
        return None
    options, conversion = dict(origin["options"]), conversion_of(model)
    default = (getattr(model, "default_cfg", None) or {}).get("num_classes")
    if getattr(model, "num_classes", None) not in (None, options.get("num_classes", default)):  # a new head
        options["num_classes"] = model.num_classes
    return {**origin, "options": options, **({} if conversion is None else {"conversion": conversion})}


def is_plain(origin: dict) -> bool:
    """Whether a model is as `torchvars.create` builds it, without a conversion."""
    return ":" not in origin["name"] and "conversion" not in origin


def build(origin: dict) -> nn.Module:
    """The model of an origin, with new weights."""
    library, _, name = origin["name"].rpartition(":")
    if library not in BUILDERS:
        raise ValueError(
            f"no library {library!r} to build {origin['name']} with: expected a name of torchvars list models, "
            "timm:NAME or transformers:CLASS"
        )
    model = BUILDERS[library](name, origin["options"])
    if conversion := origin.get("conversion"):
        missing = {"attention", "layers"} - set(conversion)
        if missing:
            raise ValueError(f"the conversion of {origin['name']} has no {', '.join(sorted(missing))}")
        interpolate, options = conversion.get("interpolate", False), conversion.get("options", {})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # shown when it was converted first
            convert(model, conversion["attention"], layers=conversion["layers"], interpolate=interpolate, **options)
        forget_originals(model)
    return model


def image_size(model: nn.Module) -> tuple[int, int] | None:
    """Height and width of the pictures that a model was built for; None if they are unknown."""
    origin = getattr(model, "origin", None) or {"options": {}}
    patches = getattr(model, "patch_embed", None)
    cfg, config = getattr(model, "pretrained_cfg", None) or {}, getattr(model, "config", None)
    sizes = (
        origin["options"].get("img_size"),
        getattr(patches, "img_size", None),
        cfg.get("input_size", (None,))[1:],
        getattr(config, "image_size", None) or getattr(getattr(config, "vision_config", None), "image_size", None),
        getattr(model, "image_size", None),  # torchvision
    )
    return next((sides(size) for size in sizes if size), None)


def count_classes(model: nn.Module) -> int | None:
    """Number of classes of a model; None if it is unknown."""
    return getattr(model, "num_classes", getattr(model, "num_labels", None))


# By library


def _create(name: str, options: dict) -> nn.Module:
    from .registry import create  # which loads weights, and these build models

    return create(name, **options)


def _create_in_timm(name: str, options: dict) -> nn.Module:
    check_timm(name)
    try:
        model = cast(Described, timm.create_model(name, **options))
    except RuntimeError as error:  # a tag that this version does not know
        raise ValueError(f"timm cannot build {name} with {options}: {error}") from error
    model.origin = {"name": f"timm:{name}", "options": options}
    return model


def check_timm(name: str) -> None:
    """Raises a ValueError if timm has no model of that name."""
    if not timm.is_model(name):
        close = timm.list_models(f"*{name.split('.')[0]}*")[:3]
        raise ValueError(f"timm knows no model {name!r}" + (f"; did you mean {', '.join(close)}?" if close else ""))


def _origin_in_timm(model: nn.Module) -> dict | None:
    """The origin of a model of timm, from its configuration and the arguments that are attributes."""
    cfg = getattr(model, "pretrained_cfg", None) or {}
    name = cfg.get("architecture")
    if not name or not timm.is_model(name):
        return None
    options: dict[str, Any] = {"num_classes": model.num_classes}
    if _has_tag(name, tag := cfg.get("tag")):
        options["pretrained_cfg"] = tag
    channels, *size = cfg["input_size"]
    if getattr(model, "in_chans", channels) != channels:
        options["in_chans"] = model.in_chans
    found = image_size(model)
    if found is not None and list(found) != size:
        options["img_size"] = list(found)
    if getattr(model, "dynamic_img_size", False):
        options["dynamic_img_size"] = True
    if isinstance(getattr(model, "global_pool", None), str):
        options["global_pool"] = model.global_pool
    return {"name": f"timm:{name}", "options": options}


def _has_tag(name: str, tag: str | None) -> bool:
    """Whether timm itself has weights with a tag; others come from the hub."""
    try:
        return bool(tag) and timm.get_pretrained_cfg(f"{name}.{tag}", allow_unregistered=False) is not None
    except RuntimeError:
        return False


def _create_in_transformers(name: str, options: dict) -> nn.Module:
    try:
        import transformers
    except ModuleNotFoundError as error:
        raise ValueError(f'{name} needs transformers: pip install "torchvars[hf]"') from error
    kind = getattr(transformers, name, None)
    is_model = isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)
    if kind is None or not is_model or kind.config_class is None:
        raise ValueError(f"transformers {transformers.__version__} has no model {name!r}")
    options = {_IN_TRANSFORMERS.get(key, key): value for key, value in options.items()}
    if "num_labels" in options:  # else the names would set the number
        options = {key: value for key, value in options.items() if key not in ("id2label", "label2id")}
    known = kind.config_class().to_dict()  # from_dict would take anything
    if unknown := [key for key in options if key not in known and key != "num_labels"]:
        raise TypeError(f"{kind.config_class.__name__} got an unexpected keyword argument {unknown[0]!r}")
    return kind(kind.config_class.from_dict(options))


def _origin_in_transformers(model: nn.Module) -> dict | None:
    """The origin of a model of transformers, from its configuration; None for classes of others."""
    kind = cast(Any, type(model))
    if not kind.__module__.startswith("transformers.models.") or not hasattr(model, "config"):
        return None
    known = kind.config_class().to_dict()
    options = cast(Described, model).config.to_dict()  # which may have entries of the user
    options = {key: value for key, value in options.items() if key in known and key != "transformers_version"}
    return {"name": f"transformers:{kind.__name__}", "options": options}


BUILDERS = {"": _create, "timm": _create_in_timm, "transformers": _create_in_transformers}
