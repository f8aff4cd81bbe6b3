"""Noise, independent for each value: pixels (B, 3, H, W) in [0, 1] -> the same shape, not clipped."""

import torch
from torch import Tensor

from ..generators import Generators, normal, uniform


def gaussian_noise(pixels: Tensor, scale: float, generators: Generators) -> Tensor:
    """Gaussian noise of constant deviation."""
    return pixels + scale * normal(generators, *pixels.shape[1:], device=pixels.device)


def shot_noise(pixels: Tensor, photons: float, generators: Generators) -> Tensor:
    """Poisson noise of photons; `photons` is their mean number at white."""
    rates = pixels.cpu() * photons
    counts = torch.stack([torch.poisson(rate, generator=g) for rate, g in zip(rates, generators, strict=True)])
    return counts.to(pixels.device) / photons


def impulse_noise(pixels: Tensor, amount: float, generators: Generators) -> Tensor:
    """Salt and pepper noise: a share of the values is replaced, half by 0 and half by 1."""
    random = uniform(generators, *pixels.shape[1:], device=pixels.device)
    return torch.where(random < amount, (random < amount / 2).to(pixels.dtype), pixels)


def speckle_noise(pixels: Tensor, scale: float, generators: Generators) -> Tensor:
    """Gaussian noise proportional to the value."""
    return pixels + pixels * scale * normal(generators, *pixels.shape[1:], device=pixels.device)
