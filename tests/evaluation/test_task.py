"""What holds for every task, the one of the package and one that is made up here: who asks does not matter, nor how."""

import pickle
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from evaluation.halves import SIZE, Halves, subject, write
from torchvars.data import Mask, Source
from torchvars.data.sources import Folder
from torchvars.evaluation import Metric, Task, differences, metrics, print_differences, print_table, run
from torchvars.evaluation.benchmarks.base import Benchmark, Showing
from torchvars.evaluation.benchmarks.corruptions import CorruptionChange, groups_of, summarize
from torchvars.evaluation.conditions import CLEAN, Condition
from torchvars.evaluation.results import Results
from torchvars.evaluation.subjects import Subject
from torchvars.evaluation.tasks import Classification
from torchvars.figures.robustness import draw_attacks, draw_corruptions

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def _rough_intervals(monkeypatch):
    monkeypatch.setattr(metrics, "RESAMPLES", 50)


class Overlap(Task):
    """Where is it bright? The target is a mask of the bright half."""

    name, placed = "overlap", True
    metrics = (Metric("IoU", "higher", "iou", 100.0, " %"), Metric("missed", "lower", "missed", test="signs"))
    columns = {"iou": 0.0, "missed": torch.nan}  # noqa: RUF012

    def prepare(self, subject, source, device):
        return subject.classifier

    def score(self, judge, asked):
        masks = torch.stack([torch.from_numpy(target.labels) for target in asked.targets]) > 0
        found = judge.sign * (asked.pixels.mean(1) - asked.clean.mean((1, 2, 3))[:, None, None]) > 0
        both, either = (found & masks).sum((1, 2)), (found | masks).sum((1, 2))
        return {"iou": (both / either).double(), "missed": (masks & ~found).double().mean((1, 2))}


class Halved(Folder):
    """Pictures with the mask of their bright half."""

    def target(self, index: int) -> Mask:
        rows, columns = np.indices((SIZE, SIZE))
        halves = {"left": columns < 16, "right": columns >= 16, "top": rows < 16, "bottom": rows >= 16}
        return Mask(halves[self.identities[index].split("/")[0]].astype(np.uint8))


class Signed(Halves):
    """The same model, which also says whether it is always right or always wrong."""

    def __init__(self, sign: int):
        super().__init__(range(4), 4, sign)
        self.sign = sign


class Reordered(Source):
    """The pictures of a source in the reverse order."""

    def __init__(self, source: Source):
        super().__init__(source.name, source.identities[::-1], source.classes, source.labels[::-1])
        self.source = source

    def target(self, index: int):
        return self.source.target(len(self) - 1 - index)

    def read(self, index: int) -> bytes:
        return self.source.read(len(self) - 1 - index)


TASKS = {"classification": (Classification, Folder), "overlap": (Overlap, Halved)}
every_task = pytest.mark.parametrize("task", TASKS)
BEST = {"accuracy": 100, "consistency": 100, "IoU": 100, "missed": 0}
CHANGES = ("contrast", "fog", "brightness")
CONDITIONS = [Condition("corruption", name, severity) for name in CHANGES for severity in (1, 4)]


@pytest.fixture(scope="module")
def pictures(tmp_path_factory) -> Path:
    """Seven, which fill no whole number of batches; one of them cannot be read."""
    folder = write(tmp_path_factory.mktemp("pictures"), count=2)
    (folder / "left" / "1.png").unlink()
    (folder / "top" / "1.png").write_bytes(b"nothing")
    return folder


def model(sign: int = 1, size: int = SIZE) -> Subject:
    return replace(subject(sign=sign, name="right" if sign > 0 else "wrong"), classifier=Signed(sign), size=size)


def made(task: str, source: Source, conditions: list[Condition] = CONDITIONS) -> Benchmark:
    """Clean and corrupted pictures."""
    showings = [Showing(CLEAN, source)]
    for condition in conditions:
        change = CorruptionChange(condition.name, condition.severity, 0, "cifar", None)
        showings.append(Showing(condition, source, change))
    how = {"change": "seed 0", "summarize": summarize, "groups": groups_of(showings)}
    return Benchmark("halves", "as they are", "here", showings, TASKS[task][0](), **how)


