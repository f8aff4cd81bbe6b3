"""Models whose weights are spread over processes (FSDP2), and tensors between there and whole."""

from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def shard(model: nn.Module, blocks: nn.Module, world: int, device: torch.device) -> None:
    """Lets each of so many processes keep a part of every weight, in place; a block is whole only while it runs."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device.type, (world,))
    for module in (*blocks.children(), model):
        fully_shard(module, mesh=mesh, reshard_after_forward=True)  # so that weights are parts whenever none runs


def whole(tensor: Tensor) -> Tensor:
    """The tensor of all processes, which must all ask for it; one that is not spread is given back."""
    return cast("DTensor", tensor).full_tensor() if hasattr(tensor, "full_tensor") else tensor


def whole_state(model: nn.Module) -> dict[str, Tensor]:
    """The state of a model in whole tensors."""
    return {name: whole(tensor) for name, tensor in model.state_dict().items()}


def like(tensor: Tensor, parameter: Tensor) -> Tensor:
    """A copy of a whole tensor, or this process's part of it, beside a parameter and in its order in memory."""
    if hasattr(parameter, "full_tensor"):
        from torch.distributed.tensor import distribute_tensor

        spread = cast("DTensor", parameter)
        return distribute_tensor(tensor.to(parameter.device), spread.device_mesh, spread.placements)
    # In that order, such as channels last, fused kernels go through both side by side.
    return torch.empty_like(parameter, dtype=tensor.dtype, requires_grad=False).copy_(tensor)
