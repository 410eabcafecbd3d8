"""Which dataset reads which files."""

import functools
import importlib
from collections.abc import Mapping

from loaderkit.datasets.shards.sharded import ShardedDataset

_ADAPTERS = {
    "csv": ("loaderkit.datasets.shards.csv", "CsvDataset"),
    "document": ("loaderkit.datasets.shards.documents", "DocumentDataset"),
    "jsonl": ("loaderkit.datasets.shards.jsonl", "JsonlDataset"),
    "npy": ("loaderkit.datasets.shards.npy", "NpyDataset"),
    "parquet": ("loaderkit.datasets.arrow.parquet", "ParquetDataset"),
    "tar": ("loaderkit.datasets.tar.dataset", "TarDataset"),
    "token": ("loaderkit.datasets.shards.tokens", "TokenDataset"),
}
_ALSO = {"tokens": "token", "arrow": "parquet", "feather": "parquet"}


def format_named(name: str) -> type[ShardedDataset]:
    """Return the adapter of a format.

    Args:
        name: "jsonl" for JsonlDataset, and so on; or "module:Class" for one's own.

    Raises:
        ValueError: If there is none of that name.
    """
    if ":" in name:
        return _own(name)
    formats, missing = find_formats()
    name = _ALSO.get(name, name)
    if name in formats:
        return formats[name]
    known = f"wanted one of {', '.join(sorted(formats))}, or MODULE:CLASS"
    reasons = "".join(f" {module}: {why}." for module, why in missing.items())
    raise ValueError(f"format {name!r} is not known, {known}.{reasons}")


def formats_of(shard: str) -> dict[str, type[ShardedDataset]]:
    """Return the adapters for a file, by name: those with the longest suffix that fits.

    Raises:
        ValueError: If none fits.
    """
    formats, missing = find_formats()
    fits = {
        name: max((len(s) for s in kind.suffixes if shard.endswith(s)), default=0) for name, kind in formats.items()
    }
    longest = max(fits.values())
    if longest:
        return {name: formats[name] for name, length in fits.items() if length == longest}
    suffixes = ", ".join(known_suffixes())
    reasons = "".join(f" {module}: {why}." for module, why in missing.items())
    raise ValueError(
        f"{shard}: no format has this suffix, wanted one of {suffixes}. Say which it is: --format.{reasons}"
    )


def format_of(shard: str) -> type[ShardedDataset]:
    """Return the adapter for a file.

    Raises:
        ValueError: If none fits, or more than one.
    """
    found = formats_of(shard)
    if len(found) > 1:
        raise ValueError(f"{shard}: may be {' or '.join(sorted(found))}. Say which: --format.")
    return next(iter(found.values()))


def known_suffixes() -> list[str]:
    """List what the files of all formats end in."""
    formats, _ = find_formats()
    return sorted({suffix for kind in formats.values() for suffix in kind.suffixes})


@functools.cache
def find_formats() -> tuple[Mapping[str, type[ShardedDataset]], Mapping[str, str]]:
    """Return the adapters by name, and for each one that cannot be imported the reason (a package is missing)."""
    formats: dict[str, type[ShardedDataset]] = {}
    missing: dict[str, str] = {}
    for name, (module, attribute) in _ADAPTERS.items():
        try:
            formats[name] = getattr(importlib.import_module(module), attribute)
        except ImportError as error:
            missing[module] = str(error)
    return formats, missing


def _own(name: str) -> type[ShardedDataset]:
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"format {name!r} can't be loaded: {error}.") from error
    if not isinstance(found, type) or not issubclass(found, ShardedDataset):
        raise ValueError(f"format {name!r} is {found!r}, wanted a subclass of ShardedDataset.")
    return found
