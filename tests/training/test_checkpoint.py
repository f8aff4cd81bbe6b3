"""Checkpoints: whole or not there, and training goes on from them to the same bits."""

import contextlib
import errno
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from torchvars.training.checkpoint import Checkpoints, optimizer_tensors, restore_optimizer


@pytest.fixture(autouse=True)
def _no_wait_for_the_disk(monkeypatch):
    """It is most of the time of these tests, and only a loss of power would show it; processes of their own do wait."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


def content(step, version=0):
    """Tensors and facts that no other step or version has."""
    generator = torch.Generator().manual_seed(1000 * step + version)
    tensors = {
        "model": {"weight": torch.randn(3, 4, generator=generator), "count": torch.tensor(step)},
        "optimizer": {"weight/exp_avg": torch.randn(3, 4, generator=generator).bfloat16()},
    }
    return tensors, {"step": step, "version": version, "rate": 0.1 + version}


def bits(tensor):
    return tensor.dtype, tuple(tensor.shape), tensor.contiguous().reshape(-1).view(torch.uint8).tolist()


def same(one, other):
    """Tensors by their bits, facts as they are."""
    flat = [
        {(file, name): bits(tensor) for file, group in tensors.items() for name, tensor in group.items()}
        for tensors, _ in (one, other)
    ]
    return flat[0] == flat[1] and one[1] == other[1]


def names(folder):
    return {path.name for path in folder.iterdir()}


# Written and read


def test_what_is_written_is_read(tmp_path):
    checkpoints = Checkpoints(tmp_path / "run" / "checkpoints")
    assert checkpoints.latest() is None
    assert checkpoints.best() is None
    path = checkpoints.write(1200, *content(1200))
    assert path == tmp_path / "run" / "checkpoints" / "step_00001200"
    assert names(path) == {"model.safetensors", "optimizer.safetensors", "facts.json"}
    assert checkpoints.latest() == path
    assert same(checkpoints.read(path), content(1200))


DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16]
DTYPES += [torch.int8, torch.uint8, torch.bool, torch.complex64, torch.float8_e4m3fn]


@st.composite
def odd_tensors(draw):
    """Any bits, NaN among them, in any order in memory."""
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 3), max_size=4))
    count = torch.Size(shape).numel() * torch.empty((), dtype=dtype).itemsize
    top = 1 if dtype == torch.bool else 255
    raw = torch.tensor(draw(st.lists(st.integers(0, top), min_size=count, max_size=count)), dtype=torch.uint8)
    tensor = raw.view(dtype).reshape(shape)
    return tensor.permute(draw(st.permutations(range(len(shape)))))


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(st.text(), odd_tensors(), max_size=5))
def test_tensors_of_any_type_shape_and_name(tensors):
    tensors.pop("__metadata__", None)
    with tempfile.TemporaryDirectory() as folder:
        checkpoints = Checkpoints(folder)
        path = checkpoints.write(0, {"model": tensors}, {})
        assert same(checkpoints.read(path), ({"model": tensors}, {}))


def test_tensors_that_share_memory(tmp_path):
    base = torch.arange(12.0).reshape(3, 4)
    linear = nn.Linear(4, 4)
    tensors = {
        "all": base,
        "again": base,
        "row": base[1],
        "column": base[:, 1],
        "transposed": base.T,
        "expanded": base[0, 0].expand(2, 2),
        "parameter": linear.weight,
        "conjugate": torch.tensor([1 + 2j]).conj(),
        "negative": torch.tensor([1 + 2j]).conj().imag,
    }
    checkpoints = Checkpoints(tmp_path)
    read, _ = checkpoints.read(checkpoints.write(1, {"model": tensors}, {}))
    assert read["model"].keys() == tensors.keys()
    for name, tensor in tensors.items():
        torch.testing.assert_close(read["model"][name], tensor.detach().resolve_conj(), rtol=0, atol=0)
    read["model"]["all"].zero_()  # what is read belongs to the reader
    assert base.sum() == 66
    assert read["model"]["again"].sum() == 66


def test_facts_come_back(tmp_path):
    facts = {
        "a": [1, 2.5, None, True, "é\n\ud800"],
        "b": {"c": {"": 0.1 + 0.2}},
        "huge": 2**80,
        "sha256": {},
        "facts": 1,
    }
    checkpoints = Checkpoints(tmp_path)
    _, read = checkpoints.read(checkpoints.write(1, {}, facts))
    assert read == facts
    _, read = checkpoints.read(checkpoints.write(2, {}, {"loss": float("nan"), "best": float("-inf")}))
    assert read["loss"] != read["loss"]
    assert read["best"] == float("-inf")


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"a": {"b": [0, torch.zeros(1)]}}, r"facts\.a\.b\[1\] is a Tensor, which JSON cannot hold"),
        ({"path": Path("x")}, r"facts\.path is a PosixPath"),
        ({"epochs": {1: 0.5}}, r"facts\.epochs has the key 1, but JSON has only text for keys"),
        ([1], "facts must be a dict, got a list"),
    ],
)
def test_facts_that_are_not_json(facts, message, tmp_path):
    checkpoints = Checkpoints(tmp_path)
    with pytest.raises(ValueError, match=message):
        checkpoints.write(1, {}, facts)
    assert names(tmp_path) == set()


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"model": {"x": 1.0}}, "tensor 'x' of model cannot be written: expected a dense tensor, got 1.0"),
        ({"model": {"x": torch.eye(2).to_sparse()}}, "tensor 'x' of model cannot be written"),
        ({"model": {"x": torch.zeros(1, device="meta")}}, "tensor 'x' of model cannot be written"),
        ({"model": {"__metadata__": torch.zeros(1)}}, "safetensors keeps that name to itself"),
        ({"model": {"x": torch.zeros(1, dtype=torch.complex128)}}, "tensors of model cannot be written .*complex128"),
        ({"../model": {}}, "'../model' cannot name a file of tensors"),
    ],
)
def test_tensors_that_cannot_be_written(tensors, message, tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.write(1, *content(1))
    with pytest.raises(ValueError, match=message):
        checkpoints.write(2, tensors, {})
    assert names(tmp_path) == {"step_00000001"}


def test_bad_arguments(tmp_path):
    with pytest.raises(ValueError, match="every must be at least 1, or None to keep none for good: got 0"):
        Checkpoints(tmp_path, every=0)
    with pytest.raises(ValueError, match="step must be 0 or more, got -1"):
        Checkpoints(tmp_path).write(-1, {}, {})
    Checkpoints(tmp_path).write(3, {}, {})
    with pytest.raises(FileNotFoundError, match=r"no checkpoint .*step_00000007; there are: .*step_00000003"):
        Checkpoints(tmp_path).read(tmp_path / "step_00000007")


# Damage


@pytest.mark.parametrize("file", ["model.safetensors", "optimizer.safetensors", "facts.json"])
@pytest.mark.parametrize("damage", ["a bit", "cut", "empty", "missing"])
def test_damage_is_noticed(file, damage, tmp_path):
    checkpoints = Checkpoints(tmp_path)
    first, second = checkpoints.write(9, *content(9)), checkpoints.write(10, *content(10))
    for path, instead in ((second, f"take the one before it, {first}$"), (first, "there is none before it")):
        whole = (path / file).read_bytes()
        if damage == "a bit":
            place = whole.index(b'"rate": ') + 8 if file == "facts.json" else len(whole) - 1
            (path / file).write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        elif damage == "missing":
            (path / file).unlink()
        else:
            (path / file).write_bytes(whole[: len(whole) // 2 if damage == "cut" else 0])
        with pytest.raises(ValueError, match=f"{path / file} is damaged or cannot be read .*: {instead}"):
            checkpoints.read(path)


def test_one_that_lacks_a_file_is_not_the_latest(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    first, second = checkpoints.write(1, *content(1)), checkpoints.write(2, *content(2))
    (second / "model.safetensors").unlink()
    assert checkpoints.latest() == first
    (first / "facts.json").write_text("{")
    assert checkpoints.latest() is None


# Which are kept


def test_the_last_two_the_best_and_every_so_many_are_kept(tmp_path):
    checkpoints = Checkpoints(tmp_path, every=30)
    for step in range(10, 110, 10):
        checkpoints.write(step, *content(step), best=step in (20, 50))
        kept = {step, step - 10} | {s for s in (30, 60, 90) if s <= step} | {50 if step >= 50 else 20}
        assert names(tmp_path) - {"best.json"} == {f"step_{s:08d}" for s in kept if 10 <= s <= step}
    assert checkpoints.best() == tmp_path / "step_00000050"
    assert same(checkpoints.read(checkpoints.best()), content(50))
    assert json.loads((tmp_path / "best.json").read_text())["step"] == 50
    assert Checkpoints(tmp_path).best() == checkpoints.best()
    assert checkpoints.latest() == tmp_path / "step_00000100"


def test_one_written_behind_others_is_kept(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    for step in (100, 200, 300, 50):
        checkpoints.write(step, *content(step))
    assert names(tmp_path) == {"step_00000050", "step_00000200", "step_00000300"}


def test_files_of_others_are_left_alone(tmp_path):
    others = {"metrics.jsonl", "metrics.jsonl.part", "step_1", "step_of_mine"}
    for name in others:
        (tmp_path / name).touch()
    checkpoints = Checkpoints(tmp_path)
    for step in range(5):
        checkpoints.write(step, *content(step))
    assert names(tmp_path) == {*others, "step_00000003", "step_00000004"}


def test_a_step_is_replaced(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.write(1, *content(1))
    checkpoints.write(2, *content(2), best=True)
    checkpoints.write(2, *content(2, version=1), best=True)
    assert names(tmp_path) == {"step_00000001", "step_00000002", "best.json"}
    assert same(checkpoints.read(checkpoints.latest()), content(2, version=1))
    assert checkpoints.best() == checkpoints.latest()


def test_the_best_that_is_replaced_by_one_that_is_not(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.write(1, *content(1), best=True)
    checkpoints.write(2, *content(2), best=True)
    checkpoints.write(2, *content(2, version=1))
    assert checkpoints.best() == tmp_path / "step_00000001"


def test_a_broken_mark_is_told(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.write(1, *content(1), best=True)
    (tmp_path / "best.json").write_text("")
    with pytest.raises(ValueError, match=r"best\.json does not say which step is the best .*: remove it"):
        checkpoints.best()


# Crashes


class Crash(BaseException):
    """The process is gone: nothing it would do afterwards happens."""


CALLS = ("fsync", "replace", "rename", "mkdir", "unlink", "rmdir")


def crash_at(number, patch, error=None):
    """Lets the number-th of all calls that matter fail; without an error all calls after it as well."""
    count = 0

    def failing(original, tears=False):
        def call(*args, **kwargs):
            nonlocal count
            count += 1
            if count == number or (count > number and error is None):
                if tears and count == number and error is None:  # what was not brought to the disk may be lost
                    with contextlib.suppress(OSError):  # of a folder
                        os.ftruncate(args[0], os.fstat(args[0]).st_size // 2)
                raise error or Crash
            return original(*args, **kwargs)

        return call

    for name in CALLS:
        patch.setattr(os, name, failing(getattr(os, name), tears=name == "fsync"))
    save = sys.modules["torchvars.training.checkpoint"].save
    patch.setattr("torchvars.training.checkpoint.save", failing(save))
    return lambda: count


@pytest.mark.parametrize("death", [True, False], ids=["killed", "failed"])
@pytest.mark.parametrize("step", [4, 3], ids=["new", "replaced"])
def test_a_crash_at_any_point_leaves_what_was_there(step, death, tmp_path):
    start = tmp_path / "start"
    checkpoints = Checkpoints(start)
    checkpoints.write(1, *content(1), best=True)
    checkpoints.write(2, *content(2))
    checkpoints.write(3, *content(3))
    new = content(step, version=1)
    for number in range(1, 200):
        folder = tmp_path / str(number)
        shutil.copytree(start, folder)
        checkpoints = Checkpoints(folder)
        error = None if death else OSError(errno.EIO, "the disk is gone")
        told = None
        with pytest.MonkeyPatch.context() as patch:
            calls = crash_at(number, patch, error)
            try:
                checkpoints.write(step, *new, best=True)
            except (Crash, OSError) as raised:
                told = raised
        crashed = calls() >= number  # and may be passed over where something is removed
        if isinstance(told, OSError) and told is not error:
            assert told.errno == errno.EIO
            assert str(folder) in str(told)

        again = Checkpoints(folder)
        latest = again.read(again.latest())
        written = same(latest, new)
        assert written or same(latest, content(3))
        # Earlier ones are gone only where the new one lets them go.
        assert written or same(again.read(folder / "step_00000001"), content(1))
        if step == 4:
            assert same(again.read(folder / "step_00000003"), content(3))
        else:
            assert same(again.read(folder / "step_00000002"), content(2))
        best = again.read(again.best())
        assert same(best, new) or (not written and same(best, content(1 if step == 4 else best[1]["step"])))
        # It goes on, and cleans up.
        again.write(step, *new, best=True)
        again.write(9, *content(9))
        assert names(folder) == {f"step_{step:08d}", "step_00000009", "best.json"}
        assert same(again.read(again.best()), new)
        shutil.rmtree(folder)
        if not crashed:
            break
    assert not crashed
    assert number > 10


WRITER = """
import os, signal, sys, torch
from torchvars.training.checkpoint import Checkpoints

