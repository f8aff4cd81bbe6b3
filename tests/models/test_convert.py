"""Attention put into models of other libraries and of our own, and taken out again."""

import copy
import io
import re
import warnings

import pytest
import timm
import torch
from timm.layers import Attention as TimmAttention
from timm.models.vision_transformer import VisionTransformer
from torch import nn
from torchvision.models import VisionTransformer as TorchvisionVisionTransformer
from transformers import (
    CLIPConfig,
    CLIPForImageClassification,
    CLIPTextConfig,
    CLIPTextModel,
    DeiTConfig,
    DeiTForImageClassificationWithTeacher,
    Dinov2Config,
    Dinov2ForImageClassification,
    Dinov2WithRegistersConfig,
    Dinov2WithRegistersForImageClassification,
    ViTConfig,
    ViTForImageClassification,
)

import torchvars
from torchvars.attention import Reconstruction
from torchvars.models.convert import TARGETS, Interpolated, convert, restore, set_share
from torchvars.sparse import FISTA

# Whole conversions to filters are warned of, and are what is tested here.
pytestmark = [pytest.mark.filterwarnings("ignore:with vars_s:UserWarning"), pytest.mark.usefixtures("one_thread")]

DIM, HEADS, DEPTH, PATCHES = 24, 3, 3, 16
NAMES = [f"blocks.{index}.attn" for index in range(DEPTH)]


def timm_vit(**options):
    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": DIM, "depth": DEPTH, "num_heads": HEADS, "num_classes": 5}
    return VisionTransformer(**{**sizes, **options})


def of_transformers(model, config, implementation="sdpa", **options):
    config = config(
        image_size=32,
        patch_size=8,
        hidden_size=DIM,
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        intermediate_size=32,
        num_labels=5,
        attn_implementation=implementation,
        **options,
    )
    return model(config)


def clip():
    sizes = {"hidden_size": DIM, "num_hidden_layers": 2, "num_attention_heads": HEADS, "intermediate_size": 32}
    vision = {**sizes, "image_size": 32, "patch_size": 8}
    return CLIPForImageClassification(CLIPConfig(vision_config=vision, text_config=sizes, num_labels=5))


def torchvision_vit():
    return TorchvisionVisionTransformer(
        image_size=32, patch_size=8, num_layers=2, num_heads=HEADS, hidden_dim=DIM, mlp_dim=32, num_classes=5
    )


def ours(backbone, **options):
    return torchvars.create(f"{backbone}_micro_softmax", img_size=32, num_classes=5, **options)


MODELS = {
    "timm": lambda: timm_vit(depth=2),
    "timm without class token": lambda: timm_vit(depth=2, class_token=False, global_pool="avg"),
    "timm with registers": lambda: timm_vit(depth=2, reg_tokens=2),
    "timm without biases": lambda: timm_vit(depth=2, qkv_bias=False, proj_bias=False),
    "torchvision": torchvision_vit,
    "our deit": lambda: ours("deit", embed_dim=DIM, num_heads=HEADS, depth=2),
    "our rvt": lambda: ours("rvt", widths=(8,), heads=(HEADS,), depths=(2,)),
    "vit eager": lambda: of_transformers(ViTForImageClassification, ViTConfig, "eager"),
    "vit sdpa": lambda: of_transformers(ViTForImageClassification, ViTConfig),
    "deit": lambda: of_transformers(DeiTForImageClassificationWithTeacher, DeiTConfig),
    "clip": clip,
    "dinov2": lambda: of_transformers(Dinov2ForImageClassification, Dinov2Config),
    "dinov2 with registers": lambda: of_transformers(
        Dinov2WithRegistersForImageClassification, Dinov2WithRegistersConfig, num_register_tokens=2
    ),
}
CALLED = ("timm", "torchvision", "our rvt", "vit eager")  # one for each way in which an attention is called


