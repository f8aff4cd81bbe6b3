"""What is true of every attention in the registry."""

import copy
import pickle

import pytest
import torch
from sklearn.linear_model import Lasso
from torch import nn

import torchvars
from torchvars.attention import ATTENTIONS, Reconstruction, create
from torchvars.models.speed import has_compiler
from torchvars.sparse import FISTA, ISTA, SOLVERS, Equilibrium, SpaRSA, settings_of

DIM, HEADS, GRID, BATCH = 24, 3, (4, 6), 2
TOKENS = GRID[0] * GRID[1]
# Filters, or free atoms, tie these to positions; the others see a set of tokens.
PLACED = {"global_filter", "vars_s", "vars_sd", "vars_s_released", "vars_sd_released"}
# These are made of circular convolutions and of what acts on each token alone.
CONVOLUTIONAL = {"global_filter", "vars_s", "vars_s_released"}
VARS = [name for name in ATTENTIONS if name.startswith("vars")]


def build(name, dtype=torch.float64, **options):
    return create(name, DIM, heads=HEADS, grid=GRID, **options).to(dtype).eval()


def tokens(batch=BATCH, count=TOKENS, dtype=torch.float64):
    # Large enough that the codes of the released S, with its strength of 3.5, are alive.
    return 4 * torch.randn(batch, count, DIM, dtype=dtype)


@pytest.fixture(params=ATTENTIONS)
def name(request):
    return request.param


def test_each_picture_of_a_batch_is_on_its_own(name):
    module, x = build(name), tokens(3)
    alone = torch.cat([module(x[i : i + 1], GRID) for i in range(3)])
    torch.testing.assert_close(module(x, GRID), alone, rtol=0, atol=1e-9)


def test_permutation_equivariance_where_there_are_no_positions(name):
    module, x = build(name), tokens()
    order = torch.randperm(TOKENS)
    difference = (module(x[:, order], GRID) - module(x, GRID)[:, order]).abs().max()
    if name in PLACED:
        assert difference > 1e-3
    else:
        assert difference < 1e-9


def test_translation_equivariance_of_convolutional_attention(name):
    module, x = build(name), tokens()

    def shifted(signal):
        return signal.unflatten(1, GRID).roll((1, 2), dims=(1, 2)).flatten(1, 2)

    difference = (module(shifted(x), GRID) - shifted(module(x, GRID))).abs().max()
    if name in PLACED - CONVOLUTIONAL - {"vars_sd"}:
        assert difference > 1e-3
    else:  # shifting is also a permutation, so those without positions are equivariant too; so is the union of the two
        assert difference < 1e-9


def test_every_parameter_gets_a_gradient(name):
    module, x = build(name).train(), tokens().requires_grad_()
    module(x, GRID).square().sum().backward()
    assert x.grad.abs().sum() > 0
    for parameter_name, parameter in module.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert torch.isfinite(parameter.grad).all(), parameter_name
        assert parameter.grad.abs().sum() > 0, parameter_name


# The released D and SD never rest; their gradient is held to the authors' in tests/attention/test_released.py.
@pytest.mark.parametrize("name", [name for name in ATTENTIONS if name not in ("vars_d_released", "vars_sd_released")])
def test_input_gradient_against_a_finite_difference(name):
    """Gradients take the step size for a constant: they are exact where it does not matter, which is at the optimum."""
    module, x, direction = build(name), tokens(1).requires_grad_(), tokens(1)
    if name in ("vars_s", "vars_d", "vars_sd"):
        # Few atoms are in use at this strength, so that it is soon at the optimum; still each head has some.
        module.solver, module.strength = Equilibrium(SpaRSA(5000, tolerance=1e-12)), 4.0
        with torchvars.inspect(module) as layers:
            module(x, GRID)
        assert (layers[""].code != 0).any((-2, -1)).all()
    weights = torch.randn(1, TOKENS, DIM, dtype=torch.float64)
    (gradient,) = torch.autograd.grad((module(x, GRID) * weights).sum(), x)
    step = 1e-6
    with torch.no_grad():
        ahead, behind = ((module(x + sign * step * direction, GRID) * weights).sum() for sign in (1, -1))
    expected = (ahead - behind) / (2 * step)
    torch.testing.assert_close((gradient * direction).sum(), expected, rtol=1e-4, atol=1e-5)


