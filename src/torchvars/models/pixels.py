"""Pixels of pictures: in [0, 1], not normalised."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, fx
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from .geometry import centred

if TYPE_CHECKING:
    from PIL import Image

OVERSHOOT = 0.25  # tolerance beyond [0, 1], for resampled or noisy pixels


def to_rgb(image: Image.Image) -> Image.Image:
    """A picture of any mode in 8 bit RGB. Raises a ValueError if the range of its numbers is unknown."""
    from PIL import Image

    if image.mode.startswith("I"):  # 16 bit, which Pillow would clip to 255
        numbers = np.asarray(image)
        if numbers.min() < 0 or numbers.max() > 65535:
            raise ValueError(f"its pixels are from {numbers.min()} to {numbers.max()}: expected 8 or 16 bit")
        image = Image.fromarray((numbers >> 8).astype(np.uint8))
    if image.mode == "F":
        raise ValueError("its pixels are floating numbers of unknown range: expected 8 or 16 bit")
    return image.convert("RGB")


def centre(image: Image.Image, size: int) -> Image.Image:
    """Preprocessing for evaluation: the shorter side is resized to 256 / 224 of the size, and the centre is cropped.

    The interpolation is bicubic. A picture that has the size is not changed.
    """
    return centred(*image.size, size).image(image)


def to_pixels(image: Image.Image) -> Tensor:
    """Pixels of an RGB image: (3, H, W) in [0, 1]."""
    return torch.from_numpy(np.array(image)).movedim(-1, 0).float() / 255


def centre_pixels(image: Image.Image, size: int) -> Tensor:
    """Pixels for evaluation: `centre` of an image -> (3, size, size) in [0, 1]."""
    return to_pixels(centre(image, size))


def can_read(pixels: Tensor) -> bool:
    """Whether the values of a tensor can be read: not during tracing, graph capture or transforms."""
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
    """Raises a ValueError unless pixels are in [0, 1], or nearly so."""
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