def shaken(model):
    """The model in evaluation mode, with every parameter, bias and zero too, at some random value of some size."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model.eval()


@pytest.fixture(params=CALLED)
def model(request):
    return shaken(MODELS[request.param]())


@pytest.fixture
def vit():
    return shaken(timm_vit())


@pytest.fixture
def images():
    return torch.randn(2, 3, 32, 32)


def logits(model, images):
    output = model(images)
    return output if isinstance(output, torch.Tensor) else output.logits


def call(layer, tokens):
    """The output of an attention, however it is called."""
    output = layer(tokens, tokens, tokens) if hasattr(layer, "batch_first") else layer(tokens)
    return output[0] if isinstance(output, tuple) else output


def assert_same(one, other):
    torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", MODELS)
def test_every_target_runs_and_learns_in_every_model(name, images, target):
    model = shaken(MODELS[name]())
    before = logits(model, images)
    assert convert(model, target) is model
    output = logits(model, images)
    assert output.shape == before.shape
    if target == "softmax":  # the same computation, so it tells that every projection came to its place
        torch.testing.assert_close(output, before, rtol=1e-4, atol=1e-4)
    else:
        assert (output - before).abs().max() > 1e-3
    output.square().sum().backward()
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            assert torch.isfinite(parameter.grad).all(), name
    # The last layer's queries cannot reach a head that reads the class token alone past filters; values always can.
    first = next(name for name, _ in model.named_parameters() if name.endswith(("value.weight", "qkv.weight")))
    assert model.get_parameter(first).grad.abs().sum() > 0


@pytest.mark.parametrize("bias", [True, False])
def test_vars_d_solves_the_problem_of_the_pretrained_projections(bias):
    """The layer against atoms and values computed from the original's qkv, and steps of ISTA written out."""
    model = shaken(timm_vit(qkv_bias=bias, proj_bias=bias)).double()
    source = copy.deepcopy(model.blocks[1].attn)
    layer = convert(model, "vars_d", strength=0.2).blocks[1].attn
    tokens = torch.randn(1, PATCHES + 1, DIM, dtype=torch.float64)

    query, _, value = source.qkv(tokens).reshape(1, PATCHES + 1, 3, HEADS, DIM // HEADS).permute(2, 0, 3, 1, 4)
    query = query * (DIM // HEADS) ** -0.25
    features = torch.exp(query @ layer.dictionary.features.directions - query.square().sum(-1, keepdim=True) / 2)
    atoms = features / features.norm(dim=-2, keepdim=True)
    problem = layer.pose(tokens)
    torch.testing.assert_close(problem.signal, value)
    torch.testing.assert_close(problem.operator.synthesize(torch.eye(16, dtype=torch.float64).expand(3, 16, 16)), atoms)

    bound = problem.operator.lipschitz()  # any number above the largest eigenvalue will do; the layer has its own
    assert (bound >= torch.linalg.eigvalsh(atoms.mT @ atoms)[..., -1, None, None] - 1e-9).all()
    code = atoms.mT @ value
    for _ in range(3):
        code = code - (atoms.mT @ (atoms @ code - value)) / bound
        code = code.sign() * (code.abs() - 0.2 / bound).clamp_min(0)
    torch.testing.assert_close(layer(tokens), source.proj((atoms @ code).transpose(1, 2).flatten(-2)))


def test_vars_p_explains_the_keys_and_reads_at_the_queries():
    """The layer against shares computed from the original's qkv, and one step of normalised linear attention."""
    model = shaken(timm_vit()).double()
    source = copy.deepcopy(model.blocks[1].attn)
    layer = convert(model, "vars_p").blocks[1].attn
    layer.solver.steps = 1
    tokens = torch.randn(1, PATCHES + 1, DIM, dtype=torch.float64)

    query, key, value = source.qkv(tokens).reshape(1, PATCHES + 1, 3, HEADS, DIM // HEADS).permute(2, 0, 3, 1, 4)
    of_keys, of_queries = (
        (part @ prototypes).softmax(-1)
        for part, prototypes in ((key, layer.dictionary.prototypes), (query, layer.reader.prototypes))
    )
    code = of_keys.mT @ value / of_keys.sum(-2).unsqueeze(-1)
    torch.testing.assert_close(layer(tokens), source.proj((of_queries @ code).transpose(1, 2).flatten(-2)))


@pytest.mark.parametrize("bias", [True, False])
def test_transformers_projections_are_carried(bias):
    config = ViTConfig(hidden_size=DIM, num_attention_heads=HEADS, num_hidden_layers=1, image_size=32, qkv_bias=bias)
    model = shaken(ViTForImageClassification(config))
    (source,) = [module for module in model.modules() if type(module).__name__ == "ViTAttention"]
    convert(model, "vars_sd")
    (layer,) = [module for module in model.modules() if isinstance(module, Reconstruction)]
    tokens = torch.randn(2, 5, DIM)
    assert_same(layer.value(tokens), source.v_proj(tokens))
    assert_same(layer.dictionary.dynamic.query(tokens), source.q_proj(tokens))
    assert_same(layer.proj(tokens), source.o_proj(tokens))


@pytest.mark.parametrize(("target", "interpolate"), [("vars_d", True), ("vars_sd", False)])
def test_restoring_is_exact_whatever_became_of_the_new_layers(model, images, target, interpolate):
    before, state = logits(model, images), copy.deepcopy(model.state_dict())
    convert(model, target, interpolate=interpolate)
    for module in [module for module in model.modules() if hasattr(module, "replaced")]:
        shaken(module)
    assert (logits(model, images) - before).abs().max() > 1e-3
    assert restore(model) is model
    assert list(model.state_dict()) == list(state)
    assert_same(dict(model.state_dict()), dict(state))
    assert_same(logits(model, images), before)
    convert(model, target)  # and again


def test_the_original_is_neither_trained_nor_saved_twice(vit):
    original = vit.blocks[0].attn
    convert(vit, "vars_d")
    held = {id(parameter) for parameter in vit.parameters()}
    assert not held & {id(parameter) for parameter in original.parameters()}
    assert not any("qkv" in key for key in vit.state_dict())
    storage = original.qkv.weight.untyped_storage().data_ptr()
    assert all(parameter.untyped_storage().data_ptr() != storage for parameter in vit.parameters())


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        (None, [0, 1, 2]),
        ([0, 2], [0, 2]),
        ([-1], [2]),
        (["blocks.1.attn"], [1]),
        ("blocks.1.attn", [1]),
        ([0, "blocks.2.attn", -3, 2], [0, 2]),
    ],
)
def test_layers_are_chosen_by_index_or_name(vit, layers, expected):
    convert(vit, "vars_d", layers=layers)
    assert [i for i, block in enumerate(vit.blocks) if isinstance(block.attn, Reconstruction)] == expected
    untouched = [i for i, block in enumerate(vit.blocks) if type(block.attn) is TimmAttention]
    assert sorted(untouched + expected) == [0, 1, 2]


def test_options_reach_every_layer_as_its_own(vit):
    convert(vit, "vars_d", strength=0.7, solver=FISTA(5), atoms=3)
    for block in vit.blocks:
        assert block.attn.strength == 0.7
        assert block.attn.dictionary.features.directions.shape[-1] == 3 * DIM // HEADS
        assert block.attn.solver.steps == 5
    vit.blocks[0].attn.solver.steps = 9
    assert vit.blocks[1].attn.solver.steps == 5


def test_device_dtype_and_mode_are_those_of_the_source():
    for training in (True, False):
        model = timm_vit().bfloat16().train(training)
        convert(model, "vars_sd", interpolate=True)
        assert {tensor.dtype for tensor in model.state_dict().values()} == {torch.bfloat16}
        assert all(module.training is training for module in model.modules())


def test_the_restored_original_follows_where_the_model_went(vit, images):
    expected = copy.deepcopy(vit).double()(images.double())
    convert(vit, "vars_d").double().train()
    restore(vit)
    assert all(module.training for module in vit.modules())
    assert_same(vit.eval()(images.double()), expected)


def test_interpolation_starts_exactly_at_the_original(model, images):
    before = logits(model, images)
    convert(model, "vars_d", interpolate=True)
    output = logits(model, images)
    assert_same(output, before)
    output.square().sum().backward()
    layers = [module for module in model.modules() if isinstance(module, Interpolated)]
    assert len(layers) > 1
    assert all(layer.share.grad.abs() > 0 for layer in layers)
    assert all(parameter.grad.abs().sum() == 0 for layer in layers for parameter in layer.mixer.parameters())
    model.zero_grad()
    set_share(model, 0.25)
    logits(model, images).square().sum().backward()
    for layer in layers[:-1]:  # in the last one, a query bias may be without effect on the class token's output
        for name, parameter in layer.named_parameters():
            assert parameter.grad.isfinite().all(), name
            assert parameter.grad.abs().sum() > 0, name


@pytest.mark.parametrize("target", ["vars_sd", "softmax"])
def test_interpolation_ends_exactly_at_the_plain_conversion(model, images, target):
    plain = convert(copy.deepcopy(model), target)
    convert(model, target, interpolate=True)
    # Random features and filters are drawn anew: take those of the plain one.
    one = [module for module in plain.modules() if hasattr(module, "replaced")]
    other = [module.mixer for module in model.modules() if isinstance(module, Interpolated)]
    for source, mixer in zip(one, other, strict=True):
        mixer.load_state_dict(source.state_dict())
    set_share(model, 1)
    assert_same(logits(model, images), logits(plain, images))


def test_share_is_a_straight_line_and_counts_inside_its_interval(vit):
    layer = convert(vit, "vars_d", interpolate=True).blocks[0].attn
    tokens = torch.randn(2, PATCHES + 1, DIM)

    def output(share):
        with torch.no_grad():
            layer.share.fill_(share)
        return layer(tokens)

    torch.testing.assert_close(output(0.25), 0.75 * output(0.0) + 0.25 * output(1.0))
    assert_same(output(-0.5), output(0.0))
    assert_same(output(1.5), output(1.0))
    (gradient,) = torch.autograd.grad(output(-0.5)[0, 0, 0], layer.share)
    torch.testing.assert_close(gradient, (output(1.0) - output(0.0))[0, 0, 0])


def test_interpolation_follows_the_attention_implementation_of_its_model(images):
    model = shaken(MODELS["vit sdpa"]())
    convert(model, "vars_d", interpolate=True)
    model.set_attn_implementation("eager")
    originals = [module.original for module in model.modules() if isinstance(module, Interpolated)]
    assert {original.config._attn_implementation for original in originals} == {"eager"}


@pytest.mark.parametrize("target", ["vars_d", "performer", "hedgehog"])
def test_the_class_token_hears_from_the_patches(model, target):
    """Of a layer that sees a set of tokens, every output depends on every input."""
    convert(model, target)
    layer = next(module for module in model.modules() if hasattr(module, "replaced"))
    tokens = torch.randn(1, PATCHES + 2, DIM)
    other = tokens.clone()
    other[:, -1] = torch.randn(DIM)
    one, other = call(layer, tokens), call(layer, other)
    assert (one - other).abs().amax(-1).min() > 1e-6


@pytest.mark.parametrize("target", ["vars_s", "vars_sd"])
@pytest.mark.parametrize(
    ("name", "prefix"),
    [("timm", 1), ("timm with registers", 3), ("torchvision", 1), ("deit", 2), ("dinov2 with registers", 3)],
)
def test_filters_leave_the_prefix_tokens_to_themselves(name, prefix, target):
    model = shaken(MODELS[name]())
    convert(model, target)
    layer = next(module for module in model.modules() if hasattr(module, "replaced"))
    (original,) = layer.replaced
    tokens = torch.randn(2, prefix + PATCHES, DIM)
    output = call(layer, tokens)
    if isinstance(original, TimmAttention):
        expected = original.proj(original.qkv(tokens)[..., 2 * DIM :])
    elif isinstance(original, nn.MultiheadAttention):
        weight, bias = original.in_proj_weight[2 * DIM :], original.in_proj_bias[2 * DIM :]
        expected = original.out_proj(tokens @ weight.T + bias)
    else:
        expected = original.o_proj(original.v_proj(tokens))
    torch.testing.assert_close(output[:, :prefix], expected[:, :prefix])
    assert_same(output[:, prefix:], layer.mixer(tokens[:, prefix:], (4, 4)))
    assert (output - expected)[:, prefix:].abs().max() > 1e-2


def test_filters_in_every_layer_hide_the_picture_from_a_class_token(vit, images):
    """What the rule for prefix tokens costs: one layer that mixes them has to be left."""
    convert(vit, "vars_s")
    assert_same(vit(images)[0], vit(images)[1])
    convert(restore(vit), "vars_s", layers=[0, 1])
    assert (vit(images)[0] - vit(images)[1]).abs().max() > 1e-3


def test_filters_take_the_grid_of_the_model():
    model = timm_vit(img_size=(16, 64))
    convert(model, "vars_s")
    assert model.blocks[0].attn.mixer.dictionary.grid == (2, 8)
    config = ViTConfig(
        hidden_size=DIM, num_attention_heads=HEADS, num_hidden_layers=1, image_size=(16, 64), patch_size=8
    )
    convert(model := ViTForImageClassification(config), "vars_s")
    (layer,) = [module for module in model.modules() if isinstance(module, Reconstruction)]
    assert layer.dictionary.grid == (2, 8)
    model = nn.Sequential(timm_vit())  # also where the model is a part of another
    convert(model, "vars_s", grid=(8, 2))
    assert model[0].blocks[0].attn.prefix == 1
    assert model[0].blocks[0].attn.mixer.dictionary.grid == (8, 2)


@pytest.mark.filterwarnings("ignore:this model takes pictures of any shape:UserWarning")
def test_filters_work_on_pictures_of_another_size():
    model = shaken(timm_vit(dynamic_img_size=True))
    convert(model, "vars_sd")
    assert torch.isfinite(model(torch.randn(1, 3, 48, 48))).all()


def test_inspection_finds_converted_layers_by_the_names_they_had(vit, images):
    convert(vit, "vars_d")
    with torchvars.inspect(vit) as layers:
        vit(images)
    assert list(layers) == NAMES
    assert layers[NAMES[1]].reconstruction.shape == (2, HEADS, PATCHES + 1, DIM // HEADS)
    convert(restore(vit), "vars_s", layers=[1])
    with torchvars.inspect(vit) as layers:
        vit(images)
    assert list(layers) == ["blocks.1.attn.mixer"]
    assert layers["blocks.1.attn.mixer"].reconstruction.shape == (2, HEADS, PATCHES, DIM // HEADS)


@pytest.mark.parametrize("interpolate", [False, True])
def test_copies_and_saved_states_are_the_same_model(model, images, interpolate):
    fresh = copy.deepcopy(model)
    before = logits(model, images)
    convert(model, "vars_sd", interpolate=interpolate)
    if interpolate:
        set_share(model, 0.5)
    expected = logits(model, images)
    twin = copy.deepcopy(model)
    assert_same(logits(twin, images), expected)
    assert_same(logits(restore(twin), images), before)
    assert_same(logits(model, images), expected)

    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    convert(fresh, "vars_sd", interpolate=interpolate)
    fresh.load_state_dict(torch.load(file))
    assert_same(logits(fresh, images), expected)


@pytest.mark.parametrize(
    ("name", "target", "interpolate"),
    [
        ("torchvision", "softmax", True),
        ("vit sdpa", "softmax", False),
        pytest.param("timm", "vars_d", False, marks=pytest.mark.slow),
        pytest.param("timm", "vars_s", True, marks=pytest.mark.slow),
    ],
)
def test_a_converted_layer_compiles_to_one_graph(name, target, interpolate):
    torch.compiler.reset()
    model = convert(shaken(MODELS[name]()), target, layers=[0], interpolate=interpolate)
    layer = next(module for module in model.modules() if hasattr(module, "replaced"))
    tokens = torch.randn(2, PATCHES + 1, DIM)
    compiled = torch.compile(call, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(layer, tokens), call(layer, tokens), rtol=1e-4, atol=1e-4)


class Other(TimmAttention):
    def forward(self, x):
        return x


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            lambda: CLIPTextModel(CLIPTextConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=1)),
            r"made of transformers\.\S*\.CLIPAttention: supported",
        ),
        (
            lambda: nn.Sequential(nn.Linear(8, 8), nn.ReLU()),
            r"this Sequential, made of torch\.\S*\.Linear, torch\.\S*\.ReLU: supported are",
        ),
        (
            lambda: nn.Sequential(Other(8, 2)),
            r"made of \S*\.Other: supported are .* timm's Attention, .* of transformers 5",
        ),
    ],
)
def test_models_without_known_attention_are_refused(model, message):
    with pytest.raises(ValueError, match=message):
        convert(model())