def tried(task: str, pictures: Path, output: Path, sign: int = 1, **how) -> Results:
    source = TASKS[task][1](pictures)
    return run.evaluate(model(sign), [made(task, source)], output, **{"batch": 3, "workers": 0, "device": "cpu", **how})


@every_task
def test_who_is_always_right_has_the_best_of_each_metric_and_who_is_wrong_has_not(task, tmp_path):
    folder = write(tmp_path / "pictures")
    right, wrong = (tried(task, folder, tmp_path / f"{sign}.json", sign) for sign in (1, -1))
    for name, metric in right.metrics("halves").items():
        found, other = (
            [row for row in each.rows if row.metric == name and row.label in ("clean", "contrast")]
            for each in (right, wrong)
        )
        assert found
        if name in BEST:
            assert {row.value for row in found} == {BEST[name]}
        if name not in ("consistency", "calibration error"):  # of which the wrong one has the best as well
            better = np.greater if metric.better == "higher" else np.less
            assert all(better(one.value, two.value) for one, two in zip(found, other, strict=True))


@every_task
@pytest.mark.parametrize(("batch", "workers"), [(1, 0), (7, 0), (2, 1)])
def test_batches_and_workers_do_not_matter(task, batch, workers, pictures, tmp_path):
    tried(task, pictures, tmp_path / "one.json")
    tried(task, pictures, tmp_path / "two.json", batch=batch, workers=workers)
    assert (tmp_path / "one.json").read_text() == (tmp_path / "two.json").read_text()


@every_task
def test_the_order_of_the_pictures_does_not_matter(task, pictures, tmp_path):
    source = TASKS[task][1](pictures)
    found = [
        run.evaluate(model(), [made(task, each)], tmp_path / f"{number}.json", batch=3, workers=0, device="cpu")
        for number, each in enumerate((source, Reordered(source)))
    ]
    assert found[0].pictures["halves"] == found[1].pictures["halves"][::-1]
    for condition, outcome in found[0].outcomes["halves"].items():
        other = found[1].outcomes["halves"][condition]
        assert {name: figure.value for name, figure in outcome.figures.items()} == pytest.approx(
            {name: figure.value for name, figure in other.figures.items()}
        )
        for name, values in outcome.columns.items():
            np.testing.assert_array_equal(values, other.columns[name][::-1])


class Together:
    """One of several processes, as a thread of this one."""

    world = 2
    device = torch.device("cpu")
    place = threading.local()
    barrier, told = threading.Barrier(2, timeout=60), {}

    def __init__(self, device: str | None = None):
        self.rank = self.place.rank

    def gather(self, mine: list) -> list:
        self.told[self.rank] = mine
        self.barrier.wait()
        found = pickle.loads(pickle.dumps([*self.told[0], *self.told[1]]))  # each has its own
        self.barrier.wait()
        return found

    def by_first(self, make):
        return self.gather([make()] if self.rank == 0 else [])[0]

    def wait(self) -> None:
        self.barrier.wait()


