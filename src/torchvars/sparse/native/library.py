"""The compiled kernels: found, loaded and called."""

import ctypes
import os
import sysconfig
from functools import cache
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

SWITCH = "TORCHVARS_NATIVE"  # 0: do without; baseline, avx2, avx512: none above that
STARTS = ("analysis", "zero", "scaled", "thresholded")  # as kernels/task.h counts them


def _fields(integers: str, numbers: str, addresses: str) -> tuple:
    """Of a structure of task.h: its names by their types, in the order in which they stand there."""
    kinds = ((ctypes.c_int64, f"kind precise {integers}"), (ctypes.c_double, numbers), (ctypes.c_void_p, addresses))
    return tuple((name, kind) for kind, names in kinds for name in names.split())


class Filters(ctypes.Structure):
    """ISTA with filters, alone or beside atoms."""

    code = 0
    _fields_ = _fields(
        "batch heads channels height width filters filter_height filter_width atoms steps start bounds chunks "
        "iterations",
        "strength",
        "signal bank dictionary bound reconstruction upstream of_signal of_bank of_dictionary "
        "power eigenvalue target support solution",
    )

    def work(self) -> int:
        """About how many numbers are computed."""
        numbers = self.height * self.width * self.heads * self.channels * self.filters
        return numbers * max(self.steps, self.iterations, 1) * max(self.batch, 1)


class Bound(Filters):
    """What is known of filters before a run."""

    code = 3


class System(Filters):
    """A system of equations with the Gram matrix of filters, alone or beside atoms."""

    code = 4


class Atoms(ctypes.Structure):
    """ISTA with atoms alone."""

    code = 1
    _fields_ = _fields(
        "batch heads channels positions atoms reads steps start step_sizes chunks width totals",
        "strength",
        "signal dictionary reader step_size reconstruction found upstream "
        "of_signal of_dictionary of_reader of_step_size "
        "keys prototypes queries reader_prototypes of_keys of_prototypes of_queries of_reader_prototypes",
    )

    def work(self) -> int:
        return self.batch * self.heads * self.positions * self.atoms


class Features(ctypes.Structure):
    """Atoms made of queries."""

    code = 2
    _fields_ = _fields(
        "batch heads channels positions atoms shares chunks",
        "scale",
        "queries directions features upstream of_queries of_directions",
    )

    def work(self) -> int:
        return self.batch * self.heads * self.positions * self.atoms


Task = Filters | Atoms | Features
Kind = TypeVar("Kind", bound=Task)


def task(kind: type[Kind], like: Tensor, **fields: Tensor | float | None) -> Kind:
    """A task of that kind on numbers of the precision of a tensor.

    A tensor stands in it as its address, so every one has to keep a name until the task is done.
    """
    values = {name: value.data_ptr() if isinstance(value, Tensor) else value for name, value in fields.items()}
    return kind(kind=kind.code, precise=like.dtype == torch.float64, **values)


def _load() -> ctypes.CDLL | None:
    """The library, or None where it was not compiled, cannot be loaded or is switched off."""
    path = Path(__file__).with_name("_kernels" + sysconfig.get_config_var("EXT_SUFFIX"))
    if os.environ.get(SWITCH) == "0" or not path.exists():
        return None
    try:
        loaded = ctypes.CDLL(str(path))
    except OSError:  # built for another machine
        return None
    loaded.torchvars_instruction_set.restype = ctypes.c_char_p
    loaded.torchvars_items.restype = loaded.torchvars_room.restype = ctypes.c_int64
    loaded.torchvars_run.restype = None
    loaded.torchvars_run.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)
    return loaded


LIBRARY = _load()
# avx512, avx2 or baseline: for which the kernels run; None where there are none.
INSTRUCTION_SET = None if LIBRARY is None else LIBRARY.torchvars_instruction_set().decode()


@cache
def _parallel() -> int | None:
    """The address of GOMP_parallel in the OpenMP that PyTorch has loaded: its threads are there already."""
    folder = Path(torch.__file__).parent / "lib"
    for name in ("libtorch_cpu.so", "libtorch_cpu.dylib"):
        try:
            return ctypes.cast(ctypes.CDLL(str(folder / name)).GOMP_parallel, ctypes.c_void_p).value
        except (OSError, AttributeError):
            continue
    return None


def threads_for(task: Task) -> int:
    """As many threads as PyTorch uses, but none for less than a tenth of a millisecond of work."""
    return max(1, min(torch.get_num_threads(), task.work() // 100_000))


def chunked(task: Task) -> int:
    """Cuts the batch of a task into parts, so that there are some for each thread: none where the channels suffice."""
    threads = threads_for(task)
    wanted = 2 * threads if threads > 1 else 1
    assert LIBRARY is not None
    task.chunks = 1
    task.chunks = max(1, min(task.batch, -(-wanted // LIBRARY.torchvars_items(ctypes.byref(task)))))
    return task.chunks


def run(task: Task) -> None:
    """Does a task. All tensors that it points to are contiguous, of the precision it says, and outlive the call."""
    threads = threads_for(task)
    assert LIBRARY is not None
    room = torch.empty(threads * LIBRARY.torchvars_room(ctypes.byref(task)) + 64, dtype=torch.uint8)
    aligned = (room.data_ptr() + 63) // 64 * 64
    LIBRARY.torchvars_run(ctypes.byref(task), aligned, threads, _parallel())
