"""Blurs: pixels (B, 3, H, W) in [0, 1] -> the same shape."""

import torch
from torch import Tensor

from ..generators import Generators, uniform
from .filters import convolve, gaussian, motion, pad, zoom


def gaussian_blur(pixels: Tensor, sigma: float, generators: Generators) -> Tensor:
    """A Gaussian blur of deviation sigma, truncated at 4 sigma."""
    return gaussian(pixels, sigma)


def disk(radius: float, sigma: float) -> Tensor:
    """A disk that sums to 1, blurred by a Gaussian of 3 x 3 taps, or 5 x 5 for a radius above 8.

    The size is (2 r + 1, 2 r + 1) with r the radius, but at least 8. The blur mirrors at the border, so that a disk
    that touches it, of radius 8 or more, sums to 1.01: the published pictures are that much brighter.
    """
    half, soft = (8, 1) if radius <= 8 else (int(radius), 2)
    line = torch.arange(-half, half + 1).float()
    kernel = (line**2 + line[:, None] ** 2 <= radius**2).float()
    weights = torch.exp(-0.5 * (torch.arange(-soft, soft + 1).double() / sigma) ** 2)
    weights = (weights / weights.sum()).float()
    around = pad(kernel / kernel.sum(), soft, soft, soft, soft, "mirror")
    return around.unfold(0, 2 * soft + 1, 1).unfold(1, 2 * soft + 1, 1) @ weights @ weights


def defocus_blur(pixels: Tensor, parameters: tuple[float, float], generators: Generators) -> Tensor:
    """Defocus: convolution with a disk of (radius, sigma of its blur)."""
    return convolve(pixels, disk(*parameters), "mirror")


def shuffle(size: tuple[int, int], reach: int, random: Tensor) -> Tensor:
    """The index of the pixel whose colour each pixel takes, (B, H W).

    From the bottom right to the top left, each pixel that is far enough from the border takes the current colour at a
    random offset from -reach to reach - 1 in both directions. The offsets are given by `random` (B, 2, H, W) in [0, 1).
    """
    height, width = size
    row, column = torch.arange(height)[:, None], torch.arange(width)
    moves = (row > reach) & (row <= height - reach) & (column > reach) & (column <= width - reach)
    offset = (random * (2 * reach)).long() - reach
    place = row * width + column
    taken = torch.where(moves, place + offset[:, 0] * width + offset[:, 1], place).flatten(1)
    # A later pixel has been replaced before: follow the chain to one that took an original colour.
    place, moves = place.flatten(), moves.flatten()
    last = torch.where((taken > place) & moves.expand_as(taken).gather(1, taken), taken, place)
    while not torch.equal(last, further := last.gather(1, last)):
        last = further
    return taken.gather(1, last)


def glass_blur(pixels: Tensor, parameters: tuple[float, int, int], generators: Generators) -> Tensor:
    """Frosted glass: (sigma of a blur before and after, reach and rounds of a shuffle of pixels in between).

    The published loop is meant to swap two pixels. But it swaps views into one array, so that the second keeps its
    colour and the first takes it too. This function does the same.
    """
    sigma, reach, rounds = parameters
    size = pixels.shape[-2], pixels.shape[-1]
    blurred = (gaussian(pixels, sigma) * 255 + 1e-3).floor() / 255
    origin = torch.arange(size[0] * size[1]).expand(len(pixels), -1)
    for _ in range(rounds):
        origin = origin.gather(1, shuffle(size, reach, uniform(generators, 2, *size)))
    origin = origin.to(pixels.device).unsqueeze(1).expand(-1, pixels.shape[1], -1)
    return gaussian(blurred.flatten(2).gather(2, origin).view_as(pixels), sigma)


def motion_blur(pixels: Tensor, parameters: tuple[float, float], generators: Generators) -> Tensor:
    """Motion blur of (radius, sigma) along a line at -45 to 45 degrees."""
    angles = uniform(generators) * 90 - 45
    return motion(pixels, *parameters, angles.tolist())


def zoom_blur(pixels: Tensor, factors: tuple[float, ...], generators: Generators) -> Tensor:
    """Zoom blur: the mean of the picture and its enlargements about the centre."""
    total = pixels.clone()
    for factor in factors:
        total += pixels if factor == 1 else zoom(pixels, factor)
    return total / (len(factors) + 1)