def write_for_ever(folder):
    checkpoints = Checkpoints(folder, every=50)
    latest = checkpoints.latest()
    step = 0 if latest is None else checkpoints.read(latest)[1]["step"]
    while True:
        step += 1
        for version in (0, 1):
            tensors = {"model": {"a": torch.full((50_000,), step), "b": torch.full((9,), step + version / 2)}}
            checkpoints.write(step, tensors, {"step": step, "version": version}, best=step % 3 == 0)

for line in sys.stdin:  # a process for each line, so that torch is imported once
    child = os.fork()
    if child == 0:
        signal.alarm(90)  # should nobody kill it
        write_for_ever(sys.argv[1])
    print(child, flush=True)
    print(os.waitpid(child, 0), flush=True)
"""


def test_a_process_killed_at_any_moment_leaves_the_latest_readable(tmp_path):
    folder = tmp_path / "checkpoints"
    chance = random.Random(0)
    reached = 0
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    ) as starter:
        for _ in range(12):
            starter.stdin.write("\n")
            starter.stdin.flush()
            child = int(starter.stdout.readline())
            before = reached
            deadline = time.monotonic() + 60
            while not any((folder / f"step_{step:08d}").exists() for step in range(before + 1, before + 100)):
                assert time.monotonic() < deadline, "nothing was written"
                time.sleep(0.005)
            time.sleep(chance.uniform(0, 0.2))
            os.kill(child, signal.SIGKILL)
            starter.stdout.readline()  # it is gone

            checkpoints = Checkpoints(folder)
            for path in (checkpoints.latest(), checkpoints.best()):
                if path is None:
                    assert reached < 3
                    continue
                tensors, facts = checkpoints.read(path)
                assert path.name.startswith(f"step_{facts['step']:08d}")
                assert (tensors["model"]["a"] == facts["step"]).all()
                assert (tensors["model"]["b"] == facts["step"] + facts["version"] / 2).all()
                assert path != checkpoints.best() or facts["step"] % 3 == 0
            latest = checkpoints.latest()
            reached = 0 if latest is None else checkpoints.read(latest)[1]["step"]
            assert reached > before
            assert len(names(folder)) < 10 + reached // 50
        starter.stdin.close()


# Disks and folders


@pytest.mark.parametrize("below", ["file", "file/folder"])
def test_a_folder_that_cannot_be_made_is_told_at_once(below, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=f"could not make the folder {tmp_path / below}: ") as told:
        Checkpoints(tmp_path / below)
    assert told.value.errno in (errno.EEXIST, errno.ENOTDIR)


def test_a_full_disk_is_told_at_once(tmp_path, monkeypatch):
    def full(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"could not write .*No space left.*To continue, make room on that disk") as told:
        Checkpoints(tmp_path)
    assert told.value.errno == errno.ENOSPC
    assert names(tmp_path) == set()


def test_a_disk_that_fills_up(tmp_path, monkeypatch):
    checkpoints = Checkpoints(tmp_path)
    first = checkpoints.write(1, *content(1))

    def full(handle):
        if os.readlink(f"/proc/self/fd/{handle}").endswith("optimizer.safetensors"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    file = tmp_path / "step_00000002.part" / "optimizer.safetensors"
    with pytest.raises(OSError, match=f"could not write {file}: No space left") as told:
        checkpoints.write(2, *content(2))
    assert told.value.errno == errno.ENOSPC
    assert names(tmp_path) == {"step_00000001"}
    monkeypatch.undo()
    assert same(checkpoints.read(first), content(1))
    assert same(checkpoints.read(checkpoints.write(2, *content(2))), content(2))


def test_a_file_that_the_system_really_cuts_off(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    first = checkpoints.write(1, *content(1))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(OSError, match=r"could not write .*model\.safetensors: File too large") as told:
            checkpoints.write(2, {"model": {"large": torch.zeros(100_000)}}, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert told.value.errno == errno.EFBIG
    assert names(tmp_path) == {"step_00000001"}
    assert same(checkpoints.read(first), content(1))


# Optimizers


class Net(nn.Module):
    """With a parameter that gets no gradient, and one that is shared."""

    def __init__(self, width=6):
        super().__init__()
        self.convolution = nn.Conv2d(3, width, 3).to(memory_format=torch.channels_last)
        self.norm = nn.BatchNorm2d(width)
        self.one = nn.Linear(width, width)
        self.other = nn.Linear(width, width)
        self.other.weight = self.one.weight
        self.unused = nn.Parameter(torch.zeros(2))

    def forward(self, pictures):
        tokens = self.norm(self.convolution(pictures)).relu().mean((2, 3))
        return self.other(self.one(tokens).relu())


def in_groups(kind, **options):
    def make(net):
        plain = [parameter for parameter in net.parameters() if parameter.ndim < 2]
        decayed = [parameter for parameter in net.parameters() if parameter.ndim >= 2]
        return kind([{"params": decayed, "tag": "decayed"}, {"params": plain, "lr": 3e-3}], **options)

    return make


def of_all(kind, **options):
    return lambda net: kind(net.parameters(), **options)


OPTIMIZERS = {
    "AdamW": of_all(torch.optim.AdamW, lr=1e-2),
    "AdamW foreach": of_all(torch.optim.AdamW, lr=1e-2, foreach=True),
    "AdamW fused": of_all(torch.optim.AdamW, lr=1e-2, fused=True),
    "AdamW groups": in_groups(torch.optim.AdamW, lr=1e-2, amsgrad=True, betas=(0.8, 0.95)),
    "AdamW names": lambda net: torch.optim.AdamW(net.named_parameters(), lr=1e-2),
    "AdamW tensor": of_all(torch.optim.AdamW, lr=torch.tensor(1e-2), foreach=False),
    "SGD": of_all(torch.optim.SGD, lr=1e-2),
    "SGD momentum": in_groups(torch.optim.SGD, lr=1e-2, momentum=0.9, dampening=0.2),
    "SGD nesterov": of_all(torch.optim.SGD, lr=1e-2, momentum=0.9, nesterov=True),
    "RMSprop": of_all(torch.optim.RMSprop, lr=1e-3, momentum=0.5, centered=True),
    "Adagrad": of_all(torch.optim.Adagrad, lr=1e-2),
    "ASGD": of_all(torch.optim.ASGD, lr=1e-2, t0=2),
    "NAdam": of_all(torch.optim.NAdam, lr=1e-2),
    "Adafactor": of_all(torch.optim.Adafactor, lr=1e-2),
    "LBFGS": lambda net: torch.optim.LBFGS([net.one.weight, net.one.bias], lr=1e-1, max_iter=3),
}


def build(make, seed, dtype=torch.float32):
    torch.manual_seed(seed)
    net = Net().to(dtype)
    return net, make(net)


def train(net, optimizer, steps):
    for step in steps:
        pictures = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(step)).to(net.one.weight.dtype)

        def loss():
            optimizer.zero_grad()
            value = net(pictures).square().mean()  # noqa: B023 (called before the next step)
            value.backward()
            return value

        optimizer.step(loss)
        for group in optimizer.param_groups:
            group["lr"] = group["lr"] * 0.9


def frozen(value):
    """A state to compare: tensors as their bits and their order in memory."""
    if isinstance(value, torch.Tensor):
        return (*bits(value), value.stride())
    if isinstance(value, dict):
        return {key: frozen(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(frozen(each) for each in value)
    return value


CASES = [(name, torch.float32) for name in OPTIMIZERS]
CASES += [(name, torch.bfloat16) for name in ("AdamW", "ASGD", "NAdam")]  # some keep counts in float32 beside


@pytest.mark.parametrize("taken", [0, 3])
@pytest.mark.parametrize(("name", "dtype"), CASES, ids=str)
def test_training_goes_on_to_the_same_bits(name, dtype, taken, tmp_path):
    net, optimizer = build(OPTIMIZERS[name], 0, dtype)
    train(net, optimizer, range(taken))
    kept = frozen(optimizer.state_dict())
    tensors, facts = optimizer_tensors(net, optimizer)
    checkpoints = Checkpoints(tmp_path)
    checkpoints.write(taken, {"model": net.state_dict(), "optimizer": tensors}, {"optimizer": facts})
    # Nothing happened to the optimizer, and nothing that happens to it reaches what was taken.
    assert frozen(optimizer.state_dict()) == kept
    before = frozen(tensors)
    train(net, optimizer, range(taken, taken + 4))
    assert frozen(tensors) == before

    again, its_optimizer = build(OPTIMIZERS[name], 1, dtype)
    train(again, its_optimizer, range(90, 91))  # a state of its own, of which nothing may stay
    read, facts = Checkpoints(tmp_path).read(Checkpoints(tmp_path).latest())
    again.load_state_dict(read["model"])
    restore_optimizer(again, its_optimizer, read["optimizer"], facts["optimizer"])
    assert frozen(its_optimizer.state_dict()) == kept
    train(again, its_optimizer, range(taken, taken + 4))
    assert frozen(again.state_dict()) == frozen(net.state_dict())


def test_wrapped_models_and_optimizers_have_the_same_names():
    accelerate = pytest.importorskip("accelerate")
    net, optimizer = build(OPTIMIZERS["AdamW groups"], 0)
    train(net, optimizer, range(2))
    tensors, facts = optimizer_tensors(net, optimizer)
    assert set(facts["state"]) == {name for name, parameter in net.named_parameters() if name != "unused"}
    assert "one.weight/exp_avg" in tensors
    wrapped = accelerate.Accelerator(cpu=True).prepare(optimizer)
    for model in (torch.compile(net), nn.DataParallel(net), torch.compile(nn.DataParallel(net))):
        others, other_facts = optimizer_tensors(model, wrapped)
        assert same(({"": others}, other_facts), ({"": tensors}, facts))
        restore_optimizer(model, wrapped, tensors, facts)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda net: setattr(net, "extra", nn.Linear(2, 2)),
            r"another model: missing extra\.weight; missing extra\.bias",
        ),
        (lambda net: delattr(net, "norm"), r"another model: unknown norm\.weight; unknown norm\.bias"),
        (lambda net: net.__init__(width=7), r"norm\.weight has shape \(6,\), expected \(7,\).*; and \d+ more"),
    ],
)
def test_the_state_of_another_model_is_refused(change, message):
    net, optimizer = build(OPTIMIZERS["AdamW"], 0)
    train(net, optimizer, range(1))
    stored = optimizer_tensors(net, optimizer)
    other = Net()
    change(other)
    its_optimizer = OPTIMIZERS["AdamW"](other)
    before = frozen(its_optimizer.state_dict())
    with pytest.raises(ValueError, match=message):
        restore_optimizer(other, its_optimizer, *stored)
    assert frozen(its_optimizer.state_dict()) == before


def test_the_state_of_another_optimizer_is_refused():
    net, optimizer = build(OPTIMIZERS["AdamW"], 0)
    train(net, optimizer, range(1))
    tensors, facts = optimizer_tensors(net, optimizer)
    with pytest.raises(ValueError, match="the state is that of AdamW, the optimizer is SGD"):
        restore_optimizer(net, OPTIMIZERS["SGD"](net), tensors, facts)
    with pytest.raises(ValueError, match=r"1 groups of \[8\], expected 2 of \[2, 6\]; .* is in another group"):
        restore_optimizer(net, OPTIMIZERS["AdamW groups"](net), tensors, facts)
    with pytest.raises(ValueError, match=r"parameter 0 of the optimizer, of shape .* is none of the model's"):
        optimizer_tensors(Net(), optimizer)
    del tensors["one.weight/exp_avg"]
    before = frozen(optimizer.state_dict())
    with pytest.raises(ValueError, match=r"lacks the tensor one\.weight/exp_avg"):
        restore_optimizer(net, optimizer, tensors, facts)
    assert frozen(optimizer.state_dict()) == before


DISTRIBUTED = """
import copy, sys, torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torchvars.training.checkpoint import Checkpoints, optimizer_tensors, restore_optimizer

