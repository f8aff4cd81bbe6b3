"""Signs that an attack failed for the wrong reason: gradients that are hidden, not a model that is robust."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from math import sqrt
from operator import attrgetter

import torch
from torch import Tensor, nn

from .attacks import FGSM, PGD, Attack, AutoAttack, Transferred
from .attacks.base import evaluated, gradient


def zero_gradients(classifier: nn.Module, pixels: Tensor, labels: Tensor) -> Tensor:
    """Whether a picture's cross-entropy has a gradient of exactly 0 in every pixel, (B,): there PGD is blind.

    Confident logits do that, where the softmax rounds to one class; so do rounded pixels.
    """
    with evaluated(classifier):
        slope = gradient(classifier, pixels.clone(), labels.to(pixels.device, torch.long, copy=True))
        return (slope == 0).all(3).all(2).all(1)


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
        best = min((attack for attack in here if isinstance(attack, PGD)), key=accuracies.__getitem__)
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
