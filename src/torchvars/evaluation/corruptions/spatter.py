"""Spatter on the lens, water or mud: pixels (B, 3, H, W) in [0, 1] -> the same shape, not clipped.

Mud is a blurred stain. Water is shaded like drops, by the distance from the edges of its patches. The published code
uses OpenCV's Canny, distance transform, histogram equalisation and filters on 8 bits, which are implemented here on
tensors.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..generators import Generators, normal
from .filters import correlate, gaussian

WATER = (175 / 255, 238 / 255, 238 / 255)
MUD = (63 / 255, 42 / 255, 20 / 255)
FAR = 20
BOX = [[1, 1, 1], [1, 1, 1], [1, 1, 1]]


def canny(layer: Tensor, low: float, high: float) -> Tensor:
    """The edges of a layer (B, H, W) of whole numbers 0 ... 255, as by OpenCV: (B, H, W), booleans."""
    across = correlate(layer, [[-1, 0, 1], [-2, 0, 2], [-1, 0, 1]], "nearest")
    down = correlate(layer, [[-1, -2, -1], [0, 0, 0], [1, 2, 1]], "nearest")
    slope = across.abs() + down.abs()
    height, width = slope.shape[-2:]
    around = F.pad(slope, (1, 1, 1, 1))

    def at(row: int, column: int) -> Tensor:
        return around[:, 1 + row : 1 + row + height, 1 + column : 1 + column + width]

    # The slope is greatest across the edge: along the row, along the column or along a diagonal, within 22.5 degrees.
    tangent = 13573 / 2**15
    flat = down.abs() < tangent * across.abs()
    steep = down.abs() > (tangent + 2) * across.abs()
    falls = (slope > at(-1, -1)) & (slope > at(1, 1))
    rises = (slope > at(-1, 1)) & (slope > at(1, -1))
    greatest = torch.where((across < 0) == (down < 0), falls, rises)
    greatest = torch.where(steep, (slope > at(-1, 0)) & (slope >= at(1, 0)), greatest)
    greatest = torch.where(flat, (slope > at(0, -1)) & (slope >= at(0, 1)), greatest)
    weak = greatest & (slope > low)
    edges = weak & (slope > high)
    while not torch.equal(edges, grown := spread(edges) & weak):
        edges = grown
    return edges


def spread(mask: Tensor) -> Tensor:
    """A mask (B, H, W) dilated by one pixel."""
    around = F.pad(mask, (1, 1, 1, 1))
    rows = around[..., :-2] | around[..., 1:-1] | around[..., 2:]
    return rows[:, :-2] | rows[:, 1:-1] | rows[:, 2:]


def distance(edges: Tensor) -> Tensor:
    """The distance of each pixel from an edge, up to 20, as by OpenCV with a mask of 5 x 5: (B, H, W).

    Paths consist of steps along rows and columns, diagonals and knight's moves, of lengths 1, 1.4 and 2.1969.
    """
    height, width = edges.shape[-2:]
    column = torch.arange(width, device=edges.device).float()
    left = torch.where(edges, column, -FAR).cummax(-1).values
    right = torch.where(edges, column, width + FAR).flip(-1).cummin(-1).values.flip(-1)
    in_row = torch.minimum(column - left, right - column)  # distance to the nearest edge in the row
    around = F.pad(in_row, (0, 0, FAR, FAR), value=FAR)
    far = in_row.clamp(max=FAR)
    for rows in range(1, FAR):
        nearest = torch.minimum(around[:, FAR - rows :][:, :height], around[:, FAR + rows :][:, :height])
        longer, shorter = nearest.clamp(min=rows), nearest.clamp(max=rows)
        length = torch.maximum(longer + 0.1969 * shorter, 0.7969 * longer + 0.6031 * shorter)
        far = torch.minimum(far, length)
    return far


def equalise(levels: Tensor) -> Tensor:
    """Histogram equalisation of whole numbers (B, H, W) up to 20 to 0 ... 255; a constant layer stays the same."""
    flat = levels.long().flatten(1)
    counts = torch.zeros(len(flat), FAR + 1, device=flat.device).scatter_add_(1, flat, torch.ones_like(flat).float())
    least = flat.amin(1, keepdim=True)
    above = counts.cumsum(1) - counts.gather(1, least)
    even = (above * (255 / above[:, -1:])).round()
    even = torch.where(above[:, -1:] > 0, even, least.float())
    return even.gather(1, flat).view_as(levels)


def drops(liquid: Tensor) -> Tensor:
    """The shading of water, (B, H, W) from 0 to 1, for a layer that is 0 without water."""
    layer = (liquid * 255).floor()
    depth = correlate(distance(canny(layer, 50, 150)), BOX, "mirror") / 9
    relief = correlate(equalise(depth.floor()), [[-2, -1, 0], [-1, 1, 1], [0, 1, 2]], "mirror").clamp(0, 255)
    light = layer * (correlate(relief, BOX, "mirror") / 9).round()
    return light / light.amax((1, 2), keepdim=True).clamp(min=1)


def spatter(pixels: Tensor, parameters: tuple[Any, ...], generators: Generators) -> Tensor:
    """Drops of water, or stains of mud.

    Parameters: mean, deviation and blur of the noise, the threshold above which there is liquid, the strength of
    "water" or the blur of "mud", and which of the two.
    """
    mean, spread, blur, threshold, strength, kind = parameters
    noise = mean + spread * normal(generators, *pixels.shape[-2:], device=pixels.device)
    liquid = gaussian(noise, blur)
    liquid = liquid.where(liquid >= threshold, 0)
    colour = torch.tensor(WATER if kind == "water" else MUD, device=pixels.device).view(3, 1, 1)
    if kind == "water":
        return pixels + strength * drops(liquid).unsqueeze(1) * colour
    stain = gaussian((liquid > threshold).float(), strength)
    stain = stain.where(stain >= 0.8, 0).unsqueeze(1)
    return pixels * (1 - stain) + colour * stain
