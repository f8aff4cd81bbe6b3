"""Random squares, without a gradient: Andriushchenko et al. 2020."""

from dataclasses import KW_ONLY, dataclass
from math import sqrt

import torch
from torch import Tensor, nn

from ..generators import Generators, uniform
from .base import Attack, margins
from .norms import unit


@dataclass(frozen=True)
class Square(Attack):
    """Random squares, accepted if they lower the `margin`; only logits are used (Andriushchenko et al. 2020).

    A picture is attacked until it is misclassified; one that is misclassified from the start is returned unchanged.
    Masked gradients do not affect this attack, so without masking it should be weaker than PGD; see `masking_signs`.

    Args:
        queries: number of classified pictures for each picture, other than the clean one.
        share: the share of the picture that the first squares cover. It is halved eight times. The paper uses .05 for
            linf and .1 for l2 on ImageNet; AutoAttack always uses .8.
    """

    radius: float = 1 / 255
    _: KW_ONLY
    queries: int = 1000
    share: float = 0.8

    def __post_init__(self):
        super().__post_init__()
        if self.queries < 1:
            raise ValueError(f"queries must be 1 or more, got {self.queries}: AutoAttack takes 5000")
        if not 0 < self.share <= 1:
            raise ValueError(f"share must be above 0 and at most 1, got {self.share}: .8 is usual")

    @property
    def passes(self) -> float:
        return self.queries

    def run(self, classifier: nn.Module, pixels: Tensor, labels: Tensor, generators: Generators) -> Tensor:
        _, channels, height, width = pixels.shape
        pictures, lowest = pixels.clone(), margins(classifier, pixels, labels)
        shapes = SHAPES[self.norm]
        beginning = shapes.begin(pixels, self.radius, generators)
        # random numbers of each query: two corners, an orientation, and a sign for each channel
        draws = uniform(generators, self.queries, 5 + channels, device=pixels.device).to(torch.float64)
        for query in range(self.queries):
            holding = (~(lowest < 0)).nonzero()[:, 0]
            if not len(holding):
                break
            clean = pixels[holding]
            if query == 0:
                proposal = beginning[holding]
            else:
                side = self.side(query, height, width)
                proposal = shapes.propose(pictures[holding], clean, self.radius, draws[holding, query], side)
            proposal = self.ball.project(proposal, clean, self.radius)
            found = margins(classifier, proposal, labels[holding])
            lower = (found < lowest[holding]) | (query == 0)
            pictures[holding[lower]], lowest[holding[lower]] = proposal[lower], found[lower]
        return pictures

    def side(self, query: int, height: int, width: int) -> int:
        """The side of the squares of a query: the paper's schedule for 10 000 queries, scaled to `queries`."""
        halved = sum(query / self.queries > time for time in (0.001, 0.005, 0.02, 0.1, 0.2, 0.4, 0.6, 0.8))
        side = SHAPES[self.norm].side(round(sqrt(self.share / 2**halved * height * width)))
        return max(min(side, height, width), 1)


class Plain:
    """Within linf: squares of one colour."""

    def begin(self, pixels: Tensor, radius: float, generators: Generators) -> Tensor:
        """Stripes: each column of each channel changes by plus or minus the radius."""
        _, channels, _, width = pixels.shape
        return pixels + radius * _sign(uniform(generators, channels, 1, width)).to(pixels)

    def propose(self, pictures: Tensor, pixels: Tensor, radius: float, draws: Tensor, side: int) -> Tensor:
        """Changes each channel in one square by plus or minus the radius (algorithm 2)."""
        sign = _sign(draws[:, 5:, None, None]).to(pixels)
        return torch.where(_window(pixels, draws[:, :2], side), pixels + radius * sign, pictures)

    def side(self, side: int) -> int:
        """Any side is valid."""
        return side


class Pyramids:
    """Within l2: squares with a pyramid up and one down."""

    def begin(self, pixels: Tensor, radius: float, generators: Generators) -> Tensor:
        """About five by five pairs of pyramids, each turned and each channel signed at random, of the radius in all."""
        _, channels, height, width = pixels.shape
        side = max(min(height, width) // 5, 1)
        rows, columns = torch.arange(height)[:, None], torch.arange(width)
        draws = uniform(generators, channels + 1, height // side + 1, width // side + 1)
        draws = draws[:, :, rows // side, columns // side]
        shape = _pyramid_pair(side)
        shape = torch.where(draws[:, :1] < 0.5, shape[rows % side, columns % side], shape[columns % side, rows % side])
        return pixels + radius * unit((shape * _sign(draws[:, 1:])).to(pixels))

    def propose(self, pictures: Tensor, pixels: Tensor, radius: float, draws: Tensor, side: int) -> Tensor:
        """Moves the change in one square to a pair of pyramids in another (algorithm 3)."""
        change = pictures - pixels
        first, second = _window(pixels, draws[:, :2], side), _window(pixels, draws[:, 2:4], side)
        first = first.expand_as(change)
        kept = change.masked_fill(first | second, 0)
        energy = change.square().sum((2, 3))  # (B, C)
        unused = (radius**2 - energy.sum(1, keepdim=True)).clamp_min(0)
        budget = (energy - kept.square().sum((2, 3)) + unused / energy.shape[1]).clamp_min(0).sqrt()

        shape = _pyramid_pair(side).to(pixels)
        shape = torch.where(draws[:, 4, None, None, None] < 0.5, shape, shape.T) * _sign(draws[:, 5:, None, None])
        held = change[first].view(*energy.shape, side, side)
        pair = unit(shape.to(pixels) + unit(held, (2, 3)), (2, 3)) * budget[:, :, None, None]
        return pixels + kept.masked_scatter(first, pair)

    def side(self, side: int) -> int:
        """Odd, so that there is a centre."""
        return max(side // 2 * 2 + 1, 3)


SHAPES = {"linf": Plain(), "l2": Pyramids()}


def _sign(draws: Tensor) -> Tensor:
    """1 or -1, from numbers in [0, 1)."""
    return torch.where(draws < 0.5, 1.0, -1.0)


def _window(pixels: Tensor, draws: Tensor, side: int) -> Tensor:
    """True in a square whose position is given by the draws (B, 2): (B, 1, H, W)."""
    height, width = pixels.shape[2:]
    top, left = (draws * draws.new_tensor([height - side + 1, width - side + 1])).floor().T[:, :, None]
    rows, columns = torch.arange(height, device=pixels.device), torch.arange(width, device=pixels.device)
    rows, columns = (top <= rows) & (rows < top + side), (left <= columns) & (columns < left + side)
    return (rows[:, :, None] & columns[:, None, :])[:, None]


def _pyramid_pair(side: int) -> Tensor:
    """One pyramid up and one down, one above the other: (side, side), of length 1.

    The height of a pyramid at distance d from its centre is the sum over j >= d of 1 / (j + 1)^2.
    """
    height = (1 / torch.arange(1, side // 2 + 2).square()).flip(0).cumsum(0).flip(0)
    columns = (torch.arange(side) - side // 2).abs()
    halves = []
    for rows in (side // 2, side - side // 2):
        distance = torch.maximum((torch.arange(rows) - rows // 2).abs()[:, None], columns)
        halves.append(height[distance])
    pair = torch.cat([halves[0], -halves[1]])
    return pair / pair.norm()
