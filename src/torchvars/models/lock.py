"""Locks on files and folders that one process writes."""

import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout


@contextmanager
def held(path: Path, refusal: str, wait: float = 0) -> Iterator[None]:
    """A context in which no other process on this machine writes to a path.

    Args:
        path: file or folder, which need not exist yet.
        refusal: message of the ValueError if another process holds the lock.
        wait: seconds to wait for that process.
    """
    name = hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:24]
    lock = FileLock(Path(tempfile.gettempdir()) / f"torchvars-{name}.lock", timeout=wait)
    try:
        lock.acquire()
    except Timeout as error:
        raise ValueError(refusal) from error
    try:
        yield
    finally:
        lock.release()
