"""Dictionaries, features and the layer against the formulas they stand for."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import Lasso

from torchvars.attention import (
    Dynamic,
    Hedgehog,
    Performer,
    PositiveFeatures,
    Reconstruction,
    Static,
    StaticDynamic,
    create,
)
from torchvars.attention.tokens import resample
from torchvars.sparse import FISTA, ISTA, Convolution, Dense, NeuralDynamics, SparseCoding, plain, settings_of

DIM, HEADS, GRID = 24, 3, (4, 6)


def tokens(count=24):
    return torch.randn(2, count, DIM, dtype=torch.float64)


def heads_of(x):
    return x.unflatten(-1, (HEADS, -1)).transpose(1, 2)


@pytest.mark.parametrize("orthogonal", [True, False])
def test_features_are_an_unbiased_estimate_of_the_softmax_kernel(orthogonal):
    """The mean over many draws is exp(q.k / sqrt(d))."""
    queries = 0.4 * torch.randn(1, 10, 8, dtype=torch.float64)
    features = PositiveFeatures(8, 1, 100_000, orthogonal=orthogonal).double()
    kernel = features(queries) @ features(queries).mT
    torch.testing.assert_close(kernel, (queries @ queries.mT / math.sqrt(8)).exp(), rtol=0.05, atol=0)


def test_orthogonal_directions_have_less_variance():
    queries = 0.6 * F.normalize(torch.randn(1, 30, 16, dtype=torch.float64), dim=-1)
    exact = (queries @ queries.mT).exp()

    def error(orthogonal):  # over two thousand draws
        features = PositiveFeatures(16, 2000, 32, orthogonal=orthogonal).double()
        phi = features(16**0.25 * queries)
        return ((phi @ phi.mT - exact) / exact).square().mean().sqrt()

    assert error(orthogonal=True) < 0.95 * error(orthogonal=False)


def test_orthogonal_directions_are_orthogonal_in_blocks_with_gaussian_lengths():
    torch.manual_seed(0)
    directions = PositiveFeatures(8, 500, 20).directions.double()
    for block in directions.split(8, dim=-1):
        gram = block.mT @ block
        torch.testing.assert_close(gram, torch.diag_embed(gram.diagonal(dim1=-2, dim2=-1)), rtol=0, atol=1e-4)
    squared = directions.square().sum(-2)
    assert squared.mean().item() == pytest.approx(8, rel=0.03)  # chi-square with 8 degrees of freedom
    assert squared.var().item() == pytest.approx(16, rel=0.1)


def test_features_are_redrawn_on_request_only():
    features = PositiveFeatures(8, 2, 16)
    queries = torch.randn(1, 2, 5, 8)
    before = features(queries)
    torch.testing.assert_close(features.train()(queries), before, rtol=0, atol=0)
    features.redraw(torch.Generator().manual_seed(3))
    redrawn = features(queries)
    assert not torch.allclose(redrawn, before)
    features.redraw(torch.Generator().manual_seed(3))
    torch.testing.assert_close(features(queries), redrawn, rtol=0, atol=0)
    assert "directions" in features.state_dict()
    assert not list(features.parameters())


def test_no_features_are_refused():
    with pytest.raises(ValueError, match="the number of features must be at least 1, got 0"):
        create("vars_d", DIM, heads=HEADS, atoms=0)


def test_dynamic_atoms_are_the_formula():
    """Phi(q) = exp(W q - |q|^2 / 2) / sqrt(M), columns of unit length over the tokens."""
    dictionary, x = Dynamic(DIM, HEADS).double(), tokens()
    queries = heads_of(dictionary.query(x)) / 8**0.25
    phi = torch.exp(queries @ dictionary.features.directions - queries.square().sum(-1, keepdim=True) / 2) / 4
    operator = dictionary(x, GRID)
    assert isinstance(operator, Dense)
    torch.testing.assert_close(operator.atoms, F.normalize(phi, dim=-2), rtol=1e-12, atol=1e-14)


def raw_features(dictionary, x):
    """Phi(q) as the formula has it, up to a factor."""
    queries = heads_of(dictionary.query(x)) / 8**0.25
    return torch.exp(queries @ dictionary.features.directions - queries.square().sum(-1, keepdim=True) / 2)


@pytest.mark.parametrize("atoms", [0.5, 2, 4])
def test_centered_atoms_are_the_formula(atoms):
    """Columns of (I - 1 1^T / N) Phi(q), of unit length, then 1 / sqrt(N)."""
    dictionary, x = Dynamic(DIM, HEADS, atoms=atoms, centered=True).double(), tokens()
    without_mean = torch.eye(24, dtype=torch.float64) - 1 / 24
    centred = without_mean @ raw_features(dictionary, x)
    expected = centred / centred.square().sum(-2, keepdim=True).sqrt()
    found = dictionary(x, GRID).atoms
    torch.testing.assert_close(found[..., :-1], expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(found[..., -1], torch.full_like(found[..., -1], 24**-0.5), rtol=0, atol=1e-15)


def test_the_constant_atom_is_orthogonal_to_all_others():
    operator = Dynamic(DIM, HEADS, centered=True).double()(tokens(), GRID)
    gram = operator.atoms.mT @ operator.atoms
    unit = torch.zeros(17, dtype=torch.float64).index_fill(0, torch.tensor(16), 1)
    torch.testing.assert_close(gram[..., -1], unit.expand(2, HEADS, -1), rtol=0, atol=1e-13)
    torch.testing.assert_close(gram.diagonal(dim1=-2, dim2=-1), torch.ones(2, HEADS, 17).double())


@pytest.mark.parametrize("start", ["zero", "analysis"])
def test_a_constant_is_coded_by_the_constant_atom_alone(start):
    operator = Dynamic(DIM, HEADS, centered=True).double()(tokens(), GRID)
    value = torch.tensor([-2.0, -0.05, 0.0, 0.05, 0.3], dtype=torch.float64)
    problem = SparseCoding(operator, value.expand(2, HEADS, 24, 5), 0.3)
    code = FISTA(2000, start, tolerance=1e-13).solve(problem)
    assert code[..., :-1, :].abs().max() < 1e-12
    size = 24**0.5 * value
    shrunk = torch.where(size.abs() > 0.3, size - 0.3 * size.sign(), 0)
    torch.testing.assert_close(code[..., -1, :], shrunk.expand(2, HEADS, 5), rtol=0, atol=1e-9)


@pytest.mark.parametrize("strength", [0.05, 0.3])
def test_centered_atoms_solve_a_lasso_with_an_intercept(strength):
    """Scikit-learn's, of features as they are; only that the intercept is shrunk here, too."""
    dictionary, x = Dynamic(DIM, HEADS, centered=True).double(), tokens()
    signal = heads_of(tokens()) + 2
    with torch.no_grad():
        problem = SparseCoding(dictionary(x, GRID), signal, strength)
        code = FISTA(20_000, "zero", tolerance=1e-11).solve(problem)
        reconstruction = problem.operator.synthesize(code)
        features = raw_features(dictionary, x)
        features /= features.std(-2, correction=0, keepdim=True) * 24**0.5
    for batch, head, channel in ((0, 0, 0), (0, 2, 7), (1, 1, 3)):
        target = signal[batch, head, :, channel].numpy()
        lasso = Lasso(alpha=strength / 24, tol=1e-12, max_iter=10**5).fit(features[batch, head].numpy(), target)
        found = code[batch, head, :, channel].numpy()
        assert found[:-1] == pytest.approx(lasso.coef_, abs=1e-5)
        mean = target.mean()
        assert found[-1] == pytest.approx(24**0.5 * mean - strength, abs=1e-7)
        expected = lasso.predict(features[batch, head].numpy()) - strength / 24**0.5
        assert reconstruction[batch, head, :, channel].numpy() == pytest.approx(expected, abs=1e-5)


