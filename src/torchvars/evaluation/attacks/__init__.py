"""Adversarial attacks: small changes of pictures that a classifier misclassifies.

`PGD(radius=4 / 255)(classifier, pixels, labels, generators)` returns pictures in [0, 1] within the radius of the
pixels. The classifier takes pixels in [0, 1] and normalises them itself, so a radius means the same for every model.
Each picture has its own random generator (`generators.generators_of`), so its result does not depend on the batch,
except for the rounding of the classifier.
"""

from .autoattack import AutoAttack
from .base import Attack, margin
from .fgsm import FGSM
from .noise import Noise
from .norms import NORMS, Norm
from .pgd import PGD
from .square import Square
from .transferred import Transferred

ATTACKS: dict[str, type[Attack]] = {"pgd": PGD, "fgsm": FGSM, "square": Square, "autoattack": AutoAttack}

__all__ = [
    "ATTACKS",
    "FGSM",
    "NORMS",
    "PGD",
    "Attack",
    "AutoAttack",
    "Noise",
    "Norm",
    "Square",
    "Transferred",
    "margin",
]