def test_bfloat16_autocast_stays_finite_and_close(name):
    module, x = build(name, torch.float32), tokens(dtype=torch.float32).requires_grad_()
    exact = module(x, GRID)
    with torch.autocast("cpu", torch.bfloat16):
        output = module(x, GRID)
    output.float().square().sum().backward()
    assert torch.isfinite(x.grad).all()
    error = (output.float() - exact).norm() / exact.norm()
    assert error < 0.05


def test_a_gradient_may_be_asked_for_inside_autocast(name):
    module, x = build(name, torch.float32), tokens(dtype=torch.float32).requires_grad_()
    weights = torch.randn(*x.shape[:-1], DIM)
    gradients = []
    for inside in (False, True):
        with torch.autocast("cpu", torch.bfloat16):
            loss = (module(x, GRID).float() * weights).sum()
            if inside:
                gradients += torch.autograd.grad(loss, x)
        if not inside:
            gradients += torch.autograd.grad(loss, x)
    assert (gradients[1] - gradients[0]).norm() / gradients[0].norm() < 0.05


def test_half_precision_parameters_work(name):
    module, x = build(name, torch.float32), tokens(dtype=torch.float32)
    exact = module(x, GRID)
    output = copy.deepcopy(module).bfloat16()(x.bfloat16(), GRID)
    assert output.dtype == torch.bfloat16
    assert (output.float() - exact).norm() / exact.norm() < 0.1


def test_large_tokens_do_not_overflow(name):
    module, x = build(name, torch.float32), 1e3 * tokens(dtype=torch.float32)
    assert torch.isfinite(module(x, GRID)).all()


# That there is one graph, forward and backward, shows without inductor, which takes longer.
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_compiles_to_one_graph(name, backend):
    if (name, backend) == ("vars_s_released", "aot_eager"):
        if not has_compiler():
            pytest.skip("inductor needs a C++ compiler")
        backend = "inductor"  # aot_eager gives a view of what an inverse FFT returns strides that it does not have
    torch.compiler.reset()
    module, x = build(name, torch.float32), tokens(dtype=torch.float32).requires_grad_()
    compiled = torch.compile(module, fullgraph=True, backend=backend)
    plain = run_with_gradients(module, x)
    for one, other in zip(run_with_gradients(compiled, x), plain, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4 * other.abs().max().item())


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
@pytest.mark.parametrize("solver", [*SOLVERS, "equilibrium"])
def test_every_solver_compiles_to_one_graph(solver, backend):
    torch.compiler.reset()
    solver = Equilibrium(FISTA(100), iterations=40) if solver == "equilibrium" else SOLVERS[solver](steps=3)
    module, x = build("vars_d", torch.float32, solver=solver), tokens(dtype=torch.float32).requires_grad_()
    compiled = torch.compile(module, fullgraph=True, backend=backend)
    for one, other in zip(run_with_gradients(compiled, x), run_with_gradients(module, x), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3 * other.abs().max().item())


@pytest.mark.parametrize(
    "name", ["vars_d", "global_filter", *(pytest.param(name, marks=pytest.mark.slow) for name in ("vars_s", "vars_sd"))]
)
def test_compiles_on_one_grid_after_the_other(name):
    torch.compiler.reset()
    module = build(name, torch.float32)
    compiled = torch.compile(module, fullgraph=True, backend="eager")
    for grid in ((4, 4), (4, 5), (6, 6)):
        x = tokens(count=grid[0] * grid[1], dtype=torch.float32)
        expected = module(x, grid)
        torch.testing.assert_close(compiled(x, grid), expected, rtol=1e-3, atol=1e-4 * expected.abs().max().item())


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::FutureWarning")
@pytest.mark.parametrize(("name", "solver"), [*((name, None) for name in ATTENTIONS), ("vars_d", "equilibrium")])
def test_a_trace_can_be_saved_and_gives_the_same_for_any_batch(name, solver, tmp_path):
    options = {"solver": Equilibrium(FISTA(3))} if solver else {}
    module = build(name, torch.float32, **options)
    torch.jit.trace(module, (tokens(dtype=torch.float32),), check_trace=False).save(tmp_path / "layer.pt")
    x = tokens(3, dtype=torch.float32)
    with torch.no_grad():
        torch.testing.assert_close(torch.jit.load(tmp_path / "layer.pt")(x), module(x), rtol=1e-3, atol=1e-4)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::FutureWarning")
