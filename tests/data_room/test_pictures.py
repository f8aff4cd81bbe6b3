"""How stored pictures become batches, whoever makes them."""

import io
import multiprocessing
import os
import random
import signal
import struct
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from torchvars.data import Draw, Order, Pictures, load, open_source
from torchvars.data.pictures import check_workers, seeded

COUNT = 10


def pixels_of(image):
    return torch.from_numpy(np.asarray(image, dtype=np.float32) / 255).permute(2, 0, 1)


def by_chance(image):
    """A transform that draws from all three generators."""
    drawn = [random.random(), np.random.rand(), torch.rand(()).item()]  # noqa: NPY002
    return pixels_of(image) / 2 + torch.tensor(drawn).view(3, 1, 1) / 2


@pytest.fixture
def folder(tmp_path):
    """Pictures of one colour each: that of number n is (n, 2 n, 3 n)."""
    for number in range(COUNT):
        path = tmp_path / f"class{number % 2}" / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        Image.new("RGB", (4, 3), (number, 2 * number, 3 * number)).save(path)
    return tmp_path


def expected(number):
    colour = torch.tensor([number, 2 * number, 3 * number]) / 255
    return colour.view(3, 1, 1).expand(3, 3, 4)


def number_of(identity):
    return int(identity.split("/")[1].removesuffix(".png"))


def state():
    return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # noqa: NPY002


def test_batches_hold_what_was_drawn(folder):
    pictures = Pictures(open_source(folder, "train"), pixels_of)
    assert len(pictures) == COUNT
    drawn = [[Draw(3, 0), Draw(0, 0)], [Draw(9, 0)]]
    for batch, draws in zip(load(pictures, drawn), drawn, strict=True):
        numbers = [number_of(identity) for identity in batch.identities]
        assert batch.identities == [pictures.source.identities[draw.index] for draw in draws]
        assert batch.labels.tolist() == [number % 2 for number in numbers]
        torch.testing.assert_close(batch.pixels, torch.stack([expected(number) for number in numbers]), rtol=0, atol=0)
        assert batch.problems == {}


def test_workers_make_no_difference(folder):
    pictures = Pictures(open_source(folder, "train"), by_chance)
    order = Order(COUNT, 3, seed=5)
    alone, beside = (list(load(pictures, order.batches(2, 9), workers)) for workers in (0, 2))
    assert len(alone) == 7
    for one, other in zip(alone, beside, strict=True):
        torch.testing.assert_close(one.pixels, other.pixels, rtol=0, atol=0)
        torch.testing.assert_close(one.labels, other.labels, rtol=0, atol=0)
        assert one.identities == other.identities


def test_chance_depends_on_the_draw_alone(folder):
    pictures = Pictures(open_source(folder, "train"), by_chance)
    first = pictures[Draw(4, 11)].pixels
    for _ in range(3):  # whatever was drawn in between
        pictures[Draw(random.randrange(COUNT), random.getrandbits(60))]
        torch.testing.assert_close(pictures[Draw(4, 11)].pixels, first, rtol=0, atol=0)
    # Another seed is another chance in each of the generators: a channel shows one each.
    changed = (pictures[Draw(4, 12)].pixels - first).abs().amax((1, 2))
    assert (changed > 1e-3).all()


@given(seed=st.integers(0, 2**63 - 1))
def test_seeded_draws_what_generators_of_that_seed_draw(seed):
    before = state()
    with seeded(seed):
        drawn = random.random(), np.random.rand(), torch.rand(()).item()  # noqa: NPY002
    assert state() == before
    own = random.Random(seed).random(), np.random.RandomState(seed % 2**32).rand()
    assert drawn == (*own, torch.rand((), generator=torch.Generator().manual_seed(seed)).item())


def test_seeded_leaves_other_devices_and_errors_alone(monkeypatch):
    monkeypatch.setattr(torch.cuda, "manual_seed_all", lambda _: pytest.fail("the generators of GPUs were seeded"))

    def draw_and_fail():
        by_chance(Image.new("RGB", (4, 3)))
        raise ZeroDivisionError

    before = state()
    with pytest.raises(ZeroDivisionError), seeded(3):
        draw_and_fail()
    assert state() == before


@pytest.mark.parametrize("workers", [0, 2])
def test_generators_of_all_are_left_as_they_were(folder, workers):
    pictures = Pictures(open_source(folder, "train"), by_chance)
    before = state()
    list(load(pictures, Order(COUNT, 5, seed=0).batches(0, 2), workers))
    assert state() == before


