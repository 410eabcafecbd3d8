"""The error for shards that cannot be read."""


class ShardError(ValueError):
    """A shard that cannot be read: damaged, cut, changed, or of another format.

    The message names the shard and, if it is known, the line or byte.

    Examples:
        >>> _ = Path("a.jsonl").write_text("not JSON")
        >>> try:
        ...     lk.JsonlDataset("a.jsonl")[0]
        ... except lk.ShardError as error:
        ...     print(str(error)[:34])
        a.jsonl: line 1 (byte 0) is not JS
    """