@pytest.mark.parametrize("target", ["global_filter", "vars_d_released", "vars_e"])
def test_targets_without_such_projections_are_refused(vit, target):
    fit = "vars_p, vars_d, vars_s, vars_sd, performer, hedgehog, softmax"
    with pytest.raises(ValueError, match=f"cannot convert to '{target}': .* fit {fit}"):
        convert(vit, target)


@pytest.mark.parametrize("layers", [[], ()])
def test_no_layers_are_refused(vit, layers):
    with pytest.raises(ValueError, match=rf"layers={re.escape(str(layers))} chooses none of the 3 self-attentions"):
        convert(vit, layers=layers)


@pytest.mark.parametrize("layers", [[3], [-4], ["blocks.7.attn"], [0, "head"]])
def test_unknown_layers_are_refused(vit, layers):
    with pytest.raises(ValueError, match=r"there are 3, in order blocks\.0\.attn, blocks\.1\.attn, blocks\.2\.attn"):
        convert(vit, layers=layers)
    assert type(vit.blocks[0].attn) is TimmAttention


def test_converting_twice_and_restoring_nothing_are_refused(vit):
    with pytest.raises(ValueError, match="nothing to restore: no attention of this VisionTransformer was converted"):
        restore(vit)
    convert(vit, layers=[0])
    with pytest.raises(ValueError, match=r"converted already: call restore\(model\) first"):
        convert(vit, layers=[1])


