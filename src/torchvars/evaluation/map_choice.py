"""The attention map that is evaluated, and its baselines."""

from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..attention import Reconstruction
from ..maps import KINDS, Observation, find_maps, observe
from ..models.classifier import Classifier
from ..models.origin import build, origin_of
from .subjects import Subject

RANDOM_WEIGHTS = "random weights"


@dataclass(frozen=True)
class MapChoice:
    """The kind and the layer of the map that is judged.

    Args:
        kind: a key of `torchvars.maps.KINDS`.
        layer: the name of an attention, or its index, such as "-1".
    """

    kind: str = "implicit"
    layer: str = "-1"

    def __post_init__(self):
        if self.kind not in KINDS:
            raise ValueError(f"no kind of map named {self.kind!r}: there are {', '.join(KINDS)}")

    @property
    def place(self) -> int | str:
        """The layer, as an argument of `find_maps`."""
        return int(self.layer) if self.layer.lstrip("-").isdigit() else self.layer

    @property
    def queried(self) -> bool:
        """Whether the map depends on a query."""
        return KINDS[self.kind].queried

    @property
    def by_head(self) -> bool:
        """Whether there is a map of each head."""
        return KINDS[self.kind].heads

    def maps(self, seen: Observation, **how: Any) -> Tensor:
        """Maps (batch, H, W), or those of all heads, in double precision on the CPU."""
        return find_maps(seen, self.kind, self.place, **how).double().cpu()

    def observe(self, subject: Subject) -> Observation:
        """The attentions of a model on a black picture. Raises a ValueError if it has no such map."""
        like = next(subject.classifier.parameters(), torch.zeros(()))
        try:
            seen = observe(subject.classifier, torch.zeros(1, 3, subject.size, subject.size, device=like.device))
            self.maps(seen)
        except ValueError as error:
            raise ValueError(f"{subject.name}: {error}") from error
        return seen

    def check(self, subject: Subject) -> str:
        """The name of the attention in a model. Raises a ValueError if it has no such map."""
        return self.observe(subject).name(self.place)

    def steps(self, subject: Subject) -> int | None:
        """The number of recurrent steps; None if the attention is not recurrent, or the map independent of steps."""
        if not KINDS[self.kind].stepped:
            return None
        seen = self.observe(subject)
        return seen.steps(seen.name(self.place))

    def describe(self, name: str) -> str:
        """The map in words, for a protocol."""
        return f"{self.kind} map of {name}"


def random_weights(subject: Subject, seed: int = 0) -> nn.Module:
    """The same model with randomly initialised weights, in evaluation mode. Solvers are those of the trained model.

    Raises:
        ValueError: if it is unknown how the model was built.
    """
    model = subject.classifier.model if isinstance(subject.classifier, Classifier) else subject.classifier
    origin = origin_of(model)
    if origin is None:
        raise ValueError(
            f"{subject.name} was not built by name, so that it cannot be had with {RANDOM_WEIGHTS}: leave the "
            "baselines out (--no-baselines, baselines=False)"
        )
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        fresh = build(origin)
    trained = dict(model.named_modules())
    for name, layer in fresh.named_modules():
        if isinstance(layer, Reconstruction):
            own = trained[name]
            assert isinstance(own, Reconstruction)
            layer.solver, layer.strength = deepcopy(own.solver), own.strength
    like = next(model.parameters())
    classifier = subject.classifier
    fresh = Classifier(fresh, classifier.mean.flatten().tolist(), classifier.std.flatten().tolist())
    return fresh.to(like.device).eval()


def resized(maps: Tensor, height: int, width: int, mode: str = "bilinear") -> np.ndarray:
    """Maps (..., h, w) resized to a picture: (..., height, width)."""
    flat, how = maps.reshape(-1, 1, *maps.shape[-2:]), {"align_corners": False} if mode == "bilinear" else {}
    return F.interpolate(flat, size=(height, width), mode=mode, **how).reshape(*maps.shape[:-2], height, width).numpy()


def centred_gaussian(height: int, width: int) -> np.ndarray:
    """A Gaussian at the centre with a deviation of a quarter of each side: (H, W)."""
    rows, columns = (np.linspace(-2, 2, 2 * side + 1)[1::2] for side in (height, width))
    return np.exp(-(rows[:, None] ** 2 + columns**2) / 2)
