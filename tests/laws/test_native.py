"""The fast forms against the plain solver, which is the definition: the same values and the same gradients."""

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from torchvars.attention import ATTENTIONS, create
from torchvars.attention.features import PositiveFeatures
from torchvars.models.speed import has_compiler
from torchvars.sparse import (
    FISTA,
    ISTA,
    Convolution,
    Dense,
    Equilibrium,
    Joint,
    LearnedISTA,
    Partition,
    RowSum,
    SoftPartition,
    SparseCoding,
    forms,
    gelu,
    native,
    plain,
    reconstruct,
)
from torchvars.sparse.equilibrium import solve_on_support
from torchvars.sparse.native import library, operators
from torchvars.sparse.solvers import STARTS

VARS = [name for name in ATTENTIONS if name.startswith("vars")]
compiled = pytest.mark.skipif(native.instruction_set() is None, reason="the kernels are not compiled")
KINDS = [pytest.param(kind, marks=compiled) for kind in ("dense", "convolution", "joint")]
PRECISION = {torch.float64: 1e-11, torch.float32: 2e-4}


def tensors(kind: str, batch: int, heads: int, grid: tuple[int, int], filters: int, seed: int) -> list[Tensor]:
    """The parameters of a dictionary of that kind, then a signal, in double precision."""
    generator = torch.Generator().manual_seed(seed)
    positions, channels = grid[0] * grid[1], 3

    def random(*shape):
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    size = max(1, grid[0] - 1), grid[1]
    bank = random(heads, channels, filters, *size) / positions**0.5
    atoms = random(batch, heads, positions, min(positions, 7)).exp() / positions**0.5
    parameters = {"dense": [atoms], "convolution": [bank], "joint": [bank, atoms]}[kind]
    return [*parameters, random(batch, heads, positions, channels)]


def operator(kind: str, grid: tuple[int, int], *parameters: Tensor) -> Dense | Convolution | Joint:
    if kind == "dense":
        return Dense(*parameters, nonnegative=True)
    static = Convolution(parameters[0], grid)
    return static if kind == "convolution" else Joint(static, Dense(parameters[1], nonnegative=True))


def run(kind, grid, solver, strength, inputs, *, fast: bool) -> list[Tensor]:
    """The reconstruction and the gradients of everything in it."""
    inputs = [tensor.clone().requires_grad_() for tensor in inputs]
    problem = SparseCoding(operator(kind, grid, *inputs[:-1]), inputs[-1], strength)
    if fast:
        output = reconstruct(problem, solver)
    else:
        with plain():
            output = reconstruct(problem, solver)
    assert _is_fast(output) is fast
    weights = torch.randn(output.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return [output.detach(), *torch.autograd.grad(output, inputs, weights.to(output.dtype))]


def _is_fast(output: Tensor) -> bool:
    """Whether the graph goes through one of the fast forms."""
    nodes = [output.grad_fn]
    for node in nodes:
        if "torchvars_reconstruct" in node.name():
            return True
        nodes += [parent for parent, _ in node.next_functions if parent is not None and parent not in nodes]
    return False


def assert_same(one: list[Tensor], other: list[Tensor], tolerance: float) -> None:
    for first, second in zip(one, other, strict=True):
        torch.testing.assert_close(first, second, rtol=0, atol=tolerance * (1 + second.abs().max().item()))


@pytest.mark.parametrize("kind", KINDS)
@given(
    batch=st.integers(1, 3),
    heads=st.integers(1, 2),
    grid=st.tuples(st.integers(1, 6), st.integers(1, 6)),
    filters=st.integers(1, 3),
    steps=st.integers(1, 4),
    start=st.sampled_from(["analysis", "scaled", "zero"]),
    strength=st.sampled_from([0.0, 0.1, 0.3, 10.0]),
    dtype=st.sampled_from(list(PRECISION)),
    seed=st.integers(0, 1000),
)
def test_values_and_gradients_are_those_of_the_plain_solver(
    kind, batch, heads, grid, filters, steps, start, strength, dtype, seed
):
    inputs = [tensor.to(dtype) for tensor in tensors(kind, batch, heads, grid, filters, seed)]
    expected = run(kind, grid, ISTA(steps, start), strength, inputs, fast=False)
    assert_same(run(kind, grid, ISTA(steps, start), strength, inputs, fast=True), expected, PRECISION[dtype])


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=15)
@given(
    grid=st.tuples(st.integers(1, 20), st.integers(1, 20)),
    size=st.tuples(st.integers(1, 20), st.integers(1, 20)),
    channels=st.sampled_from([1, 7, 8, 19, 40]),
    atoms=st.sampled_from([1, 5, 16, 33]),
    start=st.sampled_from(list(STARTS)),
    seed=st.integers(0, 1000),
)
def test_kernels_take_every_grid_every_filter_and_any_number_of_channels(
    kind, grid, size, channels, atoms, start, seed
):
    """Double precision, so that one code more or less beside its threshold is no matter."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape):
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    size = tuple(map(min, size, grid))
    positions = grid[0] * grid[1]
    bank = random(2, channels, 2, *size) / (size[0] * size[1]) ** 0.5
    dictionary = random(2, 2, positions, min(atoms, 2 * positions)).exp() / positions**0.5
    parameters = {"dense": [dictionary], "convolution": [bank], "joint": [bank, dictionary]}[kind]
    inputs = [*parameters, random(2, 2, positions, channels)]
    expected = run(kind, grid, ISTA(2, start), 0.2, inputs, fast=False)
    assert_same(run(kind, grid, ISTA(2, start), 0.2, inputs, fast=True), expected, 1e-11)


@compiled
@pytest.mark.parametrize("grid", [(112, 3), (2, 113), (49, 48), (121, 1), (1, 289)])
def test_long_axes_are_split(grid):
    inputs = tensors("convolution", 1, 1, grid, 2, 0)
    expected = run("convolution", grid, ISTA(2), 0.1, inputs, fast=False)
    assert_same(run("convolution", grid, ISTA(2), 0.1, inputs, fast=True), expected, 1e-11)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("threads", [2, 7])
def test_threads_make_no_difference(kind, threads, monkeypatch):
    """With PyTorch's threads and with our own, also when the batch has to be cut."""
    inputs = tensors(kind, 5, 2, (4, 5), 2, seed=0)
    alone = run(kind, (4, 5), ISTA(3), 0.3, inputs, fast=True)
    monkeypatch.setattr(library, "threads_for", lambda task: threads)
    assert_same(run(kind, (4, 5), ISTA(3), 0.3, inputs, fast=True), alone, 1e-13)
    monkeypatch.setattr(library, "_parallel", lambda: None)
    assert_same(run(kind, (4, 5), ISTA(3), 0.3, inputs, fast=True), alone, 1e-13)


