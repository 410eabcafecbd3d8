"""What the feed asks of a dataset, and how it is asked: one call a batch where the dataset can."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Protocol

import torch.utils.data as torch_data

from loaderkit.seeding import per_sample

_ALONE = frozenset({"__getitem__"})
_MANY = frozenset({"__getitem__", "__getitems__"})
_READS = frozenset({"__getitem__", "__getitems__", "read"})


class MapStyle(Protocol):
    """A dataset: a length, and a sample for each index."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Any: ...


def reads_batches(dataset: Any) -> bool:
    """Say whether `dataset.read_batch(indices)` makes a collated batch at once.

    It takes the indices (B,) int64 and returns what the default collate would
    make of those samples, and a `Ragged` where these have several lengths. It must
    not draw random numbers. A class that reads samples in a way of its own inherits none.
    """
    return not _is_hidden(dataset, "read_batch", _MANY) and callable(getattr(dataset, "read_batch", None))


def reads_columns(dataset: Any) -> bool:
    """Say whether `dataset.read_columns(indices)` returns samples (B,) as a list for each field, where all have the same.

    They are what `__getitems__` returns as dicts, and otherwise it returns just these. It must not draw random numbers
    while `dataset.draws_nothing` is true. A class that reads samples in a way of its own inherits no such columns.
    """
    return not _is_hidden(dataset, "read_columns", _READS) and callable(getattr(dataset, "read_columns", None))


def draws_nothing(dataset: Any) -> bool:
    """Say whether `dataset.__getitems__` surely draws no random numbers: `dataset.draws_nothing` is true.

    A class that reads samples in a way of its own has to say so itself.
    """
    said = getattr(dataset, "draws_nothing", False) is True and not _is_hidden(dataset, "draws_nothing", _MANY)
    return said and reads_many(dataset)


def reads_many(dataset: Any) -> bool:
    """Say whether `dataset.__getitems__` is more than a loop that hides the samples from us.

    Nor does it count where a class inherits it and reads a sample in a way of its own: that would be passed over.
    """
    if _is_hidden(dataset, "__getitems__", _ALONE):
        return False
    if isinstance(dataset, torch_data.Subset) and not reads_many(dataset.dataset):
        return False
    if isinstance(dataset, torch_data.StackDataset):
        parts = dataset.datasets.values() if isinstance(dataset.datasets, dict) else dataset.datasets
        if not all(map(reads_many, parts)):
            return False
    return callable(getattr(dataset, "__getitems__", None))


def _is_hidden(dataset: Any, name: str, readers: frozenset[str]) -> bool:
    """Say whether a dataset inherits what `name` is from further away than a reader of its own."""
    return name not in getattr(dataset, "__dict__", ()) and _is_hidden_in(type(dataset), name, readers)  # type: ignore[arg-type]


@lru_cache(maxsize=1024)
def _is_hidden_in(kind: type, name: str, readers: frozenset[str]) -> bool:
    names = {name, "__getattr__"}
    nearest = next((vars(base).keys() for base in kind.__mro__ if vars(base).keys() & (names | readers)), None)
    return nearest is not None and not nearest & names


def read_many(dataset: Any, indices: Sequence[int]) -> list[Any]:
    """Read samples by `__getitems__` where there is one, else one by one, each under its seed."""
    if reads_many(dataset):
        return list(dataset.__getitems__(list(indices)))
    return per_sample(dataset.__getitem__, indices)
