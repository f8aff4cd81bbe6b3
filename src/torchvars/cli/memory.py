"""Memory of large tensors, which programs that run for long take up over and over again."""

import ctypes
import os
import platform

TRIM_THRESHOLD, MMAP_MAX = -1, -4  # of malloc.h


def keep_freed_memory() -> None:
    """Has the GNU C library keep what is freed, and use it again, for as long as the process lasts.

    By itself it hands large blocks back to the system, which then clears every page of the next tensor. What that takes
    on a CPU stands in docs/performance.md, by benchmarks/memory.py. Nothing is done with another C library, or if the
    environment says how memory is to be managed (MALLOC_..., GLIBC_TUNABLES).
    """
    if told_by_environment() is not None or platform.libc_ver()[0] != "glibc":
        return
    library = ctypes.CDLL(None)
    library.mallopt(MMAP_MAX, 0)
    library.mallopt(TRIM_THRESHOLD, -1)  # never


def told_by_environment() -> str | None:
    """The variable by which the environment says how memory is to be managed, if there is one."""
    return next((name for name in os.environ if name.startswith("MALLOC_") or name == "GLIBC_TUNABLES"), None)
