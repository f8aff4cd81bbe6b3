"""What chance does to pictures, against timm's own classes, Pillow and counts with a stated bound."""

import pickle
import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageOps
from timm.data import create_transform
from timm.data.mixup import Mixup
from timm.data.random_erasing import RandomErasing

from torchvars.data import derive_seed
from torchvars.data.pictures import seeded
from torchvars.training.augment import Mix, augment_patches, picture_transform, posterize

MEAN, STD = (0.5, 0.4, 0.3), (0.25, 0.2, 0.1)
PLAIN = {"auto_augment": None, "color_jitter": None, "erase": 0, "hflip": 0}


def noise_image(width, height, seed=0):
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def pixels_of(image):
    return torch.from_numpy(np.asarray(image, dtype=np.float32) / 255).permute(2, 0, 1)


def several(transform, image, count):
    results = []
    for seed in range(count):
        with seeded(seed):
            results.append(transform(image))
    return torch.stack(results)


# Pictures


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"auto_augment": None},
        {"auto_augment": None, "color_jitter": None, "scale": (0.5, 0.6), "ratio": (0.9, 1.1), "hflip": 1.0},
        {"auto_augment": "rand-m5-n3", "interpolation": "bilinear", "mean": MEAN, "std": STD},
        {"auto_augment": "rand-m8-inc1", "interpolation": "random"},
    ],
)
def test_training_is_timms_transform_before_normalisation(options):
    """Where nothing is erased it is timm's normalised picture; where it is, too, but for what was clipped."""
    image = noise_image(40, 52)
    mean, std = options.get("mean", (0.485, 0.456, 0.406)), options.get("std", (0.229, 0.224, 0.225))
    timms = {"color_jitter": 0.4, "auto_augment": "rand-m9-mstd0.5-inc1", "interpolation": "bicubic", "mean": mean}
    timms |= {"std": std, "re_prob": 0.25, "re_mode": "pixel"} | options
    by_timm = several(create_transform(24, is_training=True, **timms), image, 40)
    by_timm = by_timm * torch.tensor(std).view(3, 1, 1) + torch.tensor(mean).view(3, 1, 1)
    ours = several(picture_transform(24, training=True, **options), image, 40)
    torch.testing.assert_close(ours, by_timm.clamp(0, 1), rtol=0, atol=1e-6)


def test_posterizing_keeps_the_highest_bits():
    image = noise_image(40, 52)
    for bits in range(1, 9):
        np.testing.assert_array_equal(posterize(image, bits), ImageOps.posterize(image, bits))
    assert np.asarray(posterize(image, 0)).max() == 0


@pytest.mark.parametrize("policy", ["rand-m10-p1.0-inc1-n2", "rand-m0-p1.0-n2", "v0", "original"])
def test_policies_go_through_at_any_strength(policy):
    """Of 15 operations two are drawn: that 100 pictures miss one of them has probability (14/15)^200 < 2e-6."""
    transform = picture_transform(16, training=True, **(PLAIN | {"auto_augment": policy}))
    pictures = several(transform, noise_image(20, 20), 100)
    assert pictures.amin() >= 0
    assert pictures.amax() <= 1
    black = (pictures == 0).flatten(1).all(1)
    assert black.any() == (policy != "original")  # whose weakest posterizing keeps four bits


def test_a_seed_repeats_a_picture_and_another_does_not():
    transform = picture_transform(24, training=True)
    first, second = (several(transform, noise_image(40, 52), 10) for _ in range(2))
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    assert len({picture.numpy().tobytes() for picture in first}) == 10


@pytest.mark.parametrize("training", [True, False])
def test_a_transform_can_be_sent_to_a_worker(training):
    transform = picture_transform(24, training=training)
    sent = pickle.loads(pickle.dumps(transform))
    images = (several(each, noise_image(40, 52), 5) for each in (transform, sent))
    torch.testing.assert_close(*images, rtol=0, atol=0)


def test_each_change_can_be_switched_off():
    """What is left with all of them off is the picture; with one on it is another."""
    image = noise_image(24, 24)
    plain = PLAIN | {"scale": (1.0, 1.0), "ratio": (1.0, 1.0)}
    same = several(picture_transform(24, training=True, **plain), image, 8)
    torch.testing.assert_close(same, pixels_of(image).expand(8, -1, -1, -1), rtol=0, atol=0)
    for change in ({"auto_augment": "rand-m9-p1.0"}, {"color_jitter": 0.4}, {"erase": 1.0}, {"hflip": 1.0}):
        changed = several(picture_transform(24, training=True, **(plain | change)), image, 8)
        assert (changed != same).flatten(1).any(1).all(), change


