"""Chance that belongs to a picture: what is drawn for it does not depend on the batch it happens to be in."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..data import derive_seed

Generators = Sequence[torch.Generator]  # one a picture, on the CPU, so that every device draws the same


def generators_of(identities: Sequence[str], *condition: int | str) -> list[torch.Generator]:
    """A generator for each picture, from its name and what is done to it: ("gaussian_noise", 3, seed)."""
    return [torch.Generator().manual_seed(derive_seed(identity, *condition)) for identity in identities]


def normal(generators: Generators, *shape: int, device: torch.device | str = "cpu") -> Tensor:
    """Normal numbers (batch, *shape)."""
    return torch.stack([torch.randn(shape, generator=generator) for generator in generators]).to(device)


def uniform(generators: Generators, *shape: int, device: torch.device | str = "cpu") -> Tensor:
    """Numbers (batch, *shape) from 0 to below 1."""
    return torch.stack([torch.rand(shape, generator=generator) for generator in generators]).to(device)
