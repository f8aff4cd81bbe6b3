"""Attacks: laws that every member keeps, worst cases that are known in closed form, and gradients that lie."""

import copy
import re
import sys
from dataclasses import replace
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from torchvars.evaluation.attacks import (
    ATTACKS,
    FGSM,
    NORMS,
    PGD,
    Attack,
    AutoAttack,
    Noise,
    Square,
    Transferred,
    autoattack,
    margin,
)
from torchvars.evaluation.generators import generators_of
from torchvars.evaluation.masking import masking_signs, zero_gradients

SIZE, CLASSES = 8, 5
RADIUS = {"linf": 12 / 255, "l2": 0.5}
MEMBERS = {**ATTACKS, "noise": Noise}
QUICK = {"square": {"queries": 30}}
needs_autoattack = pytest.mark.skipif(find_spec("autoattack") is None, reason="autoattack is not installed")
every_attack = pytest.mark.parametrize(
    "name",
    [name for name in MEMBERS if name != "autoattack"]
    + [pytest.param("autoattack", marks=[needs_autoattack, pytest.mark.slow])],
)
every_norm = pytest.mark.parametrize("norm", RADIUS)


pytestmark = pytest.mark.usefixtures("one_thread")


def make(name: str, norm: str, **options) -> Attack:
    return MEMBERS[name](**{"radius": RADIUS[norm], "norm": norm, **QUICK.get(name, {}), **options})


def generators(count: int, first: int = 0) -> list[torch.Generator]:
    return generators_of([f"picture {index}" for index in range(first, first + count)], "attack", 0)


class Normalised(nn.Sequential):
    """With the parts whose mode matters: batch statistics and dropout."""

    def __init__(self):
        super().__init__(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.AdaptiveAvgPool2d(4),
            nn.Flatten(),
            nn.Linear(128, CLASSES),
        )


@pytest.fixture(scope="module")
def data() -> tuple[torch.Tensor, torch.Tensor]:
    """Blurred class patterns under noise: pixels (160, 3, 8, 8), labels (160,). Many pixels are at 0 or at 1."""
    generator = torch.Generator().manual_seed(1)
    patterns = F.interpolate(torch.randn(CLASSES, 3, 4, 4, generator=generator), SIZE, mode="bilinear")
    labels = torch.arange(160) % CLASSES
    noise = 0.2 * torch.randn(160, 3, SIZE, SIZE, generator=generator)
    return (0.5 + 0.1 * patterns[labels] + noise).clamp(0, 1), labels


@pytest.fixture(scope="module")
def trained(data) -> nn.Module:
    torch.manual_seed(0)
    pixels, labels = data
    model = Normalised()
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(60):
        optimizer.zero_grad()
        F.cross_entropy(model(pixels), labels).backward()
        optimizer.step()
    model.zero_grad()
    return model.eval()


def accuracy(model: nn.Module, pictures: torch.Tensor, labels: torch.Tensor) -> float:
    with torch.no_grad():
        return (model(pictures).argmax(1) == labels).double().mean().item()


def inside(pictures: torch.Tensor, pixels: torch.Tensor, radius: float, norm: str) -> bool:
    """In the ball by the tensors' arithmetic and by float64's, and in [0, 1]."""
    order = torch.inf if norm == "linf" else 2
    own = torch.linalg.vector_norm((pictures - pixels).flatten(1), order, dim=1)
    exact = torch.linalg.vector_norm((pictures.double() - pixels.double()).flatten(1), order, dim=1)
    near = bool((own <= radius).all() and (exact <= radius).all())
    return near and bool(pictures.min() >= 0 and pictures.max() <= 1)


