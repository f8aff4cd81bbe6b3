"""The loop over the pictures of a source: each is asked of once, whoever asks, and decoded once."""

import io

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor

from torchvars.data import Part, Shown, Source
from torchvars.data.order import derive_seed
from torchvars.scoring import Asked, Memory, Processes, Scores, answers, score
from torchvars.scoring.answers import UNREAD
from torchvars.scoring.processes import find_device

pytestmark = pytest.mark.usefixtures("one_thread")


class Alone:
    """One process of several, which keeps what it has to itself."""

    device = torch.device("cpu")

    def __init__(self, rank: int = 0, world: int = 1):
        self.rank, self.world = rank, world

    def gather(self, mine: list) -> list:
        return mine


class Colours(Source):
    """Pictures of one colour each, in memory; every third cannot be read."""

    def __init__(self, count: int):
        names = [f"{number}.png" for number in range(count)]
        super().__init__("colours", names, ["dark", "bright"], [number % 2 for number in range(count)])
        self.opened = []

    def read(self, index: int) -> bytes:
        self.opened.append(index)
        if index % 3 == 2:
            raise OSError("broken")
        file = io.BytesIO()
        Image.new("RGB", (4, 4), (20 * index % 256,) * 3).save(file, "PNG")
        return file.getvalue()


def brightness(asked: Asked) -> dict[str, Tensor]:
    return {"grey": asked.pixels.mean((1, 2, 3)).double(), "target": torch.tensor(asked.targets)}


def scored(source: Source, rank: int = 0, world: int = 1, ask=brightness, **how) -> Scores:
    blank = {"grey": torch.nan, "target": -1}
    return score(source, Shown(4), ask, blank, Alone(rank, world), **{"batch": 3, **how})


@given(count=st.integers(1, 20), batch=st.integers(1, 8), world=st.integers(2, 5), together=st.booleans())
def test_processes_share_every_picture_between_them(count, batch, world, together):
    alone = scored(Colours(count), batch=batch)
    broken = np.arange(count) % 3 == 2
    assert alone.unread.tolist() == broken.tolist()
    grey = np.where(broken, np.nan, 20 * np.arange(count) % 256 / 255)
    np.testing.assert_allclose(alone.columns["grey"], grey, rtol=1e-6)
    assert alone.columns["target"].tolist() == [-1 if number % 3 == 2 else number % 2 for number in range(count)]
    assert alone.problems == {f"colours: {number}.png": "OSError: broken" for number in np.flatnonzero(broken)}
    starts, asked, found, problems = range(0, count, batch), [], {}, {}
    for rank in range(min(world, len(starts)) if not together else world):
        times = []

        def counting(one: Asked, times: list = times) -> dict[str, Tensor]:
            times.append(one.indices)
            return brightness(one)

        if together and rank >= len(starts):
            with pytest.raises((RuntimeError, ValueError)):  # with nothing of its own, and nobody to gather from
                scored(Colours(count), rank, world, counting, batch=batch, together=True)
        else:
            part = scored(Colours(count), rank, world, counting, batch=batch, together=together)
            problems |= part.problems
            for first, values in zip(starts[rank::world], part.columns["grey"].split(batch), strict=True):
                found[first] = values.tolist()
        asked.append(len(times))
    whole = [value for first in sorted(found) for value in found[first]]
    np.testing.assert_array_equal(whole, alone.columns["grey"])
    assert problems == alone.problems
    if together:
        assert set(asked) == {-(-len(starts) // world)}  # a model that is spread over them runs on all or none


def test_a_change_is_of_the_pixels_and_what_they_were_is_known():
    seen = []

    def ask(asked: Asked) -> dict[str, Tensor]:
        seen.append((asked.pixels - asked.clean).unique().tolist())
        return brightness(asked)

    changed = scored(Colours(2), ask=ask, change=lambda asked: asked.pixels + 0.5)
    assert seen == [[0.5]]
    torch.testing.assert_close(changed.columns["grey"], scored(Colours(2)).columns["grey"] + 0.5)


@pytest.mark.parametrize(("bound", "kept"), [(2**20, 10), (4 * 48, 4), (0, 0)])
def test_pictures_are_decoded_once_as_far_as_the_memory_reaches(bound, kept):
    source, memory = Colours(10), Memory(bound)
    plain = scored(source)
    source.opened.clear()
    first = scored(source, memory=memory)
    assert len(memory.kept) == kept
    source.opened.clear()
    for batch in (3, 10, 1):
        again = scored(source, memory=memory, batch=batch)
        for found in (first, again):
            torch.testing.assert_close(found.columns, plain.columns, rtol=0, atol=0, equal_nan=True)
            assert found.unread.tolist() == plain.unread.tolist()
            assert found.problems == plain.problems
        assert (source.opened == []) == (kept == 10)
    # A part of the pictures has no others.
    source.opened.clear()
    part = Part(source, "part", lambda identity: derive_seed(identity) % 2 == 0)
    found = scored(part, memory=memory)
    assert (source.opened == []) == (kept == 10)
    torch.testing.assert_close(found.columns["grey"], plain.columns["grey"][part.indices], equal_nan=True)


def test_answers_by_hand():
    logits = torch.tensor([[0.0, np.log(3.0)], [np.log(4.0), 0.0]], dtype=torch.float64)
    found = answers(logits, torch.tensor([1, 1]))
    assert found["right"].tolist() == [True, False]
    assert found["named"].tolist() == [1, 0]
    torch.testing.assert_close(found["confidence"], torch.tensor([0.75, 0.8], dtype=torch.float64))
    torch.testing.assert_close(found["loss"], -torch.tensor([0.75, 0.2], dtype=torch.float64).log())
    assert found.keys() == UNREAD.keys()


# Processes


def test_what_is_finished_is_what_the_first_process_says(monkeypatch):
    """Another may not see its file."""
    second = Processes()
    second.rank, second.world = 1, 2
    monkeypatch.setattr(second, "gather", lambda mine: ["of the first", *mine])
    assert second.by_first(lambda: "of the second") == "of the first"
    assert Processes().by_first(lambda: "its own") == "its own"


def test_a_device_is_the_accelerator_the_one_named_or_an_error(monkeypatch):
    def found(word: str | None, local_rank: int = 0) -> str:
        monkeypatch.setenv("LOCAL_RANK", str(local_rank))
        return str(find_device(word))

    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    assert found(None) == found("cpu") == found("cpu:0") == "cpu"
    with pytest.raises(ValueError, match="no device 'cuda' here: there is cpu"):
        found("cuda")
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    assert found("cpu", 1) == "cpu"
    assert found(None) == found("cuda") == found("cuda:0") == "cuda:0"
    assert found(None, 1) == found("cuda", 1) == found("cuda:1", 0) == "cuda:1"
    for word, rank in (("cuda:2", 0), ("mps", 0), ("meta", 0), ("", 0), (None, 2)):
        with pytest.raises(ValueError, match="there are cpu, cuda:0, cuda:1"):
            found(word, rank)
