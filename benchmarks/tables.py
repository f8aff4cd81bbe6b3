"""What programs that print tables share."""

from collections.abc import Iterable, Sequence
from functools import partial

from torchvars.data import Batch, Draw, Pictures, limited, load, open_source
from torchvars.evaluation.subjects import Subject
from torchvars.models.pixels import centre_pixels


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """In Markdown, a row as soon as it is there."""
    print("| " + " | ".join(head) + " |\n|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(row) + " |", flush=True)
    print()


def some(subject: Subject, data: str, count: int) -> Batch:
    """A few pictures that were not trained on, as a model takes them."""
    shown = partial(centre_pixels, size=subject.size)
    source = limited(open_source(data, "val"), count)
    (batch,) = load(Pictures(source, shown), [[Draw(index, 0) for index in range(len(source))]])
    return batch
