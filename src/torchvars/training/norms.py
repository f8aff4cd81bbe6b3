"""BatchNorm with statistics over all processes."""

from functools import cache

import torch
import torch.distributed
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


def share_statistics(model: nn.Module) -> None:
    """Makes every BatchNorm of a model compute its statistics over all processes, in place.

    `torch.nn.SyncBatchNorm` does this on GPUs only.
    """
    for module in model.modules():
        if isinstance(module, _BatchNorm) and not isinstance(module, _Shared):
            module.__class__ = _shared(type(module))


class _Shared(_BatchNorm):
    def forward(self, tokens: Tensor) -> Tensor:
        """Normalises (batch, C, ...); sums are computed in single precision at least."""
        if not self.training:
            return super().forward(tokens)
        precision = tokens.dtype
        tokens = tokens.to(torch.promote_types(precision, torch.float32))
        around = [dim for dim in range(tokens.ndim) if dim != 1]
        shape = [1, -1, *[1] * (tokens.ndim - 2)]
        count = _Sum.apply(tokens.new_tensor(float(tokens.numel() // tokens.shape[1])))
        mean = _Sum.apply(tokens.sum(around)) / count
        centred = tokens - mean.view(shape)
        variance = _Sum.apply(centred.square().sum(around)) / count
        if self.track_running_stats:
            assert self.num_batches_tracked is not None
            assert self.running_mean is not None
            assert self.running_var is not None
            self.num_batches_tracked += 1
            rate = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
            with torch.no_grad():
                self.running_mean.lerp_(mean, rate)
                self.running_var.lerp_(variance * count / (count - 1).clamp_min(1), rate)
        normal = centred * (variance + self.eps).rsqrt().view(shape)
        normal = normal if not self.affine else normal * self.weight.view(shape) + self.bias.view(shape)
        return normal.to(precision)


class _Sum(torch.autograd.Function):
    """Sum over all processes; the gradient is summed in the same way."""

    @staticmethod
    def forward(ctx, tensor: Tensor) -> Tensor:
        total = tensor.clone(memory_format=torch.contiguous_format)
        torch.distributed.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx, upstream: Tensor) -> Tensor:
        return _Sum.apply(upstream)


@cache
def _shared(kind: type[_BatchNorm]) -> type[_BatchNorm]:
    """Subclass of a class of BatchNorm with shared statistics."""
    # It takes `kind` for _BatchNorm itself, which could not come before its subclass.
    return type(f"Shared{kind.__name__}", (kind, _Shared), {})  # pyright: ignore[reportGeneralTypeIssues]
