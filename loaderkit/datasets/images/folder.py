"""Pictures in one folder for each class."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from loaderkit.datasets.base import Transform, check_index
from loaderkit.datasets.errors import ShardError
from loaderkit.datasets.images.checks import MAX_PIXELS, check_max_pixels
from loaderkit.datasets.images.decode import decode_picture
from loaderkit.datasets.images.decoders import PictureDecoder, check_decoder, decoder_fingerprint
from loaderkit.datasets.places import Place
from loaderkit.files.foreign_formats import describe
from loaderkit.files.regular_file import read_regular
from loaderkit.seeding.draws import Declares
from loaderkit.system.arrays import Int64Array
from loaderkit.system.checks import listed
from loaderkit.system.digests import digest

if TYPE_CHECKING:
    from loaderkit.datasets.images.lazy import LazyImage

EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")  # torchvision's


class ImageFolder(Declares):
    """Pictures at `root/class/.../file`, in torchvision's order.

    A sample is `(picture, label)`: a uint8 tensor (3, H, W), and the number of the class. See `decode_picture` for
    grey, palette, CMYK and rotated pictures. Hidden files and folders, files with other extensions, and files directly
    in `root` are skipped.

    Args:
        root: Folder with one folder for each class.
        transform: Called with each picture; its result replaces the picture.
        extensions: Extensions of pictures, with the dot. Upper and lower case are the same.
        allow_empty: Whether a class may have no pictures.
        max_pixels: Most pixels (width times height) of a picture; None for no limit. A larger picture raises an error,
            so that no damaged or hostile header exhausts memory.
        decoder: The decoder of JPEG: "torchvision", "torchcodec" or "pillow". The first two give the same pixels. None:
            torchcodec if it is installed, else torchvision. Pillow decodes all other formats. A run that used Pillow
            for JPEG resumes only with Pillow, and the others only without.
        lazy: Whether the transform gets a `LazyImage`, which decodes only what a crop needs. A LazyImage that the
            transform returns, or that has no transform, is decoded.

    Attributes:
        classes: Names of the classes, sorted.
        class_to_idx: The label of each class name.
        targets: The label of each sample, (N,) int64.

    Raises:
        FileNotFoundError: If the folder does not exist or has no classes.
        ShardError: If there are no pictures, and the folder is of a format that loaderkit does not read.
        ValueError: If a class has no pictures, or links between folders form a circle. On reading: if a picture cannot be
            decoded, or is too large.

    Examples:
        >>> from PIL import Image
        >>> for name in ("pictures/cat/1.png", "pictures/dog/1.png"):
        ...     os.makedirs(os.path.dirname(name))
        ...     Image.new("RGB", (6, 8)).save(name)
        >>> dataset = lk.ImageFolder("pictures")
        >>> dataset.classes
        ['cat', 'dog']
        >>> pictures, labels = next(iter(lk.Loader(dataset, batch_size=2)))
        >>> pictures.shape, pictures.dtype, labels
        (torch.Size([2, 3, 8, 6]), torch.uint8, tensor([0, 1]))
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        transform: Transform | None = None,
        extensions: Sequence[str] = EXTENSIONS,
        allow_empty: bool = False,
        max_pixels: int | None = MAX_PIXELS,
        decoder: PictureDecoder | None = None,
        lazy: bool = False,
    ) -> None:
        check_max_pixels("ImageFolder", max_pixels)
        check_decoder("ImageFolder", decoder)
        self.lazy = lazy
        if lazy:
            _lazy_image()  # raise an ImportError now, not in a worker
        self.root, self.max_pixels, self.decoder = Path(root), max_pixels, decoder
        self.transform = transform
        if not self.root.is_dir():
            raise FileNotFoundError(
                f"ImageFolder: no folder at {self.root}, wanted a folder with one folder for each class."
            )
        self.classes = sorted(name for name, is_folder in _entries(self.root) if is_folder)
        if not self.classes:
            self._refuse_foreign()
            raise FileNotFoundError(f"ImageFolder: no folders in {self.root}, wanted one for each class.")
        self.class_to_idx = {name: label for label, name in enumerate(self.classes)}
        endings = tuple(ending.lower() for ending in listed("ImageFolder", "extensions", extensions))
        files = [[os.fsencode(path) for path in _pictures(self.root, name, endings)] for name in self.classes]
        empty = [name for name, found in zip(self.classes, files, strict=True) if not found]
        if len(empty) == len(files):
            self._refuse_foreign()
        if empty and not allow_empty:
            raise ValueError(
                f"ImageFolder: no pictures in {len(empty)} of {len(files)} classes of {self.root}, the first is {empty[0]!r}; "
                f"wanted files that end in {', '.join(extensions)}. Remove those classes, or give allow_empty=True."
            )
        self.targets: Int64Array = np.repeat(np.arange(len(files)), [len(found) for found in files]).astype(np.int64)
        # One bytes object: reference counts of a list of strings would copy its pages into each forked worker.
        paths = [path for found in files for path in found]
        self._paths = b"".join(paths)
        self._ends = np.cumsum([len(path) for path in paths], dtype=np.int64)

    def _refuse_foreign(self) -> None:
        """Raise a ShardError if the folder, which has no pictures, is of a format that loaderkit does not read."""
        if (what := describe(self.root)) is not None:
            raise ShardError(f"ImageFolder: no pictures. {what}")

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        path = self.path(index)
        content = read_regular(path)
        if self.lazy:
            return self._lazy(content, path), int(self.targets[index])
        try:
            picture = decode_picture(content, max_pixels=self.max_pixels, decoder=self.decoder)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
        return picture if self.transform is None else self.transform(picture), int(self.targets[index])

    def _lazy(self, content: bytes, path: Path) -> object:
        image = _lazy_image()(content, max_pixels=self.max_pixels, name=str(path))
        found = image if self.transform is None else self.transform(image)
        return found.decode() if isinstance(found, _lazy_image()) else found

    def path(self, index: int) -> Path:
        """Return the path of a sample's picture.

        Raises:
            IndexError: If there is no such sample.
        """
        check_index(self, index)
        index %= len(self)
        start = int(self._ends[index - 1]) if index else 0
        return self.root / os.fsdecode(self._paths[start : int(self._ends[index])])

    def place(self, index: int) -> Place:
        """Return where a sample is stored: a file of its own."""
        return Place(str(self.path(index)))

    def fingerprint(self) -> str:
        """Return a digest of the paths relative to the root, in order, with `lazy`, and whether Pillow decodes JPEG."""
        found = digest(self._paths, self._ends.astype("<i8"))
        lazy = ", lazy-1" if self.lazy else ""  # pixels of a LazyImage differ
        return f"images-1 {len(self)} in {len(self.classes)} classes, {found}{decoder_fingerprint(self.decoder)}{lazy}"


