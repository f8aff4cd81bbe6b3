"""Maps of exported models, whose derivative is written out, are those that autograd finds."""

import copy

import pytest
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import nn

import torchvars
from torchvars.attention import ATTENTIONS, Reconstruction, create
from torchvars.attention.folded import Folded, fold
from torchvars.maps import WithMaps, find_maps, observe
from torchvars.sparse import FISTA, ISTA, Equilibrium, LearnedISTA, SpaRSA
from torchvars.sparse.solvers import STARTS
from torchvars.sparse.steps import RowSum

CHANNELS, GRID = 8, (4, 5)
RELEASED = [name for name in ATTENTIONS if name.endswith("released")]
KNOWN = [name for name in ATTENTIONS if name not in RELEASED]

pytestmark = pytest.mark.usefixtures("one_thread")


class Model(nn.Module):
    """Each pixel a token, two attentions, and logits."""

    def __init__(self, name, **options):
        super().__init__()
        self.first, self.second = (create(name, CHANNELS, heads=2, grid=GRID, **options) for _ in range(2))
        self.head = nn.Linear(CHANNELS, 3)
        self.in_chans = CHANNELS

    def forward(self, images):
        tokens = images.permute(0, 2, 3, 1)
        tokens = tokens + self.first(tokens)
        return self.head((tokens + self.second(tokens)).square().mean((1, 2)))


def build(name, **options):
    mean, std = [0.0] * CHANNELS, [1.0] * CHANNELS
    return torchvars.Classifier(Model(name, **options), mean, std).double().eval()


def pictures(*shape):
    return 2 * torch.randn(2, *shape, dtype=torch.float64)