class TestEveryAttack:
    @every_attack
    @every_norm
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_stays_in_the_ball_and_moves(self, name, norm, dtype, trained, data):
        model, pixels = copy.deepcopy(trained).to(dtype), data[0][:6].to(dtype)
        pictures = make(name, norm)(model, pixels, data[1][:6], generators(6))
        assert pictures.dtype == dtype
        assert inside(pictures, pixels, RADIUS[norm], norm)
        assert not torch.equal(pictures, pixels)

    @every_attack
    @every_norm
    def test_radius_0_is_the_clean_picture(self, name, norm, trained, data):
        pictures = make(name, norm, radius=0)(trained, data[0][:6], data[1][:6], generators(6))
        assert torch.equal(pictures, data[0][:6])

    @every_attack
    @every_norm
    def test_the_loss_rises(self, name, norm, trained, data):
        pixels, labels = data[0][:12], data[1][:12]
        attack = make(name, norm)
        if isinstance(attack, Noise):
            pytest.skip("noise need not raise a loss")
        with torch.no_grad():
            before = F.cross_entropy(trained(pixels), labels)
            after = F.cross_entropy(trained(attack(trained, pixels, labels, generators(12))), labels)
        assert after > before + 0.01

    @every_attack
    @every_norm
    def test_the_same_seeds_give_the_same_pictures(self, name, norm, trained, data):
        attack, pixels, labels = make(name, norm), data[0][:6], data[1][:6]
        global_state = torch.get_rng_state()
        first = attack(trained, pixels, labels, generators(6))
        assert torch.equal(torch.get_rng_state(), global_state)
        torch.manual_seed(123)
        assert torch.equal(attack(trained, pixels, labels, generators(6)), first)
        if not isinstance(attack, FGSM):
            assert not torch.equal(attack(trained, pixels, labels, generators(6, first=50)), first)

    @every_attack
    @every_norm
    def test_where_pixels_lie_in_memory_makes_no_difference(self, name, norm, trained, data):
        attack, pixels, labels = make(name, norm), data[0][:6], data[1][:6]
        expected = attack(trained, pixels, labels, generators(6))
        strided = torch.stack([pixels, pixels], -1)[..., 0]
        for other in (pixels.contiguous(memory_format=torch.channels_last), strided):
            assert not other.is_contiguous()
            assert torch.equal(attack(trained, other, labels, generators(6)), expected)
            assert torch.equal(zero_gradients(trained, other, labels), zero_gradients(trained, pixels, labels))

    def test_the_package_of_autoattack_gets_pixels_that_it_can_view_as_rows(self, trained, data, monkeypatch):
        class Ensemble:
            def __init__(self, *_, **__):
                self.apgd_targeted = self.fab = SimpleNamespace()

            def run_standard_evaluation(self, pictures, labels, bs):
                return pictures.view(len(pictures), -1).view_as(pictures)

        monkeypatch.setattr(autoattack, "find_spec", lambda name: name)
        monkeypatch.setitem(sys.modules, "autoattack", SimpleNamespace(AutoAttack=Ensemble))
        pixels = data[0][:2].contiguous(memory_format=torch.channels_last)
        assert torch.equal(make("autoattack", "linf")(trained, pixels, data[1][:2], generators(2)), pixels)

    @every_attack
    @every_norm
    def test_a_picture_does_not_depend_on_its_batch_or_place(self, name, norm, trained, data):
        # in float64, so that a rounding of the classifier does not decide
        model, pixels, labels = copy.deepcopy(trained).double(), data[0][:6].double(), data[1][:6]
        attack = make(name, norm)
        whole = attack(model, pixels, labels, generators(6))
        order = torch.tensor([4, 0, 5, 2, 1, 3])
        mixed = attack(model, pixels[order], labels[order], [generators(6)[place] for place in order])
        torch.testing.assert_close(mixed, whole[order], rtol=0, atol=1e-9)
        alone = attack(model, pixels[3:4], labels[3:4], generators(1, first=3))
        torch.testing.assert_close(alone, whole[3:4], rtol=0, atol=1e-9)

    @every_attack
    @every_norm
    @pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
    def test_leaves_everything_as_it_was(self, name, norm, mode, trained, data):
        model = copy.deepcopy(trained).train()
        model[1].eval()  # partly in training, as when batch statistics are frozen
        model[0].weight.requires_grad_(False)
        F.cross_entropy(model(data[0]), data[1]).backward()
        found = {key: value.clone() for key, value in model.state_dict().items()}
        modes = [module.training for module in model.modules()]
        needs = [parameter.requires_grad for parameter in model.parameters()]
        slopes = [None if parameter.grad is None else parameter.grad.clone() for parameter in model.parameters()]

        expected = make(name, norm)(trained, data[0][:4], data[1][:4], generators(4))
        with mode():
            pixels, labels = data[0][:4].clone(), data[1][:4].clone()
            pictures = make(name, norm)(model, pixels, labels, generators(4))
        assert torch.equal(pictures, expected)  # in evaluation mode all the while, whatever the caller's
        assert not pictures.requires_grad
        assert torch.equal(pixels, data[0][:4])
        assert torch.equal(labels, data[1][:4])
        assert [module.training for module in model.modules()] == modes
        assert [parameter.requires_grad for parameter in model.parameters()] == needs
        for key, value in model.state_dict().items():
            assert torch.equal(value, found[key]), key
        for parameter, slope in zip(model.parameters(), slopes, strict=True):
            assert (parameter.grad is None) if slope is None else torch.equal(parameter.grad, slope)

    @every_attack
    def test_modes_come_back_after_an_error(self, name, trained, data):
        model = copy.deepcopy(trained).train()
        handle = model[0].register_forward_pre_hook(lambda module, inputs: 1 / 0)
        if name != "noise":  # which does not ask the classifier
            with pytest.raises(ZeroDivisionError):
                make(name, "linf")(model, data[0][:2], data[1][:2], generators(2))
        handle.remove()
        assert all(module.training for module in model.modules())

    @every_attack
    @every_norm
    def test_an_empty_batch_is_an_empty_batch(self, name, norm, trained, data):
        assert make(name, norm)(trained, data[0][:0], data[1][:0], []).shape == (0, 3, SIZE, SIZE)

    @every_attack
    @every_norm
    def test_pictures_that_are_not_square_and_grey(self, name, norm):
        model = nn.Sequential(nn.Flatten(), nn.Linear(7 * 4, CLASSES))
        pixels, labels = torch.rand(3, 1, 7, 4), torch.tensor([0, 1, 2])
        assert inside(make(name, norm)(model, pixels, labels, generators(3)), pixels, RADIUS[norm], norm)