def test_jitter_is_off_with_a_policy():
    image = noise_image(40, 52)
    with_jitter, without = (
        several(picture_transform(24, training=True, color_jitter=jitter), image, 10) for jitter in (0.9, None)
    )
    torch.testing.assert_close(with_jitter, without, rtol=0, atol=0)


def test_the_mean_fills_what_a_policy_moves_in():
    """White pictures under a policy that only rotates, shears and translates show white, the mean, and blends."""
    image = Image.new("RGB", (32, 32), (255, 255, 255))
    options = PLAIN | {"auto_augment": "rand-m9-p1.0-n1-tweights", "mean": MEAN}
    pictures = several(picture_transform(32, training=True, **options), image, 60)
    filling = torch.tensor([round(255 * mean) for mean in MEAN]) / 255
    filled = (pictures - filling.view(3, 1, 1)).abs().amax(1) < 1e-6
    # Geometry is 9 of 9.95 of the weights, and always moves something in: about 54 of 60 pictures.
    assert filled.flatten(1).any(1).sum() > 45


def test_padded_crops_are_the_parts_of_the_picture_with_its_reflection():
    image = noise_image(16, 16)
    pixels = pixels_of(image)
    around = torch.from_numpy(np.pad(pixels.numpy(), ((0, 0), (2, 2), (2, 2)), mode="reflect"))
    parts = {around[:, y : y + 16, x : x + 16].numpy().tobytes(): (y, x) for y in range(5) for x in range(5)}
    transform = picture_transform(16, training=True, crop="pad", **PLAIN)
    found = [parts[crop.numpy().tobytes()] for crop in several(transform, image, 300)]
    # 25 places; that one is missing among 300 has probability 25 * (24/25)^300 < 2e-4.
    assert len(set(found)) == 25
    flipping = picture_transform(16, training=True, crop="pad", **(PLAIN | {"hflip": 1.0}))
    for crop in several(flipping, image, 10):
        assert crop.flip(-1).numpy().tobytes() in parts


@pytest.mark.parametrize("size", [(40, 30), (16, 17)])
def test_padded_crops_of_another_size_are_refused(size):
    transform = picture_transform(16, training=True, crop="pad", **PLAIN)
    with pytest.raises(ValueError, match=f"takes pictures of 16 x 16, got one of {size[0]} x {size[1]}: use "):
        transform(noise_image(*size))


def test_erased_pixels_are_unit_normal_once_normalised():
    image = Image.new("RGB", (64, 64), (255, 255, 255))  # white, which noise is only where it is clipped
    means, deviations = (0.5, 0.5, 0.5), (0.05, 0.1, 0.1)  # so that clipping begins at five deviations
    options = PLAIN | {"scale": (1.0, 1.0), "erase": 1.0, "mean": means, "std": deviations}
    pictures = several(picture_transform(64, training=True, **options), image, 60)
    erased = (pictures != 1).all(1)
    normal = (pictures.movedim(1, -1)[erased] - torch.tensor(means)) / torch.tensor(deviations)
    count = len(normal)
    assert count > 10_000
    # Standard errors of a mean, a deviation and a fourth moment of unit normals; five of each.
    assert (normal.mean(0).abs() < 5 / count**0.5).all()
    assert ((normal.std(0) - 1).abs() < 5 / (2 * count) ** 0.5).all()
    assert ((normal**4).mean(0) - 3).abs().max() < 5 * (96 / count) ** 0.5
    # timm's rectangles: 2 % to a third of the area, each a rectangle indeed.
    for mask in erased:
        rows, columns = mask.any(1).sum(), mask.any(0).sum()
        assert mask.sum() == rows * columns
        assert 0.015 < mask.float().mean() < 0.35


def test_erasing_stays_within_pixels_and_leaves_the_rest():
    image = noise_image(32, 32)
    options = PLAIN | {"scale": (1.0, 1.0), "ratio": (1.0, 1.0), "std": (1.0, 1.0, 1.0)}
    erased = several(picture_transform(32, training=True, **(options | {"erase": 1.0})), image, 20)
    assert erased.min() == 0  # of such noise much is clipped
    assert erased.max() == 1
    for seed, picture in enumerate(erased):
        with seeded(seed):
            picture_transform(32, training=True, **options)(image)  # draws what comes before erasing
            kept = RandomErasing(1.0, mode="pixel", device="cpu")(torch.ones(3, 32, 32)) == 1
        torch.testing.assert_close(picture[kept], pixels_of(image)[kept], rtol=0, atol=0)


