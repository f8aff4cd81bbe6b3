"""Layers that are folded for an export give the same answers."""

import copy

import pytest
import torch
from torch import nn

from torchvars.attention import create
from torchvars.attention.folded import Folded, fold
from torchvars.sparse import FISTA, ISTA, LearnedISTA, NeuralDynamics, RowSum, SpaRSA

GRID = (5, 6)


def folded(layer, grid=GRID):
    """What becomes of a layer in a model."""
    model = nn.Sequential(copy.deepcopy(layer))
    return fold(model, torch.randn(1, *grid, layer.dim))[0]


@pytest.mark.parametrize("grid", [GRID, (7, 8), (3, 4)], ids=["own", "larger", "smaller"])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("vars_s", {}),
        ("vars_s", {"filters": 2, "strength": 0.05}),
        ("vars_sd", {}),
        ("vars_sd", {"centered": True, "normalize": True}),
    ],
)
def test_the_output_is_the_same(name, options, grid):
    layer = create(name, 12, heads=3, grid=GRID, **options).eval()
    other = folded(layer, grid)
    assert type(other) is Folded
    tokens = torch.randn(4, *grid, 12)
    torch.testing.assert_close(other(tokens), layer(tokens), rtol=0, atol=2e-6)
    flat = tokens.flatten(1, 2)
    torch.testing.assert_close(other(flat, grid), layer(flat, grid), rtol=0, atol=2e-6)


@pytest.mark.parametrize("name", ["vars_s", "vars_sd"])
@pytest.mark.parametrize(
    "solver", [ISTA(1), ISTA(4, start="zero"), FISTA(4), SpaRSA(3), LearnedISTA(3), NeuralDynamics(5)], ids=repr
)
def test_any_solver_solves_the_same_problem(name, solver):
    layer = create(name, 12, heads=3, grid=GRID, solver=solver).double().eval()
    tokens = torch.randn(2, *GRID, 12).double()
    model = nn.Sequential(copy.deepcopy(layer))
    torch.testing.assert_close(fold(model, tokens)[0](tokens), layer(tokens))


def test_layers_of_other_kinds_stay_as_they_are():
    others = [
        create("vars_d", 12, heads=3),
        create("vars_s_released", 12, heads=3, grid=GRID),
        create("vars_s", 12, heads=3, grid=GRID, solver=ISTA(3, step=RowSum())),
        create("vars_s", 12, heads=3, grid=GRID, solver=ISTA(3, tolerance=0.1)),
    ]
    for layer in others:
        assert type(folded(layer.eval())) is type(layer)


def test_a_layer_that_meets_two_grids_stays_as_it_is():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = create("vars_s", 12, heads=3, grid=GRID)

        def forward(self, tokens):
            return self.layer(tokens), self.layer(tokens.transpose(1, 2))

    model = Twice().eval()
    assert not isinstance(fold(model, torch.randn(1, *GRID, 12)).layer, Folded)