@given(shift=st.floats(-100, 100), steps=st.integers(1, 5), start=st.sampled_from(["zero", "analysis", "scaled"]))
def test_the_mean_of_a_signal_is_the_business_of_one_atom(shift, steps, start):
    """At every step, not at the optimum only."""
    torch.manual_seed(0)
    operator, signal = Dynamic(DIM, HEADS, centered=True).double()(tokens(), GRID), heads_of(tokens())
    codes = [ISTA(steps, start).solve(SparseCoding(operator, signal + by, 0.3)) for by in (0.0, shift)]
    torch.testing.assert_close(codes[1][..., :-1, :], codes[0][..., :-1, :], rtol=0, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["vars_d", "vars_sd"])
@pytest.mark.parametrize("count", [1, 24, 35])
def test_tokens_that_are_all_alike_make_no_trouble_when_centered(name, dtype, count):
    """All features are constant then, and nothing is left of them without their mean."""
    grid = {1: (1, 1), 24: (4, 6), 35: (5, 7)}[count]
    layer = create(name, DIM, heads=HEADS, grid=grid, centered=True).to(dtype)
    alike = (3 * torch.randn(2, 1, DIM, dtype=dtype)).expand(2, count, DIM)
    for form in ("fast", "plain"):
        x = alike.clone().requires_grad_()
        if form == "plain":
            with plain():
                output = layer(x, grid)
        else:
            output = layer(x, grid)
        gradients = torch.autograd.grad(output.square().sum(), [x, *layer.parameters()])
        for tensor in (output, *gradients):
            assert tensor.isfinite().all()
            assert tensor.abs().max() < 1e4  # rounding is not taken for an atom
    if name == "vars_d":  # their values are alike as well: they are passed on, shrunk
        layer.solver = FISTA(500, "zero")
        size = count**0.5 * layer.value(alike)
        shrunk = (size - 0.3 * size.sign()) * (size.abs() > 0.3) / count**0.5
        torch.testing.assert_close(layer(alike, grid), layer.proj(shrunk), rtol=0, atol=1e-4)


