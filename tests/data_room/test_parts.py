"""Parts of a source: nothing is in two of them, and nothing is lost."""

import numpy as np
import pytest

from torchvars.data import Source, held_out_tenth, leave_out

DOMAINS, CLASSES = ("art", "photo", "sketch"), ("cat", "dog")


class Named(Source):
    """Pictures whose content is their name."""

    def read(self, index: int) -> bytes:
        return self.identities[index].encode()


@pytest.fixture
def source() -> Source:
    identities = sorted(
        f"{domain}/{name}/{number}.png" for domain in DOMAINS for name in CLASSES for number in range(200)
    )
    labels = [DOMAINS.index(identity.split("/")[0]) for identity in identities]
    return Named("all", identities, list(DOMAINS), labels)


def test_a_tenth_is_held_out(source):
    train, val = held_out_tenth(source, "train"), held_out_tenth(source, "val")
    assert sorted(train.identities + val.identities) == source.identities
    # A tenth of each class within three standard deviations of a draw.
    counts = np.bincount(val.labels)
    assert np.abs(counts - 40).max() < 3 * np.sqrt(400 * 0.1 * 0.9)
    for part in (train, val):
        assert part.classes == source.classes
        for index in (0, 7, len(part) - 1):
            assert part.read(index).decode() == part.identities[index]
            assert part.classes[part.labels[index]] == part.identities[index].split("/")[0]


def test_what_is_held_out_does_not_depend_on_what_else_is_there(source):
    fewer = Named("fewer", source.identities[::3], list(DOMAINS), source.labels[::3])
    assert set(held_out_tenth(fewer, "val").identities) <= set(held_out_tenth(source, "val").identities)


@pytest.mark.parametrize("domain", DOMAINS)
def test_a_domain_is_left_out_of_training_and_of_choosing(domain, source):
    train, val, test = (leave_out(source, domain, split) for split in ("train", "val", "test"))
    assert sorted(train.identities + val.identities + test.identities) == source.identities
    assert {identity.split("/")[0] for identity in test.identities} == {domain}
    assert {identity.split("/")[0] for identity in train.identities + val.identities} == set(DOMAINS) - {domain}
    for part in (train, val, test):
        assert part.classes == list(CLASSES)
        assert [part.classes[label] for label in part.labels] == [name.split("/")[1] for name in part.identities]


def test_what_has_no_domains_is_told(source):
    with pytest.raises(ValueError, match="no domain 'oil' in all: it has art, photo, sketch"):
        leave_out(source, "oil", "train")
    flat = Named("flat", ["cat/1.png", "dog/1.png"], ["cat", "dog"], [0, 1])
    with pytest.raises(ValueError, match=r"flat has no domains: expected <domain>/<class>/<picture>, found cat/1.png"):
        leave_out(flat, "cat", "train")
    with pytest.raises(ValueError, match="val part of flat is empty"):
        held_out_tenth(Named("flat", ["cat/1.png"], ["cat"], [0]), "val")
