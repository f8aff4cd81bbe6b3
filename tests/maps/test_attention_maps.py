"""Maps of whole models, whoever wrote them, held to the attention weights that they compute themselves."""

import pytest
import timm
import torch
from timm.models.vision_transformer import Attention as TimmAttention
from timm.models.vision_transformer import VisionTransformer
from torch import nn

import torchvars
from torchvars.maps import attention_maps, mixing_of, observe
from torchvars.models import RVT
from torchvars.models.convert import TARGETS

pytestmark = pytest.mark.usefixtures("one_thread")


def vit(**options):
    sizes = {"img_size": (32, 48), "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 3, "num_classes": 5}
    return VisionTransformer(**{**sizes, **options}).eval()


def pixels(height=32, width=48, batch=2):
    return torch.rand(batch, 3, height, width)


def sharpen(model):
    """Larger projections, so that attention is not nearly uniform as it is at first."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "qkv" in name or "_proj" in name:
                parameter.mul_(8)
    return model


class Noting(nn.Dropout):
    """In place of the dropout of timm's attention weights: it notes them."""

    def forward(self, weights):
        self.weights = weights.detach()
        return weights


def weights_of(model, images):
    """The attention weights of each layer of a ViT of timm, (batch, heads, N, N), computed by timm."""
    layers = [module for module in model.modules() if isinstance(module, TimmAttention)]
    for layer in layers:
        layer.fused_attn, layer.attn_drop = False, Noting()
    model(images)
    for layer in layers:
        layer.fused_attn = True
    return [layer.attn_drop.weights for layer in layers]


@pytest.mark.parametrize("kind", ["implicit", "kernel"])
@pytest.mark.parametrize(
    "options",
    [{}, {"reg_tokens": 2}, {"class_token": False, "global_pool": "avg"}, {"qk_norm": True}],
    ids=["plain", "registers", "no class token", "qk norm"],
)
def test_maps_of_a_plain_vit_are_its_attention_weights(kind, options):
    model, images = sharpen(vit(**options)), pixels()
    prefix = model.num_prefix_tokens
    for layer, weights in enumerate(weights_of(model, images)):
        patches = weights[..., prefix:].unflatten(-1, (4, 6))
        found = attention_maps(model, images, kind, layer=layer, head="all")
        torch.testing.assert_close(found, patches[:, :, prefix:].mean(2))
        found = attention_maps(model, images, kind, layer=f"blocks.{layer}.attn", query=(17, 47), head=1)
        torch.testing.assert_close(found, patches[:, 1, prefix + 2 * 6 + 5])
        if prefix and options.get("class_token", True):
            found = attention_maps(model, images, kind, layer=layer, query="class")
            torch.testing.assert_close(found, patches[:, :, 0].mean(1))


def test_the_forward_pass_stays_fused_and_the_same():
    model, images = vit().train(), pixels()
    model.blocks[0].mlp.eval()
    modes = [part.training for part in model.modules()]
    expected = model.eval()(images)
    for part, mode in zip(model.modules(), modes, strict=True):
        part.training = mode
    assert torch.equal(observe(model, images).output, expected)
    attention_maps(model, images, "gradient", target=0)
    assert [part.training for part in model.modules()] == modes
    assert all(block.attn.fused_attn for block in model.blocks)
    assert torch.equal(model.eval()(images), expected)


def test_rollout_is_the_product_of_the_weights():
    model, images = sharpen(vit(depth=3)), pixels()
    product = torch.eye(25)
    for weights in weights_of(model, images)[:2]:
        product = (torch.eye(25) + weights.mean(1)) / 2 @ product
    expected = product[:, 0, 1:].unflatten(-1, (4, 6))
    torch.testing.assert_close(attention_maps(model, images, "rollout", layer=1, query="class"), expected)
    expected = product[:, 1:, 1:].mean(1).unflatten(-1, (4, 6))
    torch.testing.assert_close(attention_maps(model, images, "rollout", layer=1), expected)


def test_the_gradient_map_of_softmax_is_that_of_its_weights():
    """sum_q A_qj dy/dA_qj, with the derivative that timm's own attention has when it is not fused."""
    model, images = sharpen(vit()), pixels()
    layer = model.blocks[0].attn
    layer.fused_attn, layer.attn_drop = False, nn.Dropout(0)
    kept = []
    layer.attn_drop.register_forward_hook(lambda _, __, weights: (weights.retain_grad(), kept.append(weights))[0])
    model(images)[:, 3].sum().backward()
    (weights,) = kept
    expected = (weights * weights.grad).sum(2).mean(1)[:, 1:].relu().detach().unflatten(-1, (4, 6))
    layer.fused_attn = True
    assert expected.max() > 1e-5
    torch.testing.assert_close(
        attention_maps(model, images, "gradient", layer=0, target=3), expected, atol=1e-7, rtol=1e-4
    )


@pytest.mark.parametrize(("kind", "prefix"), [("ViT", 1), ("DeiT", 2), ("Dinov2", 1), ("Dinov2WithRegisters", 5)])
def test_maps_of_models_of_transformers_are_their_weights(kind, prefix):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "image_size": 32, "patch_size": 8}
    config = getattr(transformers, f"{kind}Config")(**sizes, intermediate_size=32)
    model = getattr(transformers, f"{kind}ForImageClassification")(config).eval()
    sharpen(model)
    model.set_attn_implementation("eager")
    images = pixels(32, 32)
    expected = model(images, output_attentions=True).attentions
    model.set_attn_implementation("sdpa")
    for layer, weights in enumerate(expected):
        patches = weights.detach()[..., prefix:].unflatten(-1, (4, 4))
        for query, rows in (("mean", patches[:, :, prefix:].mean(2)), ("class", patches[:, :, 0])):
            found = attention_maps(model, images, layer=layer, query=query, head="all")
            torch.testing.assert_close(found, rows, atol=1e-5, rtol=1e-4)
    assert attention_maps(model, images, "gradient").shape == (2, 4, 4)