@pytest.mark.parametrize("sharpness", [0.1, 1.0, 4.0])
@pytest.mark.parametrize("atoms", [1, 2, 8])  # fewer than tokens, and more
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bound_of_centered_atoms(sharpness, atoms, dtype):
    dynamic = Dynamic(DIM, HEADS, atoms=atoms, centered=True)
    dictionary = StaticDynamic(Static(DIM, HEADS, GRID, filters=2), dynamic).to(dtype)
    joint = dictionary((sharpness * tokens()).to(dtype), GRID)
    matrix = joint.second.atoms.double()
    largest = torch.linalg.matrix_norm(matrix, 2).square()
    ratio = joint.second.lipschitz().double()[..., 0, 0] / largest
    assert (ratio >= 1).all()
    assert (ratio <= 1.05 * (1 + 1e-4)).all()
    # Both dictionaries in one, for each channel a matrix.
    basis = torch.eye(joint.first.size, dtype=dtype)[:, None, :, None].expand(-1, HEADS, -1, 8)
    shifts = joint.first.synthesize(basis).double().permute(1, 3, 2, 0)  # (heads, channels, N, 2 N)
    union = torch.cat([shifts.expand(2, -1, -1, -1, -1), matrix.unsqueeze(2).expand(-1, -1, 8, -1, -1)], -1)
    bound = joint.lipschitz().double().squeeze(-2)
    assert (bound >= torch.linalg.matrix_norm(union, 2).square()).all()
    parts = joint.first.lipschitz().double() + joint.second.lipschitz().double()
    assert (bound <= parts.squeeze(-2) * (1 + 1e-5)).all()


def test_centered_atoms_under_autocast_are_those_of_its_queries():
    """Only the projection is in half precision: what is left without the mean is too small for it."""
    dictionary, x = Dynamic(DIM, HEADS, centered=True), 0.1 * tokens().float()
    with torch.autocast("cpu", torch.bfloat16):
        found = dictionary(x, GRID).atoms
        queries = dictionary.query(x)
    assert queries.dtype == torch.bfloat16
    exact = Dynamic(DIM, HEADS, centered=True).double()
    exact.load_state_dict(dictionary.state_dict())
    exact.query = torch.nn.Identity()
    torch.testing.assert_close(found.double(), exact(queries.double(), GRID).atoms, rtol=0, atol=1e-3)