def test_attention_that_is_more_than_projections_is_refused(vit):
    vit.blocks[1].attn = TimmAttention(DIM, HEADS, qk_norm=True, norm_layer=nn.LayerNorm)
    with pytest.raises(ValueError, match=r"blocks\.1\.attn has q_norm, k_norm: QK-normalised.* not supported yet"):
        convert(vit)
    assert type(vit.blocks[0].attn) is TimmAttention  # nothing is half done
    convert(vit, layers=[0, 2])
    restore(vit)
    vit.blocks[1].attn = TimmAttention(DIM, HEADS, attn_head_dim=4)
    with pytest.raises(ValueError, match=r"blocks\.1\.attn goes from 24 to 12 and to 24 channels: only attention that"):
        convert(vit)


def test_shares_outside_the_interval_are_refused(vit):
    with pytest.raises(ValueError, match="no layer of this model interpolates"):
        set_share(vit, 0.5)
    convert(vit, interpolate=True)
    for share in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match=rf"share must be from 0 .* to 1 .*, got {share}"):
            set_share(vit, share)


@pytest.mark.parametrize(("target", "interpolate"), [("vars_d", True), ("vars_s", False)])
def test_masks_are_refused(vit, target, interpolate):
    convert(vit, target, interpolate=interpolate)
    tokens = torch.randn(1, PATCHES + 1, DIM)
    with pytest.raises(ValueError, match="attn_mask must be None"):
        vit.blocks[0](tokens, attn_mask=torch.zeros(PATCHES + 1, PATCHES + 1))
    model = convert(MODELS["vit eager"](), target, interpolate=interpolate)
    mask = torch.ones(1, PATCHES + 1)
    mask[0, -1] = 0
    with pytest.raises(ValueError, match="attn_mask must be None"):
        model(torch.randn(1, 3, 32, 32), attention_mask=mask)


