"""What data is, in a line: its type, its size and its shards."""

from typing import Any


def described(data: Any) -> str:
    """Return a dataset's type, number of samples and number of shards, without reading data."""
    size = len(data)
    text = f"{type(data).__name__}: {size:,} sample{'s' * (size != 1)}"
    sizes = getattr(data, "shard_sizes", None)
    return text if sizes is None else f"{text} in {len(sizes):,} shard{'s' * (len(sizes) != 1)}"


class Described:
    """A base class whose `repr` is what `described` says."""

    def __repr__(self) -> str:
        try:
            return described(self)
        except Exception:  # a debugger also asks for what is half made
            return object.__repr__(self)
