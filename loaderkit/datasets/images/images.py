"""Pictures in folders, one for each class."""

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from loaderkit.datasets.base import check_index
from loaderkit.datasets.images.pictures import decode_picture
from loaderkit.seeding.draws import DeclaresDraws
from loaderkit.system.arrays import Int64Array

EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")  # torchvision's


class ImageFolder(DeclaresDraws):
    """Pictures at `root/class/.../file`, as torchvision's ImageFolder takes them and in its order.

    A sample is `(picture, label)`: uint8 (3, H, W), and the class's number.
    See `decode_picture` for grey, palette, CMYK and turned pictures. Hidden files and
    folders, other extensions, and files outside of a class are passed over.

    Args:
        root: The folder with one folder for each class.
        transform: From the picture to what takes its place; its random numbers are the sample's own.
        extensions: Of the files that are pictures, in lower case, with the dot.
        allow_empty: Whether a class may be without pictures.

    Attributes:
        classes: Their names, sorted.
        class_to_idx: From a name to its label.
        targets: All labels (N,) int64.

    Raises:
        FileNotFoundError: If there is no such folder, or no class in it.
        ValueError: If a class has no pictures, folders run in a circle by links,
            or, when read, a picture can't be decoded.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        transform: Callable[[Any], Any] | None = None,
        extensions: Sequence[str] = EXTENSIONS,
        allow_empty: bool = False,
    ) -> None:
        self.root = Path(root)
        self.transform = transform
        if not self.root.is_dir():
            raise FileNotFoundError(f"ImageFolder: no folder at {self.root}, wanted one with a folder for each class.")
        self.classes = sorted(name for name, is_folder in _entries(self.root) if is_folder)
        if not self.classes:
            raise FileNotFoundError(f"ImageFolder: no folders in {self.root}, wanted one for each class.")
        self.class_to_idx = {name: label for label, name in enumerate(self.classes)}
        files = [[os.fsencode(path) for path in _pictures(self.root, name, tuple(extensions))] for name in self.classes]
        empty = [name for name, found in zip(self.classes, files, strict=True) if not found]
        if empty and not allow_empty:
            raise ValueError(
                f"ImageFolder: no pictures in {len(empty)} of {len(files)} classes of {self.root}, the first is {empty[0]!r}; "
                f"wanted files that end in {', '.join(extensions)}. Remove them, or give allow_empty=True."
            )
        self.targets: Int64Array = np.repeat(np.arange(len(files)), [len(found) for found in files]).astype(np.int64)
        # One object of bytes, not a list of strings: reading that would copy its pages into each worker.
        paths = [path for found in files for path in found]
        self._paths = b"".join(paths)
        self._ends = np.cumsum([len(path) for path in paths], dtype=np.int64)

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        path = self.path(index)
        try:
            picture = decode_picture(path.read_bytes())
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
        return picture if self.transform is None else self.transform(picture), int(self.targets[index])

    def path(self, index: int) -> Path:
        """Return where a sample's picture lies.

        Raises:
            IndexError: If there is no such sample.
        """
        check_index(self, index)
        index %= len(self)
        start = int(self._ends[index - 1]) if index else 0
        return self.root / os.fsdecode(self._paths[start : int(self._ends[index])])

    def fingerprint(self) -> str:
        """Digest the paths under the root, which may be another one; they name classes and order."""
        found = hashlib.blake2b(self._paths + self._ends.astype("<i8").tobytes(), digest_size=8)
        return f"images-1 {len(self)} in {len(self.classes)} classes, {found.hexdigest()}"


def _pictures(root: Path, folder: str, extensions: tuple[str, ...]) -> Iterator[str]:
    """Yield paths relative to the root, in torchvision's order: by folder, then by name."""
    for inner in sorted(_folders(root, folder, ())):
        for name, is_folder in _entries(root / inner):
            if not is_folder and name.lower().endswith(extensions):
                yield os.path.join(inner, name)  # noqa: PTH118 - strings, as there may be millions


def _folders(root: Path, folder: str, outer: tuple[Path, ...]) -> Iterator[str]:
    """Yield a folder and those in it, at any depth; links are followed."""
    real = (root / folder).resolve()
    if real in outer:
        raise ValueError(f"ImageFolder: {root / folder} is a link to {real}, in which it lies. Remove the link.")
    yield folder
    for name, is_folder in _entries(root / folder):
        if is_folder:
            yield from _folders(root, os.path.join(folder, name), (*outer, real))  # noqa: PTH118


def _entries(folder: Path) -> list[tuple[str, bool]]:
    """List a folder, sorted by name: each entry's name, and whether it is a folder; without hidden ones."""
    with os.scandir(folder) as entries:
        return sorted((entry.name, entry.is_dir()) for entry in entries if not entry.name.startswith("."))