@compiled
@pytest.mark.parametrize("name", ["vars_sd", "vars_p"])
def test_many_threads_may_call_one_layer(name):
    layer = create(name, 12, heads=2, grid=(4, 5)).double()
    tokens = torch.randn(8, 3, 20, 12, dtype=torch.float64)

    def run(mine):
        mine = mine.clone().requires_grad_()
        output = layer(mine, (4, 5))
        return [output.detach(), *torch.autograd.grad(output.square().sum(), mine)]

    expected = [run(each) for each in tokens]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(5):
            for found, one in zip(pool.map(run, tokens), expected, strict=True):
                assert_same(found, one, 1e-13)


@compiled
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_number_stays_so_where_it_is(kind, value):
    """In its channel of its image; elsewhere nothing changes."""
    signal = torch.randn(2, 2, 20, 3, dtype=torch.float64)
    *parameters, _ = tensors(kind, 2, 2, (4, 5), 2, 0)
    clean = reconstruct(SparseCoding(operator(kind, (4, 5), *parameters), signal, 0.1), ISTA(3))
    signal[0, 0, 7, 1] = value
    spoilt = reconstruct(SparseCoding(operator(kind, (4, 5), *parameters), signal, 0.1), ISTA(3))
    assert spoilt[0, 0, :, 1].isnan().all()
    spoilt[0, 0, :, 1] = clean[0, 0, :, 1]
    torch.testing.assert_close(spoilt, clean)


@compiled
@pytest.mark.parametrize("name", ["vars_s", "vars_d", "vars_sd", "vars_p"])
def test_no_image_at_all(name):
    layer = create(name, 12, heads=2, grid=(4, 5))
    tokens = torch.randn(0, 20, 12, requires_grad=True)
    output = layer(tokens, (4, 5))
    output.sum().backward()
    assert output.shape == tokens.grad.shape == (0, 20, 12)


@pytest.mark.parametrize("kind", KINDS)
def test_inputs_need_not_lie_in_a_row(kind):
    *parameters, signal = tensors(kind, 1, 2, (4, 5), 2, 0)
    expanded = signal.expand(3, -1, -1, -1)
    strided = torch.stack([signal, signal], -1).flatten(-2)[..., ::2]
    # Atoms and filters that are the same for all, and not in a row either
    shared = [parameters[0].mT.contiguous().mT, *(each.expand(3, -1, -1, -1) for each in parameters[1:])]
    expected = run(kind, (4, 5), ISTA(2), 0.1, [*parameters, signal], fast=True)[0]
    operators = operator(kind, (4, 5), *shared)
    found = reconstruct(SparseCoding(operators, expanded, 0.1), ISTA(2))
    torch.testing.assert_close(found, expected.expand(3, -1, -1, -1))
    found = reconstruct(SparseCoding(operator(kind, (4, 5), *parameters), strided, 0.1), ISTA(2))
    torch.testing.assert_close(found, expected)


