"""Pictures with fixations: a plain layout, and MIT1003 as it is published."""

import csv
import io
import warnings
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

import numpy as np
from PIL import Image

from .files import Files
from .gaze import find_fixations
from .pictures import UNREADABLE
from .sources import EXTENSIONS, Source
from .targets import Points

RATE = 240  # samples of gaze in a second, in MIT1003
LONGEST = 63  # characters of a name in MATLAB


class Looked(Source):
    """Pictures with the points where people looked. Points outside of their picture are left out.

    Attributes:
        observers: names of the observers, if they are known.
        left_out: picture -> number of fixations outside of it.
    """

    def __init__(self, files: Files, pictures: Mapping[str, str], observers: list[str]):
        self._files, self._pictures, self.observers = files, dict(pictures), observers
        self.left_out: dict[str, int] = {}
        super().__init__(str(files.path), list(pictures), [], [-1] * len(pictures))
        self._points: dict[int, Points] = {}

    def read(self, index: int) -> bytes:
        return self._files.read(self._pictures[self.identities[index]])

    def size(self, index: int) -> tuple[int, int]:
        """Width and height of a picture, from its header; (1, 1) if it cannot be read."""
        try:
            with Image.open(io.BytesIO(self.read(index))) as image:
                return image.size
        except UNREADABLE:
            return 1, 1  # the picture is counted as unreadable where it is decoded

    def target(self, index: int) -> Points:
        if index not in self._points:
            name, size = self.identities[index], self.size(index)
            places, observers = self.fixations(name, size)
            inside = ((places >= 0) & (places < size)).all(1)
            if (lost := int((~inside).sum())) and size != (1, 1):
                self.left_out[name] = lost
            self._points[index] = Points(places[inside], None if observers is None else observers[inside], size)
        return self._points[index]

    @abstractmethod
    def fixations(self, name: str, size: tuple[int, int]) -> tuple[np.ndarray, np.ndarray | None]:
        """Places (N, 2) in a picture of some size, in pixels, and indices of their observers, (N,), if known."""

    def check(self) -> None:
        """Reads all points, and warns of those that are left out."""
        for index in range(len(self)):
            self.target(index)
        if self.left_out:
            count, names = sum(self.left_out.values()), list(self.left_out)
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            warnings.warn(
                f"{count} fixations of {self.name} are left out because they are outside of their pictures: "
                f"{', '.join(names[:3])}{more}",
                stacklevel=3,
            )


class Plain(Looked):
    """stimuli/<name>.jpg, and fixations.csv with a row for each fixation, or fixation_points/<name>.png.

    The columns image, subject, x_norm and y_norm of the table are read; places reach from 0 to 1, from the left and the
    top. In a picture of points each pixel brighter than half of white is a point.
    """

    def __init__(self, files: Files):
        pictures = files.pictures("stimuli")
        self._drawn = files.pictures("fixation_points")
        self._rows = _rows(files, pictures) if "fixations.csv" in files else {}
        known = self._rows or self._drawn
        kept = {name: path for name, path in pictures.items() if name in known}
        if not kept:
            raise ValueError(
                f"no picture in {files.path}/stimuli has fixations: expected fixations.csv with the columns "
                f"{', '.join(COLUMNS)}, or fixation_points/<name>.png"
            )
        subjects = sorted({subject for rows in self._rows.values() for subject, *_ in rows})
        self._numbers = {subject: number for number, subject in enumerate(subjects)}
        super().__init__(files, kept, subjects)

    def fixations(self, name: str, size: tuple[int, int]) -> tuple[np.ndarray, np.ndarray | None]:
        if not self._rows:
            return points_drawn(self._files, self._drawn[name], size), None
        rows = self._rows[name]
        places = np.array([place for _, *place in rows]) * size
        return places, np.array([self._numbers[subject] for subject, *_ in rows])


COLUMNS = ("image", "subject", "x_norm", "y_norm")


def _rows(files: Files, pictures: Mapping[str, str]) -> dict[str, list[tuple[str, float, float]]]:
    """Rows of the table of fixations by the names of the pictures."""
    table = csv.DictReader(io.StringIO(files.read("fixations.csv").decode()))
    if missing := [name for name in COLUMNS if name not in (table.fieldnames or ())]:
        raise ValueError(
            f"{files.path}/fixations.csv has no column {', '.join(missing)}: expected {', '.join(COLUMNS)}, found "
            f"{', '.join(table.fieldnames or ['nothing'])}"
        )
    rows: dict[str, list[tuple[str, float, float]]] = {}
    for row in table:
        name = row["image"] if row["image"] in pictures else PurePosixPath(row["image"]).stem
        if name not in pictures:
            raise ValueError(
                f"line {table.line_num} of {files.path}/fixations.csv is of {row['image']}, and there is no picture of "
                "that name in stimuli"
            )
        try:
            rows.setdefault(name, []).append((row["subject"], float(row["x_norm"]), float(row["y_norm"])))
        except (TypeError, ValueError) as error:
            raise ValueError(f"line {table.line_num} of {files.path}/fixations.csv is no fixation: {error}") from error
    return rows


