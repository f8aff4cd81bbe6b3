"""Processes that were started anew after one of them died."""

import os

import torch
from torch import distributed


def was_restarted() -> bool:
    """Whether torchrun has started this process in place of one of a group that failed."""
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"


def join_restarted() -> None:
    """Lets processes that were started anew find each other.

    torchrun keeps one store for all attempts, in which PyTorch then reads where the dead processes were: each attempt
    gets a place of its own there. On several machines attempts are counted by each for itself, so that there is no name
    for such a place; there TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 makes torchrun use a new store each time.
    """
    shared = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if not was_restarted() or not shared or os.environ["GROUP_WORLD_SIZE"] != "1" or distributed.is_initialized():
        return
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    store = distributed.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), world, is_master=False)
    distributed.init_process_group(
        distributed.get_default_backend_for_device(device or torch.device("cpu")),
        store=distributed.PrefixStore(f"attempt_{os.environ['TORCHELASTIC_RESTART_COUNT']}", store),
        rank=rank,
        world_size=world,
    )
