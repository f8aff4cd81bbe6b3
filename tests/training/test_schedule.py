"""Learning rates, groups of parameters, and losses, against timm's own and formulas by hand."""

import itertools
import math
from dataclasses import fields

import numpy as np
import pytest
import torch
from timm.scheduler import CosineLRScheduler

import torchvars
from torchvars.training.average import Average
from torchvars.training.distill import distillation_loss, soft_cross_entropy
from torchvars.training.recipe import DATA, Recipe, find_recipe
from torchvars.training.schedule import learning_rate, parameter_groups


@pytest.mark.parametrize("batch", [64, 1024])
def test_learning_rate_is_timms_cosine_with_warm_up(batch):
    recipe = Recipe("deit_micro_vars_d", img_size=32, epochs=20, batch=batch, warmup_epochs=3, cooldown_epochs=4)
    scale, steps = batch / 512, 10
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=recipe.learning_rate * scale)
    timms = CosineLRScheduler(
        optimizer,
        t_initial=13 * steps,
        lr_min=recipe.final_learning_rate * scale,
        warmup_t=3 * steps,
        warmup_lr_init=recipe.warmup_learning_rate * scale,
        warmup_prefix=True,
        t_in_epochs=False,
    )
    for step in range(20 * steps):
        timms.step_update(step)
        assert learning_rate(recipe, step, steps) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-9)


@pytest.mark.parametrize("layer_decay", [None, 0.5])
def test_what_is_exempt_does_not_decay(layer_decay):
    model = torchvars.create("deit_micro_vars_d_released", img_size=32, patch_size=4, num_classes=2)
    recipe = Recipe("deit_micro_vars_d_released", img_size=32, epochs=10, batch=8, layer_decay=layer_decay)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    decays = {
        names[id(parameter)]: group["weight_decay"]
        for group in parameter_groups(model, recipe)
        for parameter in group["params"]
    }
    assert set(decays) == set(names.values())
    exempt = ("pos_embed", "dictionary.inhibition", "dictionary.step", "strength_factor")
    assert {name.endswith(exempt[:2]) for name in decays} == {True, False}
    for name, parameter in model.named_parameters():
        assert decays[name] == (0 if parameter.ndim < 2 or name.endswith(exempt) else recipe.weight_decay), name


def test_layer_decay_falls_from_the_head_to_the_stem():
    model = torchvars.create("deit_micro_vars_d", img_size=32, patch_size=4, num_classes=2)
    recipe = Recipe("deit_micro_vars_d", img_size=32, epochs=10, batch=8, layer_decay=0.5)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    scales = {
        names[id(parameter)]: group["lr_scale"]
        for group in parameter_groups(model, recipe)
        for parameter in group["params"]
    }
    assert scales["head.weight"] == 1
    blocks = [scales[f"blocks.{index}.norm1.weight"] for index in range(len(model.blocks))]
    assert blocks == sorted(blocks)
    assert all(later == 2 * earlier for earlier, later in itertools.pairwise(blocks))
    assert scales["patch_embed.proj.0.weight"] < blocks[0]