def broken(kind):
    """A file that is called a picture and is none."""
    file = io.BytesIO()
    Image.effect_noise((32, 32), 50).convert("RGB").save(file, "BMP" if kind == "huge" else "PNG")
    content = bytearray(file.getvalue())
    match kind:
        case "empty":
            return b""
        case "text":
            return b"<html>404 not found</html>"
        case "cut off":
            return bytes(content[: len(content) // 2])
        case "garbage":
            content[60:100] = bytes(40)
            return bytes(content)
        case "huge":
            content[18:26] = struct.pack("<ii", 30000, 30000)  # width and height in a bitmap's header
            return bytes(content)


KINDS = ["empty", "text", "cut off", "garbage", "huge", "missing"]


@pytest.mark.parametrize("kind", KINDS)
def test_another_takes_the_place_of_a_broken_picture(folder, kind):
    source = open_source(folder, "train")
    index = source.identities.index("class0/4.png")
    if kind == "missing":
        (folder / "class0/4.png").unlink()
    else:
        (folder / "class0/4.png").write_bytes(broken(kind))
    (batch,) = load(Pictures(source, pixels_of), [[Draw(0, 1), Draw(index, 2), Draw(9, 3)]])
    assert list(batch.problems) == ["class0/4.png"]
    assert ":" in batch.problems["class0/4.png"]  # the kind of error, and what it says
    assert batch.identities == ["class0/0.png", "class0/4.png", "class1/9.png"]
    # In the order of the source 6 follows 4.
    torch.testing.assert_close(batch.pixels[1], expected(6), rtol=0, atol=0)
    torch.testing.assert_close(batch.pixels[[0, 2]], torch.stack([expected(0), expected(9)]), rtol=0, atol=0)


def test_the_label_is_that_of_the_picture_shown(folder):
    """The last picture, and all of the first class, are broken: the first of the other class takes its place."""
    source = open_source(folder, "train")
    for path in [folder / "class1/9.png", *(folder / "class0").iterdir()]:
        path.write_bytes(b"")
    (batch,) = load(Pictures(source, pixels_of), [[Draw(0, 1), Draw(COUNT - 1, 2)]])
    assert batch.labels.tolist() == [1, 1]
    torch.testing.assert_close(batch.pixels, torch.stack([expected(1), expected(1)]), rtol=0, atol=0)
    assert set(batch.problems) == {"class0/0.png", "class1/9.png"}


@pytest.mark.parametrize("workers", [0, 1])
def test_nothing_but_broken_pictures_is_an_error(folder, workers):
    source = open_source(folder, "train")
    for path in folder.rglob("*.png"):
        path.write_bytes(b"<html>")
    with pytest.raises(ValueError, match=f"^no picture of {folder} can be read: .*: its 6 bytes are no picture$"):
        list(load(Pictures(source, pixels_of), [[Draw(0, 0)]], workers))


def test_a_program_that_fails_ends_though_others_read_for_it(folder):
    program = f"""
import sys
from torchvars.data import Draw, Pictures, load, open_source
batches = iter(load(Pictures(open_source({str(folder)!r}, "train"), len), [[Draw(0, 0)]] * 100, 1))
sys.modules["kept"] = batches  # as a traceback may keep it
raise RuntimeError("failed")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "RuntimeError: failed" in done.stderr


def test_an_error_of_the_transform_is_not_taken_for_a_broken_picture(folder):
    def fail(image):
        raise ValueError("of the transform")

    with pytest.raises(ValueError, match="of the transform"):
        Pictures(open_source(folder, "train"), fail)[Draw(0, 0)]


def test_those_that_read_leave_an_interrupt_to_the_run(folder):
    """A terminal sends it to every process."""
    batches = iter(load(Pictures(open_source(folder, "train"), pixels_of), [[Draw(n, 0)] for n in range(COUNT)], 1))
    next(batches)
    for worker in multiprocessing.active_children():
        os.kill(worker.pid, signal.SIGINT)
    assert len(list(batches)) == COUNT - 1


@pytest.mark.parametrize(("cpus", "most"), [(1, 16), (2, 16), (64, 256)])
def test_no_more_processes_read_than_the_machine_can_bear(cpus, most, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(cpus)), raising=False)
    for workers in (0, 1, most):
        check_workers(workers)
    for workers in (-1, most + 1):
        with pytest.raises(ValueError, match=rf"from 0 to {most}, got {workers}: .* {cpus} CPU"):
            check_workers(workers)
