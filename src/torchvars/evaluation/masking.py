"""Signs of gradient masking: attacks that fail because gradients are useless, not because the model is robust."""

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
    """Whether the gradient of the cross-entropy of a picture is exactly 0 in all pixels, (B,), so that PGD is useless.

    Reasons are a softmax that rounds to one class, and a model that rounds its pixels.
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
    """Signs of gradient masking, one sentence each.

    The signs are those of Athalye et al. (2018) and Carlini et al. (2019). An empty list is not a proof of robustness.
    A difference counts if it is above two standard errors of independent samples. If all accuracies are measured on the
    same pictures, this is conservative.

    Args:
        accuracies: the accuracy under each attack. Pass PGD at several radii, including 64 / 255, with more steps at
            one of these, and there also Square, FGSM and Noise.
        pictures: number of pictures on which each accuracy is measured.
        zero_gradients: share of pictures for which `zero_gradients` is true.
        floor: accuracy that counts as zero. A model that always predicts one class has 1 / classes.
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
        would_show = above(accuracies[low], accuracies[low] / 2)  # whether a loss of half of it would be significant
        if high.radius >= 8 * low.radius and would_show and not falls:
            signs.append(f"{left(high)}, hardly less than a small part of it: {left(low)}")
    stuck = set()  # balls in which more steps did not help
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
        # AutoAttack also uses gradients, and is expected to be the strongest attack: it is not a sign
        for other in (attack for attack in here if not isinstance(attack, PGD | AutoAttack)):
            if above(accuracies[best], accuracies[other]):
                how = "in one step" if isinstance(other, FGSM) else "without this model's gradient"
                vain = ", and more steps did not help" if ball in stuck else ""
                signs.append(f"{left(other)} {how}, but {left(best)}{vain}")
        if ball[0] == "linf" and ball[1] >= 64 / 255 and above(accuracies[best], floor):
            signs.append(f"{left(best)}, though so large a change can hide a picture")
    return signs


def _ladders(attacks: list[PGD], field: str) -> list[list[PGD]]:
    """Groups of attacks that differ in one field only, sorted by it."""
    ladders = defaultdict(list)
    for attack in sorted(attacks, key=attrgetter(field)):
        ladders[replace(attack, **{field: 1})].append(attack)
    return list(ladders.values())


def _say(attack: Attack | Transferred) -> str:
    name = f"transferred {type(attack.attack).__name__}" if isinstance(attack, Transferred) else type(attack).__name__
    radius = f"{attack.radius * 255:.4g}/255" if attack.norm == "linf" else f"{attack.radius:.4g} in l2"
    return f"{name} of radius {radius}" + (f" and {attack.steps} steps" if isinstance(attack, PGD) else "")
