"""Selects the implementation: the definition, or handwritten operators."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

_plain = ContextVar("plain", default=False)
_is_exporting = getattr(torch.compiler, "is_exporting", torch.compiler.is_compiling)  # not in PyTorch 2.6


@contextmanager
def plain() -> Iterator[None]:
    """A context in which everything is computed by its definition, which can be differentiated more than once."""
    token = _plain.set(True)
    try:
        yield
    finally:
        _plain.reset(token)


def operators_allowed() -> bool:
    """Whether custom operators may be used.

    They may not be used in `plain`, by exporters, in `torch.jit.trace`, or in transforms of `torch.func`.
    """
    is_traced = _is_exporting() or torch.jit.is_tracing() or torch._C._are_functorch_transforms_active()
    return not (is_traced or _plain.get())