def _lazy_image() -> "type[LazyImage]":
    from loaderkit.datasets.images.lazy import LazyImage, simplejpeg  # imports torchvision

    simplejpeg()
    return LazyImage


def _pictures(root: Path, folder: str, extensions: tuple[str, ...]) -> Iterator[str]:
    """Yield the paths of a class's pictures, relative to the root, in torchvision's order: by folder, then by name."""
    for inner in sorted(_folders(root, folder, ())):
        for name, is_folder in _entries(root / inner):
            if not is_folder and name.lower().endswith(extensions):
                yield os.path.join(inner, name)  # noqa: PTH118 - strings, as there may be millions


def _folders(root: Path, folder: str, outer: tuple[Path, ...]) -> Iterator[str]:
    """Yield a folder and all folders in it, as paths relative to the root, following links.

    `outer` has the real paths of the folders around it. A link to one of them raises a ValueError.
    """
    real = (root / folder).resolve()
    if real in outer:
        raise ValueError(f"ImageFolder: {root / folder} is a link to {real}, which contains it. Remove the link.")
    yield folder
    for name, is_folder in _entries(root / folder):
        if is_folder:
            yield from _folders(root, os.path.join(folder, name), (*outer, real))  # noqa: PTH118


def _entries(folder: Path) -> list[tuple[str, bool]]:
    """List the entries of a folder that are not hidden, sorted: name, and whether it is a folder."""
    with os.scandir(folder) as entries:
        return sorted((entry.name, entry.is_dir()) for entry in entries if not entry.name.startswith("."))
