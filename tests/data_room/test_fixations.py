"""Where people looked: the plain layout and that of MIT1003, in folders and tars, whole and broken."""

import csv
import tarfile

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from torchvars.data import open_fixations
from torchvars.data.gaze import find_fixations

ROWS = [("001", "0", 0.1, 0.5), ("001", "0", 0.1, 0.5), ("001", "b", 0.75, 0.25), ("002", "b", 0.0, 0.999)]
LONG = "i" + "05june05_static_street_boston_p1010764" * 2  # more than 63 characters


def plain(folder, rows=ROWS):
    for name in ("stimuli", "fixation_points"):
        (folder / name).mkdir(parents=True)
    for name in ("001", "002"):
        Image.new("RGB", (20, 10)).save(folder / f"stimuli/{name}.jpg")
        drawn = np.zeros((10, 20), np.uint8)
        drawn[3, 7] = 255
        Image.fromarray(drawn).convert("1").save(folder / f"fixation_points/{name}.png")
    with (folder / "fixations.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("image", "subject", "x_norm", "y_norm", "duration_s"), *[(*r, 1) for r in rows]])
    return folder


def packed(folder, path):
    with tarfile.open(path, "w") as archive:
        archive.add(folder, "around")
    return path


@pytest.mark.parametrize("tar", [False, True])
def test_the_table_of_the_plain_layout(tar, tmp_path):
    folder = plain(tmp_path / "data")
    source = open_fixations(packed(folder, tmp_path / "data.tar") if tar else folder)
    assert (source.identities, source.observers) == (["001", "002"], ["0", "b"])
    first, second = source.target(0), source.target(1)
    np.testing.assert_allclose(first.places, [[2, 5], [2, 5], [15, 2.5]])  # repeated ones, too
    assert first.observers.tolist() == [0, 0, 1]
    assert (first.size, second.places.tolist()) == ((20, 10), [[0, 9.99]])
    assert source.open(0).size == (20, 10)


def test_points_that_are_drawn_are_taken_without_the_table(tmp_path):
    folder = plain(tmp_path)
    (folder / "fixations.csv").unlink()
    source = open_fixations(folder)
    assert source.target(1).places.tolist() == [[7.5, 3.5]]
    assert source.target(1).observers is None
    assert source.observers == []
    Image.new("1", (20, 11)).save(folder / "fixation_points/002.png")
    with pytest.raises(ValueError, match=r"002.png of .* is of 20 x 11 pixels and its picture of 20 x 10"):
        open_fixations(folder)
    (folder / "fixation_points/002.png").write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"002.png of .* cannot be read as points"):
        open_fixations(folder)


def test_fixations_outside_their_pictures_are_counted_and_named(tmp_path):
    outside = [("002", "0", 1.0, 0.5), ("002", "0", -0.01, 0.5), ("001", "0", float("nan"), 0.5)]
    folder = plain(tmp_path, ROWS + outside)
    with pytest.warns(
        UserWarning, match=r"3 fixations of .* are left out because .* outside of their pictures: 001, 002"
    ):
        source = open_fixations(folder)
    assert source.left_out == {"001": 1, "002": 2}
    assert [len(source.target(index).places) for index in (0, 1)] == [3, 1]


def gaze(rests, samples=60, jump=2):
    """Samples of a gaze that rests at places, trembling a little, and jumps from one to the next in few samples."""
    generator = np.random.default_rng(0)
    parts = []
    for before, place in zip([None, *rests], rests, strict=False):
        if before is not None:
            parts.append(np.linspace(before, place, jump + 2)[1:-1])
        parts.append(place + generator.normal(0, 0.2, (samples, 2)))
    return np.concatenate(parts)


def test_fixations_are_found_in_a_gaze():
    rests = np.array([[500.0, 400.0], [120.0, 90.0], [700.0, 300.0], [650.0, 600.0]])
    found = find_fixations(gaze(rests), 240)
    assert found.shape == rests.shape
    assert np.abs(found - rests).max() < 1
    assert np.abs(find_fixations(gaze(rests[:1]), 240) - rests[0]).max() < 1
    # A rest of less than 50 ms between two jumps is none.
    short = np.concatenate([gaze(rests[:1]), np.linspace(rests[0], rests[1], 5), [rests[1]] * 4])
    short = np.concatenate([short, np.linspace(rests[1], rests[2], 5), gaze(rests[2:3])])
    found = find_fixations(short, 240)
    assert np.abs(found - rests[[0, 2]]).max() < 1
    lost = gaze(rests)
    lost[10:15] = np.nan
    assert np.abs(find_fixations(lost, 240) - rests).max() < 1


