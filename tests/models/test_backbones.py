"""Every backbone with every attention, held to what timm's users do with a model."""

import copy
import math

import pytest
import timm
import torch
import torch.nn.functional as F
from timm.layers import DropPath
from timm.optim import param_groups_layer_decay, param_groups_weight_decay
from torchvision.models.feature_extraction import create_feature_extractor

import torchvars
from torchvars.attention import ATTENTIONS
from torchvars.models import BACKBONES, MODELS

# One small model of each class, with two stages where it has stages.
SMALL = {
    "rvt_micro": {"widths": (8, 8), "heads": (2, 4), "depths": (2, 1)},
    "deit_micro": {"embed_dim": 16, "num_heads": 2, "depth": 3},
    "gfnet_micro": {"dim": 16, "heads": 2, "depth": 3},
}
PRODUCT = [(backbone, attention) for backbone in SMALL for attention in ATTENTIONS]


def build(backbone, kind="vars_d", **options):
    settings = {"img_size": 32, "patch_size": 8, "num_classes": 5, **SMALL[backbone], **options}
    return timm.create_model(f"{backbone}_{kind}", **settings)


@pytest.fixture(params=PRODUCT, ids=lambda pair: "-".join(pair))
def model(request):
    return build(*request.param).eval()


def test_forward_is_features_then_head(model):
    x = torch.randn(2, 3, 32, 32)
    logits = model(x)
    assert logits.shape == (2, 5)
    features = model.forward_features(x)
    torch.testing.assert_close(model.forward_head(features), logits, rtol=0, atol=0)
    before = model.forward_head(features, pre_logits=True)
    assert before.shape == (2, model.num_features)
    torch.testing.assert_close(model.get_classifier()(before), logits, rtol=0, atol=0)


def test_each_picture_on_its_own_at_any_resolution(model):
    for size in ((32, 32), (64, 48), (16, 80)):
        x = torch.randn(2, 3, *size)
        together, alone = model(x), torch.cat([model(x[:1]), model(x[1:])])
        torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)


def test_every_parameter_gets_a_gradient(model):
    if model.origin["name"].endswith("vars_s_released"):
        for block in model.blocks:  # its 3.5 leaves no code alive at initialisation
            block.attn.strength = 0.05
    model.train()(4 * torch.randn(4, 3, 32, 32)).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name
        assert parameter.grad.abs().sum() > 0, name


