"""Gradients that are written out by hand, and cannot be differentiated again without being wrong."""

from collections.abc import Callable
from functools import wraps

import torch
from torch import Tensor


def once(instead: str = "run all of it inside torchvars.sparse.plain()") -> Callable[[Callable], Callable]:
    """The backward of an autograd function, whose results refuse to be differentiated by whatever they depend on.

    PyTorch's own once_differentiable refuses too, but only if the gradient flows into leaves of the graph that it makes
    up: `autograd.grad`, and with it every Hessian, goes past these and is silently wrong. What the results depend on
    has to be among the tensors saved for backward.

    Args:
        instead: what to do, for the message.
    """

    def decorate(backward: Callable) -> Callable:
        @wraps(backward)
        def guarded(ctx, upstream: Tensor):
            with torch.no_grad():
                found = backward(ctx, upstream)
            if not torch.is_grad_enabled() or torch.compiler.is_compiling():
                return found
            origins = [each for each in (upstream, *ctx.saved_tensors) if each is not None and each.requires_grad]
            results = [each for each in found if each is not None]
            refusing = iter(_Refusing.apply(instead, len(results), *results, *origins)) if origins else iter(results)
            return tuple(None if each is None else next(refusing) for each in found)

        return guarded

    return decorate


class _Refusing(torch.autograd.Function):
    """Some tensors as they are, said to depend on others."""

    @staticmethod
    def forward(ctx, instead: str, count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.instead = instead
        return tuple(each.view_as(each) for each in tensors[:count])

    @staticmethod
    def backward(ctx, *_):
        raise RuntimeError(f"this gradient is written out by hand and cannot be differentiated again: {ctx.instead}")
