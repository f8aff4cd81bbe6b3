"""Saving and loading of weights, also from checkpoints of the authors."""

import argparse
import hashlib
import json
import os
import pickle
import re
import reprlib
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn, cast

import safetensors
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from .. import __version__
from ..attention import Reconstruction
from ..attention.modes import evaluating
from ..attention.released import from_released
from ..sparse import settings_of, solver_from
from ..sparse.checks import is_number
from .classifier import Classifier, run_model
from .head import head_names
from .origin import Described, build, count_classes, image_size, is_plain, origin_of
from .registry import create
from .rvt import RVT

CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"
MOST_STEPS = 10_000  # of a solver in a file, so that a shared model cannot run without end


def save(
    classifier: Classifier,
    folder: Path,
    results: list[dict] | None = None,
    *,
    state: Mapping[str, Tensor] | None = None,
    half: bool = False,
) -> None:
    """Writes config.json, model.safetensors and a model card, each file atomically, the weights first.

    Args:
        results: measured rows for the model card.
        state: tensors to write in place of the classifier's own.
        half: whether to write half precision; it is loaded in the precision of the model.
    """
    config = describe(classifier, run=state is None)
    state = classifier.state_dict() if state is None else state
    state = _apart({name.removeprefix("model."): tensor.contiguous() for name, tensor in state.items()})
    if half:
        state = {name: _halved(name, tensor) for name, tensor in state.items()}
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / WEIGHTS, lambda path: save_file(state, path, metadata={"format": "pt"}))
    config["sha256"] = digest(folder / WEIGHTS)
    text = json.dumps(config, indent=2) + "\n"
    write_whole(folder / CONFIG, lambda path: path.write_text(text))
    write_whole(folder / CARD, lambda path: path.write_text(card(classifier, config, results)))


def describe(classifier: Classifier, *, run: bool = False) -> dict:
    """The content of config.json for a classifier. Raises a ValueError if it cannot be written, or not rebuilt from it.

    Args:
        run: whether to compare the outputs of the model and the rebuilt one if names and shapes are not sufficient.
    """
    model = classifier.model
    origin = origin_of(model)
    if origin is None:
        raise ValueError(
            f"{type(model).__name__} was not built by name, so that it could not be built again: make it "
            "with torchvars.create(name, ...), timm.create_model(name, ...) or a class of transformers, or save its "
            "state_dict"
        )
    if is_plain(origin):
        check_rebuilds(cast(Described, model))
    else:
        check_builds_again(model, origin, run=run)
    options = dict(origin["options"])
    if options.get("attention_options"):  # the current solvers are written below
        options["attention_options"] = {k: v for k, v in options["attention_options"].items() if k != "solver"}
    config = {
        "architecture": origin["name"],
        "options": options,
        **({"conversion": origin["conversion"]} if "conversion" in origin else {}),
        "mean": [round(value, 6) for value in classifier.mean.flatten().tolist()],
        "std": [round(value, 6) for value in classifier.std.flatten().tolist()],
        **({} if classifier.classes is None else {"classes": list(classifier.classes)}),
        "layers": layers_of(model),
        "torchvars": __version__,
    }
    json.dumps(config)  # raises an error before files are changed
    _check_config(config, Path(CONFIG))
    return config


def load(folder: Path, **changed) -> Classifier:
    """The classifier in a folder, in evaluation mode. Raises an error unless all of it fits.

    Args:
        changed: options of the model that replace saved ones, each of `attention_options` by itself; with other
            `num_classes` the head is new.
    """
    config = read_config(folder)
    state = read_safetensors(folder / WEIGHTS)
    found = digest(folder / WEIGHTS)
    if config.get("sha256") not in (None, found):
        raise ValueError(f"{folder / WEIGHTS} is not the file that {CONFIG} was written for: its sha256 is {found}")
    return rebuild(config, state, folder, **changed)


def rebuild(config: dict, state: dict[str, Tensor], folder: Path, **changed) -> Classifier:
    """The classifier of a configuration and a state from a folder: see `load`."""
    model = _built(config, folder / CONFIG, changed)
    if "num_classes" in changed:
        state = with_new_head(state, model)
    set_layers(model, config, folder, changed)
    load_whole(model, state, folder / WEIGHTS)
    if hasattr(model, "pretrained_cfg"):
        described = cast(Described, model)
        cfg = {**described.pretrained_cfg, "mean": tuple(config["mean"]), "std": tuple(config["std"])}
        described.pretrained_cfg = described.default_cfg = cfg
    classes = None if "num_classes" in changed else config.get("classes")
    if classes is not None and count_classes(model) not in (None, len(classes)):
        _refuse(folder / CONFIG, "classes", classes, f"a name for each of the {count_classes(model)} classes it has")
    return Classifier(model, config["mean"], config["std"], classes).eval()