def calls() -> dict[str, tuple]:
    """What the operators are called with: their arguments, the tensors that are differentiated wanting gradients."""
    bank, atoms, signal = tensors("joint", 2, 2, (3, 4), 2, seed=0)
    signal = signal.transpose(1, 2).flatten(2)
    reader = torch.rand(2, 2, 5, atoms.shape[-1], dtype=torch.float64)
    step_size = 0.05 + 0.1 * torch.rand(2, 2, atoms.shape[-1], dtype=torch.float64)
    directions = torch.randn(2, 3, 5, dtype=torch.float64)
    keys, queries, others = torch.randn_like(signal), torch.randn(2, 7, 6).double(), torch.randn_like(directions)
    for each in (signal, bank, atoms, reader, step_size, directions, keys, queries, others):
        each.requires_grad_()
    bound, size = torch.full((1, 6), 9.0).double(), (3, 4)
    run = 0.3, "analysis", 2
    constants = torch.full((2, 2, 1), 0.05).double()
    support = torch.rand(2, 2 * 12 + atoms.shape[-1], 6) < 0.2
    totals = 0.1 + torch.rand(2, 2, 5, dtype=torch.float64)
    found = operators.features(signal.detach(), directions.detach(), 1.0, True)
    return {
        "reconstruct": (signal, bank, None, bound, *size, *run),
        "reconstruct beside atoms": (signal, bank, atoms, bound, *size, *run),
        "reconstruct_dense": (signal, atoms, constants, None, "given", *run),
        "reconstruct_dense by a bound": (signal, atoms.detach(), None, None, "bound", *run),
        "reconstruct_dense with steps": (signal, atoms, step_size, None, "given", *run),
        "reconstruct_dense with a reader": (signal, atoms, None, reader, "totals", 0.0, "zero", 2),
        "reconstruct_dense by totals": (signal, atoms, None, None, "totals", *run),
        "reconstruct_shares": (signal, keys, directions, None, None, *run),
        "reconstruct_shares with a reader": (signal, keys, directions, queries, others, 0.0, "zero", 2),
        "features": (signal, directions, 1.0, True),
        "features of unit length": (signal, directions.detach(), 0.7, False),
        "filter_power": (bank.detach(), *size),
        "union_bound": (bank.detach(), atoms.detach(), *size),
        "solve_on_support": (bank.detach(), atoms.detach(), bound, support, support.double(), *size, 20),
        "reconstruct_backward": (signal.detach(), signal.detach(), bank.detach(), None, bound, *size, *run),
        "reconstruct_shares_backward": tuple(
            each.detach() if isinstance(each, Tensor) else each
            for each in (signal, signal, keys, directions, None, None, totals, *run)
        ),
        "features_backward": (torch.randn_like(found), signal.detach(), directions.detach(), found, 1.0, True),
        "reconstruct_dense_backward": tuple(
            each.detach() if isinstance(each, Tensor) else each
            for each in (signal, signal, atoms, step_size, None, "given", *run)
        ),
    }


@compiled
@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("reconstruct", 0),
        ("reconstruct", 1),
        ("reconstruct", 3),
        ("reconstruct beside atoms", 2),
        ("reconstruct_dense", 0),
        ("reconstruct_dense", 1),
        ("reconstruct_dense with steps", 2),
        ("reconstruct_shares", 0),
        ("reconstruct_shares", 1),
        ("reconstruct_shares", 2),
        ("reconstruct_shares with a reader", 3),
        ("reconstruct_shares with a reader", 4),
        ("features", 0),
        ("union_bound", 1),
        ("solve_on_support", 3),
        ("solve_on_support", 4),
        ("reconstruct_backward", 0),
        ("features_backward", 0),
        ("features_backward", 3),
        ("reconstruct_dense_backward", 0),
        ("reconstruct_shares_backward", 0),
        ("reconstruct_shares_backward", 6),
    ],
)
def test_operators_refuse_what_does_not_fit(name, place):
    """So that no kernel reads or writes beside a tensor: a row or a channel more of one of them is an error."""
    given = list(calls()[name])
    dim = 2 if given[place].ndim == 4 or name in ("features", "reconstruct_shares with a reader") else 1
    given[place] = torch.cat([given[place], given[place].narrow(dim, 0, 1)], dim)
    with pytest.raises(ValueError, match="do not belong to one problem"):
        getattr(operators, name.split(" ")[0])(*given)


