"""Models for other runtimes: ONNX, and PyTorch's own exported programs."""

import copy
from collections.abc import Sequence
from pathlib import Path

import torch
from timm.layers import to_2tuple
from torch import Tensor

from .classifier import Classifier
from .origin import image_size

FORMATS = ("onnx", "pt2")


def export(classifier: Classifier, path: str | Path, format: str, img_size: int | Sequence[int] | None = None) -> float:
    """Writes a classifier, pixels in [0, 1] -> logits, for any batch of pictures of one size, and runs what it wrote.

    It is written in single precision.

    Args:
        format: "onnx" or "pt2" (a `torch.export` program).
        img_size: pixels of the pictures; what the model was built for when None.
    Returns:
        The largest difference between the logits of the file and of the model, on random pictures of two batch sizes.
    """
    if format not in FORMATS:
        raise ValueError(f"format must be one of {', '.join(FORMATS)}, got {format!r}")
    path = Path(path)
    if img_size is None and (img_size := image_size(classifier.model)) is None:
        raise ValueError(
            f"{type(classifier.model).__name__} does not say what pictures it takes: pass img_size in pixels"
        )
    size = to_2tuple(img_size)
    classifier = copy.deepcopy(classifier).cpu().float().eval().requires_grad_(False)  # the caller's stays as it is
    generator = torch.Generator().manual_seed(0)
    pictures = [torch.rand(batch, len(classifier.mean), *size, generator=generator) for batch in (2, 3)]
    program = torch.export.export(
        classifier, (pictures[0],), dynamic_shapes=({0: torch.export.Dim("batch", min=1, max=4096)},)
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(path.name + ".part." + format)  # a file that is there is whole
    try:
        if format == "pt2":
            torch.export.save(program, aside)
            run = torch.export.load(aside).module()
        else:
            written = torch.onnx.export(program, input_names=["pixels"], output_names=["logits"], verbose=False)
            written.save(aside, external_data=False)
            run = _onnx_session(aside)
        differences = [(run(picture) - classifier(picture)).abs().max().item() for picture in pictures]
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
    return max(differences)


def _onnx_session(path: Path):
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def run(pixels: Tensor) -> Tensor:
        return torch.from_numpy(session.run(["logits"], {"pixels": pixels.numpy()})[0])

    return run
