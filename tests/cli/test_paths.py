"""Words that stand for places: ~ is the home folder, and names are parted by commas."""

from pathlib import Path

import pytest

from torchvars.cli.paths import data_of, model_of, names_of, path_of


@pytest.fixture(autouse=True)
def _home(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")


@pytest.mark.parametrize(
    ("word", "meaning"),
    [
        ("~/pictures", "/home/me/pictures"),
        ("~", "/home/me"),
        ("wds/~/shards", "wds//home/me/shards"),
        ("hfds/~/set", "hfds//home/me/set"),
        ("hfds/me/set", "hfds/me/set"),
        ("./wds/~", "./wds/~"),
        ("a~b", "a~b"),
    ],
)
def test_pictures(word, meaning):
    assert data_of(word) == meaning


@pytest.mark.parametrize(
    ("word", "meaning"),
    [
        ("~/run", "/home/me/run"),
        ("timm:resnet50:~/weights:1.pth", "timm:resnet50:/home/me/weights:1.pth"),
        ("timm:resnet50", "timm:resnet50"),
        ("rvt_micro_vars_d.cifar10", "rvt_micro_vars_d.cifar10"),
    ],
)
def test_models(word, meaning):
    assert model_of(word) == meaning


def test_files_and_names():
    assert path_of("~/results.json") == Path("/home/me/results.json")
    assert names_of(" clean, pgd,,clean,") == ("clean", "pgd")
    assert names_of(",") == ()