def softmax(values):
    powers = np.exp(values - values.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def test_losses_by_hand():
    generator = np.random.default_rng(0)
    logits, taught = generator.normal(size=(2, 5, 4))
    targets = softmax(generator.normal(size=(5, 4)))
    tensors = [torch.tensor(each) for each in (logits, taught, targets)]
    by_hand = -(targets * np.log(softmax(logits))).sum(-1).mean()
    assert soft_cross_entropy(tensors[0], tensors[2]).item() == pytest.approx(by_hand)
    student, teacher = softmax(logits / 3), softmax(taught / 3)
    by_hand = 9 * (teacher * np.log(teacher / student)).sum(-1).mean()
    assert distillation_loss(tensors[0], tensors[1], "soft", 3.0).item() == pytest.approx(by_hand)
    by_hand = -np.log(softmax(logits)[np.arange(5), taught.argmax(-1)]).mean()
    assert distillation_loss(tensors[0], tensors[1], "hard", 3.0).item() == pytest.approx(by_hand)


def test_the_average_follows_its_model():
    model = torch.nn.BatchNorm1d(1)
    average = Average(model, 0.75)
    expected = 1.0
    for step in range(200):
        with torch.no_grad():
            model.weight.fill_(float(step % 3))
        model.running_mean.fill_(step)
        average.update(model, step)
        decay = min(0.75, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * (step % 3)
    own = model.weight.item()
    with average.applied(model):
        assert model.weight.item() == pytest.approx(expected, rel=1e-5)
        assert model.running_mean.item() == 199
    assert model.weight.item() == own
    assert model.weight.requires_grad


@pytest.mark.parametrize("pictures", DATA)
@pytest.mark.parametrize("model", ["rvt_tiny_vars_d", "deit_micro_softmax"])
def test_every_recipe_has_a_name(pictures, model):
    assert find_recipe(f"{pictures}_{model}", seed=3).seed == 3


def test_imagenet_is_trained_as_the_paper_says():
    recipe = find_recipe("imagenet_rvt_tiny_vars_d")
    assert (recipe.img_size, recipe.epochs, recipe.batch, recipe.learning_rate) == (224, 300, 1024, 5e-4)
    assert (recipe.warmup_epochs, recipe.cooldown_epochs, recipe.weight_decay, recipe.drop_path) == (5, 10, 0.05, 0.1)
    assert (recipe.mixup, recipe.cutmix, recipe.switch, recipe.smoothing, recipe.erase) == (0.8, 1.0, 0.5, 0.1, 0.25)
    assert (recipe.repeats, recipe.ema, recipe.patches, recipe.clip) == (3, 0.99996, 0.1, None)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"batch": 0}, "batch must be at least 1, got 0"),
        ({"smoothing": 1.5}, "smoothing must be between 0 and 1, got 1.5"),
        ({"warmup_epochs": 50}, "take more than the 10 epochs there are"),
        ({"ema": 1.0}, "ema must be a decay"),
        ({"drop_path": 2.0}, "drop_path must be between 0 and 1, got 2.0"),
        ({"smallest_crop": 3.0}, "smallest_crop must be between 0 and 1, got 3.0"),
        ({"learning_rate": 0.0}, "learning_rate must be positive and finite, got 0.0"),
        ({"weight_decay": -0.1}, "weight_decay must be zero or positive, and finite, got -0.1"),
        ({"clip": math.inf}, "clip must be positive and finite, got inf"),
        ({"patch_size": 0}, "patch_size must be at least 1, got 0"),
        ({"attention_options": ("strength=0.7",)}, "strength is a field of the recipe: set it by --strength"),
    ],
)
def test_impossible_recipes_are_refused(changed, message):
    with pytest.raises(ValueError, match=message):
        find_recipe("cifar10_rvt_micro_vars_d", **changed)


@pytest.mark.parametrize("name", [each.name for each in fields(Recipe) if "float" in str(each.type)])
@pytest.mark.parametrize("value", [math.nan, -1.0, math.inf])
def test_a_number_that_makes_no_sense_is_refused_in_every_field(name, value):
    with pytest.raises(ValueError, match=f"{name} must be .*, got {value}"):
        find_recipe("cifar10_rvt_micro_vars_d", **{name: value})


def test_the_home_folder_is_found_in_words_for_models(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    recipe = find_recipe("cifar10_rvt_micro_vars_d", initial="~/run/weights", teacher="timm:resnet50:~/it.pth")
    assert (recipe.initial, recipe.teacher) == ("/home/me/run/weights", "timm:resnet50:/home/me/it.pth")
    assert find_recipe("cifar10_rvt_micro_vars_d", teacher="timm:resnet50").teacher == "timm:resnet50"


def test_the_rates_for_imagenet_are_those_of_the_paper():
    recipe = find_recipe("imagenet_rvt_tiny_vars_d")
    steps = 1251
    rates = [learning_rate(recipe, epoch * steps, steps) for epoch in (0, 5, 290, 299)]
    assert rates == pytest.approx([1e-6, 1e-3, 1e-5, 1e-5])
