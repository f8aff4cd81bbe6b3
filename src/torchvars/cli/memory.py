"""Reuse of freed memory in long-running processes that allocate large tensors again and again."""

import ctypes
import os
import platform

TRIM_THRESHOLD, MMAP_MAX = -1, -4  # of malloc.h


def keep_freed_memory() -> None:
    """Lets the GNU C library keep freed memory for reuse until the process ends.

    By default it returns large blocks to the system, which then clears every page of the next tensor. The cost on a CPU
    is in docs/performance.md, measured by benchmarks/memory.py. Nothing is changed with another C library, or if an
    environment variable configures memory (MALLOC_..., GLIBC_TUNABLES).
    """
    if variable_in_environment() is not None or platform.libc_ver()[0] != "glibc":
        return
    library = ctypes.CDLL(None)
    library.mallopt(MMAP_MAX, 0)
    library.mallopt(TRIM_THRESHOLD, -1)  # never


def variable_in_environment() -> str | None:
    """Name of an environment variable that configures memory management, if there is one."""
    return next((name for name in os.environ if name.startswith("MALLOC_") or name == "GLIBC_TUNABLES"), None)
