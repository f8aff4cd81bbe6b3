"""Loading and calling the compiled kernels."""

import ctypes
import os
import sysconfig
from functools import cache
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

SWITCH = "TORCHVARS_NATIVE"  # environment variable; 0: no kernels; baseline, avx2 or avx512: no higher instruction set
STARTS = ("analysis", "zero", "scaled", "thresholded")  # in the order of kernels/task.h


def _fields(integers: str, numbers: str, addresses: str) -> tuple:
    """The fields of a structure of task.h, in the same order: integers, then numbers, then addresses."""
    kinds = ((ctypes.c_int64, f"kind precise {integers}"), (ctypes.c_double, numbers), (ctypes.c_void_p, addresses))
    return tuple((name, kind) for kind, names in kinds for name in names.split())


class Filters(ctypes.Structure):
    """ISTA with filters, alone or with atoms."""

    code = 0
    _fields_ = _fields(
        "batch heads channels height width filters filter_height filter_width atoms steps start bounds chunks "
        "iterations",
        "strength",
        "signal bank dictionary bound reconstruction upstream grad_signal grad_bank grad_dictionary "
        "power eigenvalue target support solution",
    )

    def work(self) -> int:
        """Approximate number of values that are computed."""
        numbers = self.height * self.width * self.heads * self.channels * self.filters
        return numbers * max(self.steps, self.iterations, 1) * max(self.batch, 1)


class Bound(Filters):
    """Quantities of filters that are computed before the first step."""

    code = 3


class System(Filters):
    """A linear system with the Gram matrix of filters, alone or with atoms."""

    code = 4


class Atoms(ctypes.Structure):
    """ISTA with atoms alone."""

    code = 1
    _fields_ = _fields(
        "batch heads channels positions atoms reads steps start step_sizes chunks width totals",
        "strength",
        "signal dictionary reader step_size reconstruction found upstream "
        "grad_signal grad_dictionary grad_reader grad_step_size "
        "keys prototypes queries reader_prototypes grad_keys grad_prototypes grad_queries grad_reader_prototypes",
    )

    def work(self) -> int:
        return self.batch * self.heads * self.positions * self.atoms


class Features(ctypes.Structure):
    """Atoms computed from queries."""

    code = 2
    _fields_ = _fields(
        "batch heads channels positions atoms shares chunks",
        "scale",
        "queries directions features upstream grad_queries grad_directions",
    )

    def work(self) -> int:
        return self.batch * self.heads * self.positions * self.atoms


Task = Filters | Atoms | Features
Kind = TypeVar("Kind", bound=Task)


def task(kind: type[Kind], like: Tensor, **fields: Tensor | float | None) -> Kind:
    """A task of this kind, in the precision of the tensor `like`.

    Of tensors it holds only the address, so that the caller has to keep them alive until the task is done.
    """
    values = {name: value.data_ptr() if isinstance(value, Tensor) else value for name, value in fields.items()}
    return kind(kind=kind.code, precise=like.dtype == torch.float64, **values)


def _load() -> ctypes.CDLL | None:
    """The library; None if it was not compiled, is older than these sources, cannot be loaded or is switched off."""
    path = Path(__file__).with_name("_kernels" + sysconfig.get_config_var("EXT_SUFFIX"))
    if os.environ.get(SWITCH) == "0" or not path.exists():
        return None
    try:
        loaded = ctypes.CDLL(str(path))
        loaded.torchvars_layout.restype = ctypes.c_int64
        layout = (ctypes.sizeof(Filters) * 10000 + ctypes.sizeof(Atoms)) * 10000 + ctypes.sizeof(Features)
        if loaded.torchvars_layout() != layout:
            return None
        loaded.torchvars_instruction_set.restype = ctypes.c_char_p
        loaded.torchvars_items.restype = loaded.torchvars_workspace.restype = ctypes.c_int64
        loaded.torchvars_run.restype = None
        loaded.torchvars_run.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)
    except (OSError, AttributeError):  # built for another machine, or from older sources
        return None
    return loaded


LIBRARY = _load()
# The instruction set that the kernels use: avx512, avx2 or baseline; None without kernels.
INSTRUCTION_SET = None if LIBRARY is None else LIBRARY.torchvars_instruction_set().decode()


@cache
def _parallel() -> int | None:
    """The address of GOMP_parallel in the OpenMP that PyTorch has loaded, whose threads are running already."""
    folder = Path(torch.__file__).parent / "lib"
    for name in ("libtorch_cpu.so", "libtorch_cpu.dylib"):
        try:
            return ctypes.cast(ctypes.CDLL(str(folder / name)).GOMP_parallel, ctypes.c_void_p).value
        except (OSError, AttributeError):
            continue
    return None


def threads_for(task: Task) -> int:
    """The number of threads: as many as PyTorch uses, but one for each 0.1 ms of work at most."""
    return max(1, min(torch.get_num_threads(), task.work() // 100_000))


def chunked(task: Task) -> int:
    """Splits the batch of a task into parts if the channels do not keep all threads busy; returns their number."""
    threads = threads_for(task)
    wanted = 2 * threads if threads > 1 else 1
    assert LIBRARY is not None
    task.chunks = 1
    task.chunks = max(1, min(task.batch, -(-wanted // LIBRARY.torchvars_items(ctypes.byref(task)))))
    return task.chunks


def run(task: Task) -> None:
    """Runs a task. All tensors that it points to must be contiguous, of its precision, and outlive the call."""
    threads = threads_for(task)
    assert LIBRARY is not None
    workspace = torch.empty(threads * LIBRARY.torchvars_workspace(ctypes.byref(task)) + 64, dtype=torch.uint8)
    aligned = (workspace.data_ptr() + 63) // 64 * 64
    LIBRARY.torchvars_run(ctypes.byref(task), aligned, threads, _parallel())
