"""Measures of maps, held to scikit-learn, SciPy, NumPy and the definitions spelled out."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.ndimage import gaussian_filter
from scipy.spatial.distance import jensenshannon
from scipy.stats import entropy as scipy_entropy
from scipy.stats import pearsonr
from sklearn.metrics import jaccard_score, roc_auc_score

from torchvars.data import Points
from torchvars.evaluation import saliency
from torchvars.evaluation.map_choice import centred_gaussian, resized
from torchvars.evaluation.tasks.fixation import CENTRE_BIAS, CHANCE, ONE_OBSERVER, SIGMA, judge_points
from torchvars.evaluation.tasks.segmentation import THRESHOLDS, judge_mask, keep_mass
from torchvars.evaluation.tasks.stability import correlations, entropy, jensen_shannon

HEIGHT, WIDTH = 12, 17
seeds = st.integers(0, 10**6)


def drawn(seed, levels=None):
    """A map, of few values so that there are ties where levels are given, and places of which some are repeated."""
    generator = np.random.default_rng(seed)
    values = generator.random((HEIGHT, WIDTH)) if levels is None else generator.integers(levels, size=(HEIGHT, WIDTH))
    places = generator.random((9, 2)) * (WIDTH, HEIGHT)
    return values.astype(float), np.concatenate([places, places[:3]])


def pixels_of(places):
    return [(int(y), int(x)) for x, y in places]


@given(seeds, st.sampled_from([None, 2, 5]))
@settings(max_examples=25, deadline=None)
def test_measures_are_their_definitions(seed, levels):
    values, places = drawn(seed, levels)
    at = [values[pixel] for pixel in pixels_of(places)]
    if values.std() > 0:
        assert saliency.nss(values, places) == pytest.approx(np.mean((at - values.mean()) / values.std()), abs=1e-9)
    labels = [1] * len(at) + [0] * values.size
    expected = roc_auc_score(labels, [*at, *values.ravel()])
    assert saliency.auc(np.array(at), values.ravel()) == pytest.approx(expected, abs=1e-9)
    counts = np.zeros((HEIGHT, WIDTH))
    for pixel in pixels_of(places):
        counts[pixel] += 1
    looked = saliency.blurred(places, HEIGHT, WIDTH, 1.5)
    np.testing.assert_allclose(looked, gaussian_filter(counts, 1.5, mode="constant"), atol=1e-12)
    expected = pearsonr(values.ravel(), looked.ravel()).statistic if values.std() > 0 else 0
    assert saliency.correlation(values, looked) == pytest.approx(expected, abs=1e-6)
    p = 0.99 * values / values.sum() + 0.01 / values.size if values.sum() else np.full(values.shape, 1 / values.size)
    np.testing.assert_allclose(saliency.density(values), p, atol=1e-12)
    assert saliency.divergence(values, looked) == pytest.approx(scipy_entropy(looked.ravel(), p.ravel()), abs=1e-6)
    b = 0.99 * looked / looked.sum() + 0.01 / values.size
    bits = np.mean([np.log2(p[pixel]) - np.log2(b[pixel]) for pixel in pixels_of(places)])
    assert saliency.information_gain(values, looked, places) == pytest.approx(bits, abs=1e-6)


def test_what_is_known_of_perfect_flat_and_opposite_maps():
    places = np.array([[3.2, 4.9], [3.4, 4.1]])
    perfect = saliency.blurred(places, HEIGHT, WIDTH, 1.0)
    flat = np.full((HEIGHT, WIDTH), 0.3)
    assert (saliency.nss(flat, places), saliency.correlation(flat, perfect)) == (0, 0)
    assert saliency.auc(saliency.values_at(flat, places), flat.ravel()) == 0.5
    assert saliency.correlation(perfect, perfect) == pytest.approx(1)
    assert saliency.divergence(perfect, perfect) < 0.01
    assert saliency.nss(perfect.max() - perfect, places) == pytest.approx(-saliency.nss(perfect, places))
    assert saliency.auc(saliency.values_at(perfect, places), perfect.ravel()) > 0.99
    assert saliency.values_at(flat, np.array([[WIDTH - 1e-9, HEIGHT - 1e-9]])).tolist() == [0.3]


def test_a_picture_is_judged_by_its_fixations_and_those_of_the_others():
    generator = np.random.default_rng(0)
    size, observers = (WIDTH, HEIGHT), np.array([0] * 4 + [1] * 5 + [2])
    places, others = generator.random((10, 2)) * size, generator.random((40, 2)) * size
    points, found = Points(places, observers, size), torch.rand(3, 4).double()
    whole = torch.nn.functional.interpolate(found[None, None], (HEIGHT, WIDTH), mode="bilinear")[0, 0].numpy()
    judged = judge_points(points, found, others, "")
    at, elsewhere = ([whole[pixel] for pixel in pixels_of(each)] for each in (places, others))
    labels = [1] * 10 + [0] * 40
    assert judged["auc_shuffled"] == pytest.approx(roc_auc_score(labels, [*at, *elsewhere]))
    assert judged["nss"] == pytest.approx(saliency.nss(whole, places))
    sigma = SIGMA * WIDTH
    centre = saliency.blurred(others, HEIGHT, WIDTH, sigma)
    assert judged["information_gain"] == pytest.approx(saliency.information_gain(whole, centre, places))
    by_centre = judge_points(points, None, others, CENTRE_BIAS)
    assert by_centre["nss"] == pytest.approx(saliency.nss(centre, places))
    assert by_centre["information_gain"] == 0
    chance = judge_points(points, None, others, CHANCE)
    assert [chance[name] for name in ("nss", "auc_judd", "auc_shuffled", "cc")] == [0, 0.5, 0.5, 0]
    expected = [
        saliency.nss(saliency.blurred(places[observers != one], HEIGHT, WIDTH, sigma), places[observers == one])
        for one in range(3)
    ]
    assert judge_points(points, None, others, ONE_OBSERVER)["nss"] == pytest.approx(np.mean(expected))
    assert judge_points(Points(np.zeros((0, 2)), np.zeros(0), size), found, others, "") == {}
    alone = Points(places, np.zeros(10), size)
    assert judge_points(alone, None, others, ONE_OBSERVER) == {}


@given(seeds)
@settings(max_examples=25, deadline=None)
def test_a_map_as_foreground_is_judged_as_scikit_learn_does(seed):
    generator = np.random.default_rng(seed)
    labels = generator.choice([0, 0, 3, 7, 255], size=(HEIGHT, WIDTH)).astype(np.uint8)
    found = torch.from_numpy(generator.random((3, 4)))
    judged = judge_mask(labels, "vars", found)
    whole, valid = resized(found, HEIGHT, WIDTH), labels != 255
    scaled = ((whole - whole.min()) / np.ptp(whole))[valid]
    objects = labels[valid] > 0
    assert judged["iou"] == pytest.approx(jaccard_score(objects, scaled > 0.3))
    assert judged["false_positive"] == pytest.approx(((scaled > 0.3) & ~objects).sum() / valid.sum())
    assert judged["false_negative"] == pytest.approx((objects & (scaled <= 0.3)).sum() / valid.sum())
    assert judged["both"] / judged["either"] == pytest.approx(judged["iou"])
    for threshold in THRESHOLDS:
        assert judged[f"iou_{threshold:.2f}"] == pytest.approx(jaccard_score(objects, scaled > threshold))
    everything = judge_mask(labels, "vars", found, everything=True)
    assert everything["iou"] == pytest.approx(objects.mean())
    assert (everything["false_positive"], everything["false_negative"]) == (pytest.approx((~objects).mean()), 0)


@given(seeds)
@settings(max_examples=25, deadline=None)
def test_the_mass_that_heads_keep_is_judged_by_the_best_head_for_each_class(seed):
    generator = np.random.default_rng(seed)
    labels = np.repeat(np.repeat(generator.choice([0, 3, 7, 255], size=(3, 4)), 4, 0), 4, 1).astype(np.uint8)
    heads = torch.from_numpy(generator.random((5, 3, 4)))
    masks = []
    for head in heads.numpy():
        order, mask, mass = np.argsort(-head.ravel()), np.zeros(12, bool), 0
        for place in order:  # the largest, until there is enough
            if mass >= 0.6 * head.sum():
                break
            mask[place], mass = True, mass + head.ravel()[place]
        masks.append(mask.reshape(3, 4))
    np.testing.assert_array_equal(keep_mass(heads).numpy(), masks)
    valid, present = labels != 255, [each for each in (3, 7) if (labels == each).any()]
    large = [np.repeat(np.repeat(mask, 4, 0), 4, 1) for mask in masks]  # the nearest of 12 x 16 pixels

    def jaccard(chosen):
        return np.mean(
            [max(jaccard_score((labels == each)[valid], mask[valid]) for mask in chosen) for each in present]
        )

    judged = judge_mask(labels, "dino_best_head", heads)
    if not present:
        assert judged == {}
        return
    assert judged["jaccard"] == pytest.approx(jaccard(large))
    mean = np.repeat(np.repeat(keep_mass(heads.mean(0, keepdim=True))[0].numpy(), 4, 0), 4, 1)
    assert judge_mask(labels, "dino_mean_head", heads.mean(0))["jaccard"] == pytest.approx(jaccard([mean]))


def test_void_pixels_count_nowhere():
    labels = np.zeros((8, 8), np.uint8)
    labels[:, 4:] = 1
    found = torch.tensor([[0.0, 1.0]])
    before = [judge_mask(labels, protocol, found) for protocol in ("vars", "dino_mean_head")]
    assert before[1]["jaccard"] == 1
    labels[:, 2:6] = 255  # around the outline, where a bilinear map is wrong or nearly so
    assert judge_mask(labels, "vars", found)["iou"] == 1 > before[0]["iou"]
    wrong = torch.tensor([[0.0, 0.0, 1.0, 1.0]])  # of the object all, and of the void
    wrong[0, 1] = 1
    assert judge_mask(labels, "dino_mean_head", wrong)["jaccard"] == 1
    assert judge_mask(np.full((8, 8), 255, np.uint8), "vars", found) == {}
    assert np.isnan(judge_mask(np.zeros((8, 8), np.uint8), "vars", torch.zeros(1, 2))["iou"])
    assert "jaccard" not in judge_mask(np.zeros((8, 8), np.uint8), "dino_mean_head", found)


def test_the_centred_gaussian_is_symmetric_and_a_quarter_wide():
    found = centred_gaussian(9, 33)
    np.testing.assert_allclose(found, found[::-1, ::-1])
    assert found[4, 16] == 1
    np.testing.assert_allclose(found[4], np.exp(-(((np.arange(33) + 0.5) / 33 - 0.5) ** 2) / 2 / 0.25**2))


def test_maps_are_compared_as_scipy_does():
    one, other = torch.rand(2, 4, 30, dtype=torch.float64) ** 3
    one[0, 3] = 0
    for row, correlation in enumerate(correlations(one, other)):
        assert float(correlation) == pytest.approx(pearsonr(one[row], other[row]).statistic)
    assert correlations(torch.ones(1, 30), other[:1].float()).tolist() == [0]
    one, other = (each / each.sum(1, keepdim=True) for each in (one, other))
    for row, (bits, distance) in enumerate(zip(entropy(one), jensen_shannon(one, other), strict=True)):
        assert float(bits) == pytest.approx(scipy_entropy(one[row], base=2))
        assert float(distance) == pytest.approx(jensenshannon(one[row], other[row], base=2))
    assert jensen_shannon(one, one).tolist() == [0] * 4
