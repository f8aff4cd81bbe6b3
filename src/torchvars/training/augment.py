"""Random augmentation of training pictures. Pixels are in [0, 1]; the model normalises them itself.

The augmentation of one picture draws from the generators of Python, NumPy and PyTorch, which `torchvars.data.Pictures`
seeds for each draw; the augmentation of a batch takes a seed. Either way a step can be repeated exactly.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import cast

import torch
import torch.nn.functional as F
from PIL import Image
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD, create_transform
from timm.data.mixup import Mixup
from timm.data.random_erasing import RandomErasing
from torch import Tensor
from torchvision import transforms

from ..data.pictures import seeded
from ..models.pixels import centre_pixels

CROPS = ("random resized", "pad")


def picture_transform(
    size: int,
    *,
    training: bool,
    auto_augment: str | None = "rand-m9-mstd0.5-inc1",
    color_jitter: float | None = 0.4,
    scale: tuple[float, float] = (0.08, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
    hflip: float = 0.5,
    interpolation: str = "bicubic",
    erase: float = 0.25,
    crop: str = "random resized",
    mean: tuple[float, float, float] = IMAGENET_DEFAULT_MEAN,
    std: tuple[float, float, float] = IMAGENET_DEFAULT_STD,
) -> Callable[[Image.Image], Tensor]:
    """The transform of a picture: PIL image in RGB -> pixels (3, size, size) in [0, 1].

    For evaluation it is `centre_pixels`. All other arguments are for training, where timm crops, flips, distorts and
    erases.

    Args:
        size: side of the pixels.
        training: whether pictures are augmented.
        auto_augment: policy in timm's notation, such as "rand-m9-mstd0.5-inc1" for RandAugment; None for none.
        color_jitter: strength of random brightness, contrast and saturation; None for none. Off with a policy,
            which includes such changes (except for 3-Augment, which timm combines with jitter).
        scale, ratio: area and aspect of a random resized crop, as shares of the picture's.
        hflip: probability of a flip.
        interpolation: interpolation of the crop and the policy, "bicubic", "bilinear" or "random".
        erase: probability that a random rectangle is replaced by noise; 0 for none.
        crop: "random resized"; or "pad" for pictures that already have the size, such as CIFAR's: they are
            padded by an eighth of it by reflection, and a crop of `size` pixels is taken at random.
        mean, std: mean and standard deviation of the channels. The mean fills areas that a policy moves into the
            picture; both scale the noise of random erasing.
    """
    if crop not in CROPS:
        raise ValueError(f"crop must be one of {', '.join(map(repr, CROPS))}, got {crop!r}")
    if not training:
        return partial(centre_pixels, size=size)
    try:
        parts = create_transform(
            size,
            is_training=True,
            separate=True,
            scale=scale,
            ratio=ratio,
            hflip=hflip,
            color_jitter=color_jitter,  # pyright: ignore[reportArgumentType]  # None is none
            auto_augment=auto_augment,
            interpolation=interpolation,
            mean=mean,
        )
    except AssertionError as error:
        raise ValueError(
            f"timm knows no auto_augment {auto_augment!r} with color_jitter {color_jitter}: {error}; "
            "give a policy such as 'rand-m9-mstd0.5-inc1', or None"
        ) from error
    place, change, _ = cast(tuple[transforms.Compose, ...], parts)  # separate=True
    for policy in change.transforms:
        _repair(policy)
    if crop == "pad":
        padded = transforms.RandomCrop(size, padding=size // 8, padding_mode="reflect")
        place = transforms.Compose([partial(of_size, size=size), padded, transforms.RandomHorizontalFlip(hflip)])
    steps = [place, change, transforms.ToTensor()]
    if erase > 0:
        eraser = RandomErasing(erase, mode="pixel", device="cpu")
        colours = torch.tensor(mean).view(3, 1, 1), torch.tensor(std).view(3, 1, 1)
        steps.append(partial(erase_part, eraser=eraser, mean=colours[0], std=colours[1]))
    return transforms.Compose(steps)


def posterize(image: Image.Image, bits: int, **_) -> Image.Image:
    """An RGB image with the highest bits of each channel kept, from 0 bits, which is black, to 8."""
    return image.point([value >> (8 - bits) << (8 - bits) for value in range(256)] * 3)


def _repair(policy: Callable) -> None:
    """Replaces posterization in a policy of timm: at full strength it keeps 0 bits, which Pillow 13 refuses."""
    operations = getattr(policy, "ops", []) + [each for group in getattr(policy, "policy", []) for each in group]
    for operation in operations:
        if operation.name.startswith("Posterize"):
            operation.aug_fn = posterize


def of_size(image: Image.Image, size: int) -> Image.Image:
    """Returns the image; raises a ValueError if it does not have the size that the crop "pad" needs."""
    if image.size != (size, size):
        width, height = image.size
        raise ValueError(
            f'the crop "pad" takes pictures of {size} x {size}, got one of {width} x {height}: use "random resized"'
        )
    return image


def erase_part(pixels: Tensor, eraser: RandomErasing, mean: Tensor, std: Tensor) -> Tensor:
    """Random erasing of pixels (3, H, W): a rectangle of noise that is unit normal after normalisation.

    The noise is clipped to [0, 1], as pixels are.
    """
    # timm erases normalised pictures; a blank one shows the place and the values of the noise
    noise = eraser(torch.full_like(pixels, torch.nan))
    return torch.where(noise.isnan(), pixels, (mean + std * noise).clamp(0, 1))


@dataclass(frozen=True)
class Mix:
    """Mixup and CutMix: mixes the pictures of a batch in pairs, and their labels, in the same way for the whole batch.

    Neighbours are mixed, first with second, third with fourth, so that the result is the same for a whole batch and for
    even parts of it on several processes. In an odd batch the last picture is mixed with the first.

    Args:
        mixup: alpha of mixup, the parameter of the Beta distribution of the shares; 0 for no mixup.
        cutmix: alpha of CutMix, the parameter of the Beta distribution of the areas; 0 for no CutMix.
        switch: probability of CutMix if both are enabled.
        smoothing: label smoothing, the share of each target that is spread evenly over all classes.
        classes: number of classes.
    """

    mixup: float = 0.8
    cutmix: float = 1.0
    switch: float = 0.5
    smoothing: float = 0.1
    classes: int = 1000

    def __call__(self, pixels: Tensor, labels: Tensor, seed: int) -> tuple[Tensor, Tensor]:
        """Pixels (B, 3, H, W) and labels (B,) -> pixels of the same shape, and targets (B, classes)."""
        mix = Mixup(
            mixup_alpha=self.mixup,
            cutmix_alpha=self.cutmix,
            prob=float(self.mixup > 0 or self.cutmix > 0),
            switch_prob=self.switch,
            label_smoothing=self.smoothing,
            num_classes=self.classes,
        )
        places = torch.arange(len(labels) + len(labels) % 2, device=labels.device)
        # timm mixes a batch with its reverse, so the second of each pair is at the end, in reverse order
        order = torch.cat([places[::2], places[1::2].flip(0)])
        with seeded(seed):
            mixed, targets = mix(pixels[order % len(labels)], labels[order % len(labels)])  # a copy: it mixes in place
        back = order.argsort()[: len(labels)]
        return mixed[back], targets[back]


@torch.no_grad()
def augment_patches(
    pixels: Tensor,
    patch: int = 16,
    probability: float = 0.1,
    crop: tuple[float, float] = (0.85, 1.0),
    noise: float = 0.01,
    *,
    seed: int,
) -> Tensor:
    """RVT's patch-wise augmentation (Mao et al. 2022): each patch is changed independently.

    Pixels (B, C, H, W) -> the same shape, clipped to [0, 1]. Each patch is scaled up from a
    part of it, then gets noise, then is flipped from left to right, each with the same probability.

    Args:
        pixels: H and W multiples of the patch.
        patch: side of a patch.
        probability: probability of each of the three changes, which are independent.
        crop: smallest and largest area of the part, as a share of the patch; the part is square and lies anywhere.
        noise: standard deviation of the Gaussian noise, of pixels in [0, 1]. (The code released with RVT adds it
            to normalised pictures, where 0.01 corresponds to 0.0023 here.)
        seed: random seed; results are reproducible on one kind of device.
    """
    height, width = pixels.shape[-2:]
    if height % patch or width % patch:
        raise ValueError(f"pictures of {height} x {width} do not divide into patches of {patch} x {patch}")
    if not 0 < crop[0] <= crop[1] <= 1:
        raise ValueError(f"crop must be two shares of the area, 0 < smallest <= largest <= 1, got {crop}")
    generator = torch.Generator(pixels.device).manual_seed(seed)
    uniform = partial(torch.rand, generator=generator, device=pixels.device, dtype=pixels.dtype)

    grid = pixels.unflatten(-1, (-1, patch)).unflatten(-3, (-1, patch)).permute(0, 2, 4, 1, 3, 5)
    patches = grid.flatten(0, 2).clone()
    cropped, noisy, flipped = uniform(3, len(patches)) < probability

    parts = patches[cropped]
    patches[cropped] = _enlarged(parts, crop[0] + (crop[1] - crop[0]) * uniform(len(parts)), uniform(len(parts), 2))
    parts = patches[noisy]
    patches[noisy] = parts + noise * torch.randn(
        parts.shape, generator=generator, device=pixels.device, dtype=pixels.dtype
    )
    patches[flipped] = patches[flipped].flip(-1)
    return patches.clamp_(0, 1).view(grid.shape).permute(0, 3, 1, 4, 2, 5).reshape(pixels.shape)


def _enlarged(patches: Tensor, area: Tensor, place: Tensor) -> Tensor:
    """A square part of each patch, scaled to the whole, bilinear.

    Patches (P, C, p, p), areas of the parts (P,) as shares, and their places (P, 2), x and y from 0 to 1 over the
    possible range -> (P, C, p, p).
    """
    side = area.sqrt().view(-1, 1, 1)
    middle = (1 - side) * (2 * place.unsqueeze(-1) - 1)  # where a patch goes from -1 to 1
    count = patches.shape[-1]
    positions = (torch.arange(count, device=patches.device, dtype=patches.dtype) + 0.5) * 2 / count - 1
    x, y = (middle + side * positions).unbind(1)
    where = torch.stack([x.unsqueeze(1).expand(-1, count, -1), y.unsqueeze(2).expand(-1, -1, count)], dim=-1)
    return F.grid_sample(patches, where, mode="bilinear", padding_mode="border", align_corners=False)
