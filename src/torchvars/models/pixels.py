"""Pictures as the pixels that models take: in [0, 1], not normalised."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, fx
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from .geometry import centred

if TYPE_CHECKING:
    from PIL import Image

OVERSHOOT = 0.25  # beyond [0, 1], of pixels that were resampled or have some noise


def to_rgb(image: Image.Image) -> Image.Image:
    """A picture of any mode as 8 bit of red, green and blue; a ValueError if it is not known what its numbers mean."""
    from PIL import Image

    if image.mode.startswith("I"):  # 16 bit, of which Pillow would keep what is below 256
        numbers = np.asarray(image)
        if numbers.min() < 0 or numbers.max() > 65535:
            raise ValueError(f"its pixels are from {numbers.min()} to {numbers.max()}: expected 8 or 16 bit")
        image = Image.fromarray((numbers >> 8).astype(np.uint8))
    if image.mode == "F":
        raise ValueError("its pixels are floating numbers of unknown range: expected 8 or 16 bit")
    return image.convert("RGB")


def centre(image: Image.Image, size: int) -> Image.Image:
    """The clean protocol: the shorter side to 256 / 224 of the size, bicubic, and the middle of it.

    A picture that has the size is left as it is.
    """
    return centred(*image.size, size).image(image)


def to_pixels(image: Image.Image) -> Tensor:
    """An image in RGB -> (3, H, W) in [0, 1]."""
    return torch.from_numpy(np.array(image)).movedim(-1, 0).float() / 255


def centre_pixels(image: Image.Image, size: int) -> Tensor:
    """What a model is judged by: `centre` of an image -> (3, size, size) in [0, 1]."""
    return to_pixels(centre(image, size))


def can_read(pixels: Tensor) -> bool:
    """Whether the values of a tensor can be looked at: not while something traces, captures or transforms."""
    return (
        not (torch.compiler.is_compiling() or torch.jit.is_tracing() or isinstance(pixels, fx.Proxy))
        and type(pixels) in (Tensor, torch.nn.Parameter)
        and pixels.device.type != "meta"
        and pixels.numel() > 0
        and not is_in_torch_dispatch_mode()
        and not torch._C._are_functorch_transforms_active()
        and not (pixels.is_cuda and torch.cuda.is_current_stream_capturing())
    )


def check_range(pixels: Tensor) -> None:
    """A ValueError unless pixels are in [0, 1], or nearly so."""
    low, high = (value.item() for value in pixels.detach().aminmax())
    if low >= -OVERSHOOT and high <= 1 + OVERSHOOT:
        return
    advice = "pass them as they are stored, divided by 255, as classifier.transform(image) makes them"
    if low < -OVERSHOOT:
        advice = f"a Classifier normalises for itself, so leave out mean and deviation; {advice}"
    raise ValueError(
        f"pixels must be in [0, 1], got values from {low:.4g} to {high:.4g}: {advice}. To show a model other values on "
        "purpose, such as strong noise, set classifier.checks_left = 0"
    )