@pytest.mark.parametrize("batch_first", [True, False])
def test_maps_of_torch_attention_are_its_weights(batch_first):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.attn = nn.MultiheadAttention(8, 2, batch_first=batch_first)

        def forward(self, images):
            tokens = images.flatten(2).mT if batch_first else images.flatten(2).permute(2, 0, 1)
            tokens = self.attn(tokens, tokens, tokens, need_weights=False)[0]
            return tokens.mean(1 if batch_first else 0)

    model, images = Model().eval(), 3 * torch.randn(2, 8, 3, 4)
    tokens = images.flatten(2).mT if batch_first else images.flatten(2).permute(2, 0, 1)
    _, weights = model.attn(tokens, tokens, tokens, average_attn_weights=False)
    found = attention_maps(model, images, head="all", query=(2, 1))
    torch.testing.assert_close(found, weights[:, :, 9].detach().unflatten(-1, (3, 4)))
    assert attention_maps(model, images, "gradient", target=1).shape == (2, 3, 4)

    class Cross(Model):
        def forward(self, images):
            tokens = images.flatten(2).mT if batch_first else images.flatten(2).permute(2, 0, 1)
            return self.attn(tokens, tokens + 1, tokens)[0]

    with pytest.raises(ValueError, match="attn attends to another sequence"):
        attention_maps(Cross().eval(), images)


@pytest.mark.parametrize("interpolate", [False, True])
@pytest.mark.parametrize("target", TARGETS)
def test_converted_models_have_maps_on_the_grid_of_their_patches(target, interpolate):
    model = torchvars.convert(vit(reg_tokens=2), target, layers=[1], interpolate=interpolate).eval()
    seen = observe(model, pixels())
    assert len(seen.names) == 2 + interpolate
    layer = model.get_submodule(seen.names[-1])
    outputs = []
    layer.register_forward_hook(lambda _, args, output: outputs.append((args[0], output)))
    model(seen.pixels)
    ((tokens, output),) = outputs
    for kind in ("implicit", "kernel", "energy", "gradient"):
        assert attention_maps(model, seen.pixels, kind).shape == (2, 4, 6)
    # What is passed on by the layer itself is what its parts, taken apart, make.
    mixing = seen.mixing(seen.names[-1])
    torch.testing.assert_close(mixing.finish(mixing.mix(mixing.values)), output, atol=1e-5, rtol=1e-4)
    assert torch.equal(seen.run(seen.names[-1]).tokens, tokens)
    if target in ("vars_s", "vars_sd"):
        with pytest.raises(ValueError, match="mixes no class token with the patches"):
            attention_maps(model, seen.pixels, query="class")
    else:
        assert attention_maps(model, seen.pixels, query="class").shape == (2, 4, 6)


def test_every_stage_has_a_grid_of_its_own():
    model = RVT(img_size=64, patch_size=8, widths=(4, 4), heads=(2, 4), depths=(1, 1)).eval()
    images = pixels(64, 64)
    assert attention_maps(model, images, layer=0).shape == (2, 8, 8)
    assert attention_maps(model, images, layer=-1).shape == (2, 4, 4)
    assert attention_maps(model, pixels(64, 96), layer=1).shape == (2, 4, 6)
    with pytest.raises(ValueError, match=r"blocks.0.attn has 64 tokens and blocks.1.attn 16"):
        attention_maps(model, images, "rollout")


