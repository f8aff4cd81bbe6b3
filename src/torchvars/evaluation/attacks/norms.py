"""How far a picture may move: one class for each norm, with all that an attack needs to know of its ball."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from ..chance import Generators, normal, uniform

EACH = (1, 2, 3)  # the dimensions of one picture in a batch


class Norm(ABC):
    """A norm of changes (B, C, H, W), a picture at a time, with pixels in [0, 1].

    Attributes:
        name: by which options and files call it.
    """

    name: str

    @abstractmethod
    def project(self, pictures: Tensor, pixels: Tensor, radius: float) -> Tensor:
        """The pictures moved into the ball around the pixels, and into [0, 1]; all are (B, C, H, W).

        No rounding leaves the ball: |result - pixels| <= radius holds in float64, and in the tensors' own type.
        """

    @abstractmethod
    def steepest(self, slope: Tensor) -> Tensor:
        """The change of length 1 that the slope (B, C, H, W) says raises the loss most; 0 where there is none."""

    @abstractmethod
    def draw(self, pixels: Tensor, radius: float, generators: Generators) -> Tensor:
        """A random place in the ball around each of the pixels."""

    @abstractmethod
    def say(self, radius: float) -> str:
        """A radius in words."""


class Linf(Norm):
    """The largest change of a pixel."""

    name = "linf"

    def project(self, pictures: Tensor, pixels: Tensor, radius: float) -> Tensor:
        exact = pixels.double()
        # bounds in float64: in float32 a bound near 0 can be wrong by very many of the steps that nextafter takes
        pictures = pictures.double().clamp(exact - radius, exact + radius).to(pixels).clamp(0, 1)
        while (far := (pictures.double() - exact).abs() > radius).any():
            pictures = torch.where(far, torch.nextafter(pictures, pixels), pictures)
        return pictures

    def steepest(self, slope: Tensor) -> Tensor:
        return slope.sign()

    def draw(self, pixels: Tensor, radius: float, generators: Generators) -> Tensor:
        return pixels + radius * (2 * uniform(generators, *pixels.shape[1:]).to(pixels) - 1)

    def say(self, radius: float) -> str:
        return f"{radius * 255:.6g}/255"


class L2(Norm):
    """The root of the sum of squared changes."""

    name = "l2"

    def project(self, pictures: Tensor, pixels: Tensor, radius: float) -> Tensor:
        exact = pixels.double()
        change = pictures.double() - exact
        length = _length(change)
        share, less = torch.where(length > radius, radius / length, 1), torch.finfo(pixels.dtype).eps
        while True:
            # what is inside stays to the last bit, which pixels + change might not give back
            inside = torch.where(share < 1, (exact + share * change).to(pixels), pictures).clamp(0, 1)
            # float32 may sum the squares to more than they are: neither sum may exceed the radius
            far = torch.maximum(_length(inside.double() - exact), _length(inside - pixels)) > radius
            if not far.any():
                return inside
            share, less = torch.where(far, share * (1 - less), share), min(2 * less, 1)

    def steepest(self, slope: Tensor) -> Tensor:
        return unit(slope)

    def draw(self, pixels: Tensor, radius: float, generators: Generators) -> Tensor:
        # a ball in n dimensions has a share s^n of its volume within s of its radius
        share = uniform(generators, 1, 1, 1).to(pixels) ** (1 / pixels[0].numel())
        return pixels + radius * share * unit(normal(generators, *pixels.shape[1:]).to(pixels))

    def say(self, radius: float) -> str:
        return f"{radius:.6g}"


NORMS: dict[str, Norm] = {norm.name: norm for norm in (Linf(), L2())}


def unit(change: Tensor, dim: tuple[int, ...] = EACH) -> Tensor:
    """The change scaled to length 1 over the dimensions; 0 stays 0."""
    tiny = torch.finfo(change.dtype).tiny
    change = change / change.abs().amax(dim, keepdim=True).clamp_min(tiny)  # so that no square underflows
    return change / torch.linalg.vector_norm(change, dim=dim, keepdim=True).clamp_min(tiny)


def _length(change: Tensor) -> Tensor:
    """L2 norm of each picture, (B, 1, 1, 1)."""
    return torch.linalg.vector_norm(change, dim=EACH, keepdim=True)
