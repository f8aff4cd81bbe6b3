"""The base class of attacks, and functions of classifiers that attacks use."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from math import isfinite

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...attention.modes import evaluating
from ..generators import Generators
from .norms import NORMS, Norm


@dataclass(frozen=True)
class Attack:
    """The base class of attacks, with checks and the projection on the ball. Subclasses implement `run`.

    Args:
        radius: largest change of a picture, with pixels in [0, 1]. With 0 the clean pictures are returned.
        norm: the norm of the change, a key of `NORMS`: "linf", the largest change of a pixel, or "l2", the root of the
            sum of squared changes.
    """

    radius: float
    _: KW_ONLY
    norm: str = "linf"

    def __post_init__(self):
        if not (isfinite(self.radius) and self.radius >= 0):
            raise ValueError(f"radius must be 0 or more, with pixels in [0, 1], got {self.radius}: try 1 / 255")
        if self.norm not in NORMS:
            raise ValueError(f"norm must be one of {', '.join(map(repr, NORMS))}, got {self.norm!r}")

    @property
    def passes(self) -> float:
        """Approximate cost in forward passes of the classifier; a gradient counts as three."""
        return 3

    @property
    def ball(self) -> Norm:
        """The norm, which defines the ball."""
        return NORMS[self.norm]

    def __call__(self, classifier: nn.Module, pixels: Tensor, labels: Tensor, generators: Generators) -> Tensor:
        """Attacked pictures, each within the radius of its pixels and in [0, 1].

        The classifier is attacked in evaluation mode. Its modes, parameters and gradients are not changed.

        Args:
            classifier: pixels (B, C, H, W) in [0, 1] -> logits (B, classes).
            pixels: (B, C, H, W), float32 or float64.
            labels: (B,), the correct classes.
            generators: B random generators on the CPU.
        """
        check(pixels, labels, generators)
        with evaluated(classifier):
            # copies, since tensors made in inference mode cannot have a gradient; contiguous, for AutoAttack
            pixels = pixels.detach().clone(memory_format=torch.contiguous_format)
            labels = labels.to(pixels.device, torch.long, copy=True)
            if self.radius == 0 or not len(pixels):
                return pixels
            pictures = self.run(classifier, pixels, labels, generators).detach()
            return self.ball.project(pictures, pixels, self.radius)

    def run(self, classifier: nn.Module, pixels: Tensor, labels: Tensor, generators: Generators) -> Tensor:
        """The attack on checked inputs. The result may leave the ball by a rounding error."""
        raise NotImplementedError(f"{type(self).__name__} does not implement `run`")


@contextmanager
def evaluated(classifier: nn.Module) -> Iterator[None]:
    """A context with the classifier in evaluation mode and gradients enabled; afterwards the modes are restored."""
    with torch.inference_mode(False), torch.enable_grad(), evaluating(classifier):
        yield


def logits_of(classifier: nn.Module, pictures: Tensor, labels: Tensor) -> Tensor:
    """Logits (B, classes) in the type of the pictures. Raises a ValueError if labels are out of range."""
    logits = classifier(pictures)
    if logits.ndim != 2 or len(logits) != len(pictures):
        raise ValueError(f"a classifier gives logits ({len(pictures)}, classes), got {tuple(logits.shape)}")
    if labels.min() < 0 or labels.max() >= logits.shape[1]:
        raise ValueError(
            f"labels must be from 0 to {logits.shape[1] - 1}, since the classifier has {logits.shape[1]} classes, "
            f"got {labels.min()} to {labels.max()}: map the labels to the classifier's classes"
        )
    return logits.to(pictures.dtype)


def gradient(classifier: nn.Module, pictures: Tensor, labels: Tensor) -> Tensor:
    """The gradient of the cross-entropy with respect to the pixels, (B, C, H, W), with 0 where it is not finite."""
    pictures = pictures.detach().clone().requires_grad_()
    # a sum, not a mean, so that the gradient of a picture does not depend on the batch size
    loss = F.cross_entropy(logits_of(classifier, pictures, labels), labels, reduction="sum")
    (slope,) = torch.autograd.grad(loss, pictures, allow_unused=True) if loss.requires_grad else (None,)
    if slope is None:
        raise ValueError("the classifier passes no gradient to its pixels (no_grad or detach?): Square needs none")
    return slope.nan_to_num(0, 0, 0)


def margins(classifier: nn.Module, pictures: Tensor, labels: Tensor) -> Tensor:
    """The margin of each picture, (B,), without a gradient."""
    with torch.no_grad():
        return margin(logits_of(classifier, pictures, labels), labels)


def margin(logits: Tensor, labels: Tensor) -> Tensor:
    """The logit of the label minus the largest other logit, (B,): negative if the classifier is wrong."""
    own = labels[:, None]
    return logits.gather(1, own)[:, 0] - logits.scatter(1, own, -torch.inf).amax(1)


def check(pixels: Tensor, labels: Tensor, generators: Generators) -> None:
    if pixels.ndim != 4 or pixels.dtype not in (torch.float32, torch.float64):
        raise ValueError(
            f"pixels must be (batch, channels, height, width) in float32 or float64, got {tuple(pixels.shape)} in "
            f"{pixels.dtype}: half precision is too coarse for a radius of 1 / 255"
        )
    if pixels.numel() and not (pixels.min() >= 0 and pixels.max() <= 1):
        raise ValueError(
            f"pixels must be in [0, 1], got {pixels.min():.4g} to {pixels.max():.4g}: "
            "do not normalise them, the classifier does"
        )
    if labels.shape != pixels.shape[:1] or labels.is_floating_point() or labels.is_complex():
        raise ValueError(
            f"labels must be {len(pixels)} integers, one a picture, got {tuple(labels.shape)} in {labels.dtype}: "
            "give class numbers, not probabilities"
        )
    if len(generators) != len(pixels):
        raise ValueError(
            f"{len(pixels)} pictures need {len(pixels)} generators, got {len(generators)}: "
            "make them with generators.generators_of(identities)"
        )