@pytest.mark.parametrize(("width", "height"), [(40, 61), (61, 40), (300, 200), (50, 50), (224, 225), (30, 33)])
@pytest.mark.parametrize("size", [32, 224])
def test_evaluation_cuts_the_middle_out_of_the_resized_picture(width, height, size):
    image = noise_image(width, height)
    shorter = round(size / 0.875)
    longer = shorter * max(width, height) // min(width, height)
    shape = (shorter, longer) if width < height else (longer, shorter)
    left, top = (round((side - size) / 2) for side in shape)
    resized = image.resize(shape, Image.Resampling.BICUBIC)
    expected = pixels_of(resized.crop((left, top, left + size, top + size)))
    transform = picture_transform(size, training=False)
    torch.testing.assert_close(transform(image), expected, rtol=0, atol=0)


def test_evaluation_at_224_is_timms():
    image = noise_image(300, 280)
    timms = create_transform(224, is_training=False, interpolation="bicubic", mean=(0, 0, 0), std=(1, 1, 1))
    torch.testing.assert_close(picture_transform(224, training=False)(image), timms(image), rtol=0, atol=0)


def test_evaluation_leaves_a_picture_of_the_size_as_it_is():
    image = noise_image(32, 32)
    torch.testing.assert_close(picture_transform(32, training=False)(image), pixels_of(image), rtol=0, atol=0)


def test_transforms_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="crop must be one of 'random resized', 'pad', got 'centre'"):
        picture_transform(32, training=True, crop="centre")
    with pytest.raises(ValueError, match=r"timm knows no auto_augment 'random-m9' .*; give a policy such as"):
        picture_transform(32, training=True, auto_augment="random-m9")


# Mixing