def test_pictures_of_any_size_find_their_grid():
    model = vit(dynamic_img_size=True)
    for height, width in ((32, 48), (48, 32), (16, 96), (24, 24), (16, 24)):
        assert attention_maps(model, pixels(height, width)).shape == (2, height // 8, width // 8)
    narrow = vit(patch_size=(4, 16), img_size=(64, 64))
    assert attention_maps(narrow, pixels(64, 64)).shape == (2, 16, 4)


def test_maps_are_resized_bilinearly():
    model, images = vit(), pixels()
    small = attention_maps(model, images)
    assert attention_maps(model, images, size="pixels").shape == (2, 32, 48)
    large = attention_maps(model, images, size=(12, 18))
    torch.testing.assert_close(large[:, 1::3, 1::3], small)  # the middle of each patch
    between = (2 * small[:, :, :-1] + small[:, :, 1:]) / 3
    torch.testing.assert_close(large[:, 1::3, 2:-1:3], between)
    assert attention_maps(model, images, size=(5, 7), head="all").shape == (2, 3, 5, 7)


def test_tokens_that_a_model_puts_on_a_grid_are_taken_as_told():
    class Rows(nn.Module):
        def __init__(self):
            super().__init__()
            self.attn = torchvars.attention.create("vars_d", 6, heads=2)

        def forward(self, images):
            return self.attn(images.reshape(len(images), 10, 6), grid=(5, 2))

    assert attention_maps(Rows(), torch.rand(2, 3, 4, 5)).shape == (2, 5, 2)


def test_another_attention_can_be_made_known():
    class Mean(nn.Module):
        def forward(self, tokens):
            return tokens.mean(1, keepdim=True).expand_as(tokens)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.mean = Mean()

        def forward(self, images):
            return self.mean(images.flatten(2).mT).mean(1)

    class Uniform(torchvars.maps.Mixing):
        def mix(self, values, step=None):
            return values.mean(2, keepdim=True).expand_as(values)

        def kernel(self, query):
            return torch.full_like(self.values, 1 / self.values.shape[2])

    images = torch.rand(2, 3, 2, 5)
    with pytest.raises(ValueError, match=r"no attention in this Model, made of .*Mean"):
        attention_maps(Model(), images)
    mixing_of.register(Mean, lambda layer, tokens, grid: Uniform(tokens.unsqueeze(1), lambda mixed: mixed))
    for kind in ("implicit", "kernel"):
        torch.testing.assert_close(attention_maps(Model(), images, kind), torch.full((2, 2, 5), 0.1))


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        ({"kind": "saliency"}, "no kind of map named 'saliency': there are implicit, kernel"),
        ({"layer": 2}, r"no attention 2: there are 2, 0 to 1 or -2 to -1 in order, or by name: blocks.0.attn"),
        ({"layer": "blocks.2.attn"}, "no attention 'blocks.2.attn'"),
        ({"head": 3}, r'head must be "mean", "all" or a number from 0 to 2 of blocks.1.attn, got 3'),
        ({"head": True}, "head must be"),
        ({"step": 1}, r"blocks.1.attn \(Attention\) takes no recurrent steps"),
        ({"query": (32, 0)}, r"query \(row 32, column 0\) is outside of pictures of 32 x 48 pixels"),
        ({"query": "centre"}, 'query must be "mean", "class" or'),
        ({"target": 1}, "target=1 changes nothing in a map of kind 'implicit': it is of gradient"),
        ({"kind": "gradient", "target": 5}, "target must be a class from 0 to 4, or one for each of 2 pictures, got 5"),
        ({"kind": "energy", "query": "class"}, "query='class' changes nothing in a map of kind 'energy'"),
        ({"kind": "rollout", "head": 0}, "head=0 changes nothing in a map of kind 'rollout'"),
        ({"kind": "kernel", "step": 0}, "step=0 changes nothing in a map of kind 'kernel'"),
        ({"size": 3}, "size must be"),
    ],
)
def test_errors_say_what_there_is(asked, error):
    with pytest.raises(ValueError, match=error):
        attention_maps(vit(), pixels(), **asked)


def test_what_has_no_map_is_named():
    with pytest.raises(ValueError, match=r"no attention in this ResNet, made of .*ReLU"):
        attention_maps(timm.create_model("resnet10t"), pixels())
    with pytest.raises(
        ValueError, match=r"pixels must have shape \(batch, channels, height, width\), got \(3, 32, 48\)"
    ):
        attention_maps(vit(), pixels()[0])
    model = RVT(img_size=64, patch_size=8, widths=(4, 4), heads=(2, 4), depths=(1, 1)).eval()
    with pytest.raises(ValueError, match=r"blocks.0.attn mixes no class token"):
        attention_maps(model, pixels(64, 64), layer=0, query="class")
    with pytest.raises(ValueError, match=r"stages.2.1.transformer.1.attn is called with 8 sequences .* for 2 pictures"):
        attention_maps(timm.create_model("mobilevit_xxs"), pixels(64, 64), layer=1)
    unused = vit()
    unused.extra = timm.layers.Attention(24, 3) if hasattr(timm.layers, "Attention") else TimmAttention(24, 3)
    with pytest.raises(ValueError, match=r"extra is not called when the model runs: choose another of blocks.0.attn"):
        attention_maps(unused, pixels())
