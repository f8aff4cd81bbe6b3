"""Brightness, contrast and saturation: pixels (B, 3, H, W) in [0, 1] -> the same shape.

In HSV the value is V = max(r, g, b) and the saturation S = (V - min(r, g, b)) / V. At constant hue, a change of the
value scales the colour, and a change of the saturation scales its distance from V.
"""

import torch
from torch import Tensor

from ..generators import Generators


def brightness(pixels: Tensor, amount: float, generators: Generators) -> Tensor:
    """Adds the amount to the value of each pixel in HSV, clipped to 1."""
    value = pixels.amax(1, keepdim=True)
    bright = (value + amount).clamp(max=1)
    return (pixels * (bright / value)).where(value > 0, bright)


def contrast(pixels: Tensor, factor: float, generators: Generators) -> Tensor:
    """Multiplies the distance of each pixel from the mean colour of the picture by the factor."""
    mean = pixels.double().mean((2, 3), keepdim=True).to(pixels.dtype)
    return (pixels - mean) * factor + mean


def saturate(pixels: Tensor, parameters: tuple[float, float], generators: Generators) -> Tensor:
    """Saturation of each pixel in HSV times a factor plus an amount, (factor, amount). The hue of grey is red."""
    factor, amount = parameters
    value, least = pixels.amax(1, keepdim=True), pixels.amin(1, keepdim=True)
    grey = value == least
    saturation = ((value - least) / value).where(~grey, 0)
    saturated = (saturation * factor + amount).clamp(0, 1)
    dull = value * (1 - saturated)
    coloured = value - (value - pixels) * (saturated / saturation)
    return coloured.where(~grey, torch.cat([value, dull, dull], 1))
