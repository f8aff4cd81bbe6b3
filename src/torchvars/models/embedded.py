"""Weights that come with the package: a folder for each, named after the model and the pictures it was trained on."""

from pathlib import Path

EMBEDDED = Path(__file__).parent.parent / "weights"
TAGS = ("imagenette", "cifar10")  # in the order of preference for a name without a tag


def embedded() -> list[str]:
    """Names whose weights come with the package: "rvt_micro_vars_d.imagenette", ..."""
    names = [path.parent.name for path in EMBEDDED.glob("*/config.json")]
    return sorted(names, key=lambda name: (_rank(name.partition(".")[2]), name))


def find_embedded(name: str) -> Path:
    """The folder of the weights with a name, with or without the pictures they were trained on.

    Raises:
        ValueError: no weights have this name.
    """
    for found in embedded():
        if name in (found, found.partition(".")[0]):
            return EMBEDDED / found
    raise ValueError(f"{name} has no weights here; names that have: {', '.join(embedded()) or 'none yet'}")


def _rank(tag: str) -> int:
    return TAGS.index(tag) if tag in TAGS else len(TAGS)
