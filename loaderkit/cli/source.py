"""The SOURCE argument: files of any format, a folder of pictures, or the user's own factory."""

import argparse
import inspect
import re
from pathlib import Path
from typing import Any, Literal

from loaderkit.cli.arguments import add_settings, named, see_own_modules, size
from loaderkit.datasets.errors import ShardError
from loaderkit.datasets.find_shards import expand
from loaderkit.datasets.formats import folder_format, format_named, formats_of, known_suffixes
from loaderkit.datasets.images.decode import decode_picture
from loaderkit.datasets.images.folder import ImageFolder
from loaderkit.datasets.litdata.dataset import LitDataset
from loaderkit.datasets.shards.tokens import TokenDataset
from loaderkit.datasets.tar.dataset import TarDataset
from loaderkit.files.foreign_formats import formats_at, is_of
from loaderkit.files.regular_file import read_regular
from loaderkit.files.storage import Storage
from loaderkit.files.urls import is_remote, read_in
from loaderkit.system.suggest import suggest_argument

_FACTORY = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
_SAME_KIND = {"jpeg": "jpg", "tiff": "tif"}


def add_source(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    """Add the arguments that name a source and its settings."""
    parser.add_argument(
        "source",
        metavar="SOURCE",
        nargs=None if required else "?",
        help="a file, folder, glob, URL, or MODULE:FACTORY that returns a dataset",
    )
    parser.add_argument(
        "--source-format", metavar="FORMAT", help="such as jsonl or tar, or MODULE:CLASS; default: by suffix"
    )
    add_settings(parser, "--option", "an argument of the source's dataset")
    add_storage(parser)
    parser.add_argument("--spawn", action="store_true", help="spawn processes, for a source that can't be forked")


def add_storage(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that say how to reach remote files, and where their copies are."""
    add_settings(parser, "--storage-option", "an argument of the fsspec file system, such as endpoint_url=http://...")
    parser.add_argument("--cache-dir", metavar="DIR", help="folder for copies of remote shards")
    parser.add_argument("--cache-bytes", type=size, metavar="BYTES", help="most bytes that the copies take")


def storage_from(arguments: argparse.Namespace) -> Storage:
    """Return the storage that the arguments describe."""
    cache = {"cache_dir": arguments.cache_dir, "cache_bytes": arguments.cache_bytes}
    return Storage(dict(arguments.storage_option), **{name: value for name, value in cache.items() if value})


def training_source(arguments: argparse.Namespace) -> Any:
    """Return the dataset or loader that the arguments name, with decoded samples; for a DataModule, its training loader."""
    return loader_within(source_from(arguments, decoded=True)[0])


def loader_within(source: Any) -> object:
    """Return the training loader of a DataModule, and any other source as it is."""
    if not callable(getattr(source, "train_dataloader", None)):
        return source
    source.prepare_data()
    source.setup("fit")
    return source.train_dataloader()


def source_from(arguments: argparse.Namespace, *, decoded: bool = False) -> tuple[Any, Literal["fork", "spawn"]]:
    """Return the dataset that the arguments name, and the start method for processes that read it.

    Files in tars and folders of pictures stay undecoded bytes, unless `decoded`.
    """
    options, storage = dict(arguments.option), storage_from(arguments)
    if is_remote(arguments.source):
        options = {"storage": storage} | options
    elif storage != Storage():
        raise ValueError(
            f"--storage-option, --cache-dir and --cache-bytes are for URLs, and {arguments.source!r} is none. A function that "
            "returns a dataset gives it its own lk.Storage(...)."
        )
    dataset = _open(arguments.source, arguments.source_format, options, decoded, storage)
    # fsspec's threads don't survive a fork.
    return dataset, "spawn" if arguments.spawn or is_remote(arguments.source) else "fork"


def _open(source: str, format_name: str | None, options: dict[str, Any], decoded: bool, storage: Storage) -> object:
    """Return the dataset that SOURCE names, made with keyword arguments `options`; list a URL through the storage."""
    if _FACTORY.fullmatch(source) and not Path(source).exists():
        factory = named(source)
        if not callable(factory):
            found = type(factory).__name__
            raise ValueError(f"{source!r} is of type {found}, wanted a function or class that returns a dataset.")
        return factory(**options)
    if format_name is None and (whole := folder_format(source)) is not None:
        return whole(source, **options)
    if format_name is None and (Path(source) / "").is_dir():
        try:
            expand(source, known_suffixes(), split=options.get("split"))
        except (FileNotFoundError, ShardError) as error:  # a folder of pictures? If not, ImageFolder says what it found
            try:
                return (ImageFolder if decoded else PictureFiles)(source, **options)
            except (OSError, ShardError):
                if isinstance(error, ShardError):  # it names the folder's splits
                    raise error from None
                raise
    if format_name:
        see_own_modules()
        kind = format_named(format_name)
    else:
        kinds = formats_of(expand(source, known_suffixes(), storage, split=options.get("split"))[0])
        if TokenDataset in kinds.values() and _is_litdata(source, storage):
            kinds = {"litdata": LitDataset}
        if len(kinds) > 1:
            raise ValueError(f"{source}: may be {' or '.join(sorted(kinds))}. Say which: --source-format.")
        [kind] = kinds.values()
    if kind is TarDataset and not decoded:
        options = {"decode": None} | options  # keep the files' bytes
    try:
        inspect.signature(kind).bind(source, **options)
    except TypeError as error:
        hint = suggest_argument(kind, options)
        raise ValueError(f"{kind.__name__}: {error}.{hint} Its settings: --option NAME=VALUE.") from None
    return kind(source, **options)


def _is_litdata(source: str, storage: Storage) -> bool:
    if is_remote(source):
        return any(found.key == "litdata" for found in formats_at(["index.json"], read_in(source, storage)))
    return Path(source).is_dir() and is_of(source, "litdata")


class PictureFiles:
    """A folder of pictures as samples of undecoded bytes: `{"jpg": bytes, "cls": label}`.

    Each subfolder is a class. The picture's field is its file type, such as "jpg".
    If a folder holds several types, all pictures are decoded into the field "png".
    """

    def __init__(self, root: str, **options: Any) -> None:
        self._folder = ImageFolder(root, **options)
        self.classes = self._folder.classes
        suffixes = {self._folder.path(index).suffix.lower()[1:] for index in range(len(self._folder))}
        kinds = {_SAME_KIND.get(suffix, suffix) for suffix in suffixes}
        self._kind = next(iter(kinds)) if len(kinds) == 1 else None

    def __len__(self) -> int:
        return len(self._folder)

    def __getitem__(self, index: int) -> dict[str, Any]:
        path = self._folder.path(index)
        content = read_regular(path)
        label = int(self._folder.targets[index])
        if self._kind is not None:
            return {self._kind: content, "cls": label}
        try:
            return {
                "png": decode_picture(content, max_pixels=self._folder.max_pixels, decoder=self._folder.decoder),
                "cls": label,
            }
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error

    def fingerprint(self) -> str:
        """Return ImageFolder's fingerprint, and the file type of all pictures (None if there are several types)."""
        return f"{self._folder.fingerprint()} as files, {self._kind}"
