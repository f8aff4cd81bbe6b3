"""Linear probes against scikit-learn, and in a model."""

import pytest
import timm
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from torchvars.generalization.probe import STRENGTHS, choose, fit, inputs_of, only_head, set_head


def problem(count: int, seed: int, classes: int = 3, width: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(classes, width, generator=torch.Generator().manual_seed(9))
    labels = torch.randint(classes, (count,), generator=generator)
    noise = torch.randn(count, width, generator=generator)
    return (centres[labels] + 1.5 * noise) * torch.logspace(-3, 3, width) + 5, labels


@pytest.mark.parametrize("strength", [1.0, 1e-2, 1e-4])
def test_a_probe_is_logistic_regression(strength):
    features, labels = problem(200, 0)
    probe = fit(features, labels, 3, strength)
    scaled = StandardScaler().fit_transform(features.double())
    theirs = LogisticRegression(C=1 / (strength * len(labels)), tol=1e-9, max_iter=10_000).fit(scaled, labels)
    ours = (features.double() @ probe.weight.T + probe.bias).softmax(-1)
    torch.testing.assert_close(ours, torch.from_numpy(theirs.predict_proba(scaled)), atol=1e-4, rtol=0)


def test_a_feature_that_never_changes_says_nothing():
    features, labels = problem(100, 0)
    more = torch.cat([features, torch.full((100, 1), 3.0)], 1)
    one, other = fit(features, labels, 3, 0.01), fit(more, labels, 3, 0.01)
    torch.testing.assert_close(other.weight[:, :-1], one.weight, atol=1e-4, rtol=1e-3)
    assert other.weight[:, -1].abs().max() < 1e-12


def test_the_strength_is_that_which_is_right_most_often_on_what_is_held_out():
    train, held_out = problem(30, 0), problem(300, 1)
    chosen = choose(train, held_out, 3)
    right = [
        ((held_out[0].double() @ probe.weight.T + probe.bias).argmax(-1) == held_out[1]).double().mean()
        for probe in (fit(*train, 3, strength) for strength in STRENGTHS)
    ]
    assert torch.equal(chosen.weight, fit(*train, 3, STRENGTHS[max(range(6), key=lambda n: (right[n], -n))]).weight)
    assert len({float(each) for each in right}) > 1


def test_without_held_out_pictures_there_is_no_choice():
    train, (features, labels) = problem(30, 0), problem(1, 1)
    with pytest.raises(ValueError, match="no held-out picture could be read"):
        choose(train, (features[:0], labels[:0]), 3)


@pytest.mark.parametrize("name", ["rvt_micro_softmax", "timm:test_vit", "timm:test_resnet"])
def test_features_are_what_the_head_is_given(name):
    torch.manual_seed(0)
    model = timm.create_model(name.removeprefix("timm:"), num_classes=3).eval()
    images = torch.rand(2, 3, 160, 160) if "timm" in name else torch.rand(2, 3, 224, 224)
    with torch.no_grad(), inputs_of(only_head(model)) as inputs:
        logits = model(images)
    expected = model.forward_head(model.forward_features(images), pre_logits=True)
    torch.testing.assert_close(inputs[0], expected)
    features, labels = problem(50, 0, width=expected.shape[1])
    probe = fit(features, labels, 3, 0.1)
    set_head(model, probe)
    with torch.no_grad():
        found = model(images)
    torch.testing.assert_close(found.double(), expected.double() @ probe.weight.T + probe.bias, atol=1e-3, rtol=1e-3)
    assert not torch.allclose(found, logits)


def test_a_model_with_two_heads_is_refused():
    model = timm.create_model("deit_tiny_distilled_patch16_224", img_size=32, depth=1)
    with pytest.raises(ValueError, match="has the heads head, head_dist: a linear probe needs a single one"):
        only_head(model)