def test_filters_in_every_layer_of_a_model_that_reads_its_class_token_are_warned_of():
    with pytest.warns(UserWarning, match="nothing flows from the patches to class or register tokens"):
        convert(timm_vit(), "vars_s")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        convert(timm_vit(), "vars_s", layers=[0])
        convert(timm_vit(), "vars_d")


def test_filters_need_to_know_which_tokens_are_patches():
    model = timm.create_model("pit_ti_224")
    with pytest.raises(ValueError, match="vars_s has to know which tokens lie on the grid"):
        convert(model, "vars_s", layers=[0])
    convert(model, "vars_d", layers=[0])


@pytest.mark.parametrize(
    ("model", "attention", "told"),
    [
        (lambda: timm_vit(dynamic_img_size=True), "vars_s", 1),
        (timm_vit, "vars_s", 0),
        (lambda: timm_vit(dynamic_img_size=True), "vars_d", 0),
        (MODELS["our deit"], "vars_s", 0),  # its tokens say their grid
    ],
)
def test_pictures_of_any_shape_and_filters_do_not_go_together(model, attention, told):
    model = model()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torchvars.convert(model, attention, layers=[0])
    assert sum("pictures of any shape" in str(each.message) for each in caught) == told


@pytest.mark.parametrize("target", ["vars_sd", "softmax"])
def test_what_was_frozen_stays_frozen_and_what_is_new_is_trained(model, target):
    model.requires_grad_(False)
    with torch.no_grad():
        convert(model, target, interpolate=True)
    new = ("filters", "share")
    for name, parameter in model.named_parameters():
        assert parameter.requires_grad is name.endswith(new), name