class TestProjection:
    @given(
        seed=st.integers(0, 10**6),
        radius=st.one_of(st.sampled_from([0.0, 1 / 255, 8 / 255, 1e-9, 1e-30, 3.0]), st.floats(0, 2)),
        far=st.floats(1e-6, 10),
        norm=st.sampled_from(["linf", "l2"]),
        dtype=st.sampled_from([torch.float32, torch.float64]),
        dark=st.booleans(),
    )
    def test_is_exact(self, seed, radius, far, norm, dtype, dark):
        generator = torch.Generator().manual_seed(seed)
        pixels = torch.rand(4, 3, 9, 7, generator=generator, dtype=dtype)
        if dark:  # where pixels - radius is next to nothing
            pixels = (radius * (1 + 1e-6 * (pixels - 0.5))).clamp(0, 1)
        pictures = pixels + far * torch.randn(4, 3, 9, 7, generator=generator, dtype=dtype)
        result = NORMS[norm].project(pictures, pixels, radius)
        assert inside(result, pixels, radius, norm)
        assert torch.equal(NORMS[norm].project(result, pixels, radius), result)
        if norm == "linf":
            wanted = pictures.clamp(pixels - radius, pixels + radius).clamp(0, 1)
            torch.testing.assert_close(result, wanted, rtol=0, atol=2 * torch.finfo(dtype).eps)

    @every_norm
    def test_many_pixels(self, norm):
        """Sums over as many squares as a photograph has are where float32 errs most."""
        pixels = torch.rand(2, 3, 224, 224)
        result = NORMS[norm].project(pixels + torch.randn_like(pixels), pixels, 1.5)
        assert inside(result, pixels, 1.5, norm)
        if norm == "l2":
            assert (result - pixels).double().norm() > 1.5 * 2**0.5 * 0.99

    @every_norm
    def test_leaves_what_is_inside(self, norm):
        pixels = torch.rand(2, 3, 4, 4)
        near = (pixels + 1e-3 * torch.randn_like(pixels)).clamp(0, 1)
        assert torch.equal(NORMS[norm].project(near, pixels, 0.5), near)