def mit(folder, name=LONG, variable=None, content=None, observers=("CNG", "ajs")):
    for each in ("ALLSTIMULI", "ALLFIXATIONMAPS", *(f"DATA/{observer}" for observer in observers)):
        (folder / each).mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (800, 700)).save(folder / f"ALLSTIMULI/{name}.jpeg")
    drawn = np.zeros((700, 800), np.uint8)
    drawn[40:48, 80:88] = 255  # as large as what JPEG keeps apart
    Image.fromarray(drawn).save(folder / f"ALLFIXATIONMAPS/{name}_fixPts.jpg", quality=90)
    Image.new("L", (800, 700), 90).save(folder / f"ALLFIXATIONMAPS/{name}_fixMap.jpg")
    for number, observer in enumerate(observers):
        rests = np.array([[400.0, 350.0], [120.5 + number, 90.5], [700.0, 300.0]])
        data = {"DATA": {"eyeData": gaze(rests)}} if content is None else content
        savemat(folder / f"DATA/{observer}/{name}.mat", {variable or name[:63]: data}, long_field_names=True)
    return folder


@pytest.mark.parametrize("tar", [False, True])
def test_mit1003_as_published(tar, tmp_path):
    folder = mit(tmp_path / "data")
    source = open_fixations(packed(folder, tmp_path / "data.tar") if tar else folder)
    assert (source.identities, source.observers) == ([LONG], ["CNG", "ajs"])
    points = source.target(0)
    # The first is where all had to look; pixels of MATLAB are counted from 1.
    assert np.abs(points.places - [[120, 90], [699.5, 299.5], [121, 90], [699.5, 299.5]]).max() < 1
    assert points.observers.tolist() == [0, 0, 1, 1]
    several = np.array([{"eyeData": gaze(np.array([[9.0, 9.0], [50.0, 600.0]]))}, {"eyeData": 0}], dtype=object)
    again = open_fixations(mit(tmp_path / "again", content={"DATA": several}))
    assert np.abs(again.target(0).places - [[49.5, 599.5]] * 2).max() < 1


@pytest.mark.parametrize("nested", [False, True])
def test_mit1003_by_its_drawn_points(nested, tmp_path):
    folder = mit(tmp_path, observers=())
    if nested:
        (folder / "ALLFIXATIONMAPS").rename(folder / "maps")
        (folder / "ALLFIXATIONMAPS").mkdir()
        (folder / "maps").rename(folder / "ALLFIXATIONMAPS/ALLFIXATIONMAPS")
    source = open_fixations(folder)
    places = source.target(0).places
    assert len(places) == 64
    assert (places.min(0).tolist(), places.max(0).tolist()) == ([80.5, 40.5], [87.5, 47.5])


@pytest.mark.parametrize(
    ("how", "error"),
    [
        ({"variable": "other"}, r"DATA/CNG/i0.*.mat of .* has no variable i05june.*: found other"),
        ({"content": {"DATA": 3.0}}, r"has no i05june.*.DATA\(1\).eyeData: "),
        ({"content": {"DATA": {"gaze": 3.0}}}, r"has no i05june.*.DATA\(1\).eyeData: KeyError"),
        ({"content": {"DATA": {"eyeData": np.zeros(5)}}}, r"eyeData must be of shape \(samples, 2\), got \(5,\)"),
    ],
)
def test_a_mat_file_of_another_shape_is_named(how, error, tmp_path):
    with pytest.raises(ValueError, match=error):
        open_fixations(mit(tmp_path, **how))


def test_what_is_no_set_of_fixations_is_named(tmp_path):
    folder = mit(tmp_path / "a")
    next(folder.glob("DATA/CNG/*")).write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"DATA/CNG/i0.*.mat of .* cannot be read as a file of MATLAB"):
        open_fixations(folder)
    Image.new("RGB", (8, 8)).save(folder / "ALLSTIMULI/more.jpeg")
    with pytest.raises(ValueError, match=r"1 of 2 pictures of .* have no fixations, such as more"):
        open_fixations(folder)
    folder = mit(tmp_path / "b", observers=())
    for each in (folder / "ALLFIXATIONMAPS").iterdir():
        each.unlink()
    with pytest.raises(ValueError, match="has pictures in ALLSTIMULI, and no fixations: expected DATA/<observer>"):
        open_fixations(folder)
    folder = plain(tmp_path / "c", [*ROWS, ("003", "0", 0.5, 0.5)])
    with pytest.raises(ValueError, match=r"line 6 of .*fixations.csv is of 003, and there is no picture of that name"):
        open_fixations(folder)
    (folder / "fixations.csv").write_text("image,subject,x_norm,y_norm\n001,0,left,0.5\n")
    with pytest.raises(ValueError, match=r"line 2 of .*fixations.csv is no fixation: could not convert"):
        open_fixations(folder)
    (folder / "fixations.csv").write_text("image,x,y\n")
    with pytest.raises(ValueError, match=r"has no column subject, x_norm, y_norm: expected .*, found image, x, y"):
        open_fixations(folder)
    (tmp_path / "d").mkdir()
    with pytest.raises(ValueError, match=r"holds no fixations: expected stimuli/<name>.jpg .*; found nothing"):
        open_fixations(tmp_path / "d")
