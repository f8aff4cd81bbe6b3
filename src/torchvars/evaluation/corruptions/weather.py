"""Weather: pixels (B, 3, H, W) in [0, 1] -> the same shape, not clipped. Brightness is in colour.py."""

import torch
from torch import Tensor

from ..chance import Generators, normal, uniform
from .filters import motion, zoom


def snow(pixels: Tensor, parameters: tuple[float, ...], generators: Generators) -> Tensor:
    """Flakes that fall, in a picture whitened by them.

    Parameters: mean and spread of the noise that flakes come from, its enlargement, the threshold above which it is a
    flake, radius and sigma of the fall, and what the picture keeps of its colours.
    """
    mean, spread, enlargement, threshold, radius, sigma, kept = parameters
    noise = mean + spread * normal(generators, 1, *pixels.shape[-2:], device=pixels.device)
    flakes = zoom(noise, enlargement)
    flakes = (flakes.where(flakes >= threshold, 0).clamp(0, 1) * 255).floor() / 255
    angles = uniform(generators) * 90 - 135
    flakes = (motion(flakes, radius, sigma, angles.tolist()) * 255).round() / 255
    red, green, blue = pixels.split(1, 1)
    grey = 0.299 * red + 0.587 * green + 0.114 * blue
    whitened = kept * pixels + (1 - kept) * torch.maximum(pixels, grey * 1.5 + 0.5)
    return whitened + flakes + flakes.flip(-2, -1)


def plasma(generators: Generators, size: int, decay: float) -> Tensor:
    """Fractal heights (B, size, size) from 0 to 1, size a power of 2: diamonds and squares on a torus.

    Points in the middle between others become their mean and noise; then those in the middle of these, with noise
    smaller by decay squared.
    """
    noise = uniform(generators, size, size) * 2 - 1
    heights = torch.zeros_like(noise)
    step, amplitude = size, 1.0
    while step >= 2:
        half = step // 2
        corners = heights[:, ::step, ::step]
        below = corners + corners.roll(-1, 1)
        squares = (below + below.roll(-1, 2)) / 4 + amplitude * noise[:, half::step, half::step]
        heights[:, half::step, half::step] = squares
        across = squares + squares.roll(1, 1) + corners + corners.roll(-1, 2)
        heights[:, ::step, half::step] = across / 4 + amplitude * noise[:, ::step, half::step]
        along = squares + squares.roll(1, 2) + corners + corners.roll(-1, 1)
        heights[:, half::step, ::step] = along / 4 + amplitude * noise[:, half::step, ::step]
        step, amplitude = half, amplitude / decay**2
    heights = heights - heights.amin((1, 2), keepdim=True)
    return heights / heights.amax((1, 2), keepdim=True)


def fog(pixels: Tensor, parameters: tuple[float, float], generators: Generators) -> Tensor:
    """Clouds of (thickness, decay of their detail) added, and the range brought back to what it was."""
    thickness, decay = parameters
    height, width = pixels.shape[-2:]
    size = max(2, 1 << (max(height, width) - 1).bit_length())
    clouds = plasma(generators, size, decay)[:, None, :height, :width].to(pixels.device)
    brightest = pixels.amax((1, 2, 3), keepdim=True)
    return (pixels + thickness * clouds) * brightest / (brightest + thickness)
