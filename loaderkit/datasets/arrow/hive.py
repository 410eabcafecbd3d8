"""Read columns from folder names, as Hive writes them: `date=2024-01-01/part-0.parquet`."""

from urllib.parse import unquote

NULL = "__HIVE_DEFAULT_PARTITION__"


def hive_columns(shard: str) -> dict[str, str | None]:
    """Return the columns that a file's rows have by the `key=value` names of the folders directly above the file.

    The innermost folder without such a name ends the search. Values are texts, as '01' need not be a number, or None.
    URL escapes (%XX) are decoded.
    """
    found: dict[str, str | None] = {}
    for folder in reversed(shard.split("/")[:-1]):
        key, equals, value = folder.partition("=")
        if not equals or not key:
            break
        found[unquote(key)] = None if value == NULL else unquote(value)
    return dict(reversed(found.items()))


def hive_constants(shard: str) -> dict[str, object]:
    """Return `hive_columns` with values as Arrow string scalars."""
    if "=" not in shard:  # most files; pyarrow is then not imported
        return {}
    import pyarrow as pa

    return {name: pa.scalar(value, pa.string()) for name, value in hive_columns(shard).items()}