def batch(count, classes=7, side=8, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(count, 3, side, side, generator=generator), torch.randint(classes, (count,), generator=generator)


@given(
    half=st.integers(1, 4),
    seed=st.integers(0, 2**63 - 1),
    mixup=st.sampled_from([0.0, 0.2, 0.8]),
    cutmix=st.sampled_from([0.3, 1.0]),
    smoothing=st.sampled_from([0.0, 0.1]),
)
def test_neighbours_are_mixed_as_timm_mixes_two(half, seed, mixup, cutmix, smoothing):
    pixels, labels = batch(2 * half)
    before = np.random.get_state()[1].tolist()  # noqa: NPY002
    mixed, targets = Mix(mixup, cutmix, 0.3, smoothing, 7)(pixels, labels, seed)
    assert np.random.get_state()[1].tolist() == before  # noqa: NPY002
    for first in range(0, 2 * half, 2):
        timms = Mixup(mixup, cutmix, switch_prob=0.3, label_smoothing=smoothing, num_classes=7)
        with seeded(seed):
            expected = timms(pixels[first : first + 2].clone(), labels[first : first + 2])
        torch.testing.assert_close((mixed[first : first + 2], targets[first : first + 2]), expected, rtol=0, atol=0)


@given(count=st.integers(1, 9), seed=st.integers(0, 10**6), cut=st.booleans())
def test_targets_are_the_shares_that_a_picture_shows(count, seed, cut):
    """Pictures of one colour each, its own bit of the pixels: the mean shows who is in it, and how much."""
    pixels = torch.eye(count, dtype=torch.float64).view(count, count, 1, 1).repeat(1, 1, 8, 8)
    labels = torch.arange(count)
    mixed, targets = Mix(0.0 if cut else 1.0, 1.0 if cut else 0.0, smoothing=0.0, classes=count)(pixels, labels, seed)
    torch.testing.assert_close(mixed.mean((2, 3)), targets.double(), rtol=0, atol=1e-6)
    torch.testing.assert_close(targets.sum(1), torch.ones(count), rtol=0, atol=1e-6)
    # None is left alone in an odd batch of three or more, unless all are.
    alone = targets.amax(1) > 1 - 1e-6
    if count > 1:
        assert alone.all() or not alone.any()


@pytest.mark.parametrize("count", [1, 4, 5])
def test_without_mixing_targets_are_smoothed_labels(count):
    pixels, labels = batch(count)
    mixed, targets = Mix(0.0, 0.0, smoothing=0.1, classes=7)(pixels, labels, 3)
    torch.testing.assert_close(mixed, pixels, rtol=0, atol=0)
    by_hand = torch.full((count, 7), 0.1 / 7)
    for row, label in enumerate(labels.tolist()):
        by_hand[row, label] = 0.9 + 0.1 / 7
    torch.testing.assert_close(targets, by_hand, rtol=0, atol=1e-7)


@pytest.mark.parametrize("count", [4, 5])
def test_mixing_leaves_its_inputs_alone(count):
    pixels, labels = batch(count)
    kept = pixels.clone(), labels.clone()
    for seed in range(10):
        mixed, _ = Mix(classes=7)(pixels, labels, seed)
        assert not torch.equal(mixed, pixels)
        torch.testing.assert_close((pixels, labels), kept, rtol=0, atol=0)


def test_mixing_cuts_as_often_as_it_is_told():
    pixels = torch.stack([torch.zeros(3, 8, 8), torch.ones(3, 8, 8)])
    blends = 0
    for seed in range(400):
        mixed, _ = Mix(switch=0.25, classes=2)(pixels, torch.tensor([0, 1]), derive_seed(seed))
        blends += int(((mixed > 0) & (mixed < 1)).any())  # a cut shows black and white only
    # Binomial of 400 and 3/4: deviation 8.7; five of them.
    assert abs(blends - 300) < 44


# Patches


def as_patches(pixels, patch):
    """(B, C, H, W) -> (patches, C, p, p), one by one."""
    return torch.stack(
        [
            picture[:, top : top + patch, left : left + patch]
            for picture in pixels
            for top in range(0, pixels.shape[-2], patch)
            for left in range(0, pixels.shape[-1], patch)
        ]
    )


def ramps(patches, patch=16):
    """Pictures of one row of patches: x and y within the patch in two channels, noise in the third; (1, 3, p, p n)."""
    across = ((torch.arange(patch) + 0.5) / patch).double()
    x, y = across.expand(patch, -1), across.unsqueeze(1).expand(-1, patch)
    texture = torch.rand(patches, patch, patch, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return torch.cat([torch.stack([x, y, each]) for each in texture], dim=-1).unsqueeze(0)


def slope(values):
    """Of what is linear between its second and its last but one."""
    return (values[..., -2] - values[..., 1]) / (values.shape[-1] - 3) * values.shape[-1]


def test_cropped_patches_are_pillows_resized_parts():
    """Where a part lies is read from the ramps; what it shows is then up to Pillow."""
    pixels = ramps(400)
    before = as_patches(pixels, 16)
    after = as_patches(augment_patches(pixels, 16, 0.6, crop=(0.5, 0.9), noise=0.0, seed=7), 16)
    flipped = slope(after[:, 0, 8]) < 0
    after[flipped] = after[flipped].flip(-1)
    sides = slope(after[:, 0, 8])
    torch.testing.assert_close(slope(after[:, 1, :, 8]), sides, rtol=0, atol=1e-9)  # square
    # A ramp has (k + 1/2) side / p + corner at pixel k.
    corners = torch.stack([after[:, 0, 8, 5], after[:, 1, 5, 8]], 1) - sides.unsqueeze(1) * 5.5 / 16
    cropped = (sides - 1).abs() > 1e-9
    torch.testing.assert_close(after[~cropped], before[~cropped], rtol=0, atol=0)
    for index in cropped.nonzero().flatten().tolist():
        side, (left, top) = sides[index].item(), corners[index].tolist()
        assert 0.5 - 1e-9 <= side**2 <= 0.9 + 1e-9
        assert min(left, top) >= -1e-9
        assert max(left, top) + side <= 1 + 1e-9
        box = [min(max(16 * edge, 0), 16) for edge in (left, top, left + side, top + side)]
        for channel in range(3):
            image = Image.fromarray(before[index, channel].float().numpy())
            resized = torch.from_numpy(np.array(image.resize((16, 16), Image.Resampling.BILINEAR, box=box)))
            torch.testing.assert_close(after[index, channel].float(), resized, rtol=0, atol=1e-5)
    # Areas and places are uniform: means of 240 of them, standard errors of a uniform variable, five of each.
    count = cropped.sum().item()
    error = (1 / 12 / count) ** 0.5
    assert abs((sides[cropped] ** 2).mean() - 0.7) < 5 * 0.4 * error
    places = corners[cropped] / (1 - sides[cropped]).unsqueeze(1)
    assert ((places.mean(0) - 0.5).abs() < 5 * error).all()
    assert abs(torch.corrcoef(places.T)[0, 1]) < 5 / count**0.5


@pytest.mark.parametrize("probability", [0.1, 0.5])
def test_each_change_comes_with_its_own_chance(probability):
    """All eight combinations are as frequent as three independent coins make them."""
    count = 4000
    pixels = ramps(count, 8)
    pixels[:, 2] = 0.5  # shows noise, and nothing else
    after = as_patches(augment_patches(pixels, 8, probability, crop=(0.3, 0.5), noise=0.01, seed=3), 8)
    noisy = after[:, 2].flatten(1).std(1) > 1e-6
    flipped = slope(after[:, 0].mean(1)) < 0
    cropped = slope(after[:, 1].mean(2)) < 0.85  # a side of sqrt(0.5) at most, and noise of 0.01 on it
    for combination in range(8):
        wanted = [bool(combination >> bit & 1) for bit in range(3)]
        seen = sum((cropped == wanted[0]) & (noisy == wanted[1]) & (flipped == wanted[2])).item()
        chance = probability ** sum(wanted) * (1 - probability) ** (3 - sum(wanted))
        assert abs(seen - count * chance) < 5 * (count * chance * (1 - chance)) ** 0.5 + 1, wanted


def test_noise_is_normal_of_the_deviation_given():
    grey = torch.full((8, 3, 32, 32), 0.5)
    added = (augment_patches(grey, 16, 1.0, noise=0.02, seed=0) - 0.5).double() / 0.02
    count = added.numel()
    assert abs(added.mean()) < 5 / count**0.5
    assert abs(added.std() - 1) < 5 / (2 * count) ** 0.5
    assert abs((added**4).mean() - 3) < 5 * (96 / count) ** 0.5
    assert abs(torch.corrcoef(added[:, :2].transpose(0, 1).flatten(1))[0, 1]) < 5 * (3 / count) ** 0.5  # of channels


@given(
    shape=st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3)),
    patch=st.sampled_from([1, 4, 7]),
    probability=st.sampled_from([0.0, 0.1, 0.5]),
    seed=st.integers(0, 2**63 - 1),
)
def test_patches_not_chosen_stay_exactly_where_and_what_they_were(shape, patch, probability, seed):
    count, rows, columns = shape
    pixels = torch.rand(count, 3, rows * patch, columns * patch, generator=torch.Generator().manual_seed(1))
    kept = pixels.clone()
    after = augment_patches(pixels, patch, probability, crop=(1.0, 1.0), noise=0.0, seed=seed)
    torch.testing.assert_close(pixels, kept, rtol=0, atol=0)  # the input too
    # The crop of all of a patch, and no noise, are but rounding: a patch is as it was, or it is flipped.
    for old, new in zip(as_patches(pixels, patch), as_patches(after, patch), strict=True):
        nearer = min(((new - old).abs().max(), (new - old.flip(-1)).abs().max()))
        assert nearer < 1e-6
    if probability == 0:
        torch.testing.assert_close(after, pixels, rtol=0, atol=0)


def test_patches_stay_within_pixels_and_repeat_with_their_seed():
    pixels = (torch.rand(4, 3, 32, 48) > 0.5).float()
    first, again, other = (augment_patches(pixels, 16, 0.5, noise=0.3, seed=seed) for seed in (1, 1, 2))
    assert first.min() == 0
    assert first.max() == 1
    torch.testing.assert_close(first, again, rtol=0, atol=0)
    assert not torch.equal(first, other)
    before = random.getstate(), torch.get_rng_state().tolist()
    augment_patches(pixels, seed=5)
    assert (random.getstate(), torch.get_rng_state().tolist()) == before


def test_patches_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="pictures of 32 x 40 do not divide into patches of 16 x 16"):
        augment_patches(torch.zeros(1, 3, 32, 40), seed=0)
    for crop in ((0.0, 1.0), (0.9, 0.8), (0.5, 1.1)):
        with pytest.raises(ValueError, match="crop must be two shares of the area, 0 < smallest <= largest <= 1, got"):
            augment_patches(torch.zeros(1, 3, 32, 32), crop=crop, seed=0)