class TestLinearClassifier:
    """Two classes whose logits are 0 and w.x: the worst change is radius sign(w), or radius w / |w|, and its loss is
    softplus(w.x + radius |w|_1), or softplus(w.x + radius |w|_2), for a picture of class 0."""

    @pytest.fixture
    def problem(self):
        generator = torch.Generator().manual_seed(2)
        pixels = 0.3 + 0.4 * torch.rand(4, 3, SIZE, SIZE, generator=generator, dtype=torch.float64)
        weight = F.interpolate(torch.randn(1, 3, 4, 4, generator=generator, dtype=torch.float64), SIZE, mode="bilinear")
        weight = (weight - weight.mean()).flatten()
        model = nn.Sequential(nn.Flatten(), nn.Linear(3 * SIZE * SIZE, 2, dtype=torch.float64))
        with torch.no_grad():
            model[1].weight.copy_(torch.stack([torch.zeros_like(weight), weight]))
            # far enough on the right side that no attack crosses: Square stops when it does
            model[1].bias.copy_(torch.tensor([0, -20 - (pixels.flatten(1) @ weight).max()]))
        return model, weight, pixels, torch.zeros(4, dtype=torch.long)

    def rise(self, problem, attack) -> torch.Tensor:
        """How much w.x rises for each picture, as a share of what is possible."""
        model, weight, pixels, labels = problem
        change = attack(model, pixels, labels, generators(4)) - pixels
        dual = weight.abs().sum() if attack.norm == "linf" else weight.norm()
        return change.flatten(1) @ weight / (attack.radius * dual)

    @every_norm
    def test_fgsm_is_the_worst_case(self, norm, problem):
        share = self.rise(problem, FGSM(RADIUS[norm], norm=norm))
        torch.testing.assert_close(share, torch.ones_like(share), rtol=1e-12, atol=0)

    @every_norm
    @pytest.mark.parametrize("random_start", [True, False])
    def test_pgd_reaches_the_worst_case(self, norm, random_start, problem):
        model, weight, pixels, labels = problem
        attack = PGD(RADIUS[norm], norm=norm, steps=40, random_start=random_start)
        share = self.rise(problem, attack)
        torch.testing.assert_close(share, torch.ones_like(share), rtol=1e-6, atol=0)
        dual = weight.abs().sum() if norm == "linf" else weight.norm()
        loss = F.cross_entropy(model(attack(model, pixels, labels, generators(4))), labels, reduction="none")
        worst = F.softplus(model(pixels)[:, 1] + RADIUS[norm] * dual)
        torch.testing.assert_close(loss, worst, rtol=1e-5, atol=0)

    @every_norm
    def test_square_comes_close(self, norm, problem):
        few = self.rise(problem, Square(RADIUS[norm], norm=norm, queries=30))
        many = self.rise(problem, Square(RADIUS[norm], norm=norm, queries=1000))
        assert (few < many).all()
        # in l2 the change has to be moved about in pairs of pyramids, which takes many more queries
        assert many.min() > {"linf": 0.9, "l2": 0.5}[norm]
        assert many.max() <= 1

    def test_the_plain_protocol(self, problem):
        """Five steps of half the radius from a uniform start in the ball, and the last of them: written out."""
        model, _, pixels, labels = problem
        radius, step = 1 / 255, 0.5 / 255
        start = torch.stack([torch.rand(pixels.shape[1:], generator=generator) for generator in generators(4)])
        pictures = (pixels + radius * (2 * start.double() - 1)).clamp(0, 1)
        for _ in range(5):
            pictures.requires_grad_()
            (slope,) = torch.autograd.grad(F.cross_entropy(model(pictures), labels), pictures)
            moved = pictures.detach() + step * slope.sign()
            pictures = torch.minimum(torch.maximum(moved, pixels - radius), pixels + radius).clamp(0, 1)
        torch.testing.assert_close(PGD()(model, pixels, labels, generators(4)), pictures, rtol=0, atol=1e-12)
        torch.testing.assert_close(PGD(step=step)(model, pixels, labels, generators(4)), pictures, rtol=0, atol=1e-12)


