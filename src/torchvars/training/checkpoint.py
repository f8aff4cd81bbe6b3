"""Checkpoints from which training resumes exactly. They are written atomically, and without pickle."""

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import safetensors
import torch
from safetensors.torch import load, save
from torch import Tensor, nn
from torch.optim import Optimizer

from ..models.unfinished import BEST, FACTS
from .sharding import like, whole

LEFTOVERS = ("step_*.part", "best.json.part", "writable_*.part")


class Checkpoints:
    """The checkpoints of a run: <folder>/step_00001200/ with facts.json, model.safetensors, optimizer.safetensors, ...

    A folder named after a step is complete. While it is written it is named step_00001200.part, and the checkpoint that
    it replaces is briefly named step_00001200.old. One process writes; any number may read at the same time, since only
    `write` removes files.

    Args:
        folder: created if it does not exist; an OSError is raised at once if it cannot be written.
        every: checkpoints at multiples of this number of steps are never removed.
    """

    def __init__(self, folder: Path, every: int | None = None):
        if every is not None and every < 1:
            raise ValueError(f"every must be at least 1, or None to keep none for good: got {every}")
        self.folder, self.every = Path(folder), every
        with _doing("make the folder", self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        trial = self.folder / f"writable_{os.getpid()}.part"
        try:
            _write(trial, b"This folder can be written.\n")
        finally:
            with contextlib.suppress(OSError):
                trial.unlink()
        _sync(self.folder)

    def write(self, step: int, tensors: Mapping[str, Mapping[str, Tensor]], facts: dict, *, best: bool = False) -> Path:
        """Writes a checkpoint, then removes older ones: all but the last two, the best, and multiples of `every`.

        Args:
            step: number that names the checkpoint; one of the same step is replaced.
            tensors: name of a file, such as "model" -> name of a tensor -> tensor.
            facts: values that JSON can hold.
            best: whether it is the best so far.

        Returns:
            The folder of the checkpoint.

        Raises:
            OSError: the disk is full or cannot be written; earlier checkpoints are unchanged.
        """
        if step < 0:
            raise ValueError(f"step must be 0 or more, got {step}")
        if invalid := [name for name in tensors if not re.fullmatch(r"[\w-]+", name)]:
            raise ValueError(f"{invalid[0]!r} cannot name a file of tensors: take letters, digits, _ and -")
        if not isinstance(facts, dict):
            raise ValueError(f"facts must be a dict, got a {type(facts).__name__}")
        _check_json(facts, "facts")
        place = self.folder / f"step_{step:08d}"
        part, old = place.with_suffix(".part"), place.with_suffix(".old")
        self._tidy()
        try:
            with _doing("make the folder", part):
                part.mkdir()
            digests = {}
            for name, group in tensors.items():
                content = _pack(group, name)
                digests[f"{name}.safetensors"] = hashlib.sha256(content).hexdigest()
                _write(part / f"{name}.safetensors", content)
            digests[FACTS] = _digest_facts(facts)
            _write(part / FACTS, (json.dumps({"facts": facts, "sha256": digests}, indent=1) + "\n").encode())
            _sync(part)
            self._mark(step, best)  # before the rename, so that no crash leaves it without its mark
            if place.exists():
                _rename(place, old)
            _rename(part, place)
            _sync(self.folder)
        except BaseException:
            with contextlib.suppress(OSError):  # the first error is the one to report
                self._tidy()
            raise
        self._tidy()
        self._remove_older(step)
        return place

    def latest(self) -> Path | None:
        """Folder of the checkpoint with the highest step; None if there is none."""
        return next(reversed(self._whole().values()), None)

    def best(self) -> Path | None:
        """Folder of the checkpoint that was last written as the best; None if there is none."""
        step = self._best_step()
        return None if step is None else self._whole().get(step)

    def read(self, path: Path) -> tuple[dict[str, dict[str, Tensor]], dict]:
        """The tensors, on the CPU, and the facts of a checkpoint, as they were passed to `write`.

        Raises:
            ValueError: a file is damaged; the message names it, and the checkpoint to use instead.
        """
        path = Path(path)
        if not path.is_dir():
            existing = ", ".join(str(each) for each in self._whole().values()) or "none"
            raise FileNotFoundError(f"no checkpoint {path}; there are: {existing}")
        file, tensors = FACTS, {}
        try:
            content = _read_facts(path)
            for file, digest in content["sha256"].items():
                if file == FACTS:
                    _compare(_digest_facts(content["facts"]), digest)
                else:
                    packed = (path / file).read_bytes()
                    _compare(hashlib.sha256(packed).hexdigest(), digest)
                    tensors[file.removesuffix(".safetensors")] = load(packed)
        except (OSError, ValueError) as error:
            number = re.match(r"step_(\d+)", path.name)
            earlier = [each for step, each in self._whole().items() if number and step < int(number[1])]
            instead = f"take the one before it, {earlier[-1]}" if earlier else "there is none before it: begin anew"
            raise ValueError(f"{path / file} is damaged or cannot be read ({error}): {instead}") from error
        return tensors, content["facts"]

    def _whole(self) -> dict[int, Path]:
        """Complete checkpoints by their steps, in order, with those that end in .old."""
        found = {}
        for path in sorted(self.folder.iterdir(), reverse=True):  # step_00000001.old before step_00000001
            if match := re.fullmatch(r"step_(\d{8,})(\.old)?", path.name):
                with contextlib.suppress(OSError, ValueError):
                    if all((path / file).is_file() for file in _read_facts(path)["sha256"]):
                        found[int(match[1])] = path
        return dict(sorted(found.items()))

    def _best_step(self) -> int | None:
        marks = self._marks()
        return marks["step"] if marks["step"] in self._whole() else marks["before"]

    def _marks(self) -> dict[str, int | None]:
        """The best step, and the one before, which counts until the checkpoint of the best step exists."""
        file = self.folder / BEST
        if not file.exists():
            return {"step": None, "before": None}
        try:
            marks = json.loads(file.read_bytes())
            return {"step": marks["step"], "before": marks["before"]}
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{file} does not say which step is the best ({error!r}): remove it") from error

    def _mark(self, step: int, best: bool) -> None:
        """Records whether a step is the best; a step that is written again may lose its mark."""
        marks = self._marks()
        if best:
            marks = {"step": step, "before": self._best_step()}
        elif marks["step"] == step:
            marks = {"step": marks["before"], "before": None}
        else:
            return
        part = self.folder / f"{BEST}.part"
        _write(part, (json.dumps(marks) + "\n").encode())
        _rename(part, self.folder / BEST)

    def _tidy(self) -> None:
        """Removes incomplete and replaced checkpoints; restores an old one whose replacement a crash prevented."""
        for leftover in [path for pattern in LEFTOVERS for path in self.folder.glob(pattern)]:
            _remove(leftover)
        for old in self.folder.glob("step_*.old"):
            place = old.with_suffix("")
            if place.exists():
                _remove(old)
            else:
                _rename(old, place)

    def _remove_older(self, written: int) -> None:
        existing = self._whole()
        keep = {*list(existing)[-2:], written, self._best_step()}
        for step, path in existing.items():
            if step not in keep and (self.every is None or step % self.every):
                _remove(path)


def optimizer_tensors(model: nn.Module, optimizer: Optimizer) -> tuple[dict[str, Tensor], dict]:
    """The state of an optimizer by the names of the parameters: copies of its tensors, and facts that JSON can hold.

    It is the same whether the model is compiled, under DDP, under FSDP2 or none of these. Under FSDP2 all processes
    must call it, since each holds a part.

    `torch.distributed.checkpoint.state_dict` has the same purpose, but takes a step without gradients if none was taken
    before, which changes Adam's counts, and cannot read the flat form.
    """
    optimizer = _unwrap_optimizer(optimizer)
    named = _name_parameters(model, optimizer)
    names = list(named.values())
    state, tensors = optimizer.state_dict(), {}
    facts = {
        "kind": type(optimizer).__name__,
        "shapes": {name: list(parameter.shape) for parameter, name in named.items()},
        "state": {names[number]: _extract(own, names[number], tensors) for number, own in state["state"].items()},
        "groups": [
            {**_extract_all(group, f"groups/{number}", tensors), "params": [names[index] for index in group["params"]]}
            for number, group in enumerate(state["param_groups"])
        ],
    }
    return tensors, facts


def restore_optimizer(model: nn.Module, optimizer: Optimizer, tensors: Mapping[str, Tensor], facts: dict) -> None:
    """Restores the state that `optimizer_tensors` returned; nothing is changed unless all of it fits.

    Under FSDP2 all processes must call it.

    Raises:
        ValueError: the state is that of another model, of other groups or of another kind of optimizer.
    """
    optimizer = _unwrap_optimizer(optimizer)
    named = _name_parameters(model, optimizer)
    _check_fits(named, optimizer, facts)
    groups = optimizer.state_dict()["param_groups"]
    state = {}
    for group, own, stored in zip(groups, optimizer.param_groups, facts["groups"], strict=True):
        for key, value in stored.items():
            if key not in ("params", "param_names"):
                restored = _insert(value, tensors, Tensor.clone)
                group[key] = tuple(restored) if isinstance(own.get(key), tuple) else restored
        # As in PyTorch, counts of steps are on the CPU unless a kernel on the device reads them.
        on_device = bool(group.get("capturable") or group.get("fused"))
        for parameter in own["params"]:
            for key, value in facts["state"].get(named[parameter], {}).items():
                placed = _placing(parameter, on_device=on_device or key != "step")
                state.setdefault(parameter, {})[key] = _insert(value, tensors, placed)
    optimizer.load_state_dict({"state": {}, "param_groups": groups})
    # load_state_dict would convert all of it to the dtype of the parameters.
    optimizer.state.update(state)


def _unwrap_optimizer(optimizer: Optimizer) -> Optimizer:
    return getattr(optimizer, "optimizer", optimizer)  # as Accelerate wraps it


def _name_parameters(model: nn.Module, optimizer: Optimizer) -> dict[Tensor, str]:
    """Parameters of an optimizer, in its order, with their names in the model, without the prefixes of wrappers."""
    while True:
        if isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel):
            model = model.module
        elif hasattr(model, "_orig_mod"):  # of torch.compile
            model = cast(nn.Module, model._orig_mod)
        else:
            break
    names = {parameter: name.replace("_orig_mod.", "") for name, parameter in model.named_parameters()}
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for number, parameter in enumerate(parameters):
        if parameter not in names:
            raise ValueError(
                f"parameter {number} of the optimizer, of shape {tuple(parameter.shape)}, is none of the model's: "
                "give the model that the optimizer was made for"
            )
    return {parameter: names[parameter] for parameter in parameters}


