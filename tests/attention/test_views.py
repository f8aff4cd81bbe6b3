"""What is shown of a model's attentions is what they did."""

import pytest
import timm
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import nn

import torchvars
from torchvars.attention import Attention, Reconstruction, look
from torchvars.models.convert import TARGETS

pytestmark = pytest.mark.usefixtures("one_thread")


class Middle(nn.Module):
    """A picture as tokens, one for each pixel, and a layer that attends to them."""

    def __init__(self, name: str = "vars_d", **options):
        super().__init__()
        self.attn = torchvars.attention.create(name, 8, heads=2, grid=(4, 5), **options)
        self.lift = nn.Conv2d(3, 8, 1)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return self.attn(self.lift(pixels).permute(0, 2, 3, 1)).mean((1, 2))


def pixels() -> torch.Tensor:
    return torch.rand(2, 3, 4, 5, generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.mark.parametrize("name", ["vars_d", "vars_s", "vars_sd"])
def test_the_energy_after_a_step_is_that_of_a_layer_that_takes_no_more(name):
    model = Middle(name).eval()
    steps = look(model, pixels()).steps["attn"]
    assert len(steps) == 1 + model.attn.solver.steps
    for count in (1, 2, 3):
        model.attn.solver.steps = count
        tokens = model.lift(pixels()).permute(0, 2, 3, 1).flatten(1, 2)
        reconstruction = model.attn.reconstruct(tokens, (4, 5)).detach()
        torch.testing.assert_close(steps[count], reconstruction.norm(dim=-1).unflatten(-1, (4, 5)))
        torch.testing.assert_close(look(model, pixels()).energy["attn"], steps[count])


def test_where_nothing_is_reconstructed_the_energy_is_that_of_the_output():
    model = Middle("softmax").eval()
    views = look(model, pixels())
    output = model.attn(model.lift(pixels()).permute(0, 2, 3, 1)).detach()
    torch.testing.assert_close(views.energy["attn"], output.norm(dim=-1))
    assert views.sparsity == views.steps == {}


def test_looking_leaves_nothing_behind():
    model = Middle().train()
    look(model, pixels())
    assert model.training
    assert model.attn.observer is None
    assert not model.attn._forward_hooks


def vit(**options):
    sizes = {"img_size": (32, 48), "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 3, "num_classes": 5}
    return VisionTransformer(**{**sizes, **options})


@pytest.mark.parametrize("interpolate", [False, True])
@pytest.mark.parametrize("target", TARGETS)
def test_a_converted_model_is_seen_on_the_grid_of_its_patches(target, interpolate):
    """Two registers and a class token come first; none of them is on the picture."""
    model = torchvars.convert(vit(reg_tokens=2), target, layers=[1], interpolate=interpolate).eval()
    name, layer = next((name, part) for name, part in model.named_modules() if isinstance(part, Attention))
    images = torch.rand(2, 3, 32, 48)
    views, passed = look(model, images), []
    handle = layer.register_forward_hook(lambda layer, args, output: passed.append((args[0], output)))
    model(images)
    handle.remove()
    (tokens, output), solves = passed[0], isinstance(layer, Reconstruction)
    expected = (layer.reconstruct(tokens) if solves else output)[:, -24:].norm(dim=-1).unflatten(-1, (4, 6))
    assert list(views.energy) == [name]
    torch.testing.assert_close(views.energy[name], expected.detach())
    assert len(views.steps.get(name, [])) == (1 + layer.solver.steps if solves else 0)


def test_pictures_of_another_size_are_seen_on_a_square():
    model = torchvars.convert(vit(dynamic_img_size=True), "vars_d")
    assert look(model, torch.rand(1, 3, 24, 24)).energy["blocks.0.attn"].shape == (1, 3, 3)
    with pytest.raises(ValueError, match=r"blocks.0.attn is given 6 patches without their grid, and no square"):
        look(model, torch.rand(1, 3, 16, 24))


def test_a_layer_that_does_not_know_its_patches_is_told_of():
    model = torchvars.convert(timm.create_model("pit_ti_distilled_224"), "vars_d", layers=[0])
    expected = r"the number of tokens before the patches of transformers\.0\.blocks\.0\.attn is unknown"
    with pytest.raises(ValueError, match=expected):
        look(model, torch.rand(1, 3, 224, 224))


class Row(nn.Module):
    """Tokens of two pixels each, in rows, and an attention that is told their grid."""

    def __init__(self):
        super().__init__()
        self.attn = torchvars.attention.create("vars_d", 6, heads=2)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return self.attn(pixels.reshape(len(pixels), 10, 6), grid=(5, 2))


def test_a_grid_that_a_layer_is_told_is_taken():
    assert look(Row(), pixels()).energy["attn"].shape == (2, 5, 2)


def test_looking_leaves_every_part_in_its_mode():
    model = torchvars.create("rvt_micro_vars_d", img_size=32, depths=(1,)).train()
    model.patch_embed.eval()
    look(model, torch.rand(1, 3, 32, 32))
    assert model.training
    assert not any(part.training for part in model.patch_embed.modules())
