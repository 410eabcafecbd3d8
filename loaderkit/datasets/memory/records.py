"""Many small records in memory that worker processes share."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from loaderkit.datasets.base import Transform, check_index, check_indices
from loaderkit.datasets.memory.packed import Packed
from loaderkit.sampling.fingerprint import spread_rows
from loaderkit.seeding.draws import Declares
from loaderkit.seeding.sample_seeds import per_sample
from loaderkit.system.digests import digest
from loaderkit.system.tables import by_position, frame_way_out, is_frame


class RecordDataset(Declares):
    """Dicts, tuples, strings or other small objects in shared memory.

    A list of a million dicts grows each worker's memory as the worker reads it,
    because reading an object changes its reference count. This dataset keeps the
    records in two tensors that all workers share. Each read returns a new object.

    Args:
        records: Any iterable of objects that pickle; it is read once.
        transform: Called with each record.

    Raises:
        TypeError: If the records are a data frame or a dict, or if a record cannot be pickled.

    Examples:
        >>> data = lk.RecordDataset({"text": text, "label": len(text)} for text in ["a", "bc"])
        >>> data[1]
        {'text': 'bc', 'label': 2}
        >>> next(iter(lk.Loader(data, batch_size=2)))
        {'text': ['a', 'bc'], 'label': tensor([1, 2])}
    """

    def __init__(self, records: Iterable[object], *, transform: Transform | None = None) -> None:
        if is_frame(records) or isinstance(records, Mapping):
            way_out = frame_way_out(records) or "The values of a dict are dict.values()."
            raise TypeError(
                f"RecordDataset: the records are a {type(records).__name__}, which gives its names one by one; wanted records. {way_out}"
            )
        self._records = Packed(by_position(records), "RecordDataset: record")
        self.transform = transform

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: int) -> Any:
        check_index(self, index)
        record = self._records.read_one(index % len(self))
        return record if self.transform is None else self.transform(record)

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        records = self._records.read(check_indices(self, indices))
        return records if self.transform is None else per_sample(self.transform, records)

    def fingerprint(self) -> str:
        """Return a digest of the number of records, and of 16 records spread over them."""
        text = "\x1f".join(map(_describe, self._records.read(spread_rows(len(self)))))
        return digest(f"{len(self)}\x1f{text}")


def _describe(value: object) -> str:
    """Return a text for a record, the same in every process; a repr may have an object's address in it."""
    if isinstance(value, dict):
        return f"{{{','.join(f'{_describe(key)}:{_describe(entry)}' for key, entry in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"{type(value).__name__}({','.join(map(_describe, value))})"
    is_plain = isinstance(value, str | bytes | int | float | complex | np.generic | None)
    return repr(value) if is_plain else type(value).__name__
