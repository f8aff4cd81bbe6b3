"""Converted layers learn what they replaced; nothing else is changed by it."""

import copy

import pytest
import timm
import torch
from torch import nn

import torchvars
from models.test_convert import MODELS, logits, shaken, timm_vit
from torchvars.models.convert import converted_layers, originals_in
from torchvars.models.matching import Joining, Matching, cluster, match, place_at_keys

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def images():
    return torch.randn(4, 3, 32, 32)


def state_of(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


@pytest.mark.parametrize("name", list(MODELS))
def test_matching_lowers_the_error_of_every_layer_and_changes_nothing_else(name, images):
    model = shaken(MODELS[name]())
    untouched = copy.deepcopy(model)
    torchvars.convert(model, "vars_p")
    before = Matching(model)(images)
    named = converted_layers(model)
    states = {layer: state_of(module) for layer, module in named.items()}
    errors = match(model, [(images, torch.zeros(4))], steps=30, learning_rate=5e-3, warmup=5)
    assert list(errors) == list(named)
    assert (Matching(model)(images) < before).all()
    for layer, module in named.items():
        moved = [
            weight for weight, tensor in state_of(module).items() if not torch.equal(tensor, states[layer][weight])
        ]
        assert {"value.weight", "dictionary.prototypes", "reader.prototypes"} <= {
            weight.removeprefix("mixer.") for weight in moved
        }
        assert not module.training
    # What was replaced is as it was, and so is all around it.
    torchvars.restore(model)
    assert all(torch.equal(tensor, state_of(untouched)[weight]) for weight, tensor in model.state_dict().items())
    assert torch.equal(logits(model, images), logits(untouched, images))


def test_the_error_of_a_layer_is_that_on_the_inputs_of_the_original(images):
    """Layers behind others that are far off are not given what these make."""
    model = shaken(timm_vit(depth=2))
    original = copy.deepcopy(model)
    torchvars.convert(model, "vars_p")
    expected, tokens = [], original.pos_drop(original._pos_embed(original.patch_embed(images)))
    with torch.no_grad():
        for block, converted in zip(original.blocks, model.blocks, strict=True):
            given = block.norm1(tokens)
            wanted = block.attn(given)
            expected.append(((converted.attn(given) - wanted) ** 2).mean() / (wanted**2).mean())
            tokens = block(tokens)
    torch.testing.assert_close(Matching(model)(images), torch.stack(expected))


def test_prototypes_are_put_where_the_keys_are():
    """Of keys in few places the centres are these, and the layer then is softmax over them."""
    generator = torch.Generator().manual_seed(0)
    places = 3 * torch.randn(2, 5, 8, generator=generator)
    keys = places.repeat(1, 40, 1) + 0.01 * torch.randn(2, 200, 8, generator=generator)
    centres = cluster(keys, 5)
    nearest = torch.cdist(places, centres).argmin(-1)
    assert all(sorted(each) == list(range(5)) for each in nearest.tolist())
    torch.testing.assert_close(centres.gather(1, nearest[..., None].expand(-1, -1, 8)), places, rtol=0, atol=0.01)
    of_keys, of_queries = torch.empty(2, 8, 5), torch.empty(2, 8, 5)
    place_at_keys(of_keys, of_queries, keys)
    queries, values = torch.randn(2, 6, 8, generator=generator), torch.randn(2, 5, 3, generator=generator)
    expected = nn.functional.scaled_dot_product_attention(queries, keys, values.repeat(1, 40, 1))
    read = (queries @ of_queries).softmax(-1).gather(-1, nearest[:, None].expand(-1, 6, -1)) @ values
    torch.testing.assert_close(read, expected, rtol=0, atol=0.02)
    shares = (keys @ of_keys).softmax(-1)
    torch.testing.assert_close(shares.sum(-1), torch.ones(2, 200))
    assert (shares.argmax(-1) == nearest.repeat(1, 40)).float().mean() > 0.7  # but for places that lie behind others


def test_prototypes_at_the_keys_are_nearer_to_softmax_from_the_start():
    model, images = shaken(timm_vit(depth=2)), torch.randn(16, 3, 32, 32)
    torchvars.convert(model, "vars_p")
    matching = Matching(model)
    before = {name: layer.value.weight.clone() for name, layer in matching.named()}
    start = matching(images)
    matching.settle(images)
    assert (matching(images) < start).all()
    assert all(torch.equal(layer.value.weight, before[name]) for name, layer in matching.named())
    settled = state_of(model)
    matching.settle(images)  # nothing is left to chance
    assert all(torch.equal(tensor, settled[name]) for name, tensor in model.state_dict().items())


def test_attention_that_can_be_represented_is_matched_to_nothing(images):
    """Where queries and keys are constant, softmax gives everyone the mean of the values: so does one atom."""
    model = shaken(timm_vit(depth=1))
    with torch.no_grad():
        model.blocks[0].attn.qkv.weight[:48] = 0  # queries and keys, 24 wide
    torchvars.convert(model, "vars_p")
    assert Matching(model)(images).item() < 1e-10
    layer = model.blocks[0].attn
    with torch.no_grad():
        layer.value.weight.add_(0.2 * torch.randn_like(layer.value.weight))
    assert Matching(model)(images).item() > 0.1
    batches = [torch.randn(8, 3, 32, 32) for _ in range(20)]
    errors = match(model, batches, steps=200, learning_rate=2e-2)
    assert errors["blocks.0.attn"] < 1e-3


def test_within_a_context_a_model_has_its_originals(images):
    model = shaken(timm_vit())
    before = model(images)
    torchvars.convert(model, "vars_p")
    after = model(images)
    with originals_in(model):
        assert torch.equal(model(images), before)
    assert torch.equal(model(images), after)
    with originals_in(model, ["blocks.0.attn"]) as originals:
        assert list(originals) == ["blocks.0.attn"]
        some = model(images)
    assert not torch.equal(some, before)
    assert not torch.equal(some, after)


def test_a_loss_that_is_no_number_leaves_the_last_good_layers(images):
    model = shaken(timm_vit(depth=1))
    torchvars.convert(model, "vars_p")
    spoilt = images.clone()
    spoilt[0, 0, 0, 0] = torch.nan
    good = copy.deepcopy(model)
    match(good, [images], steps=3, learning_rate=1e-30)
    with pytest.raises(FloatingPointError, match=r"error of blocks.0.attn is not a number at step 3: a lower learning"):
        match(model, [images] * 3 + [spoilt], steps=5, learning_rate=1e-30)
    assert all(torch.equal(tensor, good.state_dict()[name]) for name, tensor in model.state_dict().items())
    assert all(tensor.isfinite().all() for tensor in model.state_dict().values())


def test_frozen_projections_stay_frozen(images):
    model = shaken(timm_vit(depth=1))
    model.blocks[0].attn.qkv.requires_grad_(False)
    torchvars.convert(model, "vars_p")
    before = model.blocks[0].attn.value.weight.clone()
    match(model, [images], steps=2)
    assert torch.equal(model.blocks[0].attn.value.weight, before)


def test_what_cannot_be_matched_is_told(images, tmp_path):
    with pytest.raises(ValueError, match=r"no attention of this VisionTransformer was converted: call convert"):
        match(timm_vit(), [images])
    with pytest.raises(ValueError, match="convert without interpolate"):
        match(torchvars.convert(timm_vit(), "vars_p", interpolate=True), [images])
    model = torchvars.convert(timm_vit(), "vars_p")
    with pytest.raises(ValueError, match="the loader gives no pictures"):
        match(model, [])
    with pytest.raises(ValueError, match=r"the loader gives no pictures .* only once"):
        match(model, iter([images]), steps=2)
    with pytest.raises(ValueError, match="steps must be at least 1, got 0"):
        match(model, [images], steps=0)
    vit = torchvars.convert(timm.create_model("test_vit", num_classes=3, img_size=32), "vars_p")
    torchvars.Classifier(vit).save_pretrained(tmp_path / "saved")
    loaded = torchvars.Classifier.from_pretrained(tmp_path / "saved")
    with pytest.raises(ValueError, match="a saved model holds the converted ones only"):
        match(loaded, [images])


class Unused(nn.Module):
    """A model with an attention that no logits come from."""

    def __init__(self):
        super().__init__()
        self.vit, self.spare = timm_vit(depth=1), timm_vit(depth=1)

    def forward(self, images):
        return self.vit(images)


def test_a_layer_that_does_not_run_is_named(images):
    with pytest.raises(ValueError, match=r"spare.blocks.0.attn did not run: convert only layers"):
        match(torchvars.convert(Unused(), "vars_p"), [images])


# The whole beside the original


def joining(depth=3):
    teacher = torchvars.Classifier(shaken(timm_vit(depth=depth)))
    student = copy.deepcopy(teacher)
    torchvars.convert(student.model, "vars_p")
    return Joining(student, teacher)


def test_a_model_of_which_no_layer_is_joined_is_the_original(images):
    joint, pixels = joining(), images.sigmoid()
    logits, taught, features, errors = joint(pixels, [])
    assert torch.equal(logits, taught)
    assert features.item() == 0
    torch.testing.assert_close(errors, Matching(joint.student)(pixels))  # each on the inputs of the original


def test_joined_layers_have_the_inputs_of_the_converted_model(images):
    joint, pixels = joining(), images.sigmoid()
    logits, taught, features, errors = joint(pixels, joint.names)
    assert torch.equal(logits, joint.student(pixels))
    assert torch.equal(taught, joint.teacher[0](pixels))
    inputs = {"student": joint.student, "teacher": joint.teacher[0]}
    found = {}
    for name, classifier in inputs.items():
        model = classifier.model
        normal = (pixels - classifier.mean) / classifier.std
        found[name] = model.forward_head(model.forward_features(normal), pre_logits=True)
    expected = (found["student"] - found["teacher"]).square().sum() / found["teacher"].square().sum()
    torch.testing.assert_close(features, expected)
    apart = Matching(joint.student)(pixels)
    torch.testing.assert_close(errors[0], apart[0])  # before it nothing differs
    assert not torch.isclose(errors[1:], apart[1:]).any()


def test_some_layers_are_joined_and_the_others_still_learn(images):
    joint, pixels = joining(), images.sigmoid()
    logits, _, _, errors = joint(pixels, joint.names[-1:])
    with originals_in(joint.student, joint.names[:-1]):
        assert torch.equal(logits, joint.student(pixels))
    (logits.sum() + errors.sum()).backward()
    assert all(weight.grad is not None for weight in joint.student.parameters())
    assert not joint.teacher[0].training
    assert all(weight.grad is None for weight in joint.teacher[0].parameters())
