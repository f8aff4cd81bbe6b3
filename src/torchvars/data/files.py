"""The files of a data set by their names, in a folder or in a plain tar."""

import os
from pathlib import Path, PurePosixPath

from .sources import EXTENSIONS, is_hidden, read_part, tar_members


class Files:
    """Files below a folder, or in a tar that is not compressed; names that begin with a dot are passed over.

    Args:
        path: the folder or the tar.
        marker: name of a folder in the data set. Names are relative to the folder around it, such as VOCdevkit/VOC2012.

    Raises:
        FileNotFoundError: nothing is there.
        ValueError: the tar is compressed or cut off, or it has several folders of that name.
    """

    def __init__(self, path: str | Path, marker: str | None = None):
        self.path = Path(os.path.expanduser(path))
        if not self.path.exists():
            raise FileNotFoundError(f"no data set at {self.path}: there is no such file or folder")
        # Where the bytes of a file in a tar begin, and their number
        self._places: dict[str, tuple[int, int] | None] = {}
        if self.path.is_dir():
            for folder, _, names in os.walk(self.path, followlinks=True):
                below = Path(folder).relative_to(self.path)
                self._places |= {(below / name).as_posix(): None for name in names}
        else:
            members = tar_members(self.path)
            self._places = {PurePosixPath(name.lstrip("/")).as_posix(): (begin, size) for name, begin, size in members}
        self._places = {name: place for name, place in sorted(self._places.items()) if not is_hidden(name)}
        self._root = "" if marker is None else self._around(marker)

    @property
    def names(self) -> list[str]:
        """Sorted paths of all files."""
        return [name.removeprefix(self._root) for name in self._places if name.startswith(self._root)]

    def below(self, folder: str) -> list[str]:
        """Names of the files in a folder and below it."""
        return [name for name in self.names if name.startswith(f"{folder}/")]

    def pictures(self, folder: str) -> dict[str, str]:
        """Pictures in a folder, without those deeper in it: name without extension -> path."""
        return {
            PurePosixPath(name).stem: name
            for name in self.below(folder)
            if name.count("/") == folder.count("/") + 1 and PurePosixPath(name).suffix.lower() in EXTENSIONS
        }

    def read(self, name: str) -> bytes:
        """The bytes of a file."""
        place = self._places[self._root + name]
        if place is None:
            return (self.path / (self._root + name)).read_bytes()
        return read_part(self.path, *place, name)

    def __contains__(self, name: str) -> bool:
        return self._root + name in self._places

    def _around(self, marker: str) -> str:
        """The folder around the one of that name, with a slash at its end; empty if there is none."""
        roots = {f"/{name}".split(f"/{marker}/")[0] for name in self._places if f"/{marker}/" in f"/{name}"}
        if len(roots) > 1:
            places = ", ".join(sorted(root.lstrip("/") or "the top" for root in roots))
            raise ValueError(f"{self.path} has several folders {marker}, in {places}: name one of these folders")
        root = roots.pop().lstrip("/") if roots else ""
        return f"{root}/" if root else ""
