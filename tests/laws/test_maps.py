"""What is true of the maps of every attention in the registry."""

from contextlib import contextmanager, nullcontext

import pytest
import torch
from torch import nn

import torchvars
from torchvars.attention import ATTENTIONS, GlobalFilter, Reconstruction, Softmax, create
from torchvars.attention.released import ReleasedStaticReconstruction
from torchvars.maps import KINDS, attention_maps
from torchvars.sparse import Equilibrium, SpaRSA

CHANNELS, HEADS, GRID = 8, 2, (3, 4)
PLACES = GRID[0] * GRID[1]
PLACED = {"global_filter", "vars_s", "vars_sd", "vars_s_released", "vars_sd_released"}
VARS = [name for name in ATTENTIONS if name.startswith("vars")]
BASELINES = [name for name in ATTENTIONS if name not in VARS]
STARTS_AT_ANALYSIS = ["vars_s", "vars_d", "vars_sd"]

pytestmark = pytest.mark.usefixtures("one_thread")


class Model(nn.Module):
    """Each pixel a token, one attention, and logits."""

    def __init__(self, name, **options):
        super().__init__()
        self.attn = create(name, CHANNELS, heads=HEADS, grid=GRID, **options)
        self.head = nn.Linear(CHANNELS, 3)

    def forward(self, pixels):
        return self.head(self.attn(pixels.permute(0, 2, 3, 1)).square().mean((1, 2)))


def build(name, **options):
    return Model(name, **options).double().eval()


def pictures(batch=2):
    # Large enough that the codes of the released S, with its strength of 3.5, are alive.
    return 4 * torch.randn(batch, CHANNELS, *GRID, dtype=torch.float64)


@pytest.fixture(params=ATTENTIONS)
def name(request):
    return request.param


