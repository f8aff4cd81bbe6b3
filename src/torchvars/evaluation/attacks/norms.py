"""Norms of the change of a picture, one class each, with the operations on their balls."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from ..generators import Generators, normal, uniform

EACH = (1, 2, 3)  # the dimensions of a picture in a batch


class Norm(ABC):
    """A norm of the changes (B, C, H, W) of each picture, with pixels in [0, 1].

    Attributes:
        name: the name in options and files.
    """

    name: str

    @abstractmethod
    def project(self, pictures: Tensor, pixels: Tensor, radius: float) -> Tensor:
        """The projection of the pictures on the ball around the pixels, and on [0, 1]; all are (B, C, H, W).

        |result - pixels| <= radius holds exactly, in float64 and in the type of the tensors.
        """

    @abstractmethod
    def steepest(self, slope: Tensor) -> Tensor:
        """The change of length 1 that increases the loss most, from its gradient (B, C, H, W); 0 for no gradient."""

    @abstractmethod
    def draw(self, pixels: Tensor, radius: float, generators: Generators) -> Tensor:
        """A random point of the ball around the pixels."""

    @abstractmethod
    def describe(self, radius: float) -> str:
        """A radius in words."""


class Linf(Norm):
    """The largest change of a pixel."""

    name = "linf"

    def project(self, pictures: Tensor, pixels: Tensor, radius: float) -> Tensor:
        exact = pixels.double()
        # bounds in float64: in float32 the error of a bound near 0 can be very many steps of nextafter
        pictures = pictures.double().clamp(exact - radius, exact + radius).to(pixels).clamp(0, 1)
        while (far := (pictures.double() - exact).abs() > radius).any():
            pictures = torch.where(far, torch.nextafter(pictures, pixels), pictures)
        return pictures

    def steepest(self, slope: Tensor) -> Tensor:
        return slope.sign()

    def draw(self, pixels: Tensor, radius: float, generators: Generators) -> Tensor:
        return pixels + radius * (2 * uniform(generators, *pixels.shape[1:]).to(pixels) - 1)

    def describe(self, radius: float) -> str:
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
            # pictures inside stay exactly the same, which pixels + change would not guarantee
            inside = torch.where(share < 1, (exact + share * change).to(pixels), pictures).clamp(0, 1)
            # the sum of squares may be rounded up in float32: neither sum may exceed the radius
            far = torch.maximum(_length(inside.double() - exact), _length(inside - pixels)) > radius
            if not far.any():
                return inside
            share, less = torch.where(far, share * (1 - less), share), min(2 * less, 1)

    def steepest(self, slope: Tensor) -> Tensor:
        return unit(slope)

    def draw(self, pixels: Tensor, radius: float, generators: Generators) -> Tensor:
        # the share of the volume of an n-dimensional ball within s times its radius is s^n
        share = uniform(generators, 1, 1, 1).to(pixels) ** (1 / pixels[0].numel())
        return pixels + radius * share * unit(normal(generators, *pixels.shape[1:]).to(pixels))

    def describe(self, radius: float) -> str:
        return f"{radius:.6g}"


NORMS: dict[str, Norm] = {norm.name: norm for norm in (Linf(), L2())}


def unit(change: Tensor, dim: tuple[int, ...] = EACH) -> Tensor:
    """The change scaled to norm 1 over the dimensions; 0 stays 0."""
    tiny = torch.finfo(change.dtype).tiny
    change = change / change.abs().amax(dim, keepdim=True).clamp_min(tiny)  # so that no square underflows
    return change / torch.linalg.vector_norm(change, dim=dim, keepdim=True).clamp_min(tiny)


def _length(change: Tensor) -> Tensor:
    """L2 norm of each picture, (B, 1, 1, 1)."""
    return torch.linalg.vector_norm(change, dim=EACH, keepdim=True)
