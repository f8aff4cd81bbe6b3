"""The benchmark of clean pictures."""

from ...data import limited
from ..conditions import CLEAN
from ..subjects import Subject
from .base import Benchmark, ClassOptions, Data, Member, Showing, centred


def clean(data: Data, subject: Subject, options: ClassOptions) -> Benchmark:
    """Clean pictures."""
    source = limited(data.source, options.limit)
    task = options.task(source, subject)
    return Benchmark("clean", f"{centred(subject)}; top-1", data.name, [Showing(CLEAN, source)], task)


MEMBERS = {"clean": Member(clean, ClassOptions)}