def _check_fits(named: dict[Tensor, str], optimizer: Optimizer, facts: dict) -> None:
    kind = type(optimizer).__name__
    if facts["kind"] != kind:
        raise ValueError(f"the state is that of {facts['kind']}, the optimizer is {kind}: make it as it was")
    expected = {name: list(parameter.shape) for parameter, name in named.items()}
    wrong = [f"missing {name}" for name in expected if name not in facts["shapes"]]
    wrong += [f"unknown {name}" for name in facts["shapes"] if name not in expected]
    wrong += [
        f"{name} has shape {tuple(shape)}, expected {tuple(expected[name])}"
        for name, shape in facts["shapes"].items()
        if name in expected and shape != expected[name]
    ]
    own = [{named[parameter] for parameter in group["params"]} for group in optimizer.param_groups]
    stored = [set(group["params"]) for group in facts["groups"]]
    if not wrong and own != stored:
        wrong = [f"{len(stored)} groups of {[*map(len, stored)]}, expected {len(own)} of {[*map(len, own)]}"]
        wrong += [
            f"{sorted(names ^ others)[0]} is in another group"
            for names, others in zip(own, stored, strict=False)
            if names != others
        ]
    if wrong:
        shown = "; ".join(wrong[:6]) + (f"; and {len(wrong) - 6} more" if len(wrong) > 6 else "")
        raise ValueError(f"the state of the optimizer is that of another model: {shown}")


