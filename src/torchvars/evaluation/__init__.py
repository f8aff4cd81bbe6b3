"""Evaluation of robustness: benchmarks, corruptions, attacks, and results with confidence intervals.

`evaluate` is enough for most uses; the rest serves to add a benchmark, a task or a table.
"""

from .attacks import ATTACKS
from .benchmarks import BENCHMARKS, Benchmark
from .call import evaluate
from .compare import differences, print_differences, print_table
from .conditions import Condition
from .corruptions import CORRUPTIONS, corrupt
from .record import read_results
from .results import Outcome, Results, Row
from .subjects import Subject, open_subject, subject_of
from .task import Figure, Metric, Task
from .tasks import Classification, Fixation, MapStability, Segmentation

__all__ = [
    "ATTACKS",
    "BENCHMARKS",
    "CORRUPTIONS",
    "Benchmark",
    "Classification",
    "Condition",
    "Figure",
    "Fixation",
    "MapStability",
    "Metric",
    "Outcome",
    "Results",
    "Row",
    "Segmentation",
    "Subject",
    "Task",
    "corrupt",
    "differences",
    "evaluate",
    "open_subject",
    "print_differences",
    "print_table",
    "read_results",
    "subject_of",
]
