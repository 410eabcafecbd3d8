"""What a command reads samples from: files of any format, a folder of pictures, or a function of one's own."""

import argparse
import inspect
import re
import sys
from pathlib import Path
from typing import Any, Literal

from loaderkit.cli.arguments import add_settings, named
from loaderkit.datasets.formats import format_named, formats_of, known_suffixes
from loaderkit.datasets.images.images import ImageFolder
from loaderkit.datasets.images.pictures import decode_picture
from loaderkit.datasets.remote.urls import expand, is_remote
from loaderkit.datasets.tar.dataset import TarDataset

_NAMED = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
_SAME = {"jpeg": "jpg", "tiff": "tif"}


def add_source(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    """Add the arguments that name a source and its settings to a command."""
    parser.add_argument(
        "source",
        metavar="SOURCE",
        nargs=None if required else "?",
        help="a file, folder, glob, URL, or MODULE:FACTORY of a dataset",
    )
    parser.add_argument(
        "--source-format", metavar="FORMAT", help="as jsonl or tar, or MODULE:CLASS; by suffix if not given"
    )
    add_settings(parser, "--option", "a setting of the source's dataset")
    parser.add_argument("--spawn", action="store_true", help="start processes anew: for a source that can't be forked")


def given_source(arguments: argparse.Namespace) -> tuple[Any, Literal["fork", "spawn"]]:
    """Return the dataset that a command's arguments name, and how processes that read it are started.

    Raises:
        ValueError: If they name none.
        FileNotFoundError: If there are no files.
    """
    dataset = open_source(arguments.source, arguments.source_format, dict(arguments.option))
    # fsspec's threads don't survive a fork.
    return dataset, "spawn" if arguments.spawn or is_remote(arguments.source) else "fork"


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
        factory = named(source)
        if not callable(factory):
            found = type(factory).__name__
            raise ValueError(
                f"{source!r} is of type {found}, wanted a function or class that makes what is to be read."
            )
        return factory(**options)
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
    try:
        inspect.signature(kind).bind(source, **options)
    except TypeError as error:
        raise ValueError(f"{kind.__name__}: {error}. Its settings: --option NAME=VALUE.") from None
    return kind(source, **options)


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