def test_static_atoms_are_its_filters_at_every_position():
    dictionary = Static(DIM, HEADS, GRID, filters=2, size=(3, 3)).double()
    operator = dictionary(tokens(), GRID)
    position = 1 * 6 + 2
    code = torch.zeros(operator.size, 1, dtype=torch.float64)
    code[24 + position] = 1  # the second filter, in the second row and third column
    atom = operator.synthesize(code).unflatten(-2, GRID)  # (heads, 4, 6, channels)
    expected = torch.zeros(HEADS, 8, 4, 6, dtype=torch.float64)
    expected[:, :, 0:3, 1:4] = dictionary.filters[:, :, 1]
    torch.testing.assert_close(atom, expected.movedim(1, -1), rtol=0, atol=1e-12)


@pytest.mark.parametrize("grid", [(9, 8), (3, 3), (2, 5)])
def test_static_filters_carry_over_to_any_grid(grid):
    """On a larger grid a filter stays what it is; on a smaller one its centre is used."""
    dictionary = Static(DIM, HEADS, GRID, filters=1).double()
    operator = dictionary(tokens(grid[0] * grid[1]), grid)
    centre = (grid[0] // 2, grid[1] // 2)
    code = torch.zeros(operator.size, 1, dtype=torch.float64)
    code[centre[0] * grid[1] + centre[1]] = 1
    atom = operator.synthesize(code).unflatten(-2, grid).movedim(-1, 1)  # (heads, channels, *grid)
    for row in range(grid[0]):
        for column in range(grid[1]):
            i, j = row - centre[0] + GRID[0] // 2, column - centre[1] + GRID[1] // 2
            inside = 0 <= i < GRID[0] and 0 <= j < GRID[1]
            expected = dictionary.filters[:, :, 0, i, j] if inside else torch.zeros(HEADS, 8, dtype=torch.float64)
            torch.testing.assert_close(atom[:, :, row, column], expected, rtol=0, atol=1e-12)


def test_static_dynamic_is_the_union_static_first():
    static, dynamic = Static(DIM, HEADS, GRID, filters=2).double(), Dynamic(DIM, HEADS).double()
    x = tokens()
    operator = StaticDynamic(static, dynamic)(x, GRID)
    assert isinstance(operator.first, Convolution)
    signal = heads_of(tokens())
    expected = torch.cat([static(x, GRID).analyze(signal), dynamic(x, GRID).analyze(signal)], dim=-2)
    torch.testing.assert_close(operator.analyze(signal), expected, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"size": (5, 3)}, "filters of 5 x 3 are larger than the grid of 4 x 6"),
        ({"filters": 0}, "filters must be at least 1, got 0"),
        ({"grid": 14}, r"pass grid=\(height, width\) in tokens, got 14"),
        ({"grid": (0, 3)}, r"pass grid=\(height, width\) in tokens, got \(0, 3\)"),
    ],
)
def test_bad_static_dictionaries_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Static(DIM, HEADS, **{"grid": GRID, **arguments})


def three_steps_of_ista(P, signal, L):
    """P u, from u = P^T x, with strength .3."""
    u = P.mT @ signal
    for _ in range(3):
        a = u - P.mT @ (P @ u - signal) / L
        u = torch.sign(a) * (a.abs() - 0.3 / L).clamp_min(0)
    return P @ u


def test_layer_is_three_steps_of_ista_on_its_values():
    """The whole layer written out once more, head by head and channel by channel."""
    layer, x = create("vars_d", DIM, heads=HEADS).double(), tokens()
    output = torch.zeros_like(x)
    for batch in range(2):
        for head in range(HEADS):
            P = layer.dictionary(x).atoms[batch, head]
            L = torch.linalg.eigvalsh(P.mT @ P)[-1]
            for channel in range(8):
                signal = layer.value(x)[batch, :, head * 8 + channel]
                output[batch, :, head * 8 + channel] = three_steps_of_ista(P, signal, L)
    # The layer's bound is a little above L.
    torch.testing.assert_close(layer(x, GRID), layer.proj(output), rtol=0, atol=1e-3)