def test_a_model_that_took_a_step_is_saved_and_loaded(model, tmp_path):
    """Saving builds the model a second time, on the meta device, where tensors have no values."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.train()(torch.randn(4, 3, 32, 32)).square().sum().backward()
    optimizer.step()
    classifier = torchvars.Classifier(model).eval()
    classifier.save_pretrained(tmp_path)
    pixels = torch.rand(2, 3, 32, 32)
    again = torchvars.Classifier.from_pretrained(tmp_path)
    torch.testing.assert_close(again(pixels), classifier(pixels), rtol=0, atol=0)


def test_channels_last_changes_the_layout_and_nothing_else(model):
    x = torch.randn(2, 3, 32, 32)
    expected, state = model(x), copy.deepcopy(model.state_dict())
    moved = model.to(memory_format=torch.channels_last, dtype=torch.float64).float()
    assert moved.patch_embed.proj[0].weight.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(moved.state_dict(), state, rtol=0, atol=0)
    torch.testing.assert_close(moved(x.to(memory_format=torch.channels_last)), expected, rtol=1e-4, atol=1e-5)
    assert all(parameter.is_leaf and parameter.requires_grad for parameter in moved.parameters())


def test_symbolic_tracing(model):
    x = torch.randn(2, 3, 32, 48)
    torch.testing.assert_close(torch.fx.symbolic_trace(model)(x), model(x), rtol=0, atol=0)
    between = create_feature_extractor(model, ["blocks.1", "blocks.2.attn"])(x)
    assert list(between) == ["blocks.1", "blocks.2.attn"]
    (expected,) = model.forward_intermediates(x, indices=[1], intermediates_only=True)
    torch.testing.assert_close(between["blocks.1"].permute(0, 3, 1, 2), expected, rtol=0, atol=0)


@pytest.mark.parametrize("backbone", SMALL)
def test_a_symbolic_trace_trains_and_checks_as_the_model_does(backbone):
    model = build(backbone, drop_path_rate=0.2).train()
    traced = torch.fx.symbolic_trace(model)
    with pytest.raises(ValueError, match="pictures of 32 x 30 pixels do not divide into patches of 8"):
        traced(torch.randn(1, 3, 32, 30))
    x, gradients = torch.randn(4, 3, 32, 32), []
    for each in (model, traced):
        torch.manual_seed(1)
        gradients.append(torch.autograd.grad(each(x).square().sum(), list(model.parameters())))
    torch.testing.assert_close(*gradients, rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("backbone", SMALL)
def test_traces_of_models(backbone):
    model = build(backbone, "softmax").eval()
    traced = torch.jit.trace(model, torch.randn(2, 3, 32, 32), check_trace=False)
    x = torch.randn(3, 3, 32, 32)
    with torch.no_grad(), torch.jit.optimized_execution(False):
        torch.testing.assert_close(traced(x), model(x), rtol=1e-4, atol=1e-5)


def test_reset_classifier(model):
    x = torch.randn(2, 3, 32, 32)
    model.reset_classifier(7)
    assert model.num_classes == 7
    assert model(x).shape == (2, 7)
    assert not any(module.training for module in model.modules())
    model.bfloat16().reset_classifier(3)
    assert model(x.bfloat16()).dtype == torch.bfloat16
    model.float().reset_classifier(0)
    assert model(x).shape == (2, model.num_features)
    model.reset_classifier(0, "")
    torch.testing.assert_close(model(x).flatten(1, -2), model.fc_norm(model.forward_features(x)).flatten(1, -2))


def test_intermediates_agree_with_features(model):
    x = torch.randn(2, 3, 32, 32)
    last, found = model.forward_intermediates(x)
    assert len(found) == 3
    torch.testing.assert_close(last, model.forward_features(x), rtol=0, atol=0)
    torch.testing.assert_close(model.norm(found[-1].permute(0, 2, 3, 1)).flatten(1, 2), last.flatten(1, -2))
    only = model.forward_intermediates(x, indices=[0, -1], stop_early=True, intermediates_only=True)
    torch.testing.assert_close(only[0], found[0], rtol=0, atol=0)
    torch.testing.assert_close(only[1], found[2], rtol=0, atol=0)
    for info, features in zip(model.feature_info, found, strict=True):
        assert features.shape[1] == info["num_chs"]
        assert features.shape[2] == 32 // info["reduction"]


@pytest.mark.parametrize("backbone", SMALL)
def test_features_only(backbone):
    x = torch.randn(2, 3, 32, 48)
    whole = build(backbone).eval()
    features = build(backbone, features_only=True, out_indices=(0, 2)).eval()
    features.model.load_state_dict({k: v for k, v in whole.state_dict().items() if k in features.model.state_dict()})
    found = features(x)
    expected = whole.forward_intermediates(x, indices=[0, 2], intermediates_only=True)
    assert features.feature_info.channels() == [part.shape[1] for part in expected]
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("backbone", SMALL)
def test_one_channel_pictures(backbone):
    assert build(backbone, in_chans=1).eval()(torch.randn(1, 1, 32, 32)).shape == (1, 5)


@pytest.mark.parametrize("backbone", SMALL)
def test_checkpointing_changes_nothing(backbone):
    model = build(backbone).train()
    other = copy.deepcopy(model)
    other.set_grad_checkpointing()
    x = torch.randn(3, 3, 32, 32)
    for each in (model, other):
        each(x).square().sum().backward()
    for one, same in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one.grad, same.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("backbone", SMALL)
def test_parameter_groups(backbone):
    model = build(backbone, "vars_d_released")
    undecayed, decayed = param_groups_weight_decay(model, 0.05, no_weight_decay_list=model.no_weight_decay())
    assert undecayed["weight_decay"] == 0
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    kept = {names[id(parameter)] for parameter in undecayed["params"]}
    assert {f"blocks.{i}.attn.dictionary.inhibition" for i in range(3)} <= kept
    assert ("pos_embed" in kept) == hasattr(model, "pos_embed")
    assert "head.weight" in {names[id(parameter)] for parameter in decayed["params"]}
    scales = [group["lr_scale"] for group in param_groups_layer_decay(model, 0.05, layer_decay=0.5)]
    assert len(set(scales)) >= 5  # stem, three blocks, head


@pytest.mark.parametrize("backbone", SMALL)
def test_attention_for_each_layer(backbone):
    names = ["softmax", "vars_d", "vars_s"]
    model = build(backbone, attention=names)
    kinds = [type(block.attn).__name__ for block in model.blocks]
    assert kinds == ["Softmax", "Reconstruction", "Reconstruction"]
    with pytest.raises(ValueError, match="attention names 2 layers, but the model has 3"):
        build(backbone, attention=names[:2])


@pytest.mark.parametrize("backbone", SMALL)
def test_attention_options_reach_every_layer(backbone):
    model = build(backbone, attention_options={"strength": 0.7, "solver": torchvars.sparse.FISTA(4)})
    assert all(block.attn.strength == 0.7 and block.attn.solver.steps == 4 for block in model.blocks)
    assert len({id(block.attn.solver) for block in model.blocks}) == 3  # each its own


@pytest.mark.parametrize("backbone", SMALL)
def test_inspection_by_the_names_of_blocks(backbone):
    model = build(backbone).eval()
    with torchvars.inspect(model) as layers:
        model(torch.randn(1, 3, 32, 32))
    assert list(layers) == ["blocks.0.attn", "blocks.1.attn", "blocks.2.attn"]


@pytest.mark.parametrize("backbone", ["deit_micro", "gfnet_micro"])
def test_position_embeddings_of_another_grid_with_as_many_tokens(backbone):
    """A picture of 16 x 64 has as many tokens as one of 32 x 32: they are not simply taken in the same order."""
    wide, square = (build(backbone, img_size=size).eval() for size in ((16, 64), 32))
    torch.nn.init.normal_(wide.pos_embed)  # far from the small one at the beginning, whose order hardly matters
    square.load_state_dict(wide.state_dict())
    x = torch.randn(1, 3, 16, 64)
    assert not torch.allclose(wide(x), square(x), rtol=0, atol=1e-5)


def test_more_blocks_than_there_are_cannot_be_shown(model):
    if type(model).__name__ != "DeiT":  # which is timm's own in this
        with pytest.raises(ValueError, match="the last 4 blocks are requested, and the model has 3"):
            model.forward_intermediates(torch.randn(1, 3, 32, 32), indices=4)


@pytest.mark.parametrize("backbone", SMALL)
def test_bad_sizes_are_refused(backbone):
    with pytest.raises(ValueError, match="img_size 30 x 30 is not a multiple of"):
        build(backbone, img_size=30)
    with pytest.raises(ValueError, match="patch_size must be a multiple of 4, got 6"):
        build(backbone, img_size=24, patch_size=6)
    with pytest.raises(ValueError, match="pictures of 32 x 30 pixels do not divide into patches of 8"):
        build(backbone)(torch.randn(1, 3, 32, 30))


@pytest.mark.parametrize("backbone", SMALL)
def test_drop_path_and_dropout_act_in_training_only(backbone):
    for option in ("drop_path_rate", "drop_rate", "proj_drop_rate"):
        model = build(backbone, **{option: 0.5})
        x = torch.randn(16, 3, 32, 32)
        model.train()
        assert not torch.equal(model(x), model(x)), option
        model.eval()
        torch.testing.assert_close(model(x), model(x), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("backbone", "rates"),
    [("rvt_micro", [0, 0.1, 0.2]), ("deit_micro", [0, 0.15, 0.3]), ("gfnet_micro", [0, 0.15, 0.3])],
)
def test_branches_are_left_out_more_often_the_deeper_they_are(backbone, rates):
    """RVT's rates end a step short of what they are called after, as its authors have it."""
    model = build(backbone, drop_path_rate=0.3)
    paths = [[each.drop_prob for each in block.modules() if isinstance(each, DropPath)] for block in model.blocks]
    for found, rate in zip(paths, rates, strict=True):
        assert found == pytest.approx([rate] * len(found))