def check(classifier, pixels, kind, extended=None, prefix=False):
    """Every map of every layer after every step against `find_maps`."""
    extended = extended or WithMaps(classifier, pixels, kind)
    seen = observe(classifier, pixels)
    height, width = pixels.shape[-2:]
    asked = [(-1, -1), (0, 0), (height - 1, width // 2)] if kind == "implicit" else [None]
    for place in asked:
        with torch.no_grad():
            logits, maps, *sparsity = extended(pixels, *([] if place is None else [torch.tensor(place)]))
        torch.testing.assert_close(logits, seen.output)
        assert len(sparsity) == len(extended.outputs) - 1
        query = "mean" if place in (None, (-1, -1)) else place
        for index, (name, steps) in enumerate(extended.layers.items()):
            for step in range(maps.shape[2]):
                at = None if steps is None else min(step, steps)
                expected = find_maps(seen, kind, name, step=at, query=query)
                torch.testing.assert_close(maps[:, index, step], expected, atol=1e-12, rtol=1e-9)


@pytest.mark.parametrize("kind", ["implicit", "energy"])
@pytest.mark.parametrize("name", KNOWN)
def test_maps_of_every_attention_are_those_of_autograd(name, kind):
    check(build(name), pictures(CHANNELS, *GRID), kind)


@pytest.mark.parametrize("name", RELEASED)
def test_released_forms_have_energy_and_say_what_they_lack(name):
    classifier, pixels = build(name), pictures(CHANNELS, *GRID)
    check(classifier, pixels, "energy")
    with pytest.raises(ValueError, match=r"model\.first has no implicit map in a forward pass.*take kind 'energy'"):
        WithMaps(classifier, pixels)


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("name", ["vars_s", "vars_d", "vars_sd"])
def test_every_start(name, start):
    check(build(name, solver=ISTA(2, start=start), strength=0.8), pictures(CHANNELS, *GRID), "implicit")


@pytest.mark.parametrize(
    "options",
    [
        {"solver": ISTA(5, step=RowSum()), "strength": 1.0},
        {"strength": 0.0},
        {"solver": ISTA(1)},
        {"solver": LearnedISTA(3)},
        {"solver": LearnedISTA(2, start="scaled", step=RowSum())},
    ],
    ids=str,
)
def test_every_step_size_and_strength(options):
    classifier = build("vars_sd", **options)
    for module in classifier.modules():
        if isinstance(module, LearnedISTA):
            nn.init.normal_(module.step.size)
            nn.init.normal_(module.step.threshold, -1)
            module.steps = 4  # the last pair serves the steps added
    check(classifier, pictures(CHANNELS, *GRID), "implicit")


@pytest.mark.parametrize(
    "solver", [FISTA(2), SpaRSA(2), Equilibrium(FISTA(20))], ids=lambda solver: type(solver).__name__
)
def test_solvers_without_a_written_derivative_are_refused(solver):
    with pytest.raises(ValueError, match="has no implicit map in a forward pass"):
        WithMaps(build("vars_d", solver=solver), pictures(CHANNELS, *GRID))


@pytest.mark.parametrize("kind", ["implicit", "energy"])
@pytest.mark.parametrize("name", ["vars_s", "vars_sd"])
def test_folded_layers_have_the_same_maps(name, kind):
    classifier, pixels = build(name, strength=0.5), pictures(CHANNELS, *GRID)
    extended = WithMaps(classifier, pixels, kind)
    extended.classifier = fold(copy.deepcopy(classifier).requires_grad_(False), pixels)
    assert type(extended.classifier.model.first) is Folded
    check(classifier, pixels, kind, extended)


def test_sparsity_is_the_share_of_zeros_after_each_step():
    classifier, pixels = build("vars_sd", strength=0.8), pictures(CHANNELS, *GRID)
    with torch.no_grad(), torchvars.inspect(classifier) as layers:
        *_, sparsity = WithMaps(classifier, pixels)(pixels, torch.tensor([-1, -1]))
        classifier(pixels)
    for index, layer in enumerate(layers.values()):
        solver = classifier.get_submodule(layers.names[index]).solver
        for step, code in enumerate(solver.trajectory(layer.problem)):
            torch.testing.assert_close(sparsity[:, index, step], (code == 0).double().mean((1, 2, 3)))
    assert 0.05 < sparsity[:, :, -1].min() < sparsity[:, :, -1].max() < 1


@pytest.mark.parametrize("target", [None, "vars_d", "vars_sd", "vars_p"])
def test_models_with_class_tokens_keep_the_grid_of_their_patches(target):
    sizes = {"img_size": (32, 48), "patch_size": 8, "embed_dim": 24, "depth": 3, "num_heads": 3, "num_classes": 5}
    model = VisionTransformer(**sizes).eval()
    if target is not None:
        torchvars.convert(model, target, layers=[1, 2])
    classifier = torchvars.Classifier(model).double().eval()
    pixels = torch.rand(2, 3, 32, 48, dtype=torch.float64)
    extended = WithMaps(classifier, pixels)
    kinds = [isinstance(classifier.get_submodule(name), Reconstruction) for name in extended.layers]
    assert kinds[-1] == (target is not None)
    assert extended.metadata["grid"] == (4, 6)
    check(classifier, pixels, "implicit", extended)


def test_layers_of_other_stages_are_left_out():
    options = {"img_size": 64, "patch_size": 8, "widths": (4, 4), "heads": (2, 4), "depths": (1, 2)}
    classifier = torchvars.Classifier(torchvars.create("rvt_micro_vars_d", num_classes=3, **options)).double().eval()
    pixels = torch.rand(2, 3, 64, 64, dtype=torch.float64)
    extended = WithMaps(classifier, pixels)
    assert list(extended.layers) == ["model.blocks.1.attn", "model.blocks.2.attn"]
    assert extended.metadata["grid"] == (4, 4)
    check(classifier, pixels, "implicit", extended)


def test_other_kinds_are_refused():
    with pytest.raises(ValueError, match="of kind implicit or energy, got 'rollout'"):
        WithMaps(build("softmax"), pictures(CHANNELS, *GRID), "rollout")
