"""What a classifier takes: pixels in [0, 1], which it makes of pictures and checks at first."""

import copy
import pickle

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import torchvars
from torchvars.data import open_source
from torchvars.data.pictures import Shown


class Mean(nn.Module):
    """Two logits by the mean of each picture."""

    pretrained_cfg = {"input_size": (3, 28, 28)}  # noqa: RUF012

    def forward(self, images):
        return torch.stack([images.mean((1, 2, 3)), images.mean((1, 2, 3))], dim=-1)


def classifier() -> torchvars.Classifier:
    return torchvars.Classifier(Mean()).eval()


def pixels(low: float = 0.0, high: float = 1.0) -> torch.Tensor:
    return torch.rand(2, 3, 28, 28).mul(high - low).add(low)


NORMALISED = (pixels() - torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)) / 0.225


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (
            NORMALISED,
            r"must be in \[0, 1\], got values from -2.* to 2.*: a Classifier normalises for itself, so leave out",
        ),
        (pixels(0, 255), r"must be in \[0, 1\], got values from .* to 25.*: pass them .* divided by 255"),
        (torch.full((1, 3, 28, 28), torch.nan), "got values from nan to nan"),
    ],
)
def test_pixels_of_another_range_are_refused(given, told):
    with pytest.raises(ValueError, match=told):
        classifier()(given)
    judge = classifier()
    judge(torch.zeros(1, 3, 28, 28))  # a call to learn the shapes tells nothing of the pixels that follow
    with pytest.raises(ValueError, match=told):
        judge(given)


def test_what_resampling_overshoots_is_taken():
    sharp = torch.zeros(1, 3, 14, 14)
    sharp[..., ::3, :] = 1
    resampled = nn.functional.interpolate(sharp, size=28, mode="bicubic")
    assert resampled.min() < -0.05
    assert resampled.max() > 1.05
    classifier()(resampled)
    classifier()(torch.empty(0, 3, 28, 28))


def test_only_the_first_calls_are_checked_and_none_if_so_told():
    judge = classifier()
    for _ in range(torchvars.Classifier.checks_left):
        judge(pixels())
    judge(NORMALISED)
    assert classifier().checks_left == torchvars.Classifier.checks_left  # each has its own
    free = classifier()
    free.checks_left = 0
    free(NORMALISED)
    torchvars.Classifier(Mean(), (0, 0, 0), (1, 1, 1))(NORMALISED)  # it does not normalise: others may
    for copied in (copy.deepcopy(judge), pickle.loads(pickle.dumps(judge))):
        copied(NORMALISED)


def test_values_are_left_alone_by_whatever_traces():
    judge, given = classifier(), pixels()
    expected = judge(given)
    traced = {
        "compiled": torch.compile(classifier(), fullgraph=True, backend="eager"),
        "exported": torch.export.export(classifier(), (given,)).module(),
        "jit": torch.jit.trace(classifier(), given),
        "fx": torch.fx.symbolic_trace(classifier()),
        "make_fx": make_fx(classifier())(given),
    }
    for each in traced.values():
        torch.testing.assert_close(each(given), expected)
    assert torch.func.vmap(classifier())(given[:, None]).shape == (2, 1, 2)
    assert classifier().to("meta")(given.to("meta")).shape == (2, 2)
    with FakeTensorMode():
        assert classifier()(torch.rand(2, 3, 28, 28)).shape == (2, 2)


@pytest.mark.parametrize(("mode", "size"), [("RGB", (50, 33)), ("L", (28, 28)), ("RGBA", (20, 60)), ("I;16", (40, 40))])
def test_a_picture_is_transformed_as_in_evaluation(mode, size, tmp_path):
    """The oracle is what torchvision makes of it, but for a rounding of the longer side."""
    from torchvision.transforms import v2

    draw = np.random.default_rng(0)
    shape = (*size[::-1], len(mode)) if mode in ("RGB", "RGBA") else size[::-1]
    dtype = np.uint16 if mode == "I;16" else np.uint8
    image = Image.fromarray(draw.integers(0, np.iinfo(dtype).max, shape, dtype=dtype))
    assert image.mode == mode
    found = classifier().transform(image)
    assert found.shape == (3, 28, 28)
    assert (found.min() >= 0) & (found.max() <= 1)
    if mode in ("RGB", "RGBA") and size != (28, 28):
        steps = v2.Compose([v2.Resize(32, v2.InterpolationMode.BICUBIC), v2.CenterCrop(28), v2.PILToTensor()])
        torch.testing.assert_close(found, steps(image.convert("RGB")).float() / 255, rtol=0, atol=0)
    folder = tmp_path / "val" / "class"
    folder.mkdir(parents=True)
    image.save(folder / "1.png")
    stored = Shown(28)(open_source(str(tmp_path), "val").open(0))
    torch.testing.assert_close(found, stored.float() / 255, rtol=0, atol=0)


def test_a_model_of_other_channels_has_no_transform():
    grey = torchvars.Classifier(Mean(), mean=[0.5], std=[0.5])
    with pytest.raises(ValueError, match="the model takes 1 channels, but transform makes RGB"):
        grey.transform(Image.new("L", (28, 28)))
