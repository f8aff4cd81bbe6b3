"""The ensemble AutoAttack."""

from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec

import torch
from torch import Tensor, nn

from ..generators import Generators
from .base import Attack, logits_of

NAMES = {"linf": "Linf", "l2": "L2"}  # names of the norms in the authors' package


@dataclass(frozen=True)
class AutoAttack(Attack):
    """The standard ensemble of Croce and Hein (2020), by their package: two APGD attacks, FAB, and Square.

    A picture is attacked until it is misclassified; one that withstands all four attacks is returned unchanged. Their
    package draws random numbers for a whole batch, so it is called for one picture at a time, each with its own seed,
    which is slow. With fewer than ten classes, all other classes are targets instead of nine.
    """

    radius: float = 8 / 255

    def __post_init__(self):
        super().__post_init__()
        if find_spec("autoattack") is None:
            raise ImportError(
                "AutoAttack needs the package of its authors, which is not installed: "
                "pip install git+https://github.com/fra31/auto-attack; or use PGD with restarts, and Square"
            )

    @property
    def passes(self) -> float:
        return 5000  # the queries of Square, which dominate

    def run(self, classifier: nn.Module, pixels: Tensor, labels: Tensor, generators: Generators) -> Tensor:
        ensemble_of = import_module("autoattack").AutoAttack
        with torch.no_grad():
            classes = logits_of(classifier, pixels[:1], labels).shape[1]
        if classes < 4:
            raise ValueError(
                f"AutoAttack compares four logits, got {classes} classes: use PGD with restarts, and Square"
            )

        def single(pictures: Tensor) -> Tensor:  # their package uses float32
            return classifier(pictures.to(pixels.dtype)).float()

        pictures = []
        # their package seeds the global generators
        with torch.random.fork_rng([pixels.device] if pixels.is_cuda else []):
            for picture, label, generator in zip(pixels.split(1), labels.split(1), generators, strict=True):
                seed = int(torch.randint(2**31, (), generator=generator))
                ensemble = ensemble_of(
                    single, NAMES[self.norm], self.radius, seed=seed, verbose=False, device=pixels.device
                )
                ensemble.apgd_targeted.n_target_classes = ensemble.fab.n_target_classes = min(9, classes - 1)
                pictures.append(ensemble.run_standard_evaluation(picture.float(), label, bs=1))
        return torch.cat(pictures).to(pixels.dtype)
