"""A file or folder that one process writes, and no other."""

import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout


@contextmanager
def held(path: Path, refusal: str, wait: float = 0) -> Iterator[None]:
    """While this process writes to a path, no other on this machine does: each would undo the other's work.

    Args:
        path: a file or a folder, which need not be there yet.
        refusal: what the ValueError says if another process holds it.
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
