"""One geometry for a picture and for what is marked in it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from torchvars.data import Mask, Points
from torchvars.models.geometry import Geometry, centred
from torchvars.models.pixels import centre

sides = st.integers(8, 120)


@given(sides, sides, st.integers(4, 64))
def test_a_blob_its_mask_and_its_point_stay_together(width, height, size):
    geometry = centred(width, height, size)
    rows, columns = np.indices((height, width))
    place = np.array([width / 2, height / 2])  # the middle, which no crop leaves out
    near = np.hypot(columns + 0.5 - place[0], rows + 0.5 - place[1]) <= max(2, min(width, height) / 6)
    image = Image.fromarray(np.repeat((200 * near).astype(np.uint8)[..., None], 3, 2))
    shown, mask = np.array(geometry.image(image))[..., 0], Mask(near.astype(np.uint8)).moved(geometry).labels
    (point,) = Points(place[None]).moved(geometry).places
    assert shown.shape == mask.shape == (size, size)
    np.testing.assert_array_equal(shown, np.array(centre(image, size))[..., 0])
    assert set(np.unique(mask)) <= {0, 1}  # labels are not mixed
    if mask.any():
        middles = [np.average(np.indices(mask.shape) + 0.5, axis=(1, 2), weights=each)[::-1] for each in (mask, shown)]
        np.testing.assert_allclose(middles[0], middles[1], atol=1)
        np.testing.assert_allclose(middles[0], point, atol=1)


def test_places_by_hand():
    geometry = Geometry(before=(40, 20), resized=(20, 10), corner=(5, 0), size=(10, 10))
    places = np.array([[20.0, 10.0], [10.0, 0.0], [9.0, 0.0], [29.9, 19.9], [30.0, 5.0]])
    moved = Points(places, np.arange(5)).moved(geometry)
    np.testing.assert_allclose(moved.places, [[5, 5], [0, 0], [9.95, 9.95]])
    assert (moved.observers.tolist(), moved.size) == ([0, 1, 3], (10, 10))
    assert Points(places).moved(geometry).observers is None


def test_what_has_the_size_is_left_as_it_is():
    image = Image.new("RGB", (16, 16))
    assert centred(16, 16, 16).image(image) is image


def test_what_does_not_fit_its_picture_is_named():
    geometry = centred(30, 20, 10)
    with pytest.raises(ValueError, match="the mask is of 20 x 30 pixels and its picture of 30 x 20: expected the same"):
        Mask(np.zeros((30, 20), np.uint8)).moved(geometry)
    with pytest.raises(ValueError, match=r"the point \(31.0, 4.0\) is outside its picture of 30 x 20 pixels"):
        Points(np.array([[3.0, 4.0], [31.0, 4.0]])).moved(geometry)
    with pytest.raises(ValueError, match="the picture is of 30 x 20 pixels, got"):
        geometry.image(Image.new("RGB", (20, 30)))