@torch.no_grad()
def test_gfnet_written_out():
    """One residual branch a block, with the filter as a product of spectra; the norm before the mean."""
    model = build("gfnet_micro", "global_filter").double().eval()
    for parameter in model.parameters():
        parameter.add_(0.1 * torch.randn_like(parameter))
    x = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    tokens = model.patch_embed(x) + model.pos_embed.unflatten(1, (4, 4))
    for block in model.blocks:
        spectrum = torch.fft.rfft2(F.layer_norm(tokens, (16,), block.norm1.weight, block.norm1.bias, 1e-6), dim=(1, 2))
        spectrum = spectrum * torch.view_as_complex(block.attn.complex_weight)
        mixed = torch.fft.irfft2(spectrum, s=(4, 4), dim=(1, 2))
        mixed = F.layer_norm(mixed, (16,), block.norm2.weight, block.norm2.bias, 1e-6)
        hidden = F.gelu(mixed @ block.mlp.fc1.weight.T + block.mlp.fc1.bias)
        tokens = tokens + hidden @ block.mlp.fc2.weight.T + block.mlp.fc2.bias
    tokens = F.layer_norm(tokens, (16,), model.norm.weight, model.norm.bias, 1e-6)
    logits = tokens.mean((1, 2)) @ model.head.weight.T + model.head.bias
    torch.testing.assert_close(model(x), logits, rtol=0, atol=1e-10)