class TestOptions:
    @pytest.mark.parametrize(
        ("attack", "option"),
        [
            (PGD(8 / 255), {"step": 1 / 255}),
            (PGD(8 / 255), {"steps": 9}),
            (PGD(8 / 255), {"random_start": False}),
            (PGD(8 / 255, steps=1), {"restarts": 5}),
            (Square(8 / 255, queries=20), {"queries": 40}),
            (Square(8 / 255, queries=20), {"share": 0.1}),
            (Square(0.5, queries=100, norm="l2"), {"share": 0.1}),
        ],
    )
    def test_each_changes_the_outcome(self, attack, option, trained, data):
        pixels, labels = data[0][:10], data[1][:10]
        one, other = (each(trained, pixels, labels, generators(10)) for each in (attack, replace(attack, **option)))
        assert not torch.equal(one, other)

    @every_norm
    def test_restarts_keep_the_worst_of_each_picture(self, norm, trained, data):
        pixels, labels = data
        once = PGD(RADIUS[norm] / 4, norm=norm, steps=2)
        one, many = (each(trained, pixels, labels, generators(160)) for each in (once, replace(once, restarts=4)))
        with torch.no_grad():
            one, many = margin(trained(one), labels), margin(trained(many), labels)
        assert (many <= one + 1e-5).all()
        assert (many < one - 1e-5).any()

    @every_norm
    def test_square_stops_where_the_classifier_is_wrong(self, norm, trained, data):
        pixels, labels = data[0][:40], data[1][:40].clone()
        labels[:5] = (labels[:5] + 1) % CLASSES  # wrong from the beginning
        asked = []
        handle = trained.register_forward_pre_hook(lambda module, inputs: asked.append(len(inputs[0])))
        pictures = Square(RADIUS[norm] * 2, norm=norm, queries=60)(trained, pixels, labels, generators(40))
        handle.remove()
        assert torch.equal(pictures[:5], pixels[:5])
        assert asked[0] == 40
        assert asked[1] <= 35
        assert asked == sorted(asked, reverse=True)
        assert asked[-1] < asked[1]

    def test_squares_shrink_on_the_paper_s_schedule(self):
        square = Square(queries=10_000, share=0.05)
        assert [square.side(query, 224, 224) for query in (1, 11, 51, 201, 9999)] == [50, 35, 25, 18, 3]
        assert Square(queries=10, norm="l2").side(9, 8, 8) == 3
        assert Square(queries=10).side(9, 2, 2) == 1

    def test_transfer_attacks_the_source(self, trained, data):
        other = nn.Sequential(nn.Flatten(), nn.Linear(3 * SIZE * SIZE, CLASSES)).train()
        attack = Transferred(PGD(8 / 255), other)
        pictures = attack(trained, *data, generators(160))
        assert torch.equal(pictures, PGD(8 / 255)(other, *data, generators(160)))
        assert (attack.radius, attack.norm) == (8 / 255, "linf")
        assert other.training

    def test_tiny_gradients_still_point(self):
        """Confident logits: the squares of such a gradient are 0 in float32."""
        model = nn.Sequential(nn.Flatten(), nn.Linear(12, 2))
        model[1].weight.data = torch.tensor([[0.0], [1e-3]]).expand(2, 12)
        model[1].bias.data = torch.tensor([60.0, 0.0])
        pixels, labels = torch.full((1, 3, 2, 2), 0.5), torch.tensor([0])
        change = FGSM(0.1, norm="l2")(model, pixels, labels, generators(1)) - pixels
        torch.testing.assert_close(change, torch.full_like(change, 0.1 / 12**0.5))
        assert not zero_gradients(model, pixels, labels).any()