@compiled
@pytest.mark.parametrize("name", calls() if native.instruction_set() else [])
def test_operators_are_what_pytorch_takes_them_for(name):
    torch.library.opcheck(getattr(operators, name.split(" ")[0]), calls()[name])


@compiled
@pytest.mark.parametrize(
    "name", [name for name in (calls() if native.instruction_set() else []) if "bound" not in name]
)
@pytest.mark.parametrize("start", STARTS)
def test_gradients_are_those_of_finite_differences(name, start):
    given = [start if each in STARTS else each for each in calls()[name]]
    places = [place for place, each in enumerate(given) if isinstance(each, Tensor) and each.requires_grad]
    if not places or (start not in calls()[name] and start != "zero"):
        return

    def run(*inputs):
        for place, each in zip(places, inputs, strict=True):
            given[place] = each
        output = getattr(operators, name.split(" ")[0])(*given)
        return output if isinstance(output, Tensor) else output[0]

    assert torch.autograd.gradcheck(run, [given[place] for place in places])


@compiled
@pytest.mark.parametrize("kind", ["dense", "shares", "soft"])
@settings(max_examples=40)
@given(
    batch=st.integers(1, 3),
    heads=st.integers(1, 2),
    positions=st.sampled_from([1, 2, 5, 30, 127, 128, 129, 140]),
    rows=st.sampled_from([0, 1, 30, 130]),
    atoms=st.sampled_from([1, 2, 7, 16, 33]),
    channels=st.sampled_from([1, 7, 8, 19, 40]),
    start=st.sampled_from(["analysis", "zero", "thresholded"]),
    strength=st.sampled_from([0.0, 0.1]),
    dtype=st.sampled_from(list(PRECISION)),
    seed=st.integers(0, 1000),
)
def test_steps_of_each_atom_and_readers(
    kind, batch, heads, positions, rows, atoms, channels, start, strength, dtype, seed
):
    """Dictionaries with a step size for each atom; of no rows there is no reader."""
    generator = torch.Generator().manual_seed(seed)
    atoms = min(atoms, 2 * positions)

    def random(*shape):
        return torch.randn(*shape, generator=generator).to(dtype)

    width = 5 if kind == "soft" else atoms
    maps = [random(batch, heads, count, width) for count in (positions, rows)]
    given = [random(batch, heads, positions, channels), *maps, random(heads, width, atoms), random(heads, width, atoms)]
    given = given if rows else [given[0], given[1], given[3]]
    weights = random(batch, heads, rows or positions, channels)

    def run(*, fast: bool):
        x, *parts = inputs = [each.clone().requires_grad_() for each in given]
        make = {"soft": SoftPartition, "shares": lambda map, _: Partition(map.softmax(-1))}
        make = make.get(kind, lambda map, _: Dense(map / positions**0.5))
        operator, *reader = map(make, parts[: len(parts) // 2], parts[len(parts) // 2 :])
        output = reconstruct(SparseCoding(operator, x, strength), ISTA(3, start, step=RowSum()), *reader)
        assert _is_fast(output) is fast
        gradients = torch.autograd.grad(output, inputs, weights, allow_unused=True)
        return [output.detach(), *(each for each in gradients if each is not None)]

    found = run(fast=True)
    with plain():
        assert_same(found, run(fast=False), PRECISION[dtype])


@compiled
def test_shares_are_computed_as_a_whole_only_for_those_who_ask():
    layer = create("vars_p", 12, heads=2)
    problem = layer.pose(torch.randn(2, 9, 12))
    assert "_atoms" not in vars(problem.operator)
    reconstruct(problem, layer.solver)
    assert "_atoms" not in vars(problem.operator)
    torch.testing.assert_close(problem.operator.atoms.sum(-1), torch.ones(2, 2, 9))


@compiled
@given(
    batch=st.integers(1, 2),
    grid=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    channels=st.sampled_from([1, 7, 8, 19]),
    atoms=st.sampled_from([1, 2, 7, 16, 33]),
    spread=st.sampled_from([0.0, 0.1, 1.0, 4.0]),
    dtype=st.sampled_from(list(PRECISION)),
    seed=st.integers(0, 1000),
)
def test_the_bound_of_filters_beside_atoms(batch, grid, channels, atoms, spread, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    positions = grid[0] * grid[1]
    bank = torch.randn(2, channels, 2, *grid, generator=generator, dtype=torch.float64).to(dtype) / positions
    logits = spread * torch.randn(batch, 2, positions, min(atoms, positions), generator=generator, dtype=torch.float64)
    union = Joint(Convolution(bank, grid), Dense(logits.exp().to(dtype), nonnegative=True))
    found = union.find_bound()
    with plain():
        expected = union.find_bound()
    torch.testing.assert_close(found, expected, rtol=1e-4 if dtype == torch.float32 else 1e-10, atol=0)


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=compiled) for kind in ("convolution", "joint")])
@settings(max_examples=15)
@given(
    batch=st.integers(1, 3),
    grid=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    channels=st.sampled_from([1, 7, 8, 19]),
    share=st.sampled_from([0.0, 0.1, 0.3]),
    dtype=st.sampled_from(list(PRECISION)),
    seed=st.integers(0, 1000),
)
def test_systems_on_a_support(kind, batch, grid, channels, share, dtype, seed):
    """Of fewer atoms than there are positions, so that there is one answer: that of dense linear algebra."""
    generator = torch.Generator().manual_seed(seed)
    positions = grid[0] * grid[1]
    bank = torch.randn(2, channels, 2, *grid, generator=generator, dtype=dtype) / positions**0.5
    atoms = torch.randn(batch, 2, positions, min(4, positions), generator=generator, dtype=dtype) / positions**0.5
    found = Convolution(bank, grid)
    found = found if kind == "convolution" else Joint(found, Dense(atoms))
    most = max(1, round(share * positions))  # atoms in use, at most
    rank = torch.rand(batch, 2, found.size, channels, generator=generator).argsort(-2)
    support = (rank < most) & (torch.rand(1, generator=generator) > 0.1)
    target = torch.randn(batch, 2, found.size, channels, generator=generator, dtype=dtype)
    solution = solve_on_support(found, support, target, 400)
    assert (solution[~support] == 0).all()
    gram = found.gram(torch.eye(found.size, dtype=dtype)[:, None, None, :, None].expand(-1, batch, 2, -1, channels))
    gram = gram.permute(1, 2, 4, 3, 0)  # (batch, heads, C, M, M)
    both = support.mT.unsqueeze(-1) & support.mT.unsqueeze(-2)
    system = torch.where(both, gram, torch.eye(found.size, dtype=dtype))
    assume(torch.linalg.cond(system.double()).max() < 1e4)
    expected = torch.linalg.solve(system, (target * support).mT.unsqueeze(-1)).squeeze(-1).mT
    tolerance = 1e-9 if dtype == torch.float64 else 1e-2
    torch.testing.assert_close(solution, expected, rtol=tolerance, atol=tolerance * (1 + expected.abs().max().item()))


