"""What a command reads samples from: files of any format, a folder of pictures, or a function of one's own."""

import re
import sys
from pathlib import Path
from typing import Any

from loaderkit.cli.arguments import named
from loaderkit.datasets.formats import format_named, formats_of, known_suffixes
from loaderkit.datasets.images import ImageFolder
from loaderkit.datasets.pictures import decode_picture
from loaderkit.datasets.tar import TarDataset
from loaderkit.datasets.urls import expand, is_remote

_NAMED = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
_SAME = {"jpeg": "jpg", "tiff": "tif"}


def open_source(source: str, format: str | None, options: dict[str, Any]) -> Any:  # noqa: A002
    """Return the dataset that a command's argument names.

    Args:
        source: A path, folder, glob or URL, or MODULE:FACTORY.
        format: As `format_named` takes it; by suffix if None.
        options: What the dataset or the factory is called with.

    Raises:
        ValueError: If it names none.
        FileNotFoundError: If there are no files.
    """
    if _NAMED.fullmatch(source) and not Path(source).exists():
        if "" not in sys.path and str(Path.cwd()) not in sys.path:
            sys.path.insert(0, str(Path.cwd()))  # as `python -m` does
        return named(source)(**options)
    if format is None and (Path(source) / "").is_dir():
        try:
            expand(source, known_suffixes())
        except FileNotFoundError:
            return PictureFiles(source, **options)
    kind = format_named(format) if format else None
    if kind is None:
        kinds = formats_of(expand(source, known_suffixes())[0])
        if len(kinds) > 1:
            raise ValueError(f"{source}: may be {' or '.join(sorted(kinds))}. Say which: --source-format.")
        kind = next(iter(kinds.values()))
    if kind is TarDataset:
        options = {"decode": None} | options  # files stay what they are
    return kind(source, **options)


def survives_fork(source: str) -> bool:
    """Say whether processes may be forked that read it: fsspec's threads don't survive it."""
    return not is_remote(source)


class PictureFiles:
    """A folder of pictures, one folder for each class, as `{"jpg": the file's bytes, "cls": the class}`.

    The pictures' field is named for their kind. Where there are several kinds,
    all become "png", decoded.
    """

    def __init__(self, root: str, **options: Any) -> None:
        self._folder = ImageFolder(root, **options)
        self.classes = self._folder.classes
        found = {self._folder.path(index).suffix.lower()[1:] for index in range(len(self._folder))}
        kinds = {_SAME.get(kind, kind) for kind in found}
        self._kind = next(iter(kinds)) if len(kinds) == 1 else None

    def __len__(self) -> int:
        return len(self._folder)

    def __getitem__(self, index: int) -> dict[str, Any]:
        path = self._folder.path(index)
        content = path.read_bytes()
        label = int(self._folder.targets[index])
        if self._kind is not None:
            return {self._kind: content, "cls": label}
        try:
            return {"png": decode_picture(content), "cls": label}
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error

    def fingerprint(self) -> str:
        """Digest the paths, as ImageFolder does."""
        return f"{self._folder.fingerprint()} as files, {self._kind}"