@pytest.mark.parametrize(("name", "filters"), [("vars_s", 5), ("vars_sd", 3)])
def test_layers_with_filters_are_three_steps_of_ista_on_their_values(name, filters):
    """The same with filters, whose every circular shift is an atom, and the features of the tokens beside them."""
    layer, x = create(name, DIM, heads=HEADS, grid=GRID).double(), tokens()
    static = layer.dictionary if name == "vars_s" else layer.dictionary.static
    assert static.filters.shape == (HEADS, 8, filters, *GRID)
    height, width = GRID
    output = torch.zeros_like(x)
    for batch, head, channel in itertools.product(range(2), range(HEADS), range(8)):
        shifts = [
            static.filters[head, channel, number].roll((row - height // 2, column - width // 2), (0, 1)).flatten()
            for number in range(filters)
            for row in range(height)
            for column in range(width)
        ]
        P = torch.stack(shifts, -1)
        if name == "vars_sd":
            P = torch.cat([P, layer.dictionary.dynamic(x, GRID).atoms[batch, head]], -1)
        # The bound of both dictionaries together is above L: it is asked of the operator, and held to laws elsewhere.
        bound = layer.dictionary(x, GRID).lipschitz().expand(2, HEADS, 1, 8)[batch, head, 0, channel]
        assert bound >= torch.linalg.eigvalsh(P @ P.mT)[-1] - 1e-9
        signal = layer.value(x)[batch, :, head * 8 + channel]
        output[batch, :, head * 8 + channel] = three_steps_of_ista(P, signal, bound)
    torch.testing.assert_close(layer(x, GRID), layer.proj(output), rtol=0, atol=1e-9)


def test_filters_begin_as_atoms_of_about_unit_length():
    lengths = Static(256, 4, (14, 14)).filters.square().sum((-2, -1))
    assert lengths.mean().item() == pytest.approx(1, abs=0.02)


def test_linear_self_attention_with_residual_is_the_special_case_of_vars_d():
    """One Euler step, no inhibition, no sparsity: phi(q) phi(q)^T v, and with the residual phi(q) phi(q)^T v + v."""
    solver = NeuralDynamics(steps=1, beta=1.0, gamma=0.0, time_step=1.0)
    layer, x = Reconstruction(DIM, HEADS, Dynamic(DIM, HEADS), solver, strength=0.0).double(), tokens()
    phi, value = layer.dictionary(x).atoms, heads_of(layer.value(x))
    kernel = torch.einsum("bhim,bhjm->bhij", phi, phi)
    attention = torch.einsum("bhij,bhjc->bhic", kernel, value)
    torch.testing.assert_close(layer(x), layer.proj(attention.transpose(1, 2).flatten(2)), rtol=0, atol=1e-12)
    _, (z, _) = itertools.islice(solver.states(layer.pose(x)), 2)
    torch.testing.assert_close(z, attention + value, rtol=0, atol=1e-12)


@pytest.mark.parametrize("normalize", [True, False])
def test_performer_is_the_explicit_ratio(normalize):
    layer, x = Performer(DIM, HEADS, normalize=normalize).double(), tokens()
    queries, keys, values = layer.project(x)
    kernel = layer.features(queries) @ layer.features(keys).mT
    expected = (kernel / kernel.sum(-1, keepdim=True)) @ values
    torch.testing.assert_close(layer(x), layer.proj(expected.transpose(1, 2).flatten(2)), rtol=0, atol=1e-12)


def test_hedgehog_is_the_explicit_ratio():
    layer, x = Hedgehog(DIM, HEADS, features=0.5).double(), tokens()
    for each in (layer.query_map, layer.key_map):
        torch.nn.init.normal_(each)
    queries, keys, values = layer.project(x)

    def features(projected, maps):
        exponentials = torch.stack([(sign * torch.einsum("bhnc,hcm->bhnm", projected, maps)).exp() for sign in (1, -1)])
        return exponentials / exponentials.sum(-1, keepdim=True)  # (sign, batch, heads, N, M): each sign sums to one

    kernel = torch.einsum("sbhim,sbhjm->bhij", features(queries, layer.query_map), features(keys, layer.key_map))
    expected = (kernel / kernel.sum(-1, keepdim=True)) @ values
    torch.testing.assert_close(layer(x), layer.proj(expected.transpose(1, 2).flatten(2)), rtol=0, atol=1e-12)


def test_performer_approaches_softmax_attention():
    softmax = create("softmax", DIM, heads=HEADS).double()
    performer = Performer(DIM, HEADS, features=2000).double()
    performer.load_state_dict(softmax.state_dict(), strict=False)
    x = tokens()
    assert (performer(x) - softmax(x)).norm() / softmax(x).norm() < 0.03


def test_softmax_is_pytorchs_multihead_attention():
    layer, x = create("softmax", DIM, heads=HEADS).double(), tokens()
    reference = torch.nn.MultiheadAttention(DIM, HEADS, batch_first=True).double()
    with torch.no_grad():
        reference.in_proj_weight.copy_(layer.qkv.weight)
        reference.in_proj_bias.copy_(layer.qkv.bias)
        reference.out_proj.weight.copy_(layer.proj.weight)
        reference.out_proj.bias.copy_(layer.proj.bias)
    torch.testing.assert_close(layer(x), reference(x, x, x)[0], rtol=0, atol=1e-12)


@given(height=st.integers(1, 6), width=st.integers(1, 6))
def test_global_filter_is_a_circular_convolution(height, width):
    layer = create("global_filter", 2, heads=1, grid=(height, width)).double()
    x = torch.randn(1, height * width, 2, dtype=torch.float64)
    kernel = torch.fft.irfft2(torch.view_as_complex(layer.complex_weight), s=(height, width), dim=(0, 1))
    image, expected = x[0].unflatten(0, (height, width)), torch.zeros(height, width, 2, dtype=torch.float64)
    for row in range(height):
        for column in range(width):
            expected += kernel[row, column] * image.roll((row, column), dims=(0, 1))
    torch.testing.assert_close(layer(x, (height, width))[0], expected.flatten(0, 1), rtol=0, atol=1e-12)


@pytest.mark.parametrize("new", [(8, 6), (4, 12), (2, 12), (3, 9)])
def test_what_is_carried_to_another_grid_stays_where_it_was(new):
    """A plane, rows and columns with slopes of their own, drawn on either grid from the same corner."""

    def plane(grid):
        row, column = (
            (torch.arange(size, dtype=torch.float64) + 0.5) * old / size for size, old in zip(grid, (4, 6), strict=True)
        )
        return row[:, None] + 3 * column

    carried = resample(plane((4, 6)).flatten()[None, :, None], (4, 6), new).unflatten(1, new)[0, ..., 0]
    middle = [slice(size // 4, size - size // 4) for size in new]  # at the border there is nothing to interpolate to
    torch.testing.assert_close(carried[*middle], plane(new)[*middle], rtol=0, atol=0.35)


def test_released_templates_are_resampled_on_another_grid():
    layer = create("vars_sd_released", DIM, heads=HEADS, grid=(6, 6)).double()
    rows = torch.linspace(-1, 1, 6, dtype=torch.float64)
    with torch.no_grad():  # a smooth template, so that resampling it is the same as drawing it larger
        layer.dictionary.templates.copy_((rows[:, None] + 2 * rows).flatten()[:, None].expand(36, 16))
    static = layer.dictionary.atoms(tokens(144), (12, 12))[0, 0, :, -1].unflatten(0, (12, 12))
    fine = torch.linspace(-1 - 1 / 10, 1 + 1 / 10, 12, dtype=torch.float64)
    drawn = fine[:, None] + 2 * fine
    torch.testing.assert_close(static, drawn / drawn.norm(), rtol=0, atol=0.01)


def test_solver_argument_is_used():
    solver = ISTA(9, start="zero")
    assert create("vars_s", DIM, heads=HEADS, grid=GRID, solver=solver).solver is solver


def test_solvers_may_be_named():
    assert settings_of(create("vars_d", DIM, heads=HEADS, solver="fista").solver) == settings_of(FISTA())
    for wrong in (FISTA, 3):
        with pytest.raises(ValueError, match=r"solver must be an object such as FISTA.*, or one of ista, fista"):
            create("vars_d", DIM, heads=HEADS, solver=wrong)
    with pytest.raises(ValueError, match="no solver named 'newton': there are ista"):
        create("vars_d", DIM, heads=HEADS, solver="newton")
