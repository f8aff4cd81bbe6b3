"""Pictures with masks of objects, in the layout of PASCAL VOC."""

import io
from pathlib import Path

import numpy as np
from PIL import Image

from .files import Files
from .sources import Source
from .targets import Mask

VOID = 255
"""Label of pixels without a class, such as the outlines of objects."""


class Segmented(Source):
    """JPEGImages/<name>.jpg, SegmentationClass/<name>.png and, of which names a split is, ImageSets/Segmentation.

    The target of a picture is the mask of its classes: 0 for the background and `VOID` for pixels that do not count.
    """

    def __init__(self, files: Files, names: list[str], pictures: dict[str, str], masks: dict[str, str], name: str):
        self._files, self._pictures, self._masks = files, pictures, masks
        super().__init__(name, names, [], [-1] * len(names))

    def read(self, index: int) -> bytes:
        return self._files.read(self._pictures[self.identities[index]])

    def target(self, index: int) -> Mask:
        file = self._masks[self.identities[index]]
        try:
            with Image.open(io.BytesIO(self._files.read(file))) as image:
                image.load()
        except (OSError, SyntaxError, Image.DecompressionBombError) as error:
            raise ValueError(f"{file} of {self._files.path} is no mask that can be read: {error}") from error
        if image.mode not in ("1", "L", "P"):
            raise ValueError(
                f"{file} of {self._files.path} is a picture of mode {image.mode}: expected the number of a class at "
                "each pixel, mode P or L"
            )
        return Mask(np.array(image).astype(np.uint8))


def open_segmented(path: str | Path, split: str = "val") -> Segmented:
    """Opens the pictures of a split of a data set in the layout of PASCAL VOC.

    Args:
        path: folder or plain tar, also one that contains VOCdevkit/VOC2012.
        split: name of a list in ImageSets/Segmentation. Without such a folder all pictures with a mask are used.

    Raises:
        FileNotFoundError: the path does not exist.
        ValueError: the layout is another, or pictures of the list are missing.
    """
    files = Files(path, "SegmentationClass")
    pictures, masks = files.pictures("JPEGImages"), files.pictures("SegmentationClass")
    if not pictures or not masks:
        found = ", ".join(sorted({name.split("/")[0] for name in files.names})[:5]) or "nothing"
        raise ValueError(
            f"{files.path} is not in the layout of PASCAL VOC: expected JPEGImages/<name>.jpg and "
            f"SegmentationClass/<name>.png, found {found}"
        )
    lists = files.below("ImageSets/Segmentation")
    names = sorted(masks)
    if lists:
        chosen = f"ImageSets/Segmentation/{split}.txt"
        if chosen not in files:
            raise ValueError(f"{files.path} has no {chosen}: there are {', '.join(lists)}")
        names = list(dict.fromkeys(files.read(chosen).decode().split()))
    if lost := [name for name in names if name not in pictures or name not in masks]:
        raise ValueError(
            f"{len(lost)} of {len(names)} pictures of {files.path} have no picture or no mask, such as {lost[0]}: copy "
            "the data set again"
        )
    return Segmented(files, names, pictures, masks, f"{files.path}:{split}" if lists else str(files.path))