def test_queries_values_and_biases_are_frozen_each_by_itself(images):
    model = MODELS["vit sdpa"]()
    attention = next(module for module in model.modules() if type(module).__name__ == "ViTAttention")
    attention.q_proj.weight.requires_grad_(False)
    attention.o_proj.bias.requires_grad_(False)
    convert(model, "vars_d", layers=[0])
    layer = next(module for module in model.modules() if isinstance(module, Reconstruction))
    frozen = {name for name, parameter in layer.named_parameters() if not parameter.requires_grad}
    assert frozen == {"dictionary.query.weight", "proj.bias"}
    convert(restore(model), "softmax", layers=[0])  # one matrix for all: trained if any was
    assert model.get_parameter("vit.layers.0.attention.mixer.qkv.weight").requires_grad


def encoder(batch_first):
    layer = nn.TransformerEncoderLayer(DIM, 2, 32, batch_first=batch_first)
    return shaken(nn.TransformerEncoder(layer, 2, enable_nested_tensor=batch_first))


@pytest.mark.parametrize("grad", [True, False])  # without it, torch takes a faster way if it can
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("interpolate", [True, False])
def test_the_encoder_of_torch_is_converted(batch_first, interpolate, grad):
    model, tokens = encoder(batch_first), torch.randn(2, 5, DIM)
    with torch.set_grad_enabled(grad):
        expected = model(tokens)
        convert(model, "softmax", interpolate=interpolate)
        torch.testing.assert_close(model(tokens), expected, rtol=1e-4, atol=1e-4)
        convert(restore(model), "vars_d", layers=[1], interpolate=interpolate)
        if interpolate:
            set_share(model, 1)
        assert (model(tokens) - expected).abs().max() > 1e-3
        layers = [layer for layer in model.modules() if isinstance(layer, Reconstruction)]
        with torchvars.inspect(model) as seen:
            model(tokens)
    assert len(layers) == 1
    batch, count = (2, 5) if batch_first else (5, 2)
    assert next(iter(seen.values())).signal.shape[::2] == (batch, count)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("frozen", [True, False])
