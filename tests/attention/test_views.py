"""What is shown of a model's attentions is what they did."""

import pytest
import timm
import torch
from torch import nn

import torchvars
from torchvars.attention import look
from torchvars.figures.attention import draw_models, draw_steps


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


def test_pictures_are_drawn(tmp_path):
    titled = dict(zip(("one", "two"), pixels(), strict=True))
    draw_steps(Middle(), titled, tmp_path / "new" / "steps.png")
    draw_models({"D": Middle(), "softmax": Middle("softmax")}, titled, tmp_path / "models.png")
    for name in ("new/steps.png", "models.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="the model has no VARS layer"):
        draw_steps(Middle("softmax"), titled, tmp_path / "none.png")
    with pytest.raises(ValueError, match=r"no layer 'blocks.0' reconstructs: there are attn"):
        draw_steps(Middle(), titled, tmp_path / "none.png", layer="blocks.0")
    assert not (tmp_path / "none.png").exists()


def test_a_layer_that_does_not_know_its_grid_is_told_of():
    model = torchvars.convert(timm.create_model("vit_tiny_patch16_224", img_size=32, depth=2), "vars_d")
    with pytest.raises(ValueError, match=r"blocks.0.attn is given tokens without their grid"):
        look(model, torch.rand(1, 3, 32, 32))


def test_looking_leaves_every_part_in_its_mode():
    model = torchvars.create("rvt_micro_vars_d", img_size=32).train()
    model.patch_embed.eval()
    look(model, torch.rand(1, 3, 32, 32))
    assert model.training
    assert not any(part.training for part in model.patch_embed.modules())
