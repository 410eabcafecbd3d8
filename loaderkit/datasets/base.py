"""What the feed asks of a dataset, and how it is asked: one call a batch where the dataset can."""

from collections.abc import Sequence
from typing import Any, Protocol

import torch.utils.data as torch_data

from loaderkit.seeding.samples import per_sample
from loaderkit.system.overrides import overridden_below

_ALONE = frozenset({"__getitem__"})
_ALL = frozenset({"__getitem__", "__getitems__", "read"})


class MapStyle(Protocol):
    """A dataset: a length, and a sample for each index."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Any: ...


def check_index(dataset: MapStyle, index: int) -> None:
    """Raise unless a dataset has such a sample; negative indices count from its end.

    Raises:
        TypeError: If it is a slice.
        IndexError: If it is out of range.
    """
    if isinstance(index, slice):
        raise TypeError(
            f"{type(dataset).__name__}: index is {index}, wanted an integer. Some of the samples: "
            "loaderkit.SubsetDataset(dataset, range(...))."
        )
    if not -len(dataset) <= index < len(dataset):
        raise IndexError(f"{type(dataset).__name__}: index {index} in a dataset of {len(dataset):,} samples.")


def reads_batches(dataset: Any) -> bool:
    """Say whether `dataset.read_batch(indices)` makes a collated batch at once.

    It takes the indices (B,) int64 and returns what the default collate would
    make of those samples, and a `Ragged` where these have several lengths. It must
    not draw random numbers, and is not asked where `dataset.transform` is to be called. A class that reads
    samples in a way of its own inherits none.
    """
    return _has_own(dataset, "read_batch") and getattr(dataset, "transform", None) is None


def knows_lengths(dataset: Any) -> bool:
    """Say whether `dataset.lengths()` returns the lengths (N,) of its samples, as they are without a transform.

    A class that reads samples in a way of its own inherits none.
    """
    return _has_own(dataset, "lengths") and getattr(dataset, "transform", None) is None


def reads_columns(dataset: Any) -> bool:
    """Say whether `dataset.read_columns(indices)` returns samples (B,) as a list for each field, where all have the same.

    They are what `__getitems__` returns as dicts, and otherwise it returns just these. It must not draw random numbers
    while `dataset.draws_nothing` is true, and is not asked where `dataset.transform` is to be called. A class that reads
    samples in a way of its own inherits no such columns.
    """
    return _has_own(dataset, "read_columns") and getattr(dataset, "transform", None) is None


def reads_many(dataset: Any) -> bool:
    """Say whether `dataset.__getitems__` is more than a loop that hides the samples from us.

    Nor does it count where a class inherits it and reads a sample in a way of its own: that would be passed over.
    """
    if overridden_below(dataset, "__getitems__", _ALONE):
        return False
    if isinstance(dataset, torch_data.Subset) and not reads_many(dataset.dataset):
        return False
    if isinstance(dataset, torch_data.StackDataset):
        parts = dataset.datasets.values() if isinstance(dataset.datasets, dict) else dataset.datasets
        if not all(map(reads_many, parts)):
            return False
    return callable(getattr(dataset, "__getitems__", None))


def read_many(dataset: Any, indices: Sequence[int]) -> list[Any]:
    """Read samples by `__getitems__` where there is one, else one by one, each under its seed."""
    if reads_many(dataset):
        return list(dataset.__getitems__(list(indices)))
    return per_sample(dataset.__getitem__, indices)


def _has_own(dataset: Any, quick: str) -> bool:
    """Say whether a dataset has such a method, that passes over no other."""
    return not overridden_below(dataset, quick, _ALL) and callable(getattr(dataset, quick, None))


def is_frame(value: Any) -> bool:
    """Say whether a value is a data frame, which has columns by name and is easily taken for samples by number."""
    return hasattr(value, "iloc") and hasattr(value, "columns")
