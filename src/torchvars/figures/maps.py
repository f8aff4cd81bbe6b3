"""Figures of attention maps, by model, corruption, recurrent step, layer and head; and of atoms."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ..attention import Reconstruction, inspect
from ..attention.modes import evaluating
from ..evaluation.corruptions import corrupt
from ..evaluation.subjects import Subject
from ..maps import KINDS, Observation, find_maps, observe
from ..models.peers import class_names, readable_name
from ..models.pixels import centre_pixels
from ..models.weights import write_whole
from ..sparse import Convolution, Dense, Joint, Operator

CORRUPTIONS = ("gaussian_noise", "defocus_blur", "jpeg_compression", "fog")
"""One of each group: noise, blur, digital, weather."""
MAPS, SIGNED = "inferno", "RdBu_r"
CELL = 1.05  # inches; five columns and the picture fit the width of a two-column page
FONT = 7
BRIGHTEST = 99.5  # percentile of the last colour


@dataclass(frozen=True)
class MapRequest:
    """The maps to draw, by the arguments of `find_maps`.

    Attributes:
        query: "mean", "class", or (row, column) of a point in the picture, both from 0 to 1.
        target: the class of a gradient map: its index or its name.
    """

    kind: str = "implicit"
    layer: int | str = -1
    head: int | str = "mean"
    step: int | None = None
    query: str | tuple[float, float] = "mean"
    target: int | str | None = None

    def of(self, subject: Subject) -> dict[str, Any]:
        """The arguments of `find_maps` for a model."""
        query, target = self.query, self.target
        if not isinstance(query, str):
            query = tuple(min(int(place * subject.size), subject.size - 1) for place in query)
        if isinstance(target, str):
            target = class_number(subject, target)
        return {**vars(self), "query": query, "target": target}

    def find(self, subject: Subject, pixels: Sequence[Tensor], **changed: Any) -> list[np.ndarray]:
        """The map (h, w) of each picture; (heads, h, w) if all heads are requested."""
        seen = observed(subject, torch.stack(list(pixels)))
        try:
            maps = find_maps(seen, **{**self.of(subject), **changed})
        except ValueError as error:
            raise ValueError(f"{subject.name}: {error}") from error
        return [each.float().cpu().numpy() for each in maps]


def observed(subject: Subject, pixels: Tensor) -> Observation:
    """The observation of a model on pixels (B, 3, H, W). A ValueError begins with the name of the model."""
    try:
        return observe(subject.classifier, pixels.to(next(subject.classifier.parameters()).device))
    except ValueError as error:
        raise ValueError(f"{subject.name}: {error}") from error


def class_number(subject: Subject, name: str) -> int:
    """The index of a class of a model by its name, as folders are named or in English."""
    known = class_names(subject.classifier) or ()
    for number, each in enumerate(known):
        if name in (each, readable_name(each)):
            return number
    shown = ", ".join(readable_name(each) for each in known[:10]) or "none"
    raise ValueError(f"{subject.name} has no class {name!r}: its classes are {shown}{', ...' if known[10:] else ''}")


@dataclass
class Sheet:
    """Maps in rows and columns, with a picture at the beginning of each row.

    Attributes:
        maps: by row and column, (h, w) each; None for an empty cell.
        pictures: (H, W, 3), one for each row.
        scale: the maps that share a colour scale: each "row", each "column", or "all".
        marked: the query, (row, column) from 0 to 1, which is marked in the pictures.
        legend: the meaning of the colours.
    """

    rows: Sequence[str]
    columns: Sequence[str]
    maps: Sequence[Sequence[np.ndarray | None]]
    pictures: Sequence[np.ndarray]
    scale: str
    marked: tuple[float, float] | None = None
    legend: str = ""

    def arrays(self) -> dict[str, np.ndarray]:
        """All pictures and maps, by name."""
        titles = ["/".join(name for name in ("picture", row) if name) for row in self.rows]
        found = dict(zip(titles, self.pictures, strict=True))
        for row, several in zip(self.rows, self.maps, strict=True):
            for column, each in zip(self.columns, several, strict=True):
                if each is not None:
                    found["/".join(name for name in (row, column) if name)] = each
        return found


def compare(subjects: Sequence[Subject], image: Image.Image, request: MapRequest) -> Sheet:
    """The maps of one picture, one model in each column."""
    maps = [request.find(each, [centre_pixels(image, each.size)])[0] for each in subjects]
    return _sheet(subjects, [""], [each.name for each in subjects], [maps], [shown(subjects, image)], "column", request)


def under_corruptions(
    subjects: Sequence[Subject],
    image: Image.Image,
    request: MapRequest,
    names: Sequence[str] = CORRUPTIONS,
    severity: int = 3,
    identity: str = "picture",
) -> Sheet:
    """The maps of a picture and its corruptions, one in each row. The maps of a model share a colour scale."""
    rows = ["clean", *names]

    def corrupted(size: int) -> list[Tensor]:
        pixels, table = centre_pixels(image, size), "imagenet" if size > 85 else "cifar"
        return [pixels, *(corrupt(pixels[None], name, severity, [identity], strengths=table)[0] for name in names)]

    by_model = [request.find(each, corrupted(each.size)) for each in subjects]
    pictures = [to_array(pixels) for pixels in corrupted(max(each.size for each in subjects))]
    titles = [each.replace("_", " ") for each in rows]
    columns = [each.name for each in subjects]
    return _sheet(subjects, titles, columns, list(zip(*by_model, strict=True)), pictures, "column", request)


def by_step(subjects: Sequence[Subject], image: Image.Image, request: MapRequest) -> Sheet:
    """The maps of recurrent models after each step, one model in each row. Other models are left out.

    Raises:
        ValueError: if no model is recurrent, or the kind of map does not depend on the step.
    """
    if not KINDS[request.kind].stepped:
        kinds = ", ".join(name for name, kind in KINDS.items() if kind.stepped)
        raise ValueError(f"a map of kind {request.kind!r} is not of a recurrent step: take one of {kinds}")
    rows, kept = [], []
    for subject in subjects:
        pixels = [centre_pixels(image, subject.size)]
        seen = observed(subject, torch.stack(pixels))
        if (steps := seen.steps(seen.name(request.layer))) is not None:
            kept.append(subject)
            rows.append([request.find(subject, pixels, step=step)[0] for step in range(steps + 1)])
    if not rows:
        names = ", ".join(each.name for each in subjects)
        raise ValueError(f"none of {names} takes recurrent steps in this layer: choose a VARS model")
    columns = ["start", *(f"step {number}" for number in range(1, max(map(len, rows))))]
    return _table(kept, columns, rows, image, request)


def by_layer(subjects: Sequence[Subject], image: Image.Image, request: MapRequest) -> Sheet:
    """The maps of all attentions, one model in each row. A layer without such a map is left empty."""
    rows = []
    for subject in subjects:
        seen, found = observed(subject, centre_pixels(image, subject.size)[None]), []
        for number in range(len(seen.names)):
            try:
                found.append(find_maps(seen, **{**request.of(subject), "layer": number})[0].float().cpu().numpy())
            except ValueError:
                if len(seen.names) == 1:
                    raise
                found.append(None)
        if not any(each is not None for each in found):
            find_maps(seen, **request.of(subject))  # raises an error with the reason
        rows.append(found)
    return _table(subjects, [f"layer {number}" for number in range(max(map(len, rows)))], rows, image, request)


def by_head(subjects: Sequence[Subject], image: Image.Image, request: MapRequest) -> Sheet:
    """The maps of all heads of one attention, one model in each row."""
    rows = [list(request.find(each, [centre_pixels(image, each.size)], head="all")[0]) for each in subjects]
    return _table(subjects, [f"head {number}" for number in range(max(map(len, rows)))], rows, image, request)


VIEWS: dict[str, Callable[..., Sheet]] = {
    "maps": compare,
    "corruptions": under_corruptions,
    "steps": by_step,
    "layers": by_layer,
    "heads": by_head,
}
"""The figures of several models and a picture, by name."""


def _table(
    subjects: Sequence[Subject],
    columns: Sequence[str],
    rows: Sequence[list[np.ndarray | None]],
    image: Image.Image,
    request: MapRequest,
) -> Sheet:
    filled = [row + [None] * (len(columns) - len(row)) for row in rows]
    pictures = [to_array(centre_pixels(image, each.size)) for each in subjects]
    return _sheet(subjects, [each.name for each in subjects], columns, filled, pictures, "row", request)


def _sheet(
    subjects: Sequence[Subject],
    rows: Sequence[str],
    columns: Sequence[str],
    maps: Sequence[Sequence[np.ndarray | None]],
    pictures: Sequence[np.ndarray],
    scale: str,
    request: MapRequest,
) -> Sheet:
    marked = None if isinstance(request.query, str) else request.query
    where = " of the last layer" if request.layer == -1 else f" of layer {request.layer}"
    where = "" if columns[0] == "layer 0" else where
    return Sheet(rows, columns, maps, pictures, scale, marked, f"{request.kind} map{where} / its mean")


def shown(subjects: Sequence[Subject], image: Image.Image) -> np.ndarray:
    """The picture at the largest size among the models."""
    return to_array(centre_pixels(image, max(each.size for each in subjects)))


def to_array(pixels: Tensor) -> np.ndarray:
    """Pixels (3, H, W) as (H, W, 3)."""
    return pixels.detach().float().clamp(0, 1).permute(1, 2, 0).cpu().numpy()


def draw(sheet: Sheet, path: Path) -> list[Path]:
    """Writes a sheet as .png, .pdf and .npz, and returns the paths.

    Each map is divided by its mean, so that models whose maps have different sums can be compared. The maps of a row,
    of a column or of the sheet share a colour scale. Its last colour is for all values above the 99.5th percentile.

    Args:
        path: the path of the three files; its suffix is replaced.
    """
    from matplotlib.figure import Figure  # an optional dependency; pyplot would need a display
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    count = len(sheet.columns)
    layout = ConstrainedLayoutEngine(w_pad=0.015, h_pad=0.015, wspace=0.0, hspace=0.0)
    figure = Figure(figsize=(CELL * (count + 1) + 0.5, CELL * len(sheet.rows) + 0.55), layout=layout)
    axes = figure.subplots(len(sheet.rows), count + 1, squeeze=False)
    relative = [[None if each is None else each / max(each.mean(), 1e-30) for each in row] for row in sheet.maps]
    for row, picture in enumerate(sheet.pictures):
        axes[row, 0].imshow(picture, extent=(0, 1, 1, 0))
        axes[row, 0].set_ylabel(_wrapped(sheet.rows[row]), fontsize=FONT)
        if sheet.marked is not None:
            axes[row, 0].plot(*sheet.marked[::-1], "+", color="white", markersize=9, markeredgewidth=2.5)
            axes[row, 0].plot(*sheet.marked[::-1], "+", color="black", markersize=8, markeredgewidth=1)
    for groups, place in _groups(relative, sheet.scale):
        shown = (relative[row][column] for row, column in groups)
        values = np.concatenate([each.ravel() for each in shown if each is not None])
        low, high = float(values.min()), float(np.percentile(values, BRIGHTEST))
        high = high if high > low else low + 1e-6
        for row, column in groups:
            image = axes[row, column + 1].imshow(
                relative[row][column],
                cmap=MAPS,
                vmin=low,
                vmax=high,
                interpolation="bilinear",
                extent=(0, 1, 1, 0),
            )
        if sheet.scale == "row":
            beside, where = axes[place, :], {"location": "right", "pad": 0.01}
        else:
            beside = axes[:, 1:] if sheet.scale == "all" else axes[:, place + 1]
            where = {"location": "bottom", "pad": 0.02, "shrink": 0.92}
        thin = 18 * (count if sheet.scale == "all" else 1)  # the same thickness for bars of any length
        bar = figure.colorbar(image, ax=beside.ravel().tolist(), fraction=0.05, aspect=thin, **where)
        ends = ["0" if low < 0.005 * high else f"{low:.2g}", f"{high:.2g}"]
        bar.set_ticks([low, high], labels=[ends[0], ends[1] if values.max() <= high else f"≥ {ends[1]}"])
        bar.ax.tick_params(labelsize=FONT - 1, length=2, pad=1)
        bar.outline.set_linewidth(0.4)
        if sheet.scale != "row":  # the ticks are at the edges, where centred labels would stick out
            first, last = bar.ax.get_xticklabels()
            first.set_horizontalalignment("left")
            last.set_horizontalalignment("right")
    axes[0, 0].set_title("picture", fontsize=FONT)
    for column, title in enumerate(sheet.columns):
        axes[0, column + 1].set_title(_wrapped(title), fontsize=FONT)
    for axis in axes.flat:
        _bare(axis)
    for axis, each in zip(axes[:, 1:].flat, [each for row in relative for each in row], strict=True):
        if each is None:
            axis.axis("off")
    figure.supxlabel(sheet.legend, fontsize=FONT)
    return _save(figure, path, sheet.arrays())


def _groups(maps: Sequence[Sequence[np.ndarray | None]], scale: str) -> Iterator[tuple[list[tuple[int, int]], int]]:
    """The (row, column) of the maps that share a scale, and the index of their row or column (0 for all)."""
    places = np.ndindex(len(maps), len(maps[0]))
    every = [(row, column) for row, column in places if maps[row][column] is not None]
    if scale == "all":
        yield every, 0
        return
    along = 0 if scale == "row" else 1
    for number in sorted({place[along] for place in every}):
        yield [place for place in every if place[along] == number], number


def _wrapped(title: str) -> str:
    """A name wrapped to the width of a map."""
    lines, line = [], ""
    for part in title.replace(".", ".\u200b").replace("_", "_\u200b").replace(" ", " \u200b").split("\u200b"):
        if line and len(line + part) > 21:
            lines.append(line)
            line = ""
        line += part
    return "\n".join([*lines, line])


def _bare(axis) -> None:
    axis.set_xticks([])
    axis.set_yticks([])
    for spine in axis.spines.values():
        spine.set_linewidth(0.4)


def _save(figure, path: Path, arrays: Mapping[str, np.ndarray]) -> list[Path]:
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    paths = [path.with_name(f"{path.stem}.{ending}") for ending in ("png", "pdf", "npz")]

    def write(aside: Path, ending: str) -> None:
        with aside.open("wb") as file:
            if ending == "npz":
                np.savez_compressed(file, **arrays)  # pyright: ignore[reportArgumentType]  # none is allow_pickle
            else:
                figure.savefig(file, format=ending, dpi=200, bbox_inches="tight", pad_inches=0.03)

    for each in paths:
        write_whole(each, lambda aside, ending=each.suffix[1:]: write(aside, ending))
    return paths


# Atoms


@dataclass
class Atoms:
    """The atoms of one layer with the largest codes on a picture.

    Attributes:
        dynamic: dynamic atoms as maps (h, w), by "head, atom".
        filters: static filters (h, w), by "head, channel, filter". Every circular shift of a filter is an atom.
        reconstruction: the norm of the reconstruction at each position, (h, w).
    """

    layer: str
    picture: np.ndarray
    reconstruction: np.ndarray
    dynamic: dict[str, np.ndarray] = field(default_factory=dict)
    filters: dict[str, np.ndarray] = field(default_factory=dict)


def reconstructs(subject: Subject) -> bool:
    """Whether a model has a VARS layer."""
    return any(isinstance(layer, Reconstruction) for layer in subject.classifier.modules())


def find_atoms(subject: Subject, image: Image.Image, layer: int | str = -1, count: int = 6) -> Atoms:
    """The atoms of a layer with the largest codes on a picture.

    Args:
        layer: a VARS layer by its name, or by its index among these.

    Raises:
        ValueError: if the model has no such VARS layer, or its atoms are neither filters nor maps.
    """
    pixels = centre_pixels(image, subject.size)
    like = next(subject.classifier.parameters())
    with torch.no_grad(), evaluating(subject.classifier), inspect(subject.classifier) as layers:
        subject.classifier(pixels[None].to(like.device))
    if not layers:
        raise ValueError(f"{subject.name} has no VARS layer, so that there are no atoms to draw")
    names = list(layers)
    inside = layer in names if isinstance(layer, str) else -len(names) <= layer < len(names)
    if not inside:
        raise ValueError(f"{subject.name} has no VARS layer {layer!r}: there are {len(names)}, {', '.join(names)}")
    name = layer if isinstance(layer, str) else names[layer]
    seen = layers[name]
    run = observed(subject, pixels[None]).run(name)
    energy = seen.output[0].norm(dim=(0, 2))[run.prefix :].unflatten(0, run.grid).cpu().numpy()
    atoms = Atoms(name, to_array(pixels), energy)
    for operator, code in _parts(seen.operator, seen.code):
        weight = code[0].norm(dim=-1) if isinstance(operator, Dense) else code[0]
        if isinstance(operator, Dense):
            for head, atom in _largest(weight, count):
                values = operator.atoms.expand(1, *operator.atoms.shape[1:])[0, head, run.prefix :, atom].detach()
                atoms.dynamic[f"head {head}, atom {atom}"] = values.unflatten(0, run.grid).cpu().numpy()
        elif isinstance(operator, Convolution):
            filters = operator.filters.detach().expand(1, *operator.filters.shape[-5:])[0]  # heads, F, h, w, C
            used = weight.unflatten(1, (filters.shape[1], -1)).norm(dim=2)  # heads, F, C
            for head, number, channel in _largest(used, count):
                title = f"head {head}, channel {channel}, filter {number}"
                atoms.filters[title] = filters[head, number, :, :, channel].cpu().numpy()
        else:
            raise ValueError(f"{name} has atoms of {type(operator).__name__}, which are neither filters nor maps")
    return atoms


def _parts(operator: Operator, code: Tensor) -> list[tuple[Operator, Tensor]]:
    """The dictionaries of a union, each with its part of the code."""
    if not isinstance(operator, Joint):
        return [(operator, code)]
    first, second = code.split([operator.first.size, operator.second.size], dim=-2)
    return _parts(operator.first, first) + _parts(operator.second, second)


def _largest(weights: Tensor, count: int) -> list[tuple[int, ...]]:
    """The indices of the largest entries of a tensor, in descending order."""
    order = weights.flatten().argsort(descending=True)[:count]
    return [tuple(int(each) for each in place) for place in torch.stack(torch.unravel_index(order, weights.shape), 1)]


def draw_atoms(atoms: Atoms, path: Path) -> list[Path]:
    """Writes a figure of a picture, its reconstruction and the atoms, as .png, .pdf and .npz.

    Filters are drawn with their frequency responses, with the zero frequency in the middle.
    """
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    responses = {title: response(each) for title, each in atoms.filters.items()}
    every = ((atoms.dynamic, False), (atoms.filters, True), (responses, False))
    rows = [(each, signed) for each, signed in every if each]
    count = max(len(each) for each, _ in rows)
    layout = ConstrainedLayoutEngine(w_pad=0.02, h_pad=0.02, wspace=0.0, hspace=0.0)
    figure = Figure(figsize=(CELL * (count + 1) + 0.9, (CELL + 0.3) * max(len(rows), 2) + 0.2), layout=layout)
    axes = figure.subplots(max(len(rows), 2), count + 1, squeeze=False)
    axes[0, 0].imshow(atoms.picture)
    axes[0, 0].set_title("picture", fontsize=FONT)
    axes[1, 0].imshow(atoms.reconstruction, cmap=MAPS, interpolation="bilinear")
    axes[1, 0].set_title("reconstruction, norm", fontsize=FONT)
    names = iter(["dynamic atom"] * bool(atoms.dynamic) + ["static filter", "frequency response"] * bool(atoms.filters))
    for row, ((several, signed), name) in enumerate(zip(rows, names, strict=True)):
        most = max(float(np.abs(each).max()) for each in several.values())
        scale = {"cmap": SIGNED, "vmin": -most, "vmax": most} if signed else {"cmap": MAPS, "vmin": 0, "vmax": most}
        for axis, (title, each) in zip(axes[row, 1:], several.items(), strict=False):
            drawn = axis.imshow(each, interpolation="bilinear" if name == "dynamic atom" else "nearest", **scale)
            if name != "frequency response":
                axis.set_title(title.replace(", ", "\n", 1), fontsize=FONT - 1)
        bar = figure.colorbar(drawn, ax=list(axes[row, 1:]), location="right", fraction=0.05, aspect=16, pad=0.01)
        bar.set_label(name, fontsize=FONT)
        bar.ax.tick_params(labelsize=FONT - 1, length=2)
        bar.outline.set_linewidth(0.4)
    for axis in axes.flat:
        _bare(axis)
        if not axis.images:
            axis.axis("off")
    figure.supxlabel(atoms.layer, fontsize=FONT)
    arrays = {"picture": atoms.picture, "reconstruction": atoms.reconstruction}
    return _save(figure, path, arrays | atoms.dynamic | atoms.filters)


def response(taps: np.ndarray) -> np.ndarray:
    """The magnitude of the frequency response of a filter (h, w), with the zero frequency in the middle: (h, w)."""
    return np.abs(np.fft.fftshift(np.fft.fft2(taps)))
