"""The dataset class for each format of files, by name and by suffix."""

import functools
import importlib
from collections.abc import Mapping

from loaderkit.datasets.shards.sharded import ShardedDataset
from loaderkit.files.foreign_formats import describe, format_of_folder
from loaderkit.files.listing import has_suffix

_CLASSES = {
    "arrayrecord": ("loaderkit.datasets.shards.arrayrecord", "ArrayRecordDataset"),
    "csv": ("loaderkit.datasets.shards.csv", "CsvDataset"),
    "document": ("loaderkit.datasets.shards.documents", "DocumentDataset"),
    "hdf5": ("loaderkit.datasets.chunked.hdf5", "Hdf5Dataset"),
    "jsonl": ("loaderkit.datasets.shards.jsonl", "JsonlDataset"),
    "litdata": ("loaderkit.datasets.litdata.dataset", "LitDataset"),
    "mds": ("loaderkit.datasets.mds.dataset", "MDSDataset"),
    "npy": ("loaderkit.datasets.shards.npy", "NpyDataset"),
    "parquet": ("loaderkit.datasets.arrow.parquet", "ParquetDataset"),
    "safetensors": ("loaderkit.datasets.shards.safetensors", "SafetensorsDataset"),
    "tar": ("loaderkit.datasets.tar.dataset", "TarDataset"),
    "tfrecord": ("loaderkit.datasets.tfrecord.dataset", "TFRecordDataset"),
    "token": ("loaderkit.datasets.shards.tokens", "TokenDataset"),
}
_FOLDERS = {  # by key of `foreign_formats.FORMATS`
    "lance": ("loaderkit.datasets.arrow.lance", "LanceDataset"),
    "lerobot": ("loaderkit.datasets.media.lerobot", "LeRobotDataset"),
    "zarr": ("loaderkit.datasets.chunked.zarr", "ZarrDataset"),
    "shar": ("loaderkit.datasets.tar.shar", "SharDataset"),
}
_ALIASES = {"tokens": "token", "arrow": "parquet", "feather": "parquet"}


def format_named(name: str) -> type[ShardedDataset]:
    """Return the dataset class for a format name such as "jsonl" or "module:Class".

    Raise a ValueError if it cannot be found.
    """
    if ":" in name:
        return _own(name)
    formats = find_formats()
    found = formats.get(_ALIASES.get(name, name))
    if found is None:
        raise ValueError(f"format {name!r} is not known, wanted one of {', '.join(sorted(formats))}, or MODULE:CLASS")
    return found


def formats_of(shard: str) -> dict[str, type[ShardedDataset]]:
    """Return the dataset classes for a file, by format name: those with the longest suffix that fits its name.

    Raises:
        ValueError: If no format has the file's suffix.
    """
    formats = find_formats()
    fits = {
        name: max((len(suffix) for suffix in kind.suffixes if has_suffix(shard, (suffix,))), default=0)
        for name, kind in formats.items()
    }
    longest = max(fits.values())
    if not longest:
        suffixes = ", ".join(known_suffixes())
        if (what := describe(shard)) is not None:
            raise ValueError(what)
        raise ValueError(f"{shard}: no format has this suffix, wanted one of {suffixes}. Name the format: --format.")
    return {name: formats[name] for name, length in fits.items() if length == longest}


def format_of(shard: str) -> type[ShardedDataset]:
    """Return the dataset class for a file; raise a ValueError unless exactly one fits."""
    found = formats_of(shard)
    if len(found) > 1:
        raise ValueError(f"{shard}: may be {' or '.join(sorted(found))}. Name the format: --format.")
    return next(iter(found.values()))


def folder_format(folder: str) -> type | None:
    """Return the dataset class for a local folder that is one dataset, such as a Zarr store or a Shar folder.

    Return None for other folders.
    """
    module, kind = _FOLDERS.get(format_of_folder(folder) or "", ("", ""))
    return getattr(importlib.import_module(module), kind) if module else None


def known_suffixes() -> list[str]:
    """Return the suffixes of all formats, sorted."""
    return sorted({suffix for kind in find_formats().values() for suffix in kind.suffixes})


@functools.cache
def find_formats() -> Mapping[str, type[ShardedDataset]]:
    """Return the dataset classes by format name. Importing them needs no optional package; reading a file may."""
    return {name: getattr(importlib.import_module(module), kind) for name, (module, kind) in _CLASSES.items()}


def _own(name: str) -> type[ShardedDataset]:
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"format {name!r} can't be loaded: {error}.") from error
    if not isinstance(found, type) or not issubclass(found, ShardedDataset):
        raise ValueError(f"format {name!r} is {found!r}, wanted a subclass of ShardedDataset.")
    return found
