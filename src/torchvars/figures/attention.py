"""Where a model looks: the energy of what its attentions pass on, over the picture."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from ..attention import look


def draw_steps(model: nn.Module, pictures: Mapping[str, Tensor], path: Path, layer: str | None = None) -> None:
    """Pictures in rows, and beside each the energy of the reconstruction after each step of a VARS layer.

    Args:
        model: pixels in [0, 1] -> logits.
        pictures: pixels (3, H, W) by title, all of one size.
        path: a .png file to write.
        layer: a name such as "model.blocks.3.attn"; the last that reconstructs unless given.
    """
    views = look(model, torch.stack(list(pictures.values())))
    if not views.steps:
        raise ValueError("the model has no VARS layer, so that there are no steps to draw")
    if layer is not None and layer not in views.steps:
        raise ValueError(f"no layer {layer!r} reconstructs: there are {', '.join(views.steps)}")
    layer = layer or list(views.steps)[-1]
    maps = [list(step) for step in views.steps[layer]]  # step, then picture
    columns = ["start", *(f"step {number}" for number in range(1, len(maps)))]
    caption = f"energy of the reconstruction, {layer}"
    _draw(pictures, columns, [[step[row] for step in maps] for row in range(len(pictures))], caption, path)


def draw_models(models: Mapping[str, nn.Module], pictures: Mapping[str, Tensor], path: Path) -> None:
    """Pictures in rows, and beside each the energy of the last attention of each model."""
    pixels = torch.stack(list(pictures.values()))
    maps = [list(look(model, pixels).energy.values())[-1] for model in models.values()]
    caption = "energy of what the last attention passes on"
    _draw(pictures, list(models), [[each[row] for each in maps] for row in range(len(pictures))], caption, path)


def _draw(
    pictures: Mapping[str, Tensor],
    columns: Sequence[str],
    maps: Sequence[Sequence[Tensor]],
    caption: str,
    path: Path,
) -> None:
    """A map is laid over its picture in grey, from its least (dark) to its most (bright)."""
    from matplotlib.figure import Figure  # an extra; and no pyplot, which would want a display

    figure = Figure(figsize=(1.7 * (1 + len(columns)), 1.75 * len(pictures) + 0.3), layout="constrained")
    axes = figure.subplots(len(pictures), 1 + len(columns), squeeze=False)
    for row, (title, pixels) in enumerate(pictures.items()):
        picture = pixels.detach().float().clamp(0, 1).permute(1, 2, 0).cpu().numpy()
        height, width = picture.shape[:2]
        axes[row, 0].imshow(picture, extent=(0, width, height, 0))
        axes[row, 0].set_ylabel(title, fontsize=10)
        for column, values in enumerate(maps[row]):
            ax = axes[row, 1 + column]
            ax.imshow(picture.mean(-1), cmap="gray", extent=(0, width, height, 0))
            ax.imshow(
                values.numpy(), cmap="inferno", alpha=0.75, extent=(0, width, height, 0), interpolation="bilinear"
            )
            if row == 0:
                ax.set_title(columns[column], fontsize=10)
    for ax in axes.flat:
        ax.set_xticks([])
        ax.set_yticks([])
    figure.supxlabel(caption, fontsize=8)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