class TestMaskedGradients:
    """Two ways to look robust, measured like an honest model; only the honest one is to pass."""

    class Rounded(nn.Module):
        def __init__(self, model):
            super().__init__()
            self.model = model

        def forward(self, pixels):
            return self.model((pixels * 32).round() / 32)

    class Confident(Rounded):
        def forward(self, pixels):
            return 2000 * self.model(pixels)

    def signs(self, model, data) -> list[str]:
        radius, (pixels, labels) = 12 / 255, data
        attacks = [PGD(2 / 255), PGD(radius), PGD(64 / 255), PGD(radius, steps=20), FGSM(radius), Noise(radius)]
        attacks.append(Square(radius, queries=100))
        accuracies = {
            attack: accuracy(model, attack(model, pixels, labels, generators(len(pixels))), labels)
            for attack in attacks
        }
        blind = zero_gradients(model, pixels, labels).double().mean().item()
        return masking_signs(accuracies, len(pixels), zero_gradients=blind)

    def test_an_honest_model_gives_none(self, trained, data):
        assert self.signs(trained, data) == []

    @pytest.mark.parametrize("mask", [Rounded, Confident])
    def test_a_masked_one_does(self, mask, trained, data):
        signs = self.signs(mask(trained).eval(), data)
        assert any("gradient of exactly 0" in sign for sign in signs)
        assert any(sign.startswith("Square") and "without this model's gradient" in sign for sign in signs)
        assert any("64/255" in sign and "so large a change" in sign for sign in signs)

    BASE = PGD(1 / 255)

    @pytest.mark.parametrize(("pictures", "low", "high"), [(20, 0.45, 0.2), (50, 0.3, 0.14), (100, 0.2, 0.1)])
    def test_too_few_pictures_to_show_a_fall_are_no_sign(self, pictures, low, high):
        assert masking_signs({PGD(1 / 255): low, PGD(8 / 255): high}, pictures, floor=0.001) == []

    @pytest.mark.parametrize(
        ("accuracies", "expected"),
        [
            ({BASE: 0.4, PGD(2 / 255): 0.6}, ["2/255 and 5 steps leaves 60.0%.*every picture of a smaller"]),
            ({BASE: 0.4, PGD(2 / 255): 0.41}, []),
            ({BASE: 0.4, PGD(32 / 255): 0.39}, ["hardly less than a small part"]),
            ({BASE: 0.01, PGD(32 / 255): 0.01}, []),
            ({BASE: 0.4, PGD(1 / 255, steps=50): 0.5}, ["50 steps leaves 50.0%.*astray"]),
            ({BASE: 0.4, Square(1 / 255): 0.3}, [r"Square of radius 1/255 leaves 30.0%.*gradient.*PGD.*40.0%$"]),
            ({BASE: 0.4, Square(2 / 255): 0.3}, []),
            ({BASE: 0.4, Square(1 / 255, norm="l2"): 0.3}, []),
            ({BASE: 0.4, PGD(1 / 255, steps=50): 0.4, Square(1 / 255): 0.3}, ["more steps did not help$"]),
            ({BASE: 0.4, PGD(1 / 255, steps=50): 0.3, Square(1 / 255): 0.3}, []),
            ({BASE: 0.4, FGSM(1 / 255): 0.3}, ["FGSM.*in one step"]),
            ({BASE: 0.4, Noise(1 / 255): 0.3}, ["Noise"]),
            ({BASE: 0.4, Transferred(BASE, nn.Identity()): 0.3}, ["transferred PGD of radius 1/255"]),
            ({PGD(64 / 255): 0.1}, ["64/255 and 5 steps leaves 10.0%"]),
            ({PGD(64 / 255): 0.001}, []),
            ({PGD(0.5, norm="l2"): 0.2, PGD(1.0, norm="l2"): 0.4}, ["PGD of radius 1 in l2"]),
            ({}, []),
        ],
    )
    def test_each_sign(self, accuracies, expected):
        signs = masking_signs(accuracies, 1000)
        assert len(signs) == len(expected)
        for sign, pattern in zip(signs, expected, strict=True):
            assert re.search(pattern, sign), sign

    def test_few_pictures_prove_little(self):
        accuracies = {self.BASE: 0.4, Square(1 / 255): 0.3}
        assert masking_signs(accuracies, 1000)
        assert not masking_signs(accuracies, 100)

    def test_zero_gradients_and_floor(self):
        assert "2.0% of the pictures" in masking_signs({}, 1000, zero_gradients=0.02)[0]
        assert masking_signs({}, 1000, zero_gradients=0.002) == []
        assert masking_signs({PGD(64 / 255): 0.21}, 1000, floor=0.2) == []

    def test_more_pictures_than_none_and_shares_only(self):
        with pytest.raises(ValueError, match="pictures must be 1 or more, got 0"):
            masking_signs({}, 0)
        with pytest.raises(ValueError, match=r"got 41\.5: divide percent by 100"):
            masking_signs({self.BASE: 41.5}, 100)