rank, folder = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
mesh = init_device_mesh("cpu", (2,))

def build(wrap):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 5), nn.GELU(), nn.Linear(5, 1))  # not to be halved evenly
    net = {"plain": lambda: net, "ddp": lambda: nn.parallel.DistributedDataParallel(net),
           "fsdp": lambda: fully_shard(net, mesh=mesh)}[wrap]()
    return net, torch.optim.AdamW(net.parameters(), lr=1e-2)

def train(net, optimizer, steps):
    for step in steps:  # the same on both processes, so that the mean of gradients is each
        optimizer.zero_grad()
        net(torch.randn(8, 3, generator=torch.Generator().manual_seed(step))).square().mean().backward()
        optimizer.step()

def weights(net):
    return [p.full_tensor() if hasattr(p, "full_tensor") else p for p in net.parameters()]

def equal(ones, others):
    return all(torch.equal(a, b) for a, b in zip(ones, others, strict=True))

plain, plain_optimizer = build("plain")
train(plain, plain_optimizer, range(3))
state = copy.deepcopy(plain.state_dict())
tensors, facts = optimizer_tensors(plain, plain_optimizer)
train(plain, plain_optimizer, range(3, 6))
for wrap in ("ddp", "fsdp"):
    net, optimizer = build(wrap)
    train(net, optimizer, range(3))
    found, found_facts = optimizer_tensors(net, optimizer)
    assert found.keys() == tensors.keys() and found_facts == facts, wrap
    assert equal([found[name] for name in tensors], tensors.values()), wrap

    # Out of it, into a plain one.
    again, its_optimizer = build("plain")
    again.load_state_dict(state)
    restore_optimizer(again, its_optimizer, found, found_facts)
    train(again, its_optimizer, range(3, 6))
    assert equal(weights(again), weights(plain)), wrap

    # And from a plain one into it.
    fresh, its_optimizer = build(wrap)
    with torch.no_grad():
        for old, new in zip(fresh.parameters(), net.parameters(), strict=True):
            old.copy_(new)
    restore_optimizer(fresh, its_optimizer, tensors, facts)
    train(fresh, its_optimizer, range(3, 6))
    assert equal(weights(fresh), weights(plain)), wrap
    if wrap == "fsdp":
        try:
            Checkpoints(f"{folder}/{rank}").write(1, {"model": dict(fresh.named_parameters())}, {})
        except ValueError as error:
            assert "is spread over processes: call full_tensor()" in str(error)
        else:
            raise AssertionError("a part was written for the whole")
dist.destroy_process_group()
"""


def test_the_state_is_the_same_under_ddp_and_fsdp(tmp_path):
    if not torch.distributed.is_available():
        pytest.skip("this PyTorch has no torch.distributed")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", DISTRIBUTED, str(rank), str(tmp_path)],
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for rank in range(2)
    ]
    try:
        told = [process.communicate(timeout=120)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], "\n".join(told)
