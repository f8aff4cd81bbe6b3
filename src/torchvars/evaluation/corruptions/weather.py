"""Weather: pixels (B, 3, H, W) in [0, 1] -> the same shape, not clipped. Brightness is in colour.py."""

import torch
from torch import Tensor

from ..generators import Generators, normal, uniform
from .filters import motion, zoom


def snow(pixels: Tensor, parameters: tuple[float, ...], generators: Generators) -> Tensor:
    """Falling snow flakes on a whitened picture.

    Parameters: mean and deviation of the noise, its enlargement, the threshold above which there is a flake, radius and
    sigma of the motion blur, and the weight of the original picture.
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
    """A plasma fractal (B, size, size) from 0 to 1, by the diamond-square algorithm on a torus; size is a power of 2.

    Midpoints become the mean of their neighbours plus noise. At each finer level the noise is divided by decay squared.
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
    """Fog of (thickness, decay of its detail), and a rescaling to the original range."""
    thickness, decay = parameters
    height, width = pixels.shape[-2:]
    size = max(2, 1 << (max(height, width) - 1).bit_length())
    clouds = plasma(generators, size, decay)[:, None, :height, :width].to(pixels.device)
    brightest = pixels.amax((1, 2, 3), keepdim=True)
    return (pixels + thickness * clouds) * brightest / (brightest + thickness)
