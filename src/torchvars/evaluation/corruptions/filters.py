"""Linear filters for pictures of any size, and their border modes.

Borders have SciPy's names: "nearest" repeats the last pixel (a b c | c c), "reflect" mirrors at the edge (a b c | c b),
"mirror" mirrors at the last pixel (a b c | b a).
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor


def beyond(size: int, before: int, after: int, border: str) -> Tensor:
    """The index of the pixel, of `size`, at each position from -before to size + after - 1."""
    position = torch.arange(-before, size + after)
    if border == "nearest":
        return position.clamp(0, size - 1)
    turn, twice = {"reflect": (2 * size, 1), "mirror": (max(2 * size - 2, 1), 0)}[border]
    position = position % turn
    return torch.minimum(position, turn - twice - position)


def pad(pixels: Tensor, top: int, bottom: int, left: int, right: int, border: str) -> Tensor:
    """Pixels (..., H, W) -> (..., top + H + bottom, left + W + right). The padding may be larger than the picture."""
    rows = beyond(pixels.shape[-2], top, bottom, border).to(pixels.device)
    columns = beyond(pixels.shape[-1], left, right, border).to(pixels.device)
    return pixels.index_select(-2, rows).index_select(-1, columns)


@lru_cache(maxsize=64)
def gaussian_matrix(size: int, sigma: float, truncate: float, border: str) -> Tensor:
    """A Gaussian filter as a matrix (size, size), including the border mode; truncated at truncate * sigma."""
    radius = int(truncate * sigma + 0.5)
    weights = torch.exp(-0.5 * (torch.arange(-radius, radius + 1).double() / max(sigma, 1e-9)) ** 2)
    read = beyond(size, radius, radius, border).unfold(0, 2 * radius + 1, 1)  # (size, taps): the inputs of each output
    matrix = torch.zeros(size, size, dtype=torch.double)
    return matrix.scatter_add_(1, read, (weights / weights.sum()).expand_as(read)).float()


def gaussian(pixels: Tensor, sigma: float, truncate: float = 4.0, border: str = "nearest") -> Tensor:
    """Pixels (..., H, W) blurred by a Gaussian of `sigma` pixels."""
    rows, columns = (gaussian_matrix(size, sigma, truncate, border).to(pixels.device) for size in pixels.shape[-2:])
    return rows @ pixels @ columns.T


def convolve(pixels: Tensor, kernel: Tensor, border: str) -> Tensor:
    """Pixels (B, C, H, W) convolved with a kernel (2 r + 1, 2 r + 1), by FFT."""
    height, width = pixels.shape[-2:]
    radius = len(kernel) // 2
    size = (height + 2 * radius, width + 2 * radius)
    transfer = torch.fft.rfft2(kernel.to(pixels), s=size)
    convolved = torch.empty_like(pixels)
    for picture, place in zip(pixels, convolved, strict=True):  # one by one: a result must not depend on the batch
        spectrum = torch.fft.rfft2(pad(picture, radius, radius, radius, radius, border))
        place.copy_(torch.fft.irfft2(spectrum * transfer, s=size)[..., 2 * radius :, 2 * radius :])
    return convolved


def correlate(pixels: Tensor, kernel: Sequence[Sequence[float]], border: str) -> Tensor:
    """Pixels (..., H, W) correlated with a kernel of 3 x 3."""
    height, width = pixels.shape[-2:]
    around = pad(pixels, 1, 1, 1, 1, border)
    weighted = (
        weight * around[..., row : row + height, column : column + width]
        for row, line in enumerate(kernel)
        for column, weight in enumerate(line)
        if weight
    )
    return cast(Tensor, sum(weighted))  # a Tensor, since at least one weight is not 0


def motion(pixels: Tensor, radius: float, sigma: float, angles: Sequence[float]) -> Tensor:
    """Pixels (B, C, H, W), each picture blurred along a line at its angle in degrees, as by ImageMagick.

    A pixel is the mean of the pixels on a line that starts from it, weighted by half a Gaussian.
    """
    height, width = pixels.shape[-2:]
    steps = range(2 * math.ceil(radius) + 1)
    weights = [math.exp(-(step**2) / (2 * sigma**2)) for step in steps]
    smeared = torch.zeros_like(pixels)
    for picture, angle, place in zip(pixels, angles, smeared, strict=True):
        down = [math.ceil(step * math.sin(math.radians(angle)) - 0.5) for step in steps]
        right = [math.ceil(step * math.cos(math.radians(angle)) - 0.5) for step in steps]
        top, left = max(0, -min(down)), max(0, -min(right))
        around = pad(picture, top, max(0, *down), left, max(0, *right), "nearest")
        for row, column, weight in zip(down, right, weights, strict=True):
            part = around[:, top + row : top + row + height, left + column : left + column + width]
            place.add_(part, alpha=weight / sum(weights))
    return smeared


def zoom(pixels: Tensor, factor: float) -> Tensor:
    """The centre of pixels (B, C, H, W), enlarged bilinearly by a factor of at least 1 to the original size."""
    shape = pixels.shape[-2:]
    part = [math.ceil(size / factor) for size in shape]
    top, left = ((size - cut) // 2 for size, cut in zip(shape, part, strict=True))
    middle = pixels[..., top : top + part[0], left : left + part[1]]
    large = F.interpolate(middle, [round(cut * factor) for cut in part], mode="bilinear", align_corners=True)
    top, left = ((have - size) // 2 for have, size in zip(large.shape[-2:], shape, strict=True))
    return large[..., top : top + shape[0], left : left + shape[1]]