@compiled
@given(
    batch=st.integers(1, 2),
    positions=st.integers(1, 40),
    channels=st.sampled_from([1, 7, 8, 19, 40]),
    atoms=st.sampled_from([1, 2, 7, 16, 33]),
    size=st.sampled_from([0.0, 1.0, 30.0]),
    shares=st.booleans(),
    dtype=st.sampled_from(list(PRECISION)),
    seed=st.integers(0, 1000),
)
def test_features_are_those_of_the_definition(batch, positions, channels, atoms, size, shares, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    queries = size * torch.randn(batch, positions, 2, channels, generator=generator, dtype=torch.float64).transpose(
        1, 2
    )
    layer = PositiveFeatures(channels, 2, atoms, orthogonal=False).to(dtype)
    layer.directions.copy_(torch.randn(2, channels, atoms, generator=generator))
    directions = layer.directions.clone().requires_grad_()
    queries = queries.to(dtype).requires_grad_()
    weights = torch.randn(batch, 2, positions, atoms, generator=generator).to(dtype)

    def run():
        if not shares:
            output = layer.atoms(queries)
            return [output.detach(), *torch.autograd.grad(output, queries, weights)]
        fast = native.shares(queries, directions)
        output = fast if forms.operators_allowed() else (queries @ directions).softmax(-1)
        return [output.detach(), *torch.autograd.grad(output, [queries, directions], weights)]

    found = run()
    with plain():
        assert_same(found, run(), 1e-11 if dtype == torch.float64 else 1e-4 * max(size, 1))


@compiled
@pytest.mark.slow
@pytest.mark.skipif(not has_compiler(), reason="torch.compile needs a C++ compiler")
@pytest.mark.parametrize("name", ["vars_s", "vars_d", "vars_sd", "vars_p"])
def test_compilers_keep_the_kernels(name):
    layer = create(name, 12, heads=2, grid=(4, 5))
    tokens = torch.randn(3, 20, 12, requires_grad=True)
    graphs = []

    def look(graph, inputs):
        graphs.append(str(graph.graph))
        return graph

    torch.compile(layer, fullgraph=True, backend=look)(tokens, (4, 5))
    assert len(graphs) == 1
    assert "torchvars.reconstruct" in graphs[0]
    torch._dynamo.reset()
    found, expected = torch.compile(layer, fullgraph=True)(tokens, (4, 5)), layer(tokens, (4, 5))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        *(torch.autograd.grad(each.square().sum(), tokens) for each in (found, expected)), rtol=1e-4, atol=1e-4
    )


