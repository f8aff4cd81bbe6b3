"""Which form computes: the definition, or one that is written out by hand."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

_plain = ContextVar("plain", default=False)
_is_exporting = getattr(torch.compiler, "is_exporting", torch.compiler.is_compiling)  # PyTorch 2.6 does not tell


@contextmanager
def plain() -> Iterator[None]:
    """A context in which everything runs by its definition, which may be differentiated more than once."""
    token = _plain.set(True)
    try:
        yield
    finally:
        _plain.reset(token)


def operators_allowed() -> bool:
    """Whether operators of our own may be called here, which compilers keep.

    Not in `plain`, nor where an exporter, `torch.jit.trace` or a transform of `torch.func` looks into them.
    """
    looked_into = _is_exporting() or torch.jit.is_tracing() or torch._C._are_functorch_transforms_active()
    return not (looked_into or _plain.get())