@pytest.mark.parametrize("interpolate", [True, False])
def test_padding_and_masks_are_refused_in_the_encoder_of_torch(interpolate, frozen):
    model, tokens = encoder(True).requires_grad_(not frozen), torch.randn(2, 5, DIM)
    convert(model, interpolate=interpolate)
    padding = torch.zeros(2, 5, dtype=torch.bool)
    padding[0, -1] = True
    for grad in (True, False):
        with torch.set_grad_enabled(grad), pytest.raises(ValueError, match="key_padding_mask must be None"):
            model(tokens, src_key_padding_mask=padding)
    with pytest.raises(ValueError, match="attn_mask must be None"):
        model(tokens, mask=torch.full((5, 5), -torch.inf).triu(1))


def test_attention_between_two_sequences_is_refused():
    model = nn.Sequential(nn.MultiheadAttention(DIM, HEADS, batch_first=True))
    convert(model)
    tokens = torch.randn(1, 5, DIM)
    with pytest.raises(ValueError, match="self-attention only: query, key and value have to be one tensor"):
        model[0](tokens, tokens + 1, tokens + 1)
    model = nn.Sequential(nn.MultiheadAttention(DIM, HEADS, kdim=8))
    with pytest.raises(ValueError, match="0 has kdim or vdim: attention to anything but its own tokens"):
        convert(model)
    model = nn.Sequential(nn.MultiheadAttention(DIM, HEADS, add_bias_kv=True, add_zero_attn=True))
    with pytest.raises(ValueError, match="0 has add_bias_kv, add_zero_attn"):
        convert(model)


def test_one_sequence_without_a_batch_is_taken():
    model = shaken(nn.Sequential(nn.MultiheadAttention(DIM, HEADS)))
    tokens = torch.randn(5, DIM)
    expected, _ = model[0](tokens, tokens, tokens)
    convert(model, "softmax")
    torch.testing.assert_close(model[0](tokens, tokens, tokens)[0], expected)


def test_the_text_tower_of_clip_is_left_alone():
    model = clip()
    convert(model, "vars_d")
    assert all("vision" in name for name, module in model.named_modules() if isinstance(module, Reconstruction))


@pytest.mark.parametrize(("block", "grid"), [(0, (4, 6)), (1, (2, 3))])
def test_filters_in_a_model_of_ours_take_the_grid_of_their_stage(block, grid):
    model = torchvars.create("rvt_micro_softmax", img_size=(32, 48), widths=(8, 8), heads=(1, 2), depths=(1, 1))
    convert(model, "vars_s")
    assert model.blocks[block].attn.dictionary.grid == grid
    assert torch.isfinite(model(torch.randn(2, 3, 32, 48))).all()