@compiled
@pytest.mark.slow
@pytest.mark.parametrize("instructions", ["baseline", "avx2", "avx512"])
def test_every_instruction_set_gives_the_same(instructions, tmp_path):
    """In a process of its own, which is told to take no more than this one."""
    program = """
import sys, torch
from torchvars.attention import create
from torchvars.sparse import native
results = [native.instruction_set()]
for name in ("vars_s", "vars_d", "vars_sd", "vars_p"):
    torch.manual_seed(0)
    for grid in ((4, 5), (14, 14), (17, 22)):
        layer = create(name, 20, heads=2, grid=grid).double()
        tokens = torch.randn(2, grid[0] * grid[1], 20, dtype=torch.float64, requires_grad=True)
        output = layer(tokens, grid)
        results += [output.detach(), *torch.autograd.grad(output.square().sum(), [tokens, *layer.parameters()])]
torch.save(results, sys.argv[1])
"""
    found = {}
    for switch in ("0", instructions):
        path = tmp_path / f"{switch}.pt"
        environment = {**os.environ, library.SWITCH: switch}
        subprocess.run([sys.executable, "-c", program, str(path)], env=environment, check=True)
        name, *found[switch] = torch.load(path)
        assert name is None if switch == "0" else name in ("baseline", instructions, "avx2")
    assert_same(found[instructions], found["0"], 1e-11)


@compiled
def test_a_switch_turns_them_off():
    program = "from torchvars.sparse import native; print(native.instruction_set())"
    environment = {**os.environ, library.SWITCH: "0"}
    output = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert output.stdout.strip() == "None"


@compiled
def test_atoms_shared_by_a_batch():
    atoms, signal = tensors("dense", 1, 1, (3, 4), 1, seed=0)
    shared, signals = atoms[0, 0], signal.expand(4, 2, -1, -1) * torch.arange(1, 5).view(4, 1, 1, 1)
    expected = run("dense", (3, 4), ISTA(3), 0.3, [shared, signals], fast=False)
    assert_same(run("dense", (3, 4), ISTA(3), 0.3, [shared, signals], fast=True), expected, 1e-11)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "solver",
    [ISTA(3, tolerance=1e-3), FISTA(3), LearnedISTA(3), Equilibrium(ISTA(3))],
    ids=lambda solver: f"{type(solver).__name__}-{solver.start}-{solver.tolerance}",
)
def test_other_solvers_run_by_their_definition(kind, solver):
    *parameters, signal = tensors(kind, 2, 1, (3, 4), 2, seed=0)
    problem = SparseCoding(operator(kind, (3, 4), *parameters), signal.requires_grad_(), 0.3)
    output = reconstruct(problem, solver)
    assert not _is_fast(output)
    torch.testing.assert_close(output, problem.operator.synthesize(solver.solve(problem)), rtol=0, atol=0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("strength", "threshold"), [(torch.tensor(0.3, dtype=torch.float64), None), (0.3, gelu)], ids=["tensor", "gelu"]
)
def test_other_problems_run_by_their_definition(kind, strength, threshold):
    *parameters, signal = tensors(kind, 2, 1, (3, 4), 2, seed=0)
    options = {} if threshold is None else {"threshold": threshold}
    problem = SparseCoding(operator(kind, (3, 4), *parameters), signal.requires_grad_(), strength, **options)
    output = reconstruct(problem, ISTA(3))
    assert not _is_fast(output)
    torch.testing.assert_close(output, problem.operator.synthesize(ISTA(3).solve(problem)), rtol=0, atol=0)


@pytest.mark.parametrize("name", VARS)
@pytest.mark.parametrize("start", STARTS)
def test_layers_run_fast_and_plain_alike_from_every_start(name, start):
    layer = create(name, 12, heads=2, grid=(4, 5)).double()
    layer.solver = ISTA(3, start)
    tokens = torch.randn(3, 20, 12, dtype=torch.float64)
    found = layer(tokens, (4, 5))
    with plain():
        torch.testing.assert_close(found, layer(tokens, (4, 5)), rtol=0, atol=1e-11)