def layers_of(model: nn.Module) -> dict[str, dict]:
    """Strengths and solvers of VARS layers by name."""
    return {
        name: {"strength": layer.strength, "solver": settings_of(layer.solver)}
        for name, layer in model.named_modules()
        if isinstance(layer, Reconstruction)
    }


def merged(options: dict, changed: dict) -> dict:
    """Options of a model with some changed; `attention_options` are merged one by one."""
    together = {**options, **changed}
    if changed.get("attention_options"):
        together["attention_options"] = {**(options.get("attention_options") or {}), **changed["attention_options"]}
    return together


def changed_origin(config: dict, changed: dict) -> dict:
    """The origin of a configuration with changed options; `attention_options` are those of a converted attention."""
    name, conversion = config["architecture"], config.get("conversion")
    if conversion is None:
        return {"name": name, "options": merged(config["options"], changed)}
    of_attention = changed.get("attention_options") or {}
    options = merged(config["options"], {key: value for key, value in changed.items() if key != "attention_options"})
    return {
        "name": name,
        "options": options,
        "conversion": {**conversion, "options": {**conversion.get("options", {}), **of_attention}},
    }


def with_new_head(state: dict[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """A state with the head of the model if the saved one has another number of classes."""
    heads = tuple(f"{name}." for name in head_names(model))
    own, saved = (
        {name: tensor for name, tensor in each.items() if name.startswith(heads)}
        for each in (model.state_dict(), state)
    )
    if {name: tensor.shape for name, tensor in own.items()} == {name: tensor.shape for name, tensor in saved.items()}:
        return state
    return {name: tensor for name, tensor in state.items() if name not in saved} | own


def set_layers(model: nn.Module, config: dict, folder: Path, changed: dict) -> nn.Module:
    """Sets strengths and solvers of VARS layers to the saved ones.

    Those that `attention_options` change are not set.
    """
    of_attention = changed.get("attention_options") or {}
    found = {name: layer for name, layer in model.named_modules() if isinstance(layer, Reconstruction)}
    for name, settings in config.get("layers", {}).items():
        if name not in found:
            raise ValueError(f"{folder / CONFIG} does not fit the model: it has no layer {name} that reconstructs")
        try:
            if "strength" not in of_attention:
                found[name].strength = settings["strength"]
            if "solver" not in of_attention:
                found[name].solver = solver_from(settings["solver"])
        except ValueError as error:
            raise ValueError(f"{folder / CONFIG}: layers[{name!r}] is {settings}: {error}") from error
    return model


def _built(config: dict, path: Path, changed: dict) -> nn.Module:
    """The model of a configuration with some options changed."""
    try:
        return build(changed_origin(config, changed))
    except (TypeError, ValueError, ZeroDivisionError) as error:
        if changed:  # the error may be due to these, not to the file
            raise
        raise ValueError(
            f"{path}: options {config['options']} do not build {config['architecture']}: {error}"
        ) from error


def check_rebuilds(model: Described) -> None:
    """Raises a ValueError if the name of a model and its options would build a different model."""
    with torch.device("meta"):
        other = create(model.origin["name"], **{**model.origin["options"], "num_classes": model.num_classes})
    _check_shapes(model, other, model.origin["name"])


@torch.no_grad()
def check_builds_again(model: nn.Module, origin: dict, *, run: bool = True) -> None:
    """Raises a ValueError if an origin of another library, or with a conversion, builds a different model.

    Args:
        run: whether to compare the logits of a picture as well. Some arguments, such as the number of heads, change the
            output but no shape.
    """
    advice = (
        "save its state_dict, or say how it was built: model.origin = "
        f'{{"name": "{origin["name"]}", "options": {{...}}}} with the arguments other than the defaults'
    )
    with torch.random.fork_rng(devices=[]):
        try:
            other = build(origin)
        except TypeError as error:
            raise ValueError(f"{origin['name']} cannot be built again: {error}; {advice}") from error
    _check_shapes(model, other, origin["name"], advice)
    size = image_size(model)
    if not run or size is None:
        return
    set_layers(other, {"layers": layers_of(model)}, Path(), {})
    other.load_state_dict(model.state_dict())
    like = next(model.parameters())
    other.to(like)
    channels = getattr(model, "in_chans", 3)
    picture = torch.rand(1, channels, *size, generator=torch.Generator().manual_seed(0)).to(like)
    with evaluating(model):
        expected, found = (run_model(each, picture).float() for each in (model, other.eval()))
    least = 1e-4 if like.dtype in (torch.float32, torch.float64) else 5e-2
    difference = (found - expected).abs().max().item()
    if not difference <= least * max(expected.abs().max().item(), 1e-3):
        raise ValueError(
            f"{origin['name']}, built again and with the same weights, gives logits that differ by {difference:.3g}: "
            f"it was built with arguments that the model does not say, such as num_heads or act_layer; {advice}"
        )


def _check_shapes(
    model: nn.Module,
    other: nn.Module,
    name_of_model: str,
    advice: str = "a model that was rebuilt by hand is saved by its state_dict",
) -> None:
    """Raises a ValueError if two models differ in the names or shapes of their tensors."""
    built, found = (
        {name: tuple(tensor.shape) for name, tensor in each.state_dict().items() if ".solver." not in name}
        for each in (other, model)  # solvers may have been changed, and are saved by themselves
    )
    if built != found:
        name = next(name for name in (*found, *built) if built.get(name) != found.get(name))
        raise ValueError(
            f"{name} is {found.get(name, 'missing')} here, and {built.get(name, 'missing')} in "
            f"{name_of_model} as it was created: {advice}"
        )


def card(
    classifier: Classifier,
    config: dict,
    results: list[dict] | None,
    *,
    name: str | None = None,
    trained_on: str | None = None,
    made_by: str | None = None,
) -> str:
    """A model card with measured results.

    Args:
        results: rows with benchmark, metric, value, images and command.
        name: name of weights that come with the package; None for a folder.
        trained_on: training pictures.
        made_by: command that made the weights.
    """
    parameters = sum(p.numel() for p in classifier.model.parameters() if p.requires_grad) / 1e6
    trained = "" if trained_on is None else f", trained on {trained_on}"
    made = "" if made_by is None else f"Made by `{made_by}`. "
    lines = [
        "---",
        "library_name: torchvars",
        "license: apache-2.0",
        "tags: [image-classification, vars, robustness]",
        "---",
        "",
        f"# {name or config['architecture']}",
        "",
        f"{parameters:.2f} M parameters{trained}{_converted(config)}. {made}Pixels in [0, 1] in, logits out:",
        "",
        "```python",
        "import torchvars",
        "",
        f'classifier = torchvars.Classifier.from_pretrained("{name or "this folder"}")',
        "```",
        "",
        *([] if classifier.classes is None else [f"Classes: {', '.join(classifier.classes)}.", ""]),
        f"Weights: sha256 {config['sha256']}.",
        "",
        "## Measured",
        "",
    ]
    if not results:
        return "\n".join([*lines, "These weights have not been evaluated.", ""])
    lines += ["| benchmark | metric | value | images | command |", "|---|---|---|---|---|"]
    keys = ("benchmark", "metric", "value", "images", "command")
    lines += ["| " + " | ".join(str(row.get(key, "")) for key in keys) + " |" for row in results]
    return "\n".join([*lines, ""])


def _converted(config: dict) -> str:
    conversion = config.get("conversion")
    return (
        "" if conversion is None else f", converted to {conversion['attention']} in {', '.join(conversion['layers'])}"
    )


def _apart(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors, with copies of those that have several names: layers may share a learned solver."""
    apart, seen = {}, set()
    for name, tensor in state.items():
        apart[name] = tensor.clone() if tensor.data_ptr() in seen else tensor
        seen.add(tensor.data_ptr())
    return apart


def _halved(name: str, tensor: Tensor) -> Tensor:
    halved = tensor.half() if tensor.is_floating_point() else tensor
    if not torch.equal(halved.isfinite(), tensor.isfinite()):
        raise ValueError(f"{name} has values up to {tensor.abs().max():.3g}, too large for half precision")
    return halved


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def load_released(
    path: str | Path, *, ema: bool = False, normalize: bool = True, heads: list[int] | None = None
) -> RVT:
    """An RVT from a checkpoint of the authors' code, in evaluation mode.

    Args:
        path: their file, with an entry "model" (and "model_ema"), or a plain state; .safetensors as well.
        ema: take "model_ema".
        normalize: whether queries have length one, as in the authors' last commit; the commit that announced their
            weights did not normalise, so try both.
        heads: number of heads in each stage, for softmax attention; for others it follows from the shapes.
    """
    path = Path(path)
    state = _released_state(path, ema)
    stages = sorted({int(match[1]) for name in state if (match := re.match(r"transformers\.(\d+)\.", name))})
    if not stages:
        raise ValueError(f"{path} holds no RVT of the authors' code: its first names are {list(state)[:5]}")
    depths = [1 + max(int(n.split(".")[3]) for n in state if n.startswith(f"transformers.{s}.blocks.")) for s in stages]
    dims = [len(state[f"transformers.{s}.blocks.0.mlp.fc2.bias"]) for s in stages]
    first = "transformers.0.blocks.0."
    options, grid = {}, None
    if first + "kernel2" in state:
        attention, heads = "vars_s_released", heads or [1] * len(stages)
        grid = state[first + "kernel2"].shape[3]
        options["filters"] = state[first + "kernel"].shape[1]
    elif first + "attn.rand_matrix" in state:
        heads = [len(state[f"transformers.{s}.blocks.0.attn.rand_matrix"]) for s in stages]
        options["normalize"] = normalize
        if first + "attn.kernel" in state:
            attention, grid = "vars_sd_released", round(state[first + "attn.kernel"].shape[2] ** 0.5)
        else:
            attention = "vars_d_released" if first + "attn.learned_k" in state else "performer"
    else:
        attention = "softmax"
        heads = heads or [dim // (32 if len(stages) > 1 else 64) for dim in dims]
    presets: dict[tuple[int, ...], str] = {(384,): "rvt_small", (768,): "rvt_base"}
    preset = presets.get(tuple(dims), "rvt_tiny")
    model = create(
        f"{preset}_{attention}",
        img_size=224 if grid is None else 16 * grid,
        num_classes=len(state["head.bias"]),
        widths=[dim // count for dim, count in zip(dims, heads, strict=True)],
        heads=heads,
        depths=depths,
        attention_options=options,
        conv_mlp=state[first + "mlp.fc1.weight"].ndim == 4,
    )
    assert isinstance(model, RVT)
    load_whole(model, _renamed(state, depths), path)
    return model.eval()


def _renamed(state: dict[str, Tensor], depths: list[int]) -> dict[str, Tensor]:
    """The state with names of this package; blocks are numbered through all stages."""
    ours, attentions = {}, {}
    for name, tensor in state.items():
        part, _, rest = name.partition(".")
        if part == "transformers":
            stage, _, number, rest = rest.split(".", 3)
            block = f"blocks.{sum(depths[: int(stage)]) + int(number)}."
            if rest.startswith(("mlp.", "norm2.")) or re.match(r"norm1\.(weight|bias)$", rest):
                ours[block + rest] = tensor
            else:
                attentions.setdefault(block, {})[rest.removeprefix("attn.")] = tensor
        elif part == "pools":
            stage, rest = rest.split(".", 1)
            ours[f"blocks.{sum(depths[: int(stage) + 1])}.downsample.{rest}"] = tensor
        elif part == "norm":
            ours[f"fc_norm.{rest}"] = tensor
        else:
            ours[name] = tensor
    for block, attention in attentions.items():
        ours |= {f"{block}attn.{name}": tensor for name, tensor in from_released(attention).items()}
    return ours


def _released_state(path: Path, ema: bool) -> dict[str, Tensor]:
    checkpoint = _read_checkpoint(path)
    entry = "model_ema" if ema else "model"
    if entry in checkpoint:
        checkpoint = checkpoint[entry]
    elif ema:
        raise ValueError(f"{path} has no entry model_ema; it has {', '.join(map(str, list(checkpoint)[:8]))}")
    return {name.removeprefix("module."): tensor for name, tensor in checkpoint.items()}


def _read_checkpoint(path: Path) -> dict[str, Any]:
    """The entries of a file: tensors, or states and other values."""
    if path.suffix == ".safetensors":
        return read_safetensors(path)
    _check_file(path)
    try:
        with torch.serialization.safe_globals([argparse.Namespace]):  # which holds the options of the authors
            checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, EOFError, pickle.UnpicklingError, ValueError, KeyError) as error:
        raise ValueError(f"{path} is no checkpoint that can be read safely, or is cut short: {error}") from error
    if not isinstance(checkpoint, dict):
        raise ValueError(f"{path} holds a {type(checkpoint).__name__}, not the entries of a checkpoint")
    return checkpoint


def load_whole(model: nn.Module, state: dict[str, Tensor], path: Path) -> None:
    """Loads all tensors or none: names and shapes are compared before any is copied."""
    expected = model.state_dict()
    problems = [f"missing {name}" for name in expected if name not in state]
    problems += [f"unknown {name}" for name in state if name not in expected]
    problems += [
        f"{name} has shape {tuple(state[name].shape)}, expected {tuple(expected[name].shape)}"
        for name in expected
        if name in state and state[name].shape != expected[name].shape
    ]
    if problems:
        shown = "; ".join(problems[:6]) + (f"; and {len(problems) - 6} more" if len(problems) > 6 else "")
        raise ValueError(f"{path} does not fit the model: {shown}")
    model.load_state_dict(state)


def _check_file(path: Path) -> None:
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}")


def read_config(folder: Path) -> dict:
    """The configuration in a folder of weights."""
    path = folder / CONFIG
    _check_file(path)
    try:
        config = json.loads(path.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise ValueError(f"{path} was not written by torchvars: it holds a {type(config).__name__}, expected an object")
    missing = [key for key in ("architecture", "options", "mean", "std") if key not in config]
    if missing:
        raise ValueError(f"{path} was not written by torchvars: it has no {', '.join(missing)}")
    _check_config(config, path)
    return config


def _check_config(config: dict, path: Path) -> None:
    """Raises a ValueError if a value of a configuration is invalid."""
    if not isinstance(config["architecture"], str):
        _refuse(path, "architecture", config["architecture"], "the name of a model")
    if not isinstance(config["options"], dict):
        _refuse(path, "options", config["options"], "an object with the options of the model")
    channels = config["options"].get("in_chans", config["options"].get("num_channels", 3))  # the latter in transformers
    for key, fits in (("mean", is_number), ("std", lambda value: is_number(value) and value > 0)):
        values = config[key]
        if not isinstance(values, list) or len(values) != channels or not all(map(fits, values)):
            kind = "positive numbers" if key == "std" else "numbers"
            _refuse(path, key, values, f"a list of {channels} {kind}, one for each channel")
    conversion = config.get("conversion", {})
    if not isinstance(conversion, dict) or not isinstance(conversion.get("options", {}), dict):
        _refuse(path, "conversion", conversion, "an object with attention, layers and options")
    classes = config.get("classes")
    if classes is not None and not (isinstance(classes, list) and all(isinstance(each, str) for each in classes)):
        _refuse(path, "classes", classes, "a list of names")
    if classes is not None and len(set(classes)) < len(classes):
        twice = next(each for each in classes if classes.count(each) > 1)
        _refuse(path, "classes", classes, f"a name of its own for each class: {twice!r} is there twice")
    layers = config.get("layers", {})
    if not isinstance(layers, dict):
        _refuse(path, "layers", layers, "an object with the settings of each layer by its name")
    for name, settings in layers.items():
        if not isinstance(settings, dict) or not {"strength", "solver"} <= settings.keys():
            _refuse(path, f"layers[{name!r}]", settings, "an object with strength and solver")
        _check_steps(settings["solver"], path, f"layers[{name!r}].solver")


def _check_steps(settings: dict, path: Path, key: str) -> None:
    if not isinstance(settings, dict):
        _refuse(path, key, settings, "an object with the name and the settings of a solver")
    for count in ("steps", "learned", "iterations"):
        if is_number(settings.get(count)) and settings[count] > MOST_STEPS:
            _refuse(path, f"{key}.{count}", settings[count], f"at most {MOST_STEPS}; there is no limit in Python")
    if "solver" in settings:
        _check_steps(settings["solver"], path, f"{key}.solver")


def _refuse(path: Path, key: str, value, expected: str) -> NoReturn:
    raise ValueError(f"{path}: {key} is {reprlib.repr(value)}, expected {expected}")


def read_safetensors(path: Path) -> dict[str, Tensor]:
    _check_file(path)
    try:
        return load_file(path)
    except (safetensors.SafetensorError, OSError) as error:
        raise ValueError(f"{path} is no safetensors file, or is cut short: {error}") from error


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Writes a file atomically: to a temporary file, synced to disk, then renamed.

    Its permissions follow the umask, whatever writes it: safetensors would allow its owner only.
    """
    temporary = path.with_name(path.name + ".part")
    try:
        temporary.unlink(missing_ok=True)  # may be left by a killed process, with other permissions
        temporary.touch()
        mode = stat.S_IMODE(temporary.stat().st_mode)
        write(temporary)
        temporary.chmod(mode)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