def test_the_gradient_of_a_trace_takes_the_step_size_for_a_constant_too():
    module, x = build("vars_sd"), tokens()
    traced = torch.jit.trace(module, (x,), check_trace=False)
    with torch.jit.optimized_execution(False):
        gradients = [
            torch.autograd.grad(each(x).square().sum(), list(module.parameters())) for each in (module, traced)
        ]
    for one, other in zip(*gradients, strict=True):  # a trace holds what it makes of shapes in single precision
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5 * other.abs().max().item())


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_scripting_is_refused_with_what_to_do(name):
    with pytest.raises(NotImplementedError, match=r"torch\.jit\.script cannot compile .*: use torch\.jit\.trace"):
        torch.jit.script(build(name))


def run_with_gradients(module, x):
    output = module(x, GRID)
    # A BatchNorm would make the plain sum a constant.
    weights = torch.linspace(-1, 1, output.numel()).reshape(output.shape)
    return output, *torch.autograd.grad((output * weights).sum(), [x, *module.parameters()])


@pytest.mark.parametrize("grid", [(8, 12), (2, 3), (5, 5), (1, 7)])
def test_any_other_grid(name, grid):
    """Larger, smaller, square and flat: the layer runs, and still tells tokens apart."""
    module, x = build(name), tokens(1, grid[0] * grid[1])
    output = module(x, grid)
    assert output.shape == x.shape
    assert torch.isfinite(output).all()
    assert output.std(1).min() > 1e-6


def test_grid_is_found_when_not_given(name):
    module, x = build(name), tokens()
    torch.testing.assert_close(module(x), module(x, GRID), rtol=0, atol=0)
    square = tokens(1, 49)
    torch.testing.assert_close(module(square), module(square, (7, 7)), rtol=0, atol=0)


def test_tokens_on_their_grid_need_no_other_word(name):
    module, x = build(name), tokens()
    torch.testing.assert_close(module(x.unflatten(1, GRID)), module(x, GRID).unflatten(1, GRID), rtol=0, atol=0)


def test_masks_are_refused(name):
    module, x = build(name), tokens()
    with pytest.raises(ValueError, match="mixes all tokens: attn_mask must be None and is_causal False"):
        module(x, GRID, attn_mask=torch.ones(TOKENS, TOKENS))
    with pytest.raises(ValueError, match="mixes all tokens"):
        module(x, GRID, is_causal=True)


def test_tokens_that_do_not_fit_are_refused(name):
    module = build(name)
    with pytest.raises(ValueError, match="a grid of 5 x 5 has 25 positions, but 24 tokens came"):
        module(tokens(), (5, 5))
    with pytest.raises(ValueError, match=r"tokens must have shape \(batch, N, 24\) or .*, got \(2, 24, 23\)"):
        module(tokens()[..., :23], GRID)
    with pytest.raises(ValueError, match=r"tokens must have shape \(batch, N, 24\) or .*, got \(24, 24\)"):
        module(tokens()[0], GRID)
    if name in PLACED:
        with pytest.raises(ValueError, match="23 tokens are neither a grid of 4 x 6"):
            module(tokens(count=23))
        with pytest.raises(ValueError, match=r"pass grid=\(height, width\) in tokens, got None"):
            create(name, DIM, heads=HEADS)


def test_heads_that_do_not_divide_are_refused(name):
    with pytest.raises(ValueError, match="dim must be a multiple of heads, got dim=24 and heads=5"):
        create(name, DIM, heads=5, grid=GRID)


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"no attention named 'vars_sdd': there are softmax, .*did you mean 'vars_sd'"):
        create("vars_sdd", DIM, heads=HEADS)