@pytest.mark.parametrize("name", VARS)
@pytest.mark.parametrize("normalize", [False, True])
def test_layers_run_fast_and_plain_alike(name, normalize):
    options = {"normalize": normalize} if "d" in name.split("_")[1] else {}
    layer = create(name, 12, heads=2, grid=(4, 5), **options).double()
    tokens = torch.randn(3, 20, 12, dtype=torch.float64, requires_grad=True)

    def run():
        output = layer(tokens, (4, 5))
        return [output.detach(), *torch.autograd.grad(output.square().sum(), [tokens, *layer.parameters()])]

    layer.eval()
    found = run()
    with plain():
        expected = run()
    assert_same(found, expected, 1e-11)


@compiled
@pytest.mark.parametrize(("name", "atoms"), [("vars_d", 1), ("vars_d", 6), ("vars_sd", 1), ("vars_sd", 6)])
@pytest.mark.parametrize("start", ["analysis", "scaled", "zero"])
@pytest.mark.parametrize("dtype", PRECISION)
def test_centered_layers_run_fast_and_plain_alike(name, atoms, start, dtype):
    options = {"centered": True, "atoms": atoms, "solver": ISTA(3, start)}
    layer = create(name, 12, heads=2, grid=(4, 5), **options).to(dtype).eval()
    tokens = torch.randn(3, 20, 12, dtype=dtype, requires_grad=True)

    def run(*, fast: bool):
        output = layer(tokens, (4, 5))
        assert _is_fast(output) is fast
        return [output.detach(), *torch.autograd.grad(output.square().sum(), [tokens, *layer.parameters()])]

    found = run(fast=True)
    with plain():
        expected = run(fast=False)
    assert_same(found, expected, PRECISION[dtype])


@compiled
@pytest.mark.parametrize("name", ["vars_s", "vars_d", "vars_sd", "vars_p"])
def test_second_derivatives_are_for_the_plain_form(name):
    layer = create(name, 8, heads=2, grid=(3, 3)).double()
    tokens = torch.randn(1, 9, 8, dtype=torch.float64, requires_grad=True)

    def penalize():
        (gradient,) = torch.autograd.grad(layer(tokens, (3, 3)).square().sum(), tokens, create_graph=True)
        gradient.square().sum().backward()

    with pytest.raises(RuntimeError, match=r"cannot be differentiated again: run all of it inside torchvars.sparse"):
        penalize()
    with plain():
        penalize()
    assert tokens.grad.abs().max() > 0


def products(layer, tokens, along, weight):
    """Hessian times a direction of a loss that is not quadratic, by `autograd.grad`, which meets no leaf but these."""
    loss = ((layer(tokens, (3, 3)) + tokens).cos() * weight).sum()
    (gradient,) = torch.autograd.grad(loss, tokens, create_graph=True)
    return torch.autograd.grad((gradient * along).sum(), tokens)[0]


@compiled
@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("name", ["vars_s", "vars_d", "vars_sd", "vars_p"])
def test_no_second_derivative_is_silently_wrong(name, frozen):
    layer = create(name, 8, heads=2, grid=(3, 3)).double().requires_grad_(not frozen)
    generator = torch.Generator().manual_seed(0)
    tokens, along, weight = (torch.randn(1, 9, 8, dtype=torch.float64, generator=generator) for _ in range(3))
    tokens.requires_grad_()
    with pytest.raises(RuntimeError, match="cannot be differentiated again"):
        products(layer, tokens, along, weight)
    # A graph that nobody goes back through is no harm, and the first gradient is what it was.
    loss = ((layer(tokens, (3, 3)) + tokens).cos() * weight).sum()
    (made,) = torch.autograd.grad(loss, tokens, create_graph=True)
    loss = ((layer(tokens, (3, 3)) + tokens).cos() * weight).sum()
    assert torch.equal(made, torch.autograd.grad(loss, tokens)[0])
    with plain():
        found = products(layer, tokens, along, weight)
    if name == "vars_s":  # whose step does not depend on the tokens, so that the definition has no other gradient
        step = 1e-5
        sides = []
        for sign in (1, -1):
            moved = (tokens + sign * step * along).detach().requires_grad_()
            loss = ((layer(moved, (3, 3)) + moved).cos() * weight).sum()
            sides.append(torch.autograd.grad(loss, moved)[0])
        torch.testing.assert_close(found, (sides[0] - sides[1]) / (2 * step), rtol=1e-5, atol=1e-6)


def test_neither_is_one_at_an_optimum():
    layer = create("vars_d", 8, heads=2, grid=(3, 3), solver=Equilibrium(FISTA(200))).double()
    tokens, along, weight = (torch.randn(1, 9, 8, dtype=torch.float64) for _ in range(3))
    with (
        plain(),
        pytest.raises(RuntimeError, match="differentiated again: use the solver itself, without Equilibrium"),
    ):
        products(layer, tokens.requires_grad_(), along, weight)


