"""Frost: the official pictures, or generated ice with their colour, contrast and spectrum."""

import math
from functools import lru_cache
from pathlib import Path

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor
from torchvision.transforms.functional import pil_to_tensor

from ..generators import Generators, normal, uniform
from .filters import motion

# Statistics of 224-pixel crops of the five official pictures: mean colour, spread of the mean, standard deviation
PANES = (
    ((0.31, 0.58, 0.65), 0.037, 0.062),
    ((0.78, 0.80, 0.84), 0.025, 0.079),
    ((0.78, 0.80, 0.84), 0.025, 0.079),
    ((0.55, 0.61, 0.66), 0.027, 0.104),
    ((0.43, 0.47, 0.52), 0.051, 0.139),
)
DIRECTIONS, GRAIN, NEEDLE = 6, 40, 10
SLOPE, WAVE = 0.45, 172  # fits the spectrum of the official pictures, which falls steeply below 1 / 172 per pixel
PATCHES = 0.3  # local variation of the contrast, as in the official pictures


def crystals(generators: Generators, height: int, width: int) -> Tensor:
    """Grains (B, H, W) about 40 pixels wide, each of needles in one direction."""
    length = 2 * NEEDLE
    noise = normal(generators, 1, height + length, width + 2 * length)
    angles = [180 / DIRECTIONS * lie for lie in range(DIRECTIONS)]
    needles = torch.cat([motion(noise, NEEDLE, NEEDLE, [angle] * len(noise)) for angle in angles], 1)
    needles = needles[..., :height, length : length + width]  # the part where all lines are inside the noise
    seeds = uniform(generators, 1 + height * width // GRAIN**2, 3) * torch.tensor([height, width, DIRECTIONS])
    row, column = torch.arange(height).view(-1, 1), torch.arange(width)
    nearest, lies = torch.full_like(needles[:, :1], torch.inf), torch.zeros_like(needles[:, :1])
    for seed in seeds.unbind(1):
        down, right, lie = seed.view(-1, 3, 1, 1, 1).unbind(1)
        apart = (row - down) ** 2 + (column - right) ** 2
        lies = torch.where(apart < nearest, lie, lies)
        nearest = torch.minimum(apart, nearest)
    return needles.gather(1, lies.long()).squeeze(1)


def coloured(noise: Tensor, gain: Tensor) -> Tensor:
    """Noise (B, H, W) with its spectrum multiplied by a gain (H, W // 2 + 1), scaled to a standard deviation of 1."""
    # One by one: a result must not depend on the batch.
    waves = torch.stack([torch.fft.irfft2(torch.fft.rfft2(one) * gain, s=noise.shape[1:]) for one in noise])
    return waves / waves.pow(2).mean((1, 2), keepdim=True).sqrt().clamp(min=1e-6)


def ice(generators: Generators, height: int, width: int) -> Tensor:
    """Generated ice (B, 3, H, W) in the colours of one of the official pictures."""
    grains = crystals(generators, height, width)
    draws = uniform(generators, 1)
    kinds = [PANES[int(draw * len(PANES))] for draw in draws[:, 0].tolist()]
    colour, wander, contrast = (torch.tensor(column) for column in zip(*kinds, strict=True))
    frequency = torch.hypot(torch.fft.fftfreq(height)[:, None], torch.fft.rfftfreq(width))
    frequency = torch.where(frequency > 0, frequency, torch.inf)  # the mean is drawn separately
    patches = coloured(normal(generators, height, width), frequency**-1.5)
    grains = grains * torch.exp(PATCHES * patches)
    relief = coloured(grains, frequency**-SLOPE * (1 + (WAVE * frequency) ** -2))
    mean = colour + wander[:, None] * normal(generators, 1)
    return (mean[:, :, None, None] + (contrast[:, None, None] * relief)[:, None]).clamp(0, 1)


@lru_cache(maxsize=4)
def official(folder: str) -> list[Tensor]:
    """The first five pictures of a folder whose names begin with "frost", (3, h, w) in 0 ... 255.

    The published script lists six, but draws from five.
    """
    files = sorted(path for path in Path(folder).glob("frost*") if path.suffix.lower() in (".png", ".jpg", ".jpeg"))
    if not files:
        found = sorted(path.name for path in Path(folder).glob("*"))[:10]
        raise FileNotFoundError(
            f"no frost*.png or frost*.jpg in {folder!r}, which holds {', '.join(found) or 'nothing'}: "
            "give the folder of frost1.png ... frost6.jpg, or leave `frost` out"
        )
    return [pil_to_tensor(Image.open(file).convert("RGB")) for file in files[:5]]


def part(pictures: list[Tensor], generator: torch.Generator, height: int, width: int, scale: float) -> Tensor:
    """A random crop (1, 3, H, W) of one of the pictures at a scale, or the smallest scale that is large enough."""
    choice, down, right = torch.rand(3, generator=generator).tolist()
    picture = pictures[int(choice * len(pictures))]
    rows, columns = picture.shape[1:]
    scale = max(scale, height / rows, width / columns)
    picture = picture.unsqueeze(0).float() / 255
    if scale != 1:
        size = max(height, int(rows * scale)), max(width, int(columns * scale))
        picture = F.interpolate(picture, size, mode="bilinear", align_corners=False)
    top, left = (
        int(share * (have - size + 1))
        for share, have, size in ((down, picture.shape[2], height), (right, picture.shape[3], width))
    )
    return picture[..., top : top + height, left : left + width]


def frost(
    pixels: Tensor,
    parameters: tuple[float, float, float],
    generators: Generators,
    folder: str | Path | None = None,
) -> Tensor:
    """A weighted sum of the picture and frost, not clipped: (weights of picture and frost, scale of the frost)."""
    kept, added, scale = parameters
    height, width = pixels.shape[-2:]
    if folder is not None:
        panes = torch.cat([part(official(str(folder)), one, height, width, scale) for one in generators])
    else:
        panes = ice(generators, math.ceil(height / scale), math.ceil(width / scale))
        if scale != 1:
            panes = F.interpolate(panes, (height, width), mode="bilinear", align_corners=False)
    return kept * pixels + added * panes.to(pixels.device)
