"""Solving a problem in half precision loses it: where autocast is on, it is left."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import wraps

import torch
from torch import Tensor


def outside_autocast(tensor: Tensor) -> AbstractContextManager:
    """A context in which products of precise tensors stay precise; none where autocast is off, so that it exports."""
    device = tensor.device.type
    if not torch.amp.is_autocast_available(device):  # as on the meta device
        return nullcontext()
    return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext()


def precisely(backward: Callable) -> Callable:
    """The backward of an autograd function, the same whether it is called inside autocast or outside."""

    @wraps(backward)
    def outside(ctx, upstream: Tensor):
        with outside_autocast(upstream):
            return backward(ctx, upstream)

    return outside
