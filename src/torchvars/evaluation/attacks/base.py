"""What all attacks share: the ball, the checks, a classifier left as it was found, and what is asked of it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from math import isfinite

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...attention.modes import evaluating
from ..chance import Generators
from .norms import NORMS, Norm


@dataclass(frozen=True)
class Attack:
    """What all attacks share: the ball, the checks, and a classifier left as it was found. A member writes `run`.

    Args:
        radius: how far a picture may move, with pixels in [0, 1]. At 0 the clean pictures come back.
        norm: what far means, a name of `NORMS`: "linf", the largest change of a pixel, or "l2", the root of the sum of
            squared changes.
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
        """About how many passes of a picture through the classifier it takes; one for a gradient takes three."""
        return 3

    @property
    def ball(self) -> Norm:
        """How far is measured."""
        return NORMS[self.norm]

    def __call__(self, classifier: nn.Module, pixels: Tensor, labels: Tensor, generators: Generators) -> Tensor:
        """Attacked pictures, each within the radius of its pixels and in [0, 1].

        The classifier is attacked in evaluation mode; its modes, parameters and their gradients are left as they were.

        Args:
            classifier: pixels (B, C, H, W) in [0, 1] -> logits (B, classes).
            pixels: (B, C, H, W), float32 or float64.
            labels: (B,), the classes to be moved away from.
            generators: B of them, on the CPU.
        """
        check(pixels, labels, generators)
        with evaluated(classifier):
            # copies, since tensors made in inference mode cannot take part in a gradient; AutoAttack views them as rows
            pixels = pixels.detach().clone(memory_format=torch.contiguous_format)
            labels = labels.to(pixels.device, torch.long, copy=True)
            if self.radius == 0 or not len(pixels):
                return pixels
            pictures = self.run(classifier, pixels, labels, generators).detach()
            return self.ball.project(pictures, pixels, self.radius)

    def run(self, classifier: nn.Module, pixels: Tensor, labels: Tensor, generators: Generators) -> Tensor:
        """The same as a call, but inputs are known to be good and the outcome may leave the ball by a rounding."""
        raise NotImplementedError(f"{type(self).__name__} does not say how it attacks: write `run`")


@contextmanager
def evaluated(classifier: nn.Module) -> Iterator[None]:
    """The classifier in evaluation mode and gradients possible, whatever the caller's modes; then each as it was."""
    with torch.inference_mode(False), torch.enable_grad(), evaluating(classifier):
        yield


def logits_of(classifier: nn.Module, pictures: Tensor, labels: Tensor) -> Tensor:
    """Logits (B, classes) in the pictures' type, checked to have a class for every label."""
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
    """Of each picture's cross-entropy, for its pixels: (B, C, H, W). What is not finite counts as 0."""
    pictures = pictures.detach().clone().requires_grad_()
    # a sum, not a mean: no picture's gradient then depends on how many there are
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
    """The label's logit less the largest other, (B,): negative where the classifier is wrong."""
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
            "make them with chance.generators_of(identities)"
        )
