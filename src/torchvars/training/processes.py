"""Processes that torchrun has restarted after a failure."""

import os

import torch
from torch import distributed


def was_restarted() -> bool:
    """Whether torchrun has restarted this process after one of its group failed."""
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"


def join_restarted() -> None:
    """Initialises the process group of restarted processes.

    torchrun keeps one store for all attempts, in which PyTorch would find the addresses of the failed processes: here
    each attempt has its own prefix. On several machines each counts the attempts for itself, so that there is no common
    prefix; there TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 makes torchrun use a new store each time.
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
