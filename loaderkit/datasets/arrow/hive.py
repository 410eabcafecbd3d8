"""Columns in the names of folders: `date=2024-01-01/part-0.parquet`."""

from urllib.parse import unquote

NULL = "__HIVE_DEFAULT_PARTITION__"


def hive_columns(shard: str) -> dict[str, str | None]:
    """Return what the folders directly above a file, as far as their names are `key=value`, say of its rows.

    Values are texts, as '01' need not be a number. Signs that a file name can't have are escaped as in a URL.
    """
    found: dict[str, str | None] = {}
    for folder in reversed(shard.split("/")[:-1]):
        key, equals, value = folder.partition("=")
        if not equals or not key:
            break
        found[unquote(key)] = None if value == NULL else unquote(value)
    return dict(reversed(found.items()))


def hive_constants(shard: str) -> dict[str, object]:
    """Return `hive_columns` as Arrow's scalars."""
    if "=" not in shard:  # most, in less time
        return {}
    import pyarrow as pa

    return {name: pa.scalar(value, pa.string()) for name, value in hive_columns(shard).items()}
