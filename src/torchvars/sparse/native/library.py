"""The compiled kernels: found, loaded and called."""

import ctypes
import os
import sysconfig
from functools import cache
from pathlib import Path

import torch

SWITCH = "TORCHVARS_NATIVE"  # 0: do without; baseline, avx2, avx512: none above that
STARTS = ("analysis", "zero", "scaled", "thresholded")  # as task.h counts them


class Task(ctypes.Structure):
    """As in kernels/task.h."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("batch", "heads", "channels", "height", "width")),
        *((name, ctypes.c_int64) for name in ("filters", "filter_height", "filter_width", "atoms")),
        *((name, ctypes.c_int64) for name in ("steps", "start", "bounds", "chunks", "precise")),
        ("strength", ctypes.c_double),
        *((name, ctypes.c_void_p) for name in ("signal", "bank", "dictionary", "bound", "reconstruction", "upstream")),
        *((name, ctypes.c_void_p) for name in ("of_signal", "of_bank", "of_dictionary", "power")),
    )


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
    loaded.torchvars_groups.restype = loaded.torchvars_room.restype = ctypes.c_int64
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
    numbers = task.height * task.width * task.heads * task.channels * task.filters
    return max(1, min(torch.get_num_threads(), max(task.batch, 1) * max(task.steps, 1) * numbers // 100_000))


def chunks_for(task: Task) -> int:
    """Into how many parts to cut the batch, so that there are some for each thread: none where the channels suffice."""
    threads = threads_for(task)
    wanted = 2 * threads if threads > 1 else 1
    return max(1, min(task.batch, -(-wanted // LIBRARY.torchvars_groups(ctypes.byref(task)))))


def run(task: Task) -> None:
    """Does a task. All tensors that it points to are contiguous, of the precision it says, and outlive the call."""
    threads = threads_for(task)
    room = torch.empty(threads * LIBRARY.torchvars_room(ctypes.byref(task)) + 64, dtype=torch.uint8)
    aligned = (room.data_ptr() + 63) // 64 * 64
    LIBRARY.torchvars_run(ctypes.byref(task), aligned, threads, _parallel())