def test_copies_and_saved_states_are_the_same_layer(name):
    module, x = build(name), tokens()
    expected = module(x, GRID)
    other = build(name)
    assert not torch.allclose(other(x, GRID), expected)
    other.load_state_dict(module.state_dict())
    for same in (other, copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        torch.testing.assert_close(same(x, GRID), expected, rtol=0, atol=0)


def test_evaluation_leaves_the_layer_as_it_was(name):
    module = build(name)
    before = {key: value.clone() for key, value in module.state_dict().items()}
    module(tokens(), GRID)
    for key, value in module.state_dict().items():
        torch.testing.assert_close(value, before[key], rtol=0, atol=0)


OPTIONS = {
    "softmax": [{"bias": False}],
    "performer": [{"features": 3}, {"orthogonal": False}, {"normalize": True}, {"bias": False}],
    "hedgehog": [{"features": 0.5}, {"bias": False}],
    "global_filter": [],
    "vars_s": [{"filters": 2}, {"size": (3, 3)}, {"strength": 1.0}, {"solver": FISTA(4)}, {"bias": False}],
    "vars_d": [
        {"atoms": 1},
        {"orthogonal": False},
        {"normalize": True},
        {"centered": True},
        {"strength": 1.0},
        {"solver": FISTA(4)},
        {"bias": False},
    ],
    "vars_sd": [
        {"filters": 2},
        {"size": (3, 3)},
        {"atoms": 1},
        {"orthogonal": False},
        {"normalize": True},
        {"centered": True},
        {"strength": 1.0},
        {"solver": FISTA(4)},
        {"bias": False},
    ],
    "vars_p": [{"atoms": 1}, {"strength": 1.0}, {"solver": FISTA(4)}, {"bias": False}],
    "vars_s_released": [{"filters": 2}, {"strength": 1.0}, {"solver": FISTA(4)}, {"bias": False}],
    "vars_d_released": [{"atoms": 1}, {"normalize": False}, {"strength": 1.0}, {"solver": FISTA(4)}, {"bias": False}],
    "vars_sd_released": [{"atoms": 1}, {"normalize": False}, {"strength": 1.0}, {"solver": FISTA(4)}, {"bias": False}],
}


@pytest.mark.parametrize(("name", "option"), [(name, option) for name in ATTENTIONS for option in OPTIONS[name]])
def test_every_option_changes_the_output(name, option):
    x = tokens()

    def output(**options):
        torch.manual_seed(1)
        return build(name, **options)(x, GRID)

    assert (output() - output(**option)).abs().max() > 1e-4


@pytest.mark.parametrize("name", VARS)
def test_steps_strength_and_solver_change_on_an_existing_layer(name):
    module, x = build(name), tokens()
    outputs = [module(x, GRID)]
    module.solver.steps += 2
    outputs.append(module(x, GRID))
    module.strength = 2.0
    outputs.append(module(x, GRID))
    module.solver = FISTA(7, start="zero")
    outputs.append(module(x, GRID))
    for i, one in enumerate(outputs):
        for other in outputs[i + 1 :]:
            assert (one - other).abs().max() > 1e-4
    with pytest.raises(ValueError, match="strength must be zero or positive, and finite, got -1"):
        module.strength = -1
    with pytest.raises(ValueError, match="steps must be a whole number of at least 1, got 0"):
        module.solver.steps = 0


@pytest.mark.parametrize("name", VARS)
def test_inspection_shows_the_layer_as_it_ran(name):
    model = nn.ModuleDict({"first": build(name), "second": build(name)})
    x = tokens()
    expected = model["first"](x, GRID)
    with torchvars.inspect(model) as layers:
        with pytest.raises(KeyError, match="'first' has not run yet"):
            layers["first"]
        output = model["first"](x, GRID)
    torch.testing.assert_close(output, expected, rtol=0, atol=1e-12)
    assert list(layers) == ["first"]
    seen = layers["first"]
    torch.testing.assert_close(seen.operator.synthesize(seen.code), seen.reconstruction, rtol=0, atol=0)
    value = model["first"].value(x).unflatten(-1, (HEADS, -1)).transpose(1, 2)
    torch.testing.assert_close(seen.signal, value, rtol=0, atol=0)
    penalty = model["first"].strength * seen.code.abs().sum(-2)
    error = (seen.reconstruction - value).square().sum(-2) / 2
    torch.testing.assert_close(seen.objective, error + penalty)
    assert seen.sparsity.item() == pytest.approx((seen.code == 0).double().mean().item())
    assert seen.violation.shape == seen.objective.shape
    with pytest.raises(KeyError, match="no reconstruction layer named 'third'; there are: 'first', 'second'"):
        layers["third"]
    # Outside the block nothing is kept.
    model["second"](x, GRID)
    assert list(layers) == ["first"]
    assert all(module.observer is None for module in model.modules() if isinstance(module, Reconstruction))


def test_what_is_read_out_is_a_mixture_of_codes():
    """With shares that sum to one no channel of the output leaves the range of its codes."""
    module = build("vars_p")
    with torchvars.inspect(module) as layers:
        mixed = module(tokens(), GRID)
    seen = layers[""]
    assert (seen.output <= seen.code.amax(-2, keepdim=True) + 1e-12).all()
    assert (seen.output >= seen.code.amin(-2, keepdim=True) - 1e-12).all()
    torch.testing.assert_close(module.proj(seen.output.transpose(1, 2).flatten(-2)), mixed, rtol=0, atol=1e-12)
    assert (seen.output - seen.reconstruction).abs().max() > 1e-3  # queries are not keys


def test_inspections_may_be_nested_and_of_a_layer_by_itself():
    module, x = build("vars_d"), tokens()
    with torchvars.inspect(module) as outer, torchvars.inspect(module) as inner:
        module(x, GRID)
    torch.testing.assert_close(outer[""].code, inner[""].code, rtol=0, atol=0)
    with pytest.raises(KeyError, match="no reconstruction layer named 'attn'; there are: ''"):
        outer["attn"]


def test_a_solver_may_be_set_by_its_name_and_a_strength_is_a_number():
    module = build("vars_d")
    module.solver = "fista"
    assert settings_of(module.solver) == settings_of(FISTA())
    with pytest.raises(ValueError, match="solver must be an object such as FISTA"):
        module.solver = 3
    with pytest.raises(ValueError, match="strength is a number, not a parameter"):
        module.strength = nn.Parameter(torch.tensor(0.3))
    module.strength = 0.1
    assert module.strength == 0.1


def test_every_layer_runs_on_the_meta_device(name):
    module = build(name, torch.float32).to("meta")
    assert module(torch.empty(2, TOKENS, DIM, device="meta"), GRID).shape == (2, TOKENS, DIM)


def test_inspection_is_undone_after_an_error():
    module = build("vars_d")

    def fail():
        with torchvars.inspect(module):
            raise RuntimeError("something else")

    with pytest.raises(RuntimeError, match="something else"):
        fail()
    assert module.observer is None


def test_inspecting_a_model_without_reconstruction_says_so():
    with (
        torchvars.inspect(build("softmax")) as layers,
        pytest.raises(KeyError, match="none in this model"),
    ):
        layers["blocks.0.attn"]


@pytest.mark.slow
@torch.no_grad()  # else the graph of thousands of steps is kept: 7.5 GB
@pytest.mark.parametrize("name", ["vars_s", "vars_d", "vars_sd"])
def test_a_layer_of_the_papers_size_solves_its_lasso(name):
    """192 channels, 6 heads, 14 x 14 tokens; some of its signals against scikit-learn."""
    grid = (14, 14)
    layer = create(name, 192, heads=6, grid=grid, strength=1.0).double()
    problem = layer.pose(torch.randn(1, 196, 192, dtype=torch.float64), grid)
    code = FISTA(5000, "zero", tolerance=1e-6).solve(problem)
    assert problem.violation(code).max() < 1e-5
    basis = torch.eye(problem.operator.size, dtype=torch.float64)
    for head, channel in ((0, 0), (3, 17), (5, 31)):
        unit = torch.zeros(1, 6, problem.operator.size, 32, dtype=torch.float64)
        atoms = []
        for atom in basis:
            unit[0, head, :, channel] = atom
            atoms.append(problem.operator.synthesize(unit)[0, head, :, channel])
        model = Lasso(alpha=1.0 / 196, fit_intercept=False, tol=1e-12, max_iter=10**5)
        model.fit(torch.stack(atoms, dim=1).numpy(), problem.signal[0, head, :, channel].numpy())
        expected = torch.from_numpy(model.predict(torch.stack(atoms, dim=1).numpy()))
        reconstruction = problem.operator.synthesize(code)[0, head, :, channel]
        torch.testing.assert_close(reconstruction, expected, rtol=0, atol=1e-4)


# Without a penalty every atom of vars_p is in use, and its optimum really turns as fast as that.
@pytest.mark.parametrize("name", [name for name in VARS if "released" not in name and name != "vars_p"])
@pytest.mark.parametrize("steps", [3, 12])
def test_the_gradient_at_an_equilibrium_that_is_not_one_yet_stays_in_bounds(name, steps):
    """Filters make more atoms than positions: those in use depend on each other, and their Gram matrix is singular."""
    largest = []
    for solver in (ISTA(steps), Equilibrium(ISTA(steps))):
        torch.manual_seed(0)
        module, x = build(name, torch.float32, solver=solver), tokens(dtype=torch.float32).requires_grad_()
        module(x, GRID).square().sum().backward()
        gradients = [x.grad, *(parameter.grad for parameter in module.parameters() if parameter.grad is not None)]
        largest.append(max(gradient.abs().max().item() for gradient in gradients))
    assert largest[1] < 10 * largest[0]


def test_hooks_run_once(name):
    module, seen = build(name), []
    module.register_forward_hook(lambda _, tokens, output: seen.append(output.shape) or output / 2)
    x = tokens()
    on_grid = module(x.unflatten(1, GRID))
    assert seen == [(BATCH, *GRID, DIM)]
    torch.testing.assert_close(on_grid.flatten(1, 2), module(x, GRID), rtol=0, atol=1e-9)


def test_no_pictures_are_no_trouble(name):
    assert build(name)(tokens(0), GRID).shape == (0, TOKENS, DIM)


@pytest.mark.parametrize("grid", [4, (24,), (-4, -6), (0, 24)])
def test_a_grid_that_is_none_is_refused(name, grid):
    with pytest.raises(ValueError, match=r"grid must be \(height, width\) in tokens, got"):
        build(name)(tokens(), grid)
    if name in PLACED:
        with pytest.raises(ValueError, match=r"pass grid=\(height, width\) in tokens, got"):
            create(name, DIM, heads=HEADS, grid=grid)


def test_no_tokens_are_refused(name):
    for shape in ((BATCH, 0, DIM), (BATCH, 0, 6, DIM), (BATCH, 4, 0, DIM)):
        with pytest.raises(ValueError, match="there are no tokens to mix: at least 1 is needed, got shape"):
            build(name)(torch.zeros(shape, dtype=torch.float64))


def test_a_grid_that_contradicts_the_shape_is_refused(name):
    module, x = build(name), tokens().unflatten(1, GRID)
    torch.testing.assert_close(module(x, GRID), module(x), rtol=0, atol=0)
    for grid in ((6, 4), (5, 5), 4):
        with pytest.raises(
            ValueError, match=r"tokens of shape .* are on a grid of \(4, 6\), got grid=.*: leave it out"
        ):
            module(x, grid)


@pytest.mark.parametrize("count", [25, 26, 29, 50, 54])  # 4 x 6 or 7 x 7, and one to five more
@pytest.mark.parametrize("name", sorted(PLACED))
def test_class_tokens_are_named_where_there_is_no_place_for_them(name, count):
    if count == 25:
        assert build(name)(tokens(count=count)).shape[1] == 25  # which is a square
    else:
        with pytest.raises(ValueError, match=r"prefix tokens .* have no place on the grid\. Split them off"):
            build(name)(tokens(count=count))
