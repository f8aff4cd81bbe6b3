"""In which order pictures come, against what must be true of any."""

from collections import Counter
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchvars.data import Order, derive_seed

# World sizes that share a global batch, and how much of it each process then takes.
SHARES = st.sampled_from([(1, 12), (2, 6), (3, 4), (4, 3), (6, 2), (12, 1)])


def indices(batches):
    return [draw.index for batch in batches for draw in batch]


@given(count=st.integers(12, 80), share=SHARES, repeats=st.integers(1, 4), seed=st.integers(0, 2**62))
def test_processes_share_the_batches_that_one_would_have(count, share, repeats, seed):
    world, batch = share
    alone = Order(count, 12, seed, repeats)
    together = [Order(count, batch, seed, repeats, rank, world) for rank in range(world)]
    assert {order.steps for order in together} == {alone.steps}
    steps = 2 * alone.steps
    shared = [
        [draw for part in parts for draw in part]
        for parts in zip(*(order.batches(0, steps) for order in together), strict=True)
    ]
    assert shared == list(alone.batches(0, steps))  # the seeds too


@given(count=st.integers(5, 40), batch=st.integers(1, 5), start=st.integers(0, 60), more=st.integers(0, 60))
def test_starting_at_any_step_goes_on_as_if_never_stopped(count, batch, start, more):
    """Also over the ends of epochs."""
    order = Order(count, batch, seed=3)
    whole = list(islice((batch for number in range(100) for batch in order.epoch(number)), 120))
    assert list(order.batches(start, start + more)) == whole[start : start + more]


@given(count=st.integers(5, 60), batch=st.integers(1, 5), seed=st.integers(0, 2**62), number=st.integers(0, 1000))
def test_an_epoch_has_every_picture_at_most_once(count, batch, seed, number):
    batches = Order(count, batch, seed).epoch(number)
    assert all(len(drawn) == batch for drawn in batches)
    drawn = indices(batches)
    assert len(set(drawn)) == len(drawn) == count - count % batch
    assert set(drawn) <= set(range(count))


def test_what_an_epoch_leaves_out_comes_in_others():
    order = Order(10, 4, seed=0)
    left_out = [set(range(10)) - set(indices(order.epoch(number))) for number in range(40)]
    assert all(len(pictures) == 2 for pictures in left_out)
    # Each picture is left out with probability 1/5: that some never is has probability 10 * 0.8^40 < 0.002.
    assert set.union(*left_out) == set(range(10))


@given(count=st.integers(8, 60), repeats=st.integers(1, 5), seed=st.integers(0, 2**62))
def test_repeats_are_copies_beside_those_of_another_each_with_its_own_chance(count, repeats, seed):
    order = Order(count, 4, seed, repeats)
    batches = order.epoch(0)
    assert len(batches) == count // 4  # an epoch is as long as without repeats
    drawn = [draw for batch in batches for draw in batch]
    for first in range(0, len(drawn), 2 * repeats):
        assert len({draw.index for draw in drawn[first : first + 2 * repeats]}) <= 2
    neighbours = zip(drawn[::2], drawn[1::2], strict=True)
    assert all(one.index != other.index for one, other in neighbours)  # else mixing would be in vain
    copies = Counter(draw.index for draw in drawn)
    *full, before, last = copies.values()
    assert set(full) <= {repeats}
    assert max(before, last) <= repeats
    assert len({draw.seed for draw in drawn}) == len(drawn)


def test_chance_is_another_in_every_epoch_and_run():
    seeds = [draw.seed for seed in (0, 1) for batch in Order(8, 4, seed).batches(0, 20) for draw in batch]
    assert len(set(seeds)) == len(seeds)


def test_epochs_and_runs_differ_and_a_run_can_be_repeated():
    epochs = {tuple(indices(Order(30, 5, seed).epoch(number))) for seed in range(3) for number in range(10)}
    assert len(epochs) == 30  # of 30! orders, two among thirty are alike with a probability below 1e-29
    assert Order(30, 5, 7).epoch(2) == Order(30, 5, 7).epoch(2)


def test_every_picture_comes_first_equally_often():
    firsts = Counter(Order(5, 5, seed).epoch(0)[0][0].index for seed in range(2000))
    # Binomial of 2000 and 1/5: mean 400, standard deviation 17.9; five of them.
    assert all(abs(firsts[index] - 400) < 90 for index in range(5))


@given(
    parts=st.lists(st.integers() | st.text(max_size=3), max_size=4),
    others=st.lists(st.integers() | st.text(max_size=3), max_size=4),
)
def test_seeds_of_different_things_differ_and_suit_every_generator(parts, others):
    assert 0 <= derive_seed(*parts) < 2**63
    assert (derive_seed(*parts) == derive_seed(*others)) == (parts == others)


def test_seeds_stay_the_same_over_versions():
    """Else a run could not be resumed. Made with sha256sum: printf "(0, 'order', 1)" | sha256sum."""
    assert derive_seed(0, "order", 1) == int("24f925a2834a7c03", 16) // 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"count": 11, "batch": 4, "world": 3},
            "11 pictures do not fill one batch of 4 on each of 3 processes",
        ),
        ({"batch": 0}, "batch and repeats must be at least 1, got 0 and 1"),
        ({"repeats": 0}, "batch and repeats must be at least 1, got 2 and 0"),
        ({"rank": 2, "world": 2}, "rank must be from 0 to 1, got 2"),
        ({"rank": -1}, "rank must be from 0 to 0, got -1"),
    ],
)
def test_an_order_that_cannot_be_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Order(**({"count": 12, "batch": 2, "seed": 0} | arguments))
