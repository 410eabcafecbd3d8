"""Many small records in memory, packed so that worker processes share them."""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from loaderkit.datasets.base import check_index
from loaderkit.datasets.memory.packed import Packed
from loaderkit.seeding.draws import DeclaresDraws
from loaderkit.seeding.samples import per_sample


class RecordDataset(DeclaresDraws):
    """Text-and-number records, such as dicts, tuples or strings, each packed to bytes.

    A list of a million dicts is copied into each worker as it is read, since
    reading counts references. Packed they lie in two tensors, which forked
    workers share, and spawned ones are handed in shared memory. Each read
    gives a new object, equal to what was given.

    Args:
        records: Any iterable; read once.
        transform: From a record to a sample; its random numbers are the sample's own.

    Raises:
        TypeError: If a record can't be pickled.
    """

    def __init__(self, records: Iterable[Any], *, transform: Callable[[Any], Any] | None = None) -> None:
        self._records = Packed(records, "RecordDataset: record")
        self.transform = transform

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: int) -> Any:
        check_index(self, index)
        record = self._records.read_one(index % len(self))
        return record if self.transform is None else self.transform(record)

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        records = self._read(indices)
        return records if self.transform is None else per_sample(self.transform, records)

    def fingerprint(self) -> str:
        """Digest the number of records, and 16 spread over them."""
        rows = np.unique(np.linspace(0, max(0, len(self) - 1), 16).astype(np.int64))[: len(self)].tolist()
        text = "\x1f".join(_describe(record) for record in self._read(rows))
        return hashlib.blake2b(f"{len(self)}\x1f{text}".encode(errors="surrogatepass"), digest_size=8).hexdigest()

    def _read(self, indices: Sequence[int]) -> list[Any]:
        rows = np.asarray(indices, dtype=np.int64)
        outside = rows[(rows < 0) | (rows >= len(self))]
        if outside.size:
            raise IndexError(f"RecordDataset: index {outside[0]} in a dataset of {len(self):,} samples.")
        return self._records.read(indices)


def _describe(value: Any) -> str:
    """Write a record down, the same in every process: an object's own repr may hold its address."""
    if isinstance(value, dict):
        return f"{{{','.join(f'{_describe(key)}:{_describe(entry)}' for key, entry in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"{type(value).__name__}({','.join(map(_describe, value))})"
    plain = isinstance(value, str | bytes | int | float | complex | np.generic | None)
    return repr(value) if plain else type(value).__name__
