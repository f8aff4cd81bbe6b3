"""Pictures changed a little so that a classifier goes wrong, and signs that an attack failed for the wrong reason.

An attack is a rule and a ball: `PGD(radius=4 / 255)(classifier, pixels, labels, generators)` gives pictures no farther
than the radius from the pixels, in [0, 1]. The classifier takes pixels in [0, 1] and normalises for itself, so a radius
means the same for every model. Chance comes from one generator a picture (`chance.generators_of`), and no picture looks
at another: what happens to it does not depend on its batch, up to the rounding of the classifier.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, replace
from importlib.util import find_spec
from itertools import pairwise
from math import isfinite, sqrt
from operator import attrgetter
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..attention.modes import evaluating
from .chance import Generators, normal, uniform

Norm = Literal["linf", "l2"]
EACH = (1, 2, 3)  # the dimensions of one picture in a batch


@dataclass(frozen=True)
class Attack:
    """What all attacks share: the ball, the checks, and a classifier left as it was found. A member writes `run`.

    Args:
        radius: how far a picture may move, with pixels in [0, 1]. At 0 the clean pictures come back.
        norm: what far means: "linf", the largest change of a pixel, or "l2", the root of the sum of squared changes.
    """

    radius: float
    _: KW_ONLY
    norm: Norm = "linf"

    def __post_init__(self):
        if not (isfinite(self.radius) and self.radius >= 0):
            raise ValueError(f"radius must be 0 or more, with pixels in [0, 1], got {self.radius}: try 1 / 255")
        if self.norm not in get_args(Norm):
            raise ValueError(f"norm must be one of {', '.join(map(repr, get_args(Norm)))}, got {self.norm!r}")

    def __call__(self, classifier: nn.Module, pixels: Tensor, labels: Tensor, generators: Generators) -> Tensor:
        """Attacked pictures, each within the radius of its pixels and in [0, 1].

        The classifier is attacked in evaluation mode; its modes, parameters and their gradients are left as they were.

        Args:
            classifier: pixels (B, C, H, W) in [0, 1] -> logits (B, classes).
            pixels: (B, C, H, W), float32 or float64.
            labels: (B,), the classes to be moved away from.
            generators: B of them, on the CPU.
        """
        _check(pixels, labels, generators)
        with _evaluated(classifier):
            # copies, since tensors made in inference mode cannot take part in a gradient; AutoAttack views them as rows
            pixels = pixels.detach().clone(memory_format=torch.contiguous_format)
            labels = labels.to(pixels.device, torch.long, copy=True)
            if self.radius == 0 or not len(pixels):
                return pixels
            pictures = self.run(classifier, pixels, labels, generators).detach()
            return project(pictures, pixels, self.radius, self.norm)

    def run(self, classifier: nn.Module, pixels: Tensor, labels: Tensor, generators: Generators) -> Tensor:
        """The same as a call, but inputs are known to be good and the outcome may leave the ball by a rounding."""
        raise NotImplementedError(f"{type(self).__name__} does not say how it attacks: write `run`")


@dataclass(frozen=True)
class Noise(Attack):
    """A random place in the ball: no attack, but what every attack must beat."""

    def run(self, classifier: nn.Module, pixels: Tensor, labels: Tensor, generators: Generators) -> Tensor:
        if self.norm == "linf":
            return pixels + self.radius * (2 * uniform(generators, *pixels.shape[1:]).to(pixels) - 1)
        # a ball in n dimensions has a share s^n of its volume within s of its radius
        share = uniform(generators, 1, 1, 1).to(pixels) ** (1 / pixels[0].numel())
        return pixels + self.radius * share * _unit(normal(generators, *pixels.shape[1:]).to(pixels))


@dataclass(frozen=True)
class FGSM(Attack):
    """One step uphill on the cross-entropy, as long as the radius (Goodfellow et al. 2015)."""

    radius: float = 1 / 255

    def run(self, classifier: nn.Module, pixels: Tensor, labels: Tensor, generators: Generators) -> Tensor:
        return pixels + self.radius * _steepest(_gradient(classifier, pixels, labels), self.norm)


@dataclass(frozen=True)
class PGD(Attack):
    """Steps uphill on the cross-entropy, back into the ball after each (Madry et al. 2018).

    The outcome is where the last step ended, whether an earlier one fooled the classifier or not, and pictures that are
    wrong already are moved as well. That is the published protocol; the defaults are its numbers. With restarts it is
    the end, of several, where the classifier is most wrong: for each picture the smallest `margin`.

    Args:
        step: length of a step in the norm; None for half the radius.
        steps: how many.
        random_start: whether to begin anywhere in the ball, as `Noise` does, or at the clean picture.
        restarts: how many times to begin.
    """

    radius: float = 1 / 255
    _: KW_ONLY
    step: float | None = None
    steps: int = 5
    random_start: bool = True
    restarts: int = 1

    def __post_init__(self):
        super().__post_init__()
        if self.step is not None and not (isfinite(self.step) and self.step > 0):
            raise ValueError(f"step must be more than 0, got {self.step}: leave it out for half the radius")
        if self.steps < 1:
            raise ValueError(f"steps must be 1 or more, got {self.steps}: for no step there is Noise")
        if self.restarts < 1:
            raise ValueError(f"restarts must be 1 or more, got {self.restarts}: 1 begins once")
        if self.restarts > 1 and not self.random_start:
            raise ValueError(f"{self.restarts} restarts all begin at the clean picture: set random_start=True")

    def run(self, classifier: nn.Module, pixels: Tensor, labels: Tensor, generators: Generators) -> Tensor:
        pictures = self._climb(classifier, pixels, labels, generators)
        for _ in range(self.restarts - 1):
            other = self._climb(classifier, pixels, labels, generators)
            lower = _query(classifier, other, labels) < _query(classifier, pictures, labels)
            pictures = torch.where(lower.view(-1, 1, 1, 1), other, pictures)
        return pictures

    def _climb(self, classifier: nn.Module, pixels: Tensor, labels: Tensor, generators: Generators) -> Tensor:
        step = self.radius / 2 if self.step is None else self.step
        pictures = pixels
        if self.random_start:
            start = Noise(self.radius, norm=self.norm).run(classifier, pixels, labels, generators)
            pictures = project(start, pixels, self.radius, self.norm)
        for _ in range(self.steps):
            uphill = _steepest(_gradient(classifier, pictures, labels), self.norm)
            pictures = project(pictures + step * uphill, pixels, self.radius, self.norm)
        return pictures


@dataclass(frozen=True)
class Square(Attack):
    """Random squares, kept where they lower the `margin`; it asks for logits only (Andriushchenko et al. 2020).

    A picture that is fooled is left there, one that is wrong already is returned as it came. Masked gradients cannot
    stop this attack, so it should do worse than PGD; see `masking_signs`.

    Args:
        queries: pictures shown to the classifier for each picture, beside the clean one.
        share: of the picture that the first squares cover. It is halved eight times on the way. The paper has .05 for
            linf and .1 for l2 on ImageNet; .8 is what AutoAttack uses throughout.
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

    def run(self, classifier: nn.Module, pixels: Tensor, labels: Tensor, generators: Generators) -> Tensor:
        _, channels, height, width = pixels.shape
        pictures, margins = pixels.clone(), _query(classifier, pixels, labels)
        start, propose = (self._stripes, self._square) if self.norm == "linf" else (self._tiles, self._pyramids)
        beginning = start(pixels, generators)
        # a row of chance for each query: two corners, an orientation, and a sign for each channel
        chance = uniform(generators, self.queries, 5 + channels, device=pixels.device).to(torch.float64)
        for query in range(self.queries):
            holding = (~(margins < 0)).nonzero()[:, 0]
            if not len(holding):
                break
            clean = pixels[holding]
            if query == 0:
                proposal = beginning[holding]
            else:
                proposal = propose(pictures[holding], clean, chance[holding, query], self.side(query, height, width))
            proposal = project(proposal, clean, self.radius, self.norm)
            found = _query(classifier, proposal, labels[holding])
            lower = (found < margins[holding]) | (query == 0)
            pictures[holding[lower]], margins[holding[lower]] = proposal[lower], found[lower]
        return pictures

    def side(self, query: int, height: int, width: int) -> int:
        """Side of the squares of a query: the paper's schedule for 10 000 queries, stretched over those there are."""
        halved = sum(query / self.queries > time for time in (0.001, 0.005, 0.02, 0.1, 0.2, 0.4, 0.6, 0.8))
        side = round(sqrt(self.share / 2**halved * height * width))
        if self.norm == "l2":
            side = max(side // 2 * 2 + 1, 3)  # odd, so that there is a centre
        return max(min(side, height, width), 1)

    def _stripes(self, pixels: Tensor, generators: Generators) -> Tensor:
        """Every column of every channel up or down by the radius."""
        _, channels, _, width = pixels.shape
        return pixels + self.radius * _sign(uniform(generators, channels, 1, width)).to(pixels)

    def _square(self, pictures: Tensor, pixels: Tensor, chance: Tensor, side: int) -> Tensor:
        """In one square every channel up or down by the radius, the rest as in the pictures (algorithm 2)."""
        sign = _sign(chance[:, 5:, None, None]).to(pixels)
        return torch.where(_window(pixels, chance[:, :2], side), pixels + self.radius * sign, pictures)

    def _tiles(self, pixels: Tensor, generators: Generators) -> Tensor:
        """About five by five pairs of pyramids, each turned and each channel signed at random, of the radius in all."""
        _, channels, height, width = pixels.shape
        side = max(min(height, width) // 5, 1)
        rows, columns = torch.arange(height)[:, None], torch.arange(width)
        chance = uniform(generators, channels + 1, height // side + 1, width // side + 1)
        chance = chance[:, :, rows // side, columns // side]
        shape = _pyramid_pair(side)
        shape = torch.where(chance[:, :1] < 0.5, shape[rows % side, columns % side], shape[columns % side, rows % side])
        return pixels + self.radius * _unit((shape * _sign(chance[:, 1:])).to(pixels))

    def _pyramids(self, pictures: Tensor, pixels: Tensor, chance: Tensor, side: int) -> Tensor:
        """One square emptied, and what it held given to a pair of pyramids in another (algorithm 3)."""
        change = pictures - pixels
        first, second = _window(pixels, chance[:, :2], side), _window(pixels, chance[:, 2:4], side)
        first = first.expand_as(change)
        kept = change.masked_fill(first | second, 0)
        energy = change.square().sum((2, 3))  # (B, C)
        unused = (self.radius**2 - energy.sum(1, keepdim=True)).clamp_min(0)
        budget = (energy - kept.square().sum((2, 3)) + unused / energy.shape[1]).clamp_min(0).sqrt()

        shape = _pyramid_pair(side).to(pixels)
        shape = torch.where(chance[:, 4, None, None, None] < 0.5, shape, shape.T) * _sign(chance[:, 5:, None, None])
        held = change[first].view(*energy.shape, side, side)
        pair = _unit(shape.to(pixels) + _unit(held, (2, 3)), (2, 3)) * budget[:, :, None, None]
        return pixels + kept.masked_scatter(first, pair)


@dataclass(frozen=True)
class AutoAttack(Attack):
    """The standard ensemble of Croce and Hein (2020), by their package: two of PGD, one of boundaries, and squares.

    A picture that is fooled is left there; one that withstands all four comes back clean. Their package draws for a
    whole batch at once, so it is shown one picture at a time, each with a seed of its own: exact, and slow. Where there
    are fewer than ten classes, the targets are the others instead of nine.
    """

    radius: float = 8 / 255

    def __post_init__(self):
        super().__post_init__()
        if find_spec("autoattack") is None:
            raise ImportError(
                "AutoAttack needs the package of its authors, which is not installed: "
                "pip install git+https://github.com/fra31/auto-attack; or use PGD with restarts, and Square"
            )

    def run(self, classifier: nn.Module, pixels: Tensor, labels: Tensor, generators: Generators) -> Tensor:
        from autoattack import AutoAttack as Ensemble

        with torch.no_grad():
            classes = _logits(classifier, pixels[:1], labels).shape[1]
        if classes < 4:
            raise ValueError(
                f"AutoAttack compares four logits, got {classes} classes: use PGD with restarts, and Square"
            )

        def single(pictures: Tensor) -> Tensor:  # their package works in float32
            return classifier(pictures.to(pixels.dtype)).float()

        norm = {"linf": "Linf", "l2": "L2"}[self.norm]
        pictures = []
        # their package seeds the generators that everybody shares
        with torch.random.fork_rng([pixels.device] if pixels.is_cuda else []):
            for picture, label, generator in zip(pixels.split(1), labels.split(1), generators, strict=True):
                seed = int(torch.randint(2**31, (), generator=generator))
                ensemble = Ensemble(single, norm, self.radius, seed=seed, verbose=False, device=pixels.device)
                ensemble.apgd_targeted.n_target_classes = ensemble.fab.n_target_classes = min(9, classes - 1)
                pictures.append(ensemble.run_standard_evaluation(picture.float(), label, bs=1))
        return torch.cat(pictures).to(pixels.dtype)


@dataclass(frozen=True)
class Transferred:
    """An attack on another classifier, to be scored on this one. It is called as an attack is.

    Args:
        attack: how the pictures are made.
        source: the classifier against which they are made.
    """

    attack: Attack
    source: nn.Module

    @property
    def radius(self) -> float:
        return self.attack.radius

    @property
    def norm(self) -> Norm:
        return self.attack.norm

    def __call__(self, classifier: nn.Module, pixels: Tensor, labels: Tensor, generators: Generators) -> Tensor:
        """Attacked pictures; the classifier is not asked. For the rest see `Attack`."""
        return self.attack(self.source, pixels, labels, generators)


ATTACKS: dict[str, type[Attack]] = {"pgd": PGD, "fgsm": FGSM, "square": Square, "autoattack": AutoAttack}


def project(pictures: Tensor, pixels: Tensor, radius: float, norm: Norm) -> Tensor:
    """The pictures moved into the ball around the pixels, and into [0, 1]; all are (B, C, H, W).

    No rounding leaves the ball: |result - pixels| <= radius holds in float64, and in the tensors' own type.
    """
    exact = pixels.double()
    if norm == "linf":
        # bounds in float64: in float32 a bound near 0 can be wrong by very many of the steps that nextafter takes
        pictures = pictures.double().clamp(exact - radius, exact + radius).to(pixels).clamp(0, 1)
        while (far := (pictures.double() - exact).abs() > radius).any():
            pictures = torch.where(far, torch.nextafter(pictures, pixels), pictures)
        return pictures
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


def _length(change: Tensor) -> Tensor:
    """L2 norm of each picture, (B, 1, 1, 1)."""
    return torch.linalg.vector_norm(change, dim=EACH, keepdim=True)


def _unit(change: Tensor, dim: tuple[int, ...] = EACH) -> Tensor:
    """The change scaled to length 1 over the dimensions; 0 stays 0."""
    tiny = torch.finfo(change.dtype).tiny
    change = change / change.abs().amax(dim, keepdim=True).clamp_min(tiny)  # so that no square underflows
    return change / torch.linalg.vector_norm(change, dim=dim, keepdim=True).clamp_min(tiny)


@contextmanager
def _evaluated(classifier: nn.Module) -> Iterator[None]:
    """The classifier in evaluation mode and gradients possible, whatever the caller's modes; then each as it was."""
    with torch.inference_mode(False), torch.enable_grad(), evaluating(classifier):
        yield


def _logits(classifier: nn.Module, pictures: Tensor, labels: Tensor) -> Tensor:
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


def _gradient(classifier: nn.Module, pictures: Tensor, labels: Tensor) -> Tensor:
    """Of each picture's cross-entropy, for its pixels: (B, C, H, W). What is not finite counts as 0."""
    pictures = pictures.detach().clone().requires_grad_()
    # a sum, not a mean: no picture's gradient then depends on how many there are
    loss = F.cross_entropy(_logits(classifier, pictures, labels), labels, reduction="sum")
    (slope,) = torch.autograd.grad(loss, pictures, allow_unused=True) if loss.requires_grad else (None,)
    if slope is None:
        raise ValueError("the classifier passes no gradient to its pixels (no_grad or detach?): Square needs none")
    return slope.nan_to_num(0, 0, 0)


def _steepest(slope: Tensor, norm: Norm) -> Tensor:
    """The change of length 1 that the slope (B, C, H, W) says raises the loss most; 0 where there is none."""
    return slope.sign() if norm == "linf" else _unit(slope)


def _query(classifier: nn.Module, pictures: Tensor, labels: Tensor) -> Tensor:
    """The margin of each picture, (B,), without a gradient."""
    with torch.no_grad():
        return margin(_logits(classifier, pictures, labels), labels)


def margin(logits: Tensor, labels: Tensor) -> Tensor:
    """The label's logit less the largest other, (B,): negative where the classifier is wrong."""
    own = labels[:, None]
    return logits.gather(1, own)[:, 0] - logits.scatter(1, own, -torch.inf).amax(1)


def zero_gradients(classifier: nn.Module, pixels: Tensor, labels: Tensor) -> Tensor:
    """Whether a picture's cross-entropy has a gradient of exactly 0 in every pixel, (B,): there PGD is blind.

    Confident logits do that, where the softmax rounds to one class; so do rounded pixels.
    """
    with _evaluated(classifier):
        slope = _gradient(classifier, pixels.clone(), labels.to(pixels.device, torch.long, copy=True))
        return (slope == 0).all(3).all(2).all(1)


def _check(pixels: Tensor, labels: Tensor, generators: Generators) -> None:
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


def _sign(chance: Tensor) -> Tensor:
    """1 or -1, by numbers from 0 to 1."""
    return torch.where(chance < 0.5, 1.0, -1.0)


def _window(pixels: Tensor, chance: Tensor, side: int) -> Tensor:
    """True in a square of the side, whose place chance (B, 2) says: (B, 1, H, W)."""
    height, width = pixels.shape[2:]
    top, left = (chance * chance.new_tensor([height - side + 1, width - side + 1])).floor().T[:, :, None]
    rows, columns = torch.arange(height, device=pixels.device), torch.arange(width, device=pixels.device)
    rows, columns = (top <= rows) & (rows < top + side), (left <= columns) & (columns < left + side)
    return (rows[:, :, None] & columns[:, None, :])[:, None]


def _pyramid_pair(side: int) -> Tensor:
    """One pyramid up and one down, one above the other: (side, side), of length 1.

    At distance d from its centre, in squares, a pyramid is as high as the sum over j >= d of 1 / (j + 1)^2.
    """
    height = (1 / torch.arange(1, side // 2 + 2).square()).flip(0).cumsum(0).flip(0)
    columns = (torch.arange(side) - side // 2).abs()
    halves = []
    for rows in (side // 2, side - side // 2):
        distance = torch.maximum((torch.arange(rows) - rows // 2).abs()[:, None], columns)
        halves.append(height[distance])
    pair = torch.cat([halves[0], -halves[1]])
    return pair / pair.norm()


def masking_signs(
    accuracies: Mapping[Attack | Transferred, float],
    pictures: int,
    *,
    zero_gradients: float = 0.0,
    floor: float = 0.02,
) -> list[str]:
    """Sentences, one for each sign that the attacks with gradients failed and the model is weaker than it looks.

    The signs are those of Athalye et al. (2018) and Carlini et al. (2019). No sentence is no proof. A difference counts
    if it is beyond two standard errors, as if each accuracy were measured on pictures of its own; where all are
    measured on the same ones, that errs towards silence.

    Args:
        accuracies: share of pictures that are still right after each attack. Give PGD at several radii, 64 / 255
            among them, with more steps at one of these, and there Square, FGSM and Noise as well.
        pictures: how many each accuracy is measured on.
        zero_gradients: share of pictures for which `zero_gradients` is true.
        floor: accuracy that counts as none. A model that ends in one class for everything keeps 1 / classes.
    """
    if pictures < 1:
        raise ValueError(f"pictures must be 1 or more, got {pictures}: give how many were measured")
    for name, share in [*accuracies.items(), ("zero_gradients", zero_gradients), ("floor", floor)]:
        if not 0 <= share <= 1:
            raise ValueError(f"{name} must have a share from 0 to 1, got {share}: divide percent by 100")

    def above(more: float, less: float) -> bool:
        return more - less > 2 * sqrt((more * (1 - more) + less * (1 - less)) / pictures)

    def left(attack: Attack | Transferred) -> str:
        return f"{_say(attack)} leaves {accuracies[attack]:.1%}"

    signs = []
    if above(zero_gradients, 0):
        signs.append(f"{zero_gradients:.1%} of the pictures have a gradient of exactly 0: there PGD is only noise")

    climbs = [attack for attack in accuracies if isinstance(attack, PGD) and attack.radius > 0]
    for ladder in _ladders(climbs, "radius"):
        signs += [
            f"{left(more)}, but {left(less)}: a larger ball has every picture of a smaller one"
            for less, more in pairwise(ladder)
            if above(accuracies[more], accuracies[less])
        ]
        low, high = ladder[0], ladder[-1]
        falls = above(accuracies[low], accuracies[high]) or not above(accuracies[low], floor)
        would_show = above(accuracies[low], accuracies[low] / 2)  # if half of it were lost: else there are too few
        if high.radius >= 8 * low.radius and would_show and not falls:
            signs.append(f"{left(high)}, hardly less than a small part of it: {left(low)}")
    stuck = set()  # balls where steps were added in vain
    for ladder in _ladders(climbs, "steps"):
        signs += [
            f"{left(more)}, but {left(less)}: its steps lead astray"
            for less, more in pairwise(ladder)
            if above(accuracies[more], accuracies[less])
        ]
        if len(ladder) > 1 and not above(accuracies[ladder[0]], accuracies[ladder[-1]]):
            stuck.add((ladder[0].norm, ladder[0].radius))

    for ball in sorted({(attack.norm, attack.radius) for attack in climbs}):
        here = [attack for attack in accuracies if (attack.norm, attack.radius) == ball]
        best = min((attack for attack in here if isinstance(attack, PGD)), key=accuracies.get)
        # AutoAttack goes with and without gradients, and is expected to be the strongest: it is no sign
        for other in (attack for attack in here if not isinstance(attack, PGD | AutoAttack)):
            if above(accuracies[best], accuracies[other]):
                how = "in one step" if isinstance(other, FGSM) else "without this model's gradient"
                vain = ", and more steps did not help" if ball in stuck else ""
                signs.append(f"{left(other)} {how}, but {left(best)}{vain}")
        if ball[0] == "linf" and ball[1] >= 64 / 255 and above(accuracies[best], floor):
            signs.append(f"{left(best)}, though so large a change can hide a picture")
    return signs


def _ladders(attacks: list[PGD], field: str) -> list[list[PGD]]:
    """The attacks that are alike but for one field, sorted by it."""
    ladders = defaultdict(list)
    for attack in sorted(attacks, key=attrgetter(field)):
        ladders[replace(attack, **{field: 1})].append(attack)
    return list(ladders.values())


def _say(attack: Attack | Transferred) -> str:
    name = f"transferred {type(attack.attack).__name__}" if isinstance(attack, Transferred) else type(attack).__name__
    radius = f"{attack.radius * 255:.4g}/255" if attack.norm == "linf" else f"{attack.radius:.4g} in l2"
    return f"{name} of radius {radius}" + (f" and {attack.steps} steps" if isinstance(attack, PGD) else "")
