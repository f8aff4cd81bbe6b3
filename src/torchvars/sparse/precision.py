"""Leaving autocast: half precision is not enough to solve a problem."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import wraps

import torch
from torch import Tensor


def outside_autocast(tensor: Tensor) -> AbstractContextManager:
    """A context without autocast; a null context if autocast is off, which exporters support."""
    device = tensor.device.type
    if not torch.amp.is_autocast_available(device):  # as on the meta device
        return nullcontext()
    return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext()


def precisely(backward: Callable) -> Callable:
    """A decorator for the backward of an autograd function, which then runs outside autocast."""

    @wraps(backward)
    def outside(ctx, upstream: Tensor):
        with outside_autocast(upstream):
            return backward(ctx, upstream)

    return outside