def test_every_name_is_in_timm_and_nothing_else():
    assert len(MODELS) == len(BACKBONES) * len(ATTENTIONS)
    assert set(MODELS) <= set(timm.list_models())
    assert set(timm.list_models("rvt_tiny_vars_*")) == {name for name in MODELS if name.startswith("rvt_tiny_vars_")}
    for name in MODELS:
        cfg = timm.get_pretrained_cfg(name)
        assert cfg.mean == (0.485, 0.456, 0.406)
        assert cfg.classifier == "head"


@pytest.mark.parametrize("name", ["rvt_micro_vars_d", "deit_micro_vars_d", "gfnet_micro_vars_d", "rvt_tiny_vars_sd"])
def test_default_cfg_fits_the_model(name):
    model = torchvars.create(name, num_classes=10).eval()
    cfg = model.pretrained_cfg
    with torch.no_grad():
        features = model.forward_intermediates(torch.randn(1, *cfg["input_size"]), indices=1, intermediates_only=True)
        assert tuple(features[0].shape[2:]) == cfg["pool_size"]
        assert model(torch.randn(1, *cfg["input_size"])).shape == (1, 10)
    assert isinstance(model.get_submodule(cfg["first_conv"]), torch.nn.Conv2d)


@pytest.mark.parametrize("name", [name for name in MODELS if "_micro_" in name and "vars_" in name])
def test_small_presets_have_about_a_million_parameters(name):
    assert 0.8e6 < sum(p.numel() for p in torchvars.create(name).parameters()) < 2.5e6


def test_another_size_is_in_the_cfg():
    assert torchvars.create("rvt_micro_vars_d", img_size=(32, 64)).pretrained_cfg["input_size"] == (3, 32, 64)


@pytest.mark.parametrize("backbone", SMALL)
def test_a_device_and_a_precision_to_be_built_in(backbone):
    model = build(backbone, device="meta", dtype=torch.bfloat16)
    assert {tensor.device.type for tensor in model.state_dict().values()} == {"meta"}
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    assert not {"device", "dtype"} & model.origin["options"].keys()


def test_trained_weights_in_another_precision():
    name, x = "rvt_micro_softmax.cifar10", torch.randn(1, 3, 32, 32)
    expected = torchvars.create(name, pretrained=True)(x)
    for create in (torchvars.create, timm.create_model):
        model = create(name, pretrained=True, dtype=torch.float64, device="cpu").eval()
        torch.testing.assert_close(model(x.double()), expected.double(), rtol=1e-4, atol=1e-4)


def test_unknown_names_are_answered_with_the_known(tmp_path, monkeypatch):
    monkeypatch.setattr("torchvars.models.embedded.EMBEDDED", tmp_path)
    with pytest.raises(ValueError, match=r"no model named 'rvt_tiny_varsd': did you mean rvt_tiny_vars_"):
        torchvars.create("rvt_tiny_varsd")
    with pytest.raises(ValueError, match="rvt_tiny_vars_d has no weights here; names that have: none yet"):
        torchvars.create("rvt_tiny_vars_d", pretrained=True)