@compiled
def test_features_alone_refuse_as_well():
    features = PositiveFeatures(8, 2, 16, normalize=False).double()
    strided = torch.randn(1, 9, 2, 8, dtype=torch.float64).transpose(1, 2)
    for queries in (strided, strided.contiguous()):
        queries.requires_grad_()
        (gradient,) = torch.autograd.grad(features.atoms(queries).pow(3).sum(), queries, create_graph=True)
        with pytest.raises(RuntimeError, match="cannot be differentiated again"):
            torch.autograd.grad(gradient.sum(), queries)


@pytest.mark.parametrize("name", ["vars_s", "vars_d", "vars_sd", "vars_p"])
def test_function_transforms_take_the_plain_form(name):
    layer = create(name, 8, heads=2, grid=(3, 3)).double()
    tokens = torch.randn(2, 9, 8, dtype=torch.float64, requires_grad=True)

    def loss(sample):
        return layer(sample.unsqueeze(0), (3, 3)).square().sum()

    expected = torch.autograd.grad(sum(map(loss, tokens)), tokens)[0]
    found = torch.func.vmap(torch.func.grad(loss))(tokens.detach())
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-11)


@pytest.mark.parametrize("name", ["vars_s", "vars_d", "vars_sd", "vars_p"])
def test_large_logarithms_stay_numbers(name):
    layer = create(name, 8, heads=2, grid=(3, 3))
    tokens = (1e3 * torch.randn(2, 9, 8)).requires_grad_()
    output = layer(tokens, (3, 3))
    output.sum().backward()
    assert output.isfinite().all()
    assert tokens.grad.isfinite().all()


def test_what_is_kept_for_the_backward_pass():
    """Of the definition more for each step; of the kernels and at the equilibrium no more for more steps."""

    def kept(solver) -> int:
        sizes = {}
        layer = create("vars_s", 12, heads=2, grid=(4, 4), solver=solver)
        tokens = torch.randn(2, 16, 12, requires_grad=True)

        def pack(tensor):
            sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            output = layer(tokens, (4, 4))
        assert output.requires_grad
        return sum(sizes.values())

    if native.instruction_set() is not None:
        assert kept(ISTA(12)) == kept(ISTA(3))
    with plain():
        assert kept(ISTA(12)) > 3 * kept(ISTA(3))
    assert kept(Equilibrium(ISTA(12))) <= 1.1 * kept(Equilibrium(ISTA(3)))


@pytest.mark.parametrize("kind", KINDS)
def test_signals_with_their_channels_first(kind):
    """In memory, that is."""
    *parameters, signal = tensors(kind, 2, 2, (3, 4), 2, 0)
    turned = signal.mT.contiguous().mT
    outputs = [
        reconstruct(SparseCoding(operator(kind, (3, 4), *parameters), each, 0.1), ISTA(3)) for each in (signal, turned)
    ]
    torch.testing.assert_close(*outputs)


def test_filters_of_their_own_for_each_of_a_batch():
    *_, bank, signal = tensors("convolution", 2, 2, (3, 4), 2, 0)
    banks = torch.stack([bank, 2 * bank])
    problem = SparseCoding(Convolution(banks, (3, 4)), signal, 0.1)
    with plain():
        expected = reconstruct(problem, ISTA(3))
    torch.testing.assert_close(reconstruct(problem, ISTA(3)), expected)
    alone = reconstruct(SparseCoding(Convolution(bank, (3, 4)), signal[:1], 0.1), ISTA(3))
    torch.testing.assert_close(expected[:1], alone)


@compiled
def test_features_keep_their_precision_when_differentiated_under_autocast():
    features = PositiveFeatures(8, heads=2, count=6)
    queries = torch.randn(2, 2, 9, 8, requires_grad=True)
    atoms, gradients = features.atoms(queries), []
    upstream = torch.randn_like(atoms)
    for enabled in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            gradients += torch.autograd.grad(atoms, queries, upstream, retain_graph=True)
    torch.testing.assert_close(*gradients)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize("size", [16, 64])
def test_kernels_stay_within_their_memory(size, tmp_path):
    """With AddressSanitizer and UndefinedBehaviorSanitizer; vectors wider than the processor's are taken apart."""
    kernels = Path(library.__file__).parent / "kernels"
    program = tmp_path / "sanitized"
    command = ["g++", "-O1", "-std=c++17", "-Wno-psabi", f"-DBYTES={size}", f"-I{kernels}"]
    command += ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    built = subprocess.run([*command, str(Path(__file__).with_name("sanitized.cpp")), "-o", str(program)])
    if built.returncode:
        pytest.skip("this compiler has no sanitizers")
    done = subprocess.run([str(program)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "121 shapes\n"
