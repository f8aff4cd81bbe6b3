"""One random generator for each picture, so that random numbers do not depend on the batch."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..data import derive_seed

Generators = Sequence[torch.Generator]  # one for each picture, on the CPU, so that all devices draw the same numbers


def generators_of(identities: Sequence[str], *condition: int | str) -> list[torch.Generator]:
    """A generator for each picture, seeded by its name and a condition such as ("gaussian_noise", 3, seed)."""
    return [torch.Generator().manual_seed(derive_seed(identity, *condition)) for identity in identities]


def normal(generators: Generators, *shape: int, device: torch.device | str = "cpu") -> Tensor:
    """Standard normal numbers (batch, *shape)."""
    return torch.stack([torch.randn(shape, generator=generator) for generator in generators]).to(device)


def uniform(generators: Generators, *shape: int, device: torch.device | str = "cpu") -> Tensor:
    """Uniform numbers (batch, *shape) in [0, 1)."""
    return torch.stack([torch.rand(shape, generator=generator) for generator in generators]).to(device)
