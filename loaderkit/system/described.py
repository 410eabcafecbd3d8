"""A description of a dataset in one line: its type, its number of samples and its number of shards."""

from typing import Any


def described(data: Any) -> str:
    """Return a dataset's type, number of samples and number of shards, without reading data."""
    size = len(data)
    text = f"{type(data).__name__}: {size:,} sample{'s' * (size != 1)}"
    sizes = getattr(data, "shard_sizes", None)
    return text if sizes is None else f"{text} in {len(sizes):,} shard{'s' * (len(sizes) != 1)}"


class Described:
    """A base class whose `repr` is the result of `described`."""

    def __repr__(self) -> str:
        try:
            return described(self)
        except Exception:  # a debugger also shows objects whose __init__ still runs
            return object.__repr__(self)