def _extract(value, name: str, tensors: dict[str, Tensor]):
    """A value of the state in which each tensor is replaced by its name; the tensors are added to `tensors`."""
    if isinstance(value, Tensor):
        tensors[name] = whole(value).detach().to("cpu", copy=True)
        return {"tensor": name}
    if isinstance(value, dict):
        return _extract_all(value, name, tensors)
    if isinstance(value, list | tuple):
        return [_extract(each, f"{name}/{index}", tensors) for index, each in enumerate(value)]
    return value


def _extract_all(values: dict[str, Any], name: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    return {key: _extract(each, f"{name}/{key}", tensors) for key, each in values.items()}


def _insert(value, tensors: Mapping[str, Tensor], place: Callable[[Tensor], Tensor]):
    """The value that was passed to `_extract`, with the tensors that `place` returns for the stored ones."""
    if isinstance(value, dict) and value.keys() == {"tensor"}:
        if value["tensor"] not in tensors:
            raise ValueError(f"the state of the optimizer lacks the tensor {value['tensor']}: give all that came of it")
        return place(tensors[value["tensor"]])
    if isinstance(value, dict):
        return {key: _insert(each, tensors, place) for key, each in value.items()}
    if isinstance(value, list):
        return [_insert(each, tensors, place) for each in value]
    return value


def _placing(parameter: Tensor, *, on_device: bool) -> Callable[[Tensor], Tensor]:
    """A function that copies a tensor of the state to the device of its parameter, or to the CPU."""

    def place(tensor: Tensor) -> Tensor:
        if not on_device or tensor.shape != parameter.shape:
            return tensor.to(parameter.device if on_device else "cpu", copy=True)
        return like(tensor, parameter)

    return place


def _pack(tensors: Mapping[str, Tensor], file: str) -> bytes:
    """The bytes of a safetensors file, for which tensors must be contiguous and share no memory."""
    ready, storages = {}, set()
    for name, tensor in tensors.items():
        where = f"tensor {name!r} of {file}"
        if name == "__metadata__":
            raise ValueError(f"{where} cannot be written: safetensors keeps that name to itself, take another")
        if not isinstance(tensor, Tensor) or tensor.layout != torch.strided or tensor.is_meta:
            raise ValueError(f"{where} cannot be written: expected a dense tensor, got {tensor!r}")
        if hasattr(tensor, "full_tensor"):
            raise ValueError(f"{where} is spread over processes: call full_tensor() of it on all of them")
        own = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
        if own.untyped_storage().data_ptr() in storages:
            own = own.clone()
        storages.add(own.untyped_storage().data_ptr())
        ready[name] = own
    try:
        return save(ready)
    except (KeyError, ValueError, safetensors.SafetensorError) as error:
        raise ValueError(f"the tensors of {file} cannot be written as safetensors: {error!r}") from error


def _check_json(value, key: str) -> None:
    if isinstance(value, dict):
        for name, each in value.items():
            if not isinstance(name, str):
                raise ValueError(f"{key} has the key {name!r}, but JSON has only text for keys: give str({name!r})")
            _check_json(each, f"{key}.{name}")
    elif isinstance(value, list | tuple):
        for index, each in enumerate(value):
            _check_json(each, f"{key}[{index}]")
    elif not isinstance(value, str | int | float | None):
        raise ValueError(
            f"{key} is a {type(value).__name__}, which JSON cannot hold: give numbers, text, lists and dicts of them, "
            "and tensors among the tensors"
        )


def _read_facts(path: Path) -> dict:
    content = json.loads((path / FACTS).read_bytes())
    if not isinstance(content, dict) or not all(isinstance(content.get(key), dict) for key in ("facts", "sha256")):
        raise ValueError("it is no facts.json of a checkpoint: it has no facts and sha256")
    return content


def _digest_facts(facts: dict) -> str:
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def _compare(found: str, expected: str) -> None:
    if found != expected:
        raise ValueError(f"its sha256 is {found}, expected {expected}")


@contextlib.contextmanager
def _doing(what: str, path: Path) -> Iterator[None]:
    """Adds the action, the path and advice to the message of an OSError; its number is kept."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        advice = "make room on that disk" if full else "see that it can be written, or take another folder"
        raise OSError(
            error.errno,
            f"could not {what} {path}: {error.strerror or error}; "
            f"earlier checkpoints are unchanged. To continue, {advice}",
        ) from error


def _write(path: Path, content: bytes) -> None:
    with _doing("write", path), path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _rename(path: Path, to: Path) -> None:
    with _doing(f"rename to {to.name}", path):
        os.replace(path, to)


def _sync(folder: Path) -> None:
    """Writes the entries of a folder to disk."""
    if os.name == "nt":  # folders cannot be opened there
        return
    with _doing("sync", folder):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _remove(path: Path) -> None:
    """Removes a path, which is renamed first so that it never looks complete; leftovers are removed next time."""
    part = path.with_suffix(".part")
    if path != part:
        _rename(path, part)
    if part.is_dir():
        shutil.rmtree(part, ignore_errors=True)
    else:
        part.unlink(missing_ok=True)