class TestErrors:
    @pytest.mark.parametrize(
        ("attack", "options", "message"),
        [
            (PGD, {"radius": -1 / 255}, "radius must be 0 or more"),
            (FGSM, {"radius": float("nan")}, "radius must be 0 or more"),
            (Square, {"norm": "l1"}, "norm must be one of 'linf', 'l2', got 'l1'"),
            (PGD, {"steps": 0}, "steps must be 1 or more, got 0"),
            (PGD, {"step": 0}, "step must be more than 0, got 0"),
            (PGD, {"restarts": 0}, "restarts must be 1 or more, got 0"),
            (PGD, {"restarts": 2, "random_start": False}, "set random_start=True"),
            (Square, {"queries": 0}, "queries must be 1 or more, got 0"),
            (Square, {"share": 1.5}, "share must be above 0 and at most 1, got 1.5"),
        ],
    )
    def test_options(self, attack, options, message):
        with pytest.raises(ValueError, match=message):
            attack(**options)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"pixels": torch.full((2, 3, SIZE, SIZE), 1.5)}, r"pixels must be in \[0, 1\], got 1.5 to 1.5"),
            ({"pixels": torch.full((2, 3, SIZE, SIZE), torch.nan)}, r"pixels must be in \[0, 1\], got nan"),
            ({"pixels": torch.rand(2, 3, SIZE, SIZE).half()}, "float32 or float64, got .* in torch.float16"),
            ({"pixels": torch.rand(3, SIZE, SIZE)}, r"\(batch, channels, height, width\)"),
            ({"labels": torch.tensor([0, CLASSES])}, f"labels must be from 0 to {CLASSES - 1}.*got 0 to {CLASSES}"),
            ({"labels": torch.tensor([-1, 0])}, "got -1 to 0"),
            ({"labels": torch.tensor([0])}, "labels must be 2 integers"),
            ({"labels": torch.rand(2)}, "labels must be 2 integers"),
            ({"generators": generators(1)}, "2 pictures need 2 generators, got 1"),
            ({"classifier": nn.Identity()}, r"logits \(2, classes\), got \(2, 3, 8, 8\)"),
        ],
    )
    @pytest.mark.parametrize("name", ["pgd", "fgsm", "square"])
    def test_inputs(self, name, change, message, trained):
        inputs = {
            "classifier": trained,
            "pixels": torch.rand(2, 3, SIZE, SIZE),
            "labels": torch.tensor([0, 1]),
            "generators": generators(2),
        }
        with pytest.raises(ValueError, match=message):
            make(name, "linf")(**{**inputs, **change})

    def test_a_classifier_without_a_gradient(self, trained, data):
        class Detached(nn.Module):
            def forward(self, pixels):
                return trained(pixels.detach())

        class Silent(nn.Module):
            def forward(self, pixels):
                with torch.no_grad():
                    return trained(pixels)

        for model in (Detached(), Silent()):
            with pytest.raises(ValueError, match="passes no gradient to its pixels"):
                PGD()(model, data[0][:2], data[1][:2], generators(2))
            Square(queries=2)(model, data[0][:2], data[1][:2], generators(2))

    @pytest.mark.skipif(find_spec("autoattack") is not None, reason="autoattack is installed")
    def test_autoattack_says_how_to_install_it(self):
        with pytest.raises(ImportError, match=r"pip install git\+https"):
            AutoAttack(8 / 255)

    def test_what_autoattack_is_asked_for(self, monkeypatch):
        """In place of its package one that records: one picture a call, a seed for each, and at most nine targets."""
        asked = []

        class Ensemble:
            def __init__(self, model, norm, eps, *, seed, verbose, device):
                torch.manual_seed(seed)  # as theirs does
                self.settings = {"norm": norm, "eps": eps, "seed": seed, "verbose": verbose}
                self.apgd_targeted, self.fab = SimpleNamespace(), SimpleNamespace()

            def run_standard_evaluation(self, picture, label, bs):
                targets = {self.apgd_targeted.n_target_classes, self.fab.n_target_classes}
                asked.append({**self.settings, "shape": tuple(picture.shape), "label": label.tolist(), "n": targets})
                return (picture + 0.01).clamp(0, 1)

        package = SimpleNamespace(AutoAttack=Ensemble, __spec__=ModuleSpec("autoattack", None))
        monkeypatch.setitem(sys.modules, "autoattack", package)
        pixels, labels = torch.rand(3, 3, 4, 4, dtype=torch.float64), torch.tensor([2, 0, 1])
        for norm, theirs in (("linf", "Linf"), ("l2", "L2")):
            for classes, targets in ((5, 4), (30, 9)):
                asked.clear()
                model = nn.Sequential(nn.Flatten(), nn.Linear(48, classes)).double()
                state = torch.get_rng_state()
                found = AutoAttack(0.02 if norm == "linf" else 1.0, norm=norm)(model, pixels, labels, generators(3))
                assert torch.equal(torch.get_rng_state(), state)
                assert found.dtype == torch.float64
                torch.testing.assert_close(found, (pixels + 0.01).clamp(0, 1), rtol=0, atol=1e-6)
                assert {each["norm"] for each in asked} == {theirs}
                assert [each["label"] for each in asked] == [[2], [0], [1]]
                assert [each["n"] for each in asked] == [{targets}] * 3
                assert {each["shape"] for each in asked} == {(1, 3, 4, 4)}
                assert len({each["seed"] for each in asked}) == 3

    @needs_autoattack
    def test_autoattack_with_too_few_classes(self):
        model = nn.Sequential(nn.Flatten(), nn.Linear(48, 2))
        with pytest.raises(ValueError, match="got 2 classes"):
            AutoAttack(8 / 255)(model, torch.rand(1, 3, 4, 4), torch.tensor([0]), generators(1))
