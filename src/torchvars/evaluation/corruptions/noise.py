"""Noise, each number of a picture by itself: pixels (B, 3, H, W) in [0, 1] -> the same shape, not clipped."""

import torch
from torch import Tensor

from ..chance import Generators, normal, uniform


def gaussian_noise(pixels: Tensor, scale: float, generators: Generators) -> Tensor:
    """Gaussian noise of the same spread everywhere."""
    return pixels + scale * normal(generators, *pixels.shape[1:], device=pixels.device)


def shot_noise(pixels: Tensor, photons: float, generators: Generators) -> Tensor:
    """Light that comes in photons, so many at white on average."""
    rates = pixels.cpu() * photons
    counts = torch.stack([torch.poisson(rate, generator=g) for rate, g in zip(rates, generators, strict=True)])
    return counts.to(pixels.device) / photons


def impulse_noise(pixels: Tensor, amount: float, generators: Generators) -> Tensor:
    """Salt and pepper: that share of the numbers is lost, half to 0 and half to 1."""
    chance = uniform(generators, *pixels.shape[1:], device=pixels.device)
    return torch.where(chance < amount, (chance < amount / 2).to(pixels.dtype), pixels)


def speckle_noise(pixels: Tensor, scale: float, generators: Generators) -> Tensor:
    """Noise that grows with the brightness."""
    return pixels + pixels * scale * normal(generators, *pixels.shape[1:], device=pixels.device)
