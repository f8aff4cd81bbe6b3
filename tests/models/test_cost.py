"""What a model costs, against counts by hand."""

import math

import pytest
import timm
import torch
import torch.nn.functional as F
from torch import nn

from torchvars.attention import ATTENTIONS, baselines, create
from torchvars.cli.main import main
from torchvars.models import MODELS
from torchvars.models import create as create_model
from torchvars.models.cost import PAPER, Cost, cost, cost_of
from torchvars.sparse import fourier, operators


class Attend(nn.Module):
    """The rows of a picture attend to each other, each channel a head."""

    def forward(self, images):
        return F.scaled_dot_product_attention(images, images, images)


class Mix(nn.Module):
    """A picture's first channel as the tokens of a layer: its rows are 4 x 4 positions."""

    def __init__(self, attention, dim):
        super().__init__()
        self.attention = create(attention, dim, heads=2, grid=(4, 4))

    def forward(self, images):
        return self.attention(images[:, 0], (4, 4))


def test_known_layers_cost_what_a_hand_counts():
    rows = 3 * 8
    assert cost(nn.Linear(8, 5), 8) == Cost(8 * 5 + 5, rows * 8 * 5)
    # 6 x 6 positions behind a 3 x 3 kernel without padding
    assert cost(nn.Conv2d(3, 4, 3), 8) == Cost(4 * 3 * 9 + 4, 36 * 4 * 3 * 9)
    assert cost(nn.Conv2d(3, 3, 3, groups=3, bias=False), (8, 10)) == Cost(3 * 9, 6 * 8 * 3 * 9)


def test_fused_attention_is_counted():
    # q k^T and the weights times v: each 3 heads x 8 x 8 x 10
    assert cost(Attend(), (8, 10)) == Cost(0, 2 * 3 * 8 * 8 * 10)


def test_parameters_that_are_not_trained_do_not_count():
    layer = nn.Linear(8, 5)
    layer.bias.requires_grad_(False)
    assert cost(layer, 8).parameters == 40


def test_published_count_of_deit_tiny():
    counted = cost(timm.create_model("deit_tiny_patch16_224"))
    assert counted.multiply_adds == pytest.approx(1.26e9, rel=0.02)
    assert counted.parameters == pytest.approx(5.7e6, rel=0.01)


# Transforms a channel. Global filter: there and back. S with 5 filters: 5 of the filters, 1 + 5 to analyse, 5 + 5 for
# each of three steps, 5 + 1 to synthesise.
@pytest.mark.parametrize(("attention", "transforms", "projections"), [("global_filter", 2, 0), ("vars_s", 47, 2)])
def test_transforms_count_by_the_formula(attention, transforms, projections):
    positions, dim = 16, 6
    by_formula = transforms * dim * 1.25 * positions * math.log2(positions)
    assert cost(Mix(attention, dim), (positions, dim)).multiply_adds == by_formula + projections * positions * dim**2


def test_transforms_of_others_count_by_the_same_formula():
    class Fourier(nn.Module):
        def forward(self, images):
            return torch.fft.ifft2(torch.fft.fft2(images)), torch.fft.rfft2(images)

    assert cost(Fourier(), 8).multiply_adds == 3 * (2 * 2.5 + 1.25) * 64 * 6


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_counting_leaves_the_model_as_it_was(attention):
    torch.manual_seed(0)
    model = create_model(f"rvt_micro_{attention}", img_size=32, num_classes=3, depths=(2,))
    model.blocks[0].eval()
    images = torch.randn(2, 3, 32, 32)
    modes = [module.training for module in model.modules()]
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    counted = cost(model, 32)
    assert [module.training for module in model.modules()] == modes
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(tensor, state[name], rtol=0, atol=0)
    model.eval()
    before = model(images)
    assert cost(model, 32) == counted  # whatever mode it was in
    torch.testing.assert_close(model(images), before, rtol=0, atol=0)


def test_an_error_leaves_everything_as_it_was():
    model = create_model("rvt_micro_vars_s", img_size=32)
    with pytest.raises(ValueError, match="do not divide into patches"):
        cost(model, 33)
    assert all(module.training for module in model.modules())
    for module in (operators, baselines):
        assert module.transform is fourier.transform
        assert module.inverse is fourier.inverse


def test_a_model_that_does_not_say_its_pictures_needs_a_size():
    with pytest.raises(ValueError, match="Conv2d does not say what pictures it takes: pass img_size"):
        cost(nn.Conv2d(3, 4, 3))


def test_channels_are_those_of_the_model():
    grey = create_model("rvt_micro_softmax", in_chans=1)
    colour = create_model("rvt_micro_softmax")
    # the stem's first convolution: 32 kernels of 7 x 7 at 55 x 55 positions of a picture of 112 x 112
    assert cost(colour).multiply_adds - cost(grey).multiply_adds == 2 * 32 * 49 * 55**2


@pytest.mark.parametrize(
    "name", ["rvt_tiny_vars_sd", "deit_micro_vars_s", "gfnet_micro_global_filter", "rvt_micro_vars_p"]
)
def test_by_its_name_a_model_is_counted_the_same(name):
    assert cost_of(name) == cost(create_model(name))


def test_every_model_of_the_paper_has_a_name_here():
    assert set(PAPER) <= set(timm.list_models())
    assert sum(name in MODELS for name in PAPER) == 13


def test_list_prints_what_models_cost(capsys):
    main(["list", "models", "rvt_micro_vars_d*"])
    header, *rows = (line.split() for line in capsys.readouterr().out.splitlines())
    assert header == ["name", "M", "params", "GFLOPs"]
    assert [row[0] for row in rows] == ["rvt_micro_vars_d", "rvt_micro_vars_d_released"]
    counted = cost(create_model("rvt_micro_vars_d"))
    assert rows[0][1:] == [f"{counted.parameters / 1e6:.2f}", f"{counted.multiply_adds / 1e9:.2f}"]


def test_list_sets_the_papers_figures_beside(capsys):
    main(["list", "models", "rvt_tiny_vars_d", "--paper"])
    *_, row = capsys.readouterr().out.splitlines()
    title, name, parameters, published, difference, _, published_gflops = row.strip("| ").split(" | ")
    assert (title, name, published, published_gflops) == ("RVT* VARS-D", "`rvt_tiny_vars_d`", "8.0", "1.2")
    assert float(parameters) == pytest.approx(8.0, rel=0.01)
    assert difference == "-0.2 %"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["models", "vit_*"], "no name matches 'vit_\\*'"), (["solvers", "--paper"], "torchvars list models --paper")],
)
def test_list_says_what_is_wrong(arguments, message):
    with pytest.raises(SystemExit, match=message):
        main(["list", *arguments])