def test_classifier_normalises_by_the_models_own_figures():
    model = build("rvt_micro").eval()
    pixels = torch.rand(2, 3, 32, 32)
    mean, std = torch.tensor([0.1, 0.2, 0.3]).view(3, 1, 1), torch.tensor([0.5, 0.4, 0.3]).view(3, 1, 1)
    own = torchvars.Classifier(model, mean.flatten().tolist(), std.flatten().tolist())
    torch.testing.assert_close(own(pixels), model((pixels - mean) / std))
    default = torchvars.Classifier(model)
    assert default.mean.flatten().tolist() == pytest.approx([0.485, 0.456, 0.406])
    with pytest.raises(ValueError, match="one positive deviation for each channel"):
        torchvars.Classifier(model, (0.5, 0.5, 0.5), (0.0, 0.5, 0.5))
    with pytest.raises(ValueError, match=r"pixels must be floating and in \[0, 1\], got torch.uint8: divide by 255"):
        default((255 * pixels).to(torch.uint8))


def test_a_classifier_of_grey_pictures_has_to_be_told_their_mean():
    model = torchvars.create("rvt_micro_vars_d", img_size=32, in_chans=1).eval()
    with pytest.raises(ValueError, match="the model takes 1 channels, and there are means of 3: pass mean and std"):
        torchvars.Classifier(model)
    pixels = torch.rand(2, 1, 32, 32)
    torch.testing.assert_close(torchvars.Classifier(model, [0.5], [0.25])(pixels), model((pixels - 0.5) / 0.25))


def test_options_of_timm_act_or_are_refused():
    def build(**options):
        return torchvars.create("deit_micro_vars_d", img_size=32, **options)

    assert build().blocks[0].attn.value.bias is not None
    assert build(qkv_bias=False).blocks[0].attn.value.bias is None
    for options in ({"attn_drop_rate": 0.1}, {"qk_norm": True}, {"reg_tokens": 4}, {"patch_drop_rate": 0.5}):
        (option,) = options
        with pytest.raises(
            ValueError, match=f"{option} is an option of timm's attention or tokens, which this model does not have"
        ):
            build(**options)
    with pytest.raises(
        ValueError, match=r"widths, heads and depths need one entry for each stage, got .* and \(1, 1, 1\)"
    ):
        torchvars.create("rvt_tiny_vars_d", depths=(1, 1, 1))


def test_deit_without_position_embeddings_is_that_with_zeros():
    model = torchvars.create("deit_micro_vars_d", img_size=32).eval()
    torch.nn.init.zeros_(model.pos_embed)
    other = torchvars.create("deit_micro_vars_d", img_size=32, pos_embed="none").eval()
    other.load_state_dict({name: tensor for name, tensor in model.state_dict().items() if name != "pos_embed"})
    images = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(other(images), model(images))


def test_batch_norms_of_the_released_s_can_be_synchronised():
    model = torchvars.create("rvt_micro_vars_s_released", img_size=32)
    images = torch.randn(2, 3, 32, 32)
    expected = model.eval()(images)
    torch.testing.assert_close(torch.nn.SyncBatchNorm.convert_sync_batchnorm(model).eval()(images), expected)


@pytest.mark.slow
def test_every_model_compiles_to_one_graph(model):
    torch.compiler.reset()
    x = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(torch.compile(model, fullgraph=True)(x), model(x), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"mean": (math.nan, 0, 0), "std": (1, 1, 1)}, "one finite mean and one positive deviation"),
        ({"mean": (0, -math.inf, 0), "std": (1, 1, 1)}, "one finite mean and one positive deviation"),
        ({"mean": (0, 0, 0), "std": (1, 1, math.nan)}, "one finite mean and one positive deviation"),
        ({"mean": (0, 0, 0), "std": (1, 1, math.inf)}, "one finite mean and one positive deviation"),
        ({"classes": ["cat", "dog", "cat"]}, "a name of its own: 'cat' is there twice"),
        ({"classes": "abc"}, "classes must be a sequence of names, got 'abc'"),
        ({"classes": [1, 2, 3]}, "classes must be a sequence of names"),
    ],
)
def test_a_classifier_refuses_numbers_and_names_that_make_no_sense(given, told):
    with pytest.raises(ValueError, match=told):
        torchvars.Classifier(torch.nn.Identity(), **given)
