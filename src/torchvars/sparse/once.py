"""Handwritten gradients, which would be wrong if they were differentiated again."""

from collections.abc import Callable
from functools import wraps

import torch
from torch import Tensor


def once(instead: str = "run all of it inside torchvars.sparse.plain()") -> Callable[[Callable], Callable]:
    """A decorator for the backward of an autograd function: differentiating its results raises an error.

    PyTorch's own once_differentiable raises one only if the gradient reaches nodes that it adds to the graph.
    `autograd.grad`, and with it every Hessian, bypasses them and is silently wrong. All tensors that the results depend
    on must be saved for backward.

    Args:
        instead: advice for the error message.
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
            wrapped = (
                iter(_Undifferentiable.apply(instead, len(results), *results, *origins)) if origins else iter(results)
            )
            return tuple(None if each is None else next(wrapped) for each in found)

        return guarded

    return decorate


class _Undifferentiable(torch.autograd.Function):
    """Returns the first `count` tensors unchanged, as functions of all of them; backward raises an error."""

    @staticmethod
    def forward(ctx, instead: str, count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.instead = instead
        return tuple(each.view_as(each) for each in tensors[:count])

    @staticmethod
    def backward(ctx, *_):
        raise RuntimeError(f"this gradient is written out by hand and cannot be differentiated again: {ctx.instead}")