@contextmanager
def moved(layer, change):
    """Adds a change (1, N, CHANNELS) to the values of a layer as it runs, whatever else it does with its tokens."""

    def hook(_, __, output):
        flat = output.flatten(1, -2)
        return (flat + torch.cat([torch.zeros_like(change)] * (flat.shape[-1] // CHANNELS - 1) + [change], -1)).view(
            output.shape
        )

    source = layer.qkv if isinstance(layer, Softmax) else layer.value
    handle = source.register_forward_hook(hook)
    yield
    handle.remove()


def mixed(layer, x, change):
    """What a layer passes on before its output projection, (batch, N, CHANNELS), with its values changed."""
    if isinstance(layer, GlobalFilter):  # its values are the tokens
        return layer(x + change, GRID)
    seen = []
    last = layer.norm if isinstance(layer, ReleasedStaticReconstruction) else layer.proj
    handle = last.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    with moved(layer, change):
        layer(x, GRID)
    handle.remove()
    return seen[0].mT if last is not layer.proj else seen[0]


@torch.no_grad()
def jacobian(model, x, step=1e-6):
    """d o_qc / d v_jc by central differences of the layer's own forward pass: (batch, q, j, channel)."""
    tokens = x.permute(0, 2, 3, 1).flatten(1, 2)
    rows = []
    for place in range(PLACES):  # all channels at once: they do not mix
        change = torch.zeros(1, PLACES, CHANNELS, dtype=torch.float64)
        change[:, place] = step
        rows.append((mixed(model.attn, tokens, change) - mixed(model.attn, tokens, -change)) / (2 * step))
    return torch.stack(rows, 2)


def by_head(model, found):
    """The mean over the channels of each head: (..., CHANNELS) -> (heads first ...)."""
    heads = 1 if isinstance(model.attn, GlobalFilter) else HEADS
    return found.unflatten(-1, (heads, -1)).mean(-1).movedim(-1, 1)


def test_the_implicit_map_is_the_derivative_of_what_the_layer_does(name):
    model, x = build(name), pictures()
    found = jacobian(model, x)
    for place in (0, 6):
        query = (place // GRID[1], place % GRID[1])
        expected = by_head(model, found[:, place].abs()).unflatten(-1, GRID)
        torch.testing.assert_close(attention_maps(model, x, query=query, head="all"), expected, rtol=1e-5, atol=1e-7)
    expected = by_head(model, found.mean(1).abs()).unflatten(-1, GRID)
    assert expected.amax() > 1e-5
    torch.testing.assert_close(attention_maps(model, x, head="all"), expected, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(attention_maps(model, x), expected.mean(1), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(("name", "strength"), [("vars_s", 6.0), ("vars_d", 1.0), ("vars_sd", 6.0)])
def test_at_the_optimum_it_is_the_jacobian_on_the_support(name, strength):
    model, x = build(name, solver=Equilibrium(SpaRSA(2000, tolerance=1e-10)), strength=strength), pictures(1)
    with torch.no_grad(), torchvars.inspect(model) as layers:
        model(x)
    seen = layers["attn"]
    atoms = matrices(seen.operator)[0]
    expected, alive = torch.zeros(HEADS, PLACES, dtype=torch.float64), 0
    for head in range(HEADS):
        for channel in range(CHANNELS // HEADS):
            used = atoms[head, channel][:, seen.code[0, head, :, channel] != 0]
            alive += used.shape[1] > 0
            projection = used @ torch.linalg.pinv(used)  # P_S (P_S^T P_S)^-1 P_S^T
            expected[head] += projection.mean(0).abs() / (CHANNELS // HEADS)
    assert alive > CHANNELS / 4
    found = attention_maps(model, x, head="all")[0].flatten(1)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", [*BASELINES, *STARTS_AT_ANALYSIS])
def test_implicit_maps_of_what_does_not_compete_are_the_kernel(name):
    model, x = build(name), pictures()
    linear = name in BASELINES
    for query in ("mean", (1, 2)):
        implicit = attention_maps(model, x, "implicit", query=query, step=None if linear else 0, head="all")
        torch.testing.assert_close(attention_maps(model, x, "kernel", query=query, head="all"), implicit)
        if not linear:
            assert (attention_maps(model, x, query=query, head="all") - implicit).abs().max() > 1e-3


@pytest.mark.parametrize("name", VARS)
def test_the_kernel_of_a_dictionary_is_that_of_its_matrix(name):
    model, x = build(name), pictures()
    with torch.no_grad():
        tokens = x.permute(0, 2, 3, 1).flatten(1, 2)
        atoms = matrices(model.attn.dictionary(tokens, GRID))
        reader = atoms if model.attn.reader is None else matrices(model.attn.reader(tokens, GRID))
        kernel = (reader @ atoms.mT).movedim(2, -1).expand(2, HEADS, PLACES, PLACES, -1)  # batch, heads, q, j, channels
        if isinstance(model.attn, ReleasedStaticReconstruction):
            second = second_filter(model.attn)  # channels, q, j
            kernel = torch.einsum("hcpq,bhqjc->bhpjc", second.unflatten(0, (HEADS, -1)), kernel)
    expected = kernel.mean(2).abs().mean(-1).unflatten(-1, GRID)
    torch.testing.assert_close(attention_maps(model, x, "kernel", head="all"), expected)
    expected = kernel[:, :, 5].abs().mean(-1).unflatten(-1, GRID)
    torch.testing.assert_close(attention_maps(model, x, "kernel", query=(1, 1), head="all"), expected)


def matrices(operator):
    """An operator as a matrix of each channel, by its atoms: (batch or 1, heads, channels, N, M)."""
    count = operator.size
    codes = torch.eye(count, dtype=torch.float64)[:, None, None, :, None]
    atoms = operator.synthesize(codes.expand(-1, 1, HEADS, -1, CHANNELS // HEADS))
    return atoms.permute(1, 2, 4, 3, 0)


def second_filter(layer):
    """The second filter of the released S as a matrix of each channel: (CHANNELS, N, N)."""
    from torchvars.attention.baselines import filtered

    places = torch.eye(PLACES, dtype=torch.float64).unsqueeze(-1).expand(-1, -1, CHANNELS)
    return filtered(places, layer.second_spectrum(GRID), GRID).permute(2, 1, 0)


def test_energy_is_the_norm_of_what_is_passed_on(name):
    model, x = build(name), pictures()
    with torch.no_grad():
        found = mixed(model.attn, x.permute(0, 2, 3, 1).flatten(1, 2), torch.zeros(1, PLACES, CHANNELS).double())
    heads = 1 if isinstance(model.attn, GlobalFilter) else HEADS
    each = found.unflatten(-1, (heads, -1)).norm(dim=-1).movedim(-1, 1).unflatten(-1, GRID)
    torch.testing.assert_close(attention_maps(model, x, "energy", head="all"), each)
    whole = found.norm(dim=-1).unflatten(-1, GRID) / heads**0.5
    torch.testing.assert_close(attention_maps(model, x, "energy"), whole)


def test_the_gradient_map_is_what_a_logit_gains_when_values_grow(name):
    model, x = build(name), pictures()
    tokens, grown = x.permute(0, 2, 3, 1).flatten(1, 2), []
    with torch.no_grad():
        values = tokens
        if not isinstance(model.attn, GlobalFilter):
            source = model.attn.qkv if isinstance(model.attn, Softmax) else model.attn.value
            values = source(tokens)[..., -CHANNELS:]
        for place in range(PLACES):
            change = torch.zeros_like(values)
            change[:, place] = 1e-6 * values[:, place]
            logits = []
            for sign in (1, -1):
                if isinstance(model.attn, GlobalFilter):
                    output = model.attn(tokens + sign * change, GRID)
                else:
                    with moved(model.attn, sign * change):
                        output = model.attn(tokens, GRID)
                logits.append(model.head(output.square().mean(1)))
            grown.append((logits[0] - logits[1]) / 2e-6)
    gains = torch.stack(grown, -1)  # batch, class, place
    heads = 1 if isinstance(model.attn, GlobalFilter) else HEADS
    for target, expected in ((1, gains[:, 1]), ([2, 0], gains[[0, 1], [2, 0]])):
        found = attention_maps(model, x, "gradient", target=target).flatten(1) * heads
        assert expected.abs().amax() > 1e-4
        torch.testing.assert_close(found, expected.relu(), rtol=1e-4, atol=1e-7)
    named = model(x).argmax(-1)
    torch.testing.assert_close(attention_maps(model, x, "gradient"), attention_maps(model, x, "gradient", target=named))


def test_maps_after_each_step_are_those_of_a_layer_that_takes_no_more(name):
    model, x = build(name), pictures()
    if not isinstance(model.attn, Reconstruction):
        with pytest.raises(ValueError, match=r"attn \(.*\) takes no recurrent steps"):
            attention_maps(model, x, step=1)
        return
    steps = model.attn.solver.steps
    found = {kind: [attention_maps(model, x, kind, step=step) for step in range(steps + 1)] for kind in KINDS_BY_STEP}
    for kind, maps in found.items():
        torch.testing.assert_close(attention_maps(model, x, kind), maps[-1])
        assert (maps[1] - maps[2]).abs().max() > 1e-6
    for count in range(1, steps):
        model.attn.solver.steps = count
        for kind, maps in found.items():
            torch.testing.assert_close(attention_maps(model, x, kind), maps[count])
    with pytest.raises(ValueError, match=rf"step must be from 0, the start, to {count}, .* got {count + 1}"):
        attention_maps(model, x, step=count + 1)


KINDS_BY_STEP = [kind for kind, how in KINDS.items() if how.stepped]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "rollout"])
def test_maps_move_with_the_tokens(name, kind):
    """Where there are no positions, in any order; where there are filters, as far as a circular shift goes."""
    model, x = build(name), pictures()
    plain = attention_maps(model, x, kind)
    shift = {"shifts": (1, 2), "dims": (-2, -1)}
    shifted = (attention_maps(model, x.roll(**shift), kind) - plain.roll(**shift)).abs().max()
    order = torch.randperm(PLACES)
    shuffled = attention_maps(model, x.flatten(2)[..., order].unflatten(-1, GRID), kind)
    permuted = (shuffled.flatten(1) - plain.flatten(1)[:, order]).abs().max()
    assert name == "vars_sd_released" or shifted < 1e-9 * plain.max()
    assert name in PLACED or permuted < 1e-9 * plain.max()


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_is_left_as_it_was(name, kind):
    model, x = build(name).float().train(), pictures().float()
    model.head.eval()
    state = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    model.eval()
    before = model(x)
    model.attn.train()
    modes = [part.training for part in model.modules()]
    seen = torchvars.maps.observe(model, x)
    no_weights = kind == "rollout" and not isinstance(model.attn, Softmax)
    with pytest.raises(ValueError, match="has none") if no_weights else nullcontext():
        attention_maps(model, x, kind)
    assert torch.equal(seen.output, before)  # to the bit, while maps were asked for
    assert [part.training for part in model.modules()] == modes
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())
    assert all(torch.equal(tensor, state[key]) for key, tensor in model.state_dict().items())
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())
    assert torch.equal(model.eval()(x), before)


def test_maps_are_made_wherever_gradients_are_off_or_precision_is_low(name):
    model, x = build(name).float(), pictures().float()
    expected = {kind: attention_maps(model, x, kind) for kind in ("implicit", "gradient")}
    with torch.inference_mode():
        inside = {kind: attention_maps(model, x.clone(), kind) for kind in expected}
    for kind, maps in expected.items():
        torch.testing.assert_close(inside[kind], maps)
        assert not maps.requires_grad
    with torch.autocast("cpu", torch.bfloat16):
        low = attention_maps(model, x)
    assert low.dtype == torch.float32
    assert (low - expected["implicit"]).norm() < 0.1 * expected["implicit"].norm()
    half = attention_maps(model.bfloat16(), x.bfloat16())
    assert (half - expected["implicit"]).norm() < 0.2 * expected["implicit"].norm()