@every_task
def test_processes_do_not_matter(task, pictures, tmp_path, monkeypatch):
    tried(task, pictures, tmp_path / "one.json")
    monkeypatch.setattr(run, "Processes", Together)
    failed = []

    def process(rank: int) -> None:
        Together.place.rank = rank
        try:
            tried(task, pictures, tmp_path / "two.json")
        except Exception as error:  # the other would wait for ever
            failed.append(error)
            Together.barrier.abort()

    threads = [threading.Thread(target=process, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert (tmp_path / "one.json").read_text() == (tmp_path / "two.json").read_text()


@every_task
@pytest.mark.parametrize("stop", [1, 4])
def test_killed_and_gone_on_with_it_is_the_same_file(task, stop, pictures, tmp_path):
    tried(task, pictures, tmp_path / "one.json")
    output, left = tmp_path / "two.json", [stop]

    def killing(now: run.Progress) -> None:
        if now.number == left[0] + 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tried(task, pictures, output, watch=killing)
    assert len(Results.read(output).outcomes["halves"]) == stop
    seen = []
    tried(task, pictures, output, watch=seen.append)
    assert {now.number for now in seen} == set(range(stop + 1, 8))
    assert output.read_text() == (tmp_path / "one.json").read_text()


@every_task
def test_a_picture_that_cannot_be_read_is_counted_and_named(task, pictures, tmp_path):
    results = tried(task, pictures, tmp_path / "results.json")
    assert [name.rpartition(": ")[2] for name in results.unreadable] == ["top/1.png"]
    first, *_ = results.metrics("halves").values()
    row = results.value("halves", first.name, "clean")
    assert (row.value, row.images) == (pytest.approx(100 * 6 / 7), 7)
    left_out = {"classification": "loss", "overlap": "missed"}[task]
    assert results.value("halves", left_out, "clean").images == 6
    assert results.outcome("halves", "clean").unread == 1


@every_task
def test_models_are_compared_picture_by_picture(task, pictures, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(metrics.TESTS, "signs", lambda first, second: float((first == second).mean()))
    right, wrong = (Results.read(path_of(task, pictures, tmp_path, sign)) for sign in (1, -1))
    first, *_ = right.metrics("halves").values()
    found = {(each.condition.key, each.metric): each for each in differences(wrong, right)}
    clean = found["clean", first.name]
    gain = [right.value("halves", first.name, "clean").value, wrong.value("halves", first.name, "clean").value]
    assert clean.value == pytest.approx(gain[0] - gain[1])
    assert clean.low <= clean.value <= clean.high
    assert clean.p == {"classification": 2 / 2**6, "overlap": None}[task]
    if task == "overlap":
        assert found["clean", "missed"].p == 0  # on no picture did both miss as much
        assert found["fog 4", "missed"].value < 0
    print_table([right, wrong])
    print_differences(wrong, right)
    shown = capsys.readouterr().out
    assert first.name in shown
    assert "right less wrong, on the same pictures" in shown
    assert draw_corruptions([right], tmp_path / "figure.png") == (task == "classification")
    assert not draw_attacks([right], tmp_path / "figure.png")
    # Another task, of the same name and pictures, is no pair.
    other = Results.read(path_of("overlap" if task == "classification" else "classification", pictures, tmp_path, 1))
    assert differences(right, other) == []


def path_of(task: str, pictures: Path, folder: Path, sign: int) -> Path:
    output = folder / f"{task} {sign}.json"
    tried(task, pictures, output, sign)
    return output


def test_a_mask_is_shown_as_its_picture_is(tmp_path):
    """Resized and cut out alike, the bright half is still where the mask says."""
    folder = write(tmp_path / "pictures", count=1)
    source = Halved(folder)
    results = run.evaluate(model(size=14), [made("overlap", source, [])], tmp_path / "r.json", workers=0, device="cpu")
    assert results.value("halves", "IoU", "clean").value > 85

    class Large(Halved):
        def target(self, index: int) -> Mask:
            return Mask(np.zeros((40, SIZE), np.uint8))

    with pytest.raises(ValueError, match=r"bottom/0.png of .*: the mask is of 32 x 40 pixels and its picture of"):
        run.evaluate(model(), [made("overlap", Large(folder), [])], tmp_path / "l.json", workers=0, device="cpu")


def test_what_moves_is_refused_before_anything_is_tried(pictures, tmp_path):
    moving = [*CONDITIONS, Condition("corruption", "zoom_blur", 1)]
    with pytest.raises(ValueError, match="zoom_blur moves the content of pictures, and the targets of overlap"):
        run.evaluate(model(), [made("overlap", Halved(pictures), moving)], tmp_path / "results.json", workers=0)
    assert not (tmp_path / "results.json").exists()
