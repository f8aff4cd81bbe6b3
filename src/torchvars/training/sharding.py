"""Weights that are sharded over processes (FSDP2), and their whole tensors."""

from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def shard(model: nn.Module, blocks: nn.Module, world: int, device: torch.device) -> None:
    """Shards the weights of a model over the processes, in place; a block is whole only while it runs."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device.type, (world,))
    for module in (*blocks.children(), model):
        fully_shard(module, mesh=mesh, reshard_after_forward=True)  # so that all weights are sharded between calls


def whole(tensor: Tensor) -> Tensor:
    """The whole of a sharded tensor, for which all processes must call this; any other tensor as it is."""
    return cast("DTensor", tensor).full_tensor() if hasattr(tensor, "full_tensor") else tensor


def whole_state(model: nn.Module) -> dict[str, Tensor]:
    """The state of a model in whole tensors."""
    return {name: whole(tensor) for name, tensor in model.state_dict().items()}


def like(tensor: Tensor, parameter: Tensor) -> Tensor:
    """A copy of a whole tensor with the device, the sharding and the memory format of a parameter."""
    if hasattr(parameter, "full_tensor"):
        from torch.distributed.tensor import distribute_tensor

        sharded = cast("DTensor", parameter)
        return distribute_tensor(tensor.to(parameter.device), sharded.device_mesh, sharded.placements)
    # In the same memory format, such as channels last, fused kernels read both in parallel.
    return torch.empty_like(parameter, dtype=tensor.dtype, requires_grad=False).copy_(tensor)
