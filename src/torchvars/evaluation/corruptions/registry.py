"""Corruptions by name, and the one way to apply them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from ..generators import Generators, generators_of
from .blur import defocus_blur, gaussian_blur, glass_blur, motion_blur, zoom_blur
from .colour import brightness, contrast, saturate
from .digital import elastic_transform, jpeg_compression, pixelate
from .frost import frost
from .noise import gaussian_noise, impulse_noise, shot_noise, speckle_noise
from .spatter import spatter
from .strengths import STRENGTHS
from .weather import fog, snow

Function = Callable[[Tensor, Any, Generators], Tensor]  # pixels, an entry of strengths.py, generators -> pixels


@dataclass(frozen=True)
class Corruption:
    """A corruption and its properties. It is called like its function.

    Args:
        function: pixels (B, 3, H, W) in [0, 1], an entry of strengths.py, one generator for each picture -> pixels.
        group: noise, blur, weather or digital.
        summed: whether it is one of the 15 corruptions of mCE and means; the others are reported separately.
        moves: whether it moves the content of the picture, so that masks and points no longer fit.
    """

    function: Function
    group: Literal["noise", "blur", "weather", "digital"]
    summed: bool = True
    moves: bool = False

    def __post_init__(self):
        object.__setattr__(self, "__doc__", self.function.__doc__)

    def __call__(self, pixels: Tensor, parameters: Any, generators: Generators, **options) -> Tensor:
        return self.function(pixels, parameters, generators, **options)


CORRUPTIONS: dict[str, Corruption] = {
    "gaussian_noise": Corruption(gaussian_noise, "noise"),
    "shot_noise": Corruption(shot_noise, "noise"),
    "impulse_noise": Corruption(impulse_noise, "noise"),
    "defocus_blur": Corruption(defocus_blur, "blur"),
    "glass_blur": Corruption(glass_blur, "blur", moves=True),
    "motion_blur": Corruption(motion_blur, "blur", moves=True),
    "zoom_blur": Corruption(zoom_blur, "blur", moves=True),
    "snow": Corruption(snow, "weather"),
    "frost": Corruption(frost, "weather"),
    "fog": Corruption(fog, "weather"),
    "brightness": Corruption(brightness, "weather"),
    "contrast": Corruption(contrast, "digital"),
    "elastic_transform": Corruption(elastic_transform, "digital", moves=True),
    "pixelate": Corruption(pixelate, "digital"),
    "jpeg_compression": Corruption(jpeg_compression, "digital"),
    "speckle_noise": Corruption(speckle_noise, "noise", summed=False),
    "gaussian_blur": Corruption(gaussian_blur, "blur", summed=False),
    "spatter": Corruption(spatter, "weather", summed=False),
    "saturate": Corruption(saturate, "digital", summed=False),
}
PUBLISHED = tuple(name for name, corruption in CORRUPTIONS.items() if corruption.summed)  # the 15 corruptions of mCE

AT_ONCE = 2**19  # values of the pictures that are corrupted together; they fit into the cache of a processor


@torch.no_grad()
def corrupt(
    pixels: Tensor,
    name: str,
    severity: int,
    identities: Sequence[str],
    *,
    seed: int = 0,
    strengths: str = "imagenet",
    frost: str | Path | None = None,
) -> Tensor:
    """Corrupted pixels (B, 3, H, W) of pixels in [0, 1], clipped and rounded to 8 bits: k / 255.

    The result for a picture depends on its identity and the seed, not on its batch.

    Args:
        pixels: of any size.
        name: one of CORRUPTIONS.
        severity: 1 to 5.
        identities: a name for each picture.
        seed: the random seed.
        strengths: "imagenet", published for 224 pixels, or "cifar", for 32.
        frost: folder of the official pictures, frost1.png and so on; by default ice is generated.
    """
    if name not in CORRUPTIONS:
        close = get_close_matches(name, CORRUPTIONS, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(CORRUPTIONS)}"
        raise ValueError(f"no corruption is called {name!r}: {hint}")
    if severity not in range(1, 6):
        raise ValueError(f"severity must be 1, 2, 3, 4 or 5, got {severity!r}")
    severity = int(severity)  # the text of a NumPy integer differs, and seeds are derived from it
    if strengths not in STRENGTHS:
        raise ValueError(f"strengths must be one of {', '.join(map(repr, STRENGTHS))}, got {strengths!r}")
    if pixels.ndim != 4 or pixels.shape[1] != 3 or 0 in pixels.shape[2:] or not pixels.is_floating_point():
        raise ValueError(f"pixels must be (B, 3, H, W) and floating, got {tuple(pixels.shape)} of {pixels.dtype}")
    if len(identities) != len(pixels):
        raise ValueError(f"each picture needs an identity: got {len(identities)} for {len(pixels)} pictures")
    if len(pixels) == 0:
        return pixels.clone()
    if not (pixels.min() >= 0 and pixels.max() <= 1):
        low, high = pixels.min().item(), pixels.max().item()
        raise ValueError(
            f"pixels must be in [0, 1], got {low:.4g} to {high:.4g}: divide by 255, or undo the normalisation"
        )
    function = partial(CORRUPTIONS[name], folder=frost) if name == "frost" else CORRUPTIONS[name]
    parameters = STRENGTHS[strengths][name][int(severity) - 1]
    generators = generators_of(identities, name, severity, seed)
    result = torch.empty_like(pixels)
    many = max(1, AT_ONCE // pixels[0].numel())
    for start in range(0, len(pixels), many):
        few = slice(start, start + many)
        corrupted = function(pixels[few].float().contiguous(), parameters, generators[few])
        result[few] = (corrupted.clamp(0, 1) * 255).round() / 255
    return result
