"""Digital corruptions: pixels (B, 3, H, W) in [0, 1] -> the same shape."""

from io import BytesIO

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from ..generators import Generators, uniform
from .filters import gaussian


def sample(pixels: Tensor, row: Tensor, column: Tensor, border: str) -> Tensor:
    """Pixels (B, C, H, W) interpolated bilinearly at rows and columns (B, H, W)."""
    height, width = pixels.shape[-2:]
    if border == "mirror":
        grid = [2 * column / max(width - 1, 1) - 1, 2 * row / max(height - 1, 1) - 1]
    else:
        grid = [(2 * column + 1) / width - 1, (2 * row + 1) / height - 1]
    return F.grid_sample(pixels, torch.stack(grid, -1), padding_mode="reflection", align_corners=border == "mirror")


def elastic_transform(pixels: Tensor, parameters: tuple[float, float, float], generators: Generators) -> Tensor:
    """Elastic deformation: (strength and sigma of smooth displacements, largest shift of an affine map before).

    An affine map shifts three corners of a square in the middle by up to that many pixels along each axis. Then each
    pixel is sampled at a displacement: uniform noise, blurred by sigma, times the strength.
    """
    strength, sigma, shift = parameters
    height, width = pixels.shape[-2:]
    row = torch.arange(height, device=pixels.device).view(-1, 1).float()
    column = torch.arange(width, device=pixels.device).view(1, -1).float()
    side = min(height, width) // 3
    moves = (uniform(generators, 3, 2) * 2 - 1).double() * shift
    if side > 0:  # else the three points are one
        middle = torch.tensor([height // 2, width // 2])
        corners = middle + torch.tensor([[side, side], [-side, side], [-side, -side]])
        ones = torch.ones(3, 1, dtype=torch.double)
        moved = torch.cat([corners + moves, ones.expand(len(moves), -1, -1)], -1)
        back = torch.linalg.solve(moved, corners.double()).float().to(pixels.device)  # (B, 3, 2): where each comes from
        down, right, start = back[:, :, :, None, None].unbind(1)
        came = down * row + right * column + start
        pixels = sample(pixels, came[:, 0], came[:, 1], "mirror")
    noise = uniform(generators, 2, height, width, device=pixels.device) * 2 - 1
    displaced = gaussian(noise, sigma, truncate=3, border="reflect") * strength
    return sample(pixels, row + displaced[:, 0], column + displaced[:, 1], "reflect")


def boxes(length: int, size: int) -> tuple[Tensor, Tensor]:
    """The boxes of `length` pixels for each of `size` pixels, as in Pillow: the first and the number, (size,) each."""
    scale = length / size
    reach = max(scale, 1)
    centre = (torch.arange(size, dtype=torch.double).unsqueeze(1) + 0.5) * scale
    first, end = (centre - 0.5 * reach + 0.5).long(), (centre + 0.5 * reach + 0.5).long()
    pixel = torch.arange(length)
    share = (pixel - centre + 0.5) * (1 / reach)
    inside = (pixel >= first) & (pixel < end) & (share > -0.5) & (share <= 0.5)
    return inside.int().argmax(1), inside.sum(1)


def resize(pixels: Tensor, height: int, width: int) -> Tensor:
    """Whole numbers (..., h, w) -> (..., height, width): means over boxes, along rows and then columns, each rounded.

    This is Pillow's resize with Image.BOX. (Recent versions begin with the columns if pictures are over twice as high
    as wide.)
    """
    for size in (width, height):
        first, count = (index.to(pixels.device) for index in boxes(pixels.shape[-1], size))
        sums = F.pad(pixels.cumsum(-1), (1, 0))  # exact for whole numbers
        means = (sums.index_select(-1, first + count) - sums.index_select(-1, first)) / count
        pixels = (means + 0.5).floor().mT
    return pixels


def pixelate(pixels: Tensor, factor: float, generators: Generators) -> Tensor:
    """Downsampling by a factor along each axis, and upsampling to the original size."""
    height, width = pixels.shape[-2:]
    coarse = resize((pixels * 255).round(), max(1, int(height * factor)), max(1, int(width * factor)))
    return resize(coarse, height, width) / 255


def jpeg_compression(pixels: Tensor, quality: int, generators: Generators) -> Tensor:
    """Compression as JPEG of this quality, by Pillow."""
    pictures = (pixels * 255).round().byte().permute(0, 2, 3, 1).cpu()
    decoded = []
    for picture in pictures:
        file = BytesIO()
        Image.fromarray(picture.numpy()).save(file, "JPEG", quality=quality)
        decoded.append(torch.frombuffer(bytearray(Image.open(file).tobytes()), dtype=torch.uint8).view_as(picture))
    return torch.stack(decoded).permute(0, 3, 1, 2).to(pixels) / 255