def points_drawn(files: Files, name: str, size: tuple[int, int]) -> np.ndarray:
    """Centres (N, 2) of the pixels of a stored picture that are brighter than half of white."""
    try:
        with Image.open(io.BytesIO(files.read(name))) as image:
            drawn = np.array(image.convert("L"))
    except UNREADABLE as error:
        raise ValueError(f"{name} of {files.path} cannot be read as points: {error}") from error
    if drawn.shape[::-1] != tuple(size) and size != (1, 1):
        raise ValueError(
            f"{name} of {files.path} is of {drawn.shape[1]} x {drawn.shape[0]} pixels and its picture of {size[0]} x "
            f"{size[1]}: expected the same"
        )
    rows, columns = (drawn > 127).nonzero()
    return np.stack([columns, rows], 1) + 0.5


class MIT1003(Looked):
    """ALLSTIMULI/<name>.jpeg, with DATA/<observer>/<name>.mat or ALLFIXATIONMAPS/<name>_fixPts.jpg.

    A .mat file holds the gaze of one person, 240 samples in a second: fixations are detected in it (`find_fixations`),
    and the first is left out: there people had to look before the picture was shown. Without DATA the points drawn in
    ALLFIXATIONMAPS are used, whose observers are unknown.
    """

    def __init__(self, files: Files):
        pictures = files.pictures("ALLSTIMULI")
        mats = [name for name in files.below("DATA") if name.endswith(".mat") and name.count("/") == 2]
        self._gaze = {(PurePosixPath(name).stem, name.split("/")[1]): name for name in mats}
        name = "ALLFIXATIONMAPS"
        drawn = files.pictures(name) or files.pictures(f"{name}/{name}")  # as unpacked into a folder of its own
        self._drawn = {stem.removesuffix("_fixPts"): name for stem, name in drawn.items() if stem.endswith("_fixPts")}
        observers = sorted({observer for _, observer in self._gaze})
        known = {name for name, _ in self._gaze} if self._gaze else set(self._drawn)
        if not known:
            raise ValueError(
                f"{files.path} has pictures in ALLSTIMULI, and no fixations: expected DATA/<observer>/<name>.mat or "
                "ALLFIXATIONMAPS/<name>_fixPts.jpg"
            )
        if lost := [name for name in pictures if name not in known]:
            raise ValueError(
                f"{len(lost)} of {len(pictures)} pictures of {files.path} have no fixations, such as {lost[0]}: copy "
                "the data set again"
            )
        super().__init__(files, pictures, observers)

    def fixations(self, name: str, size: tuple[int, int]) -> tuple[np.ndarray, np.ndarray | None]:
        if not self._gaze:
            return points_drawn(self._files, self._drawn[name], size), None
        places, observers = [np.zeros((0, 2))], []
        for number, observer in enumerate(self.observers):
            if (name, observer) in self._gaze:
                looked = find_fixations(self._samples(self._gaze[name, observer], name), RATE)[1:]
                places.append(looked - 0.5)  # the first pixel of MATLAB is 1
                observers += [number] * len(looked)
        return np.concatenate(places), np.array(observers, int)

    def _samples(self, file: str, name: str) -> np.ndarray:
        """The gaze in a file, (samples, 2)."""
        from scipy.io import loadmat  # of the extra for evaluation

        where, variable = f"{file} of {self._files.path}", name[:LONGEST]
        try:
            content = loadmat(io.BytesIO(self._files.read(file)), simplify_cells=True)
        except Exception as error:  # scipy raises many kinds of errors for invalid files
            raise ValueError(f"{where} cannot be read as a file of MATLAB: {error}") from error
        if variable not in content:
            names = ", ".join(each for each in content if not each.startswith("__")) or "nothing"
            raise ValueError(f"{where} has no variable {variable}: found {names}")
        try:
            data = content[variable]["DATA"]
            samples = np.asarray((data if isinstance(data, dict) else data[0])["eyeData"], float)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise ValueError(f"{where} has no {variable}.DATA(1).eyeData: {error!r}") from error
        if samples.ndim != 2 or samples.shape[1] < 2:
            raise ValueError(f"{where}: eyeData must be of shape (samples, 2), got {samples.shape}")
        return samples[:, :2]


def open_fixations(path: str | Path) -> Looked:
    """Opens pictures with the places where people looked.

    Args:
        path: folder or plain tar with the layout of `Plain` or that of MIT1003.

    Raises:
        FileNotFoundError: the path does not exist.
        ValueError: the layout is unknown, or a file cannot be read.

    Warns:
        UserWarning: fixations outside of their pictures are left out.
    """
    for marker, layout in (("stimuli", Plain), ("ALLSTIMULI", MIT1003)):
        files = Files(path, marker)
        if files.pictures(marker):
            source = layout(files)
            source.check()
            return source
    found = ", ".join(sorted({name.split("/")[0] for name in files.names})[:5]) or "nothing"
    raise ValueError(
        f"{files.path} holds no fixations: expected stimuli/<name>.jpg with fixations.csv or "
        "fixation_points/<name>.png, or MIT1003's ALLSTIMULI with DATA or ALLFIXATIONMAPS; a picture ends in "
        f"{', '.join(sorted(EXTENSIONS))}; found {found}"
    )
