"""Read samples from any dataset, and find out which methods it has to read many samples in one call."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch.utils.data as torch_data
from typing_extensions import TypeVar

from loaderkit.seeding.sample_seeds import per_sample
from loaderkit.system.arrays import Int64Array
from loaderkit.system.indices import as_indices
from loaderkit.system.overrides import is_map_style, own_attribute
from loaderkit.system.tables import by_position, frame_way_out, is_frame

# The methods whose override in a user's subclass disables an inherited fast method.
_ONE_SAMPLE = frozenset({"__getitem__"})
_ANY_READ = frozenset({"__getitem__", "__getitems__", "read"})

Sample = TypeVar("Sample", covariant=True, default=Any)

Transform: TypeAlias = Callable[[Any], object]  # a user's function of a sample; its result is only passed on
Collate: TypeAlias = Callable[[list[Any]], object]  # a user's function from samples to a batch
Predicate: TypeAlias = Callable[[Any], object]  # a user's function of a sample, true if it is kept


class MapStyle(Protocol[Sample]):
    """A dataset with a length and a sample for each index."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Sample: ...


def as_dataset(value: object, where: str, way_out: str = "") -> Any:
    """Return a value as a dataset whose samples are read by position.

    That is the value itself, or a view of it if its index has labels, as a pandas Series.

    Args:
        value: What a user gave.
        where: Begins the error message, such as "ConcatDataset: part 2".
        way_out: Ends the error message: what to give instead. A table gets a text of its own.

    Raises:
        TypeError: If the value is a table, or has no length or no samples by index.
    """
    if is_frame(value) or not is_map_style(value := by_position(value)):
        hint = frame_way_out(value) or way_out
        raise TypeError(
            f"{where} is of type {type(value).__name__}, wanted a dataset with a length and samples by index. {hint}".rstrip()
        )
    return value


def check_index(dataset: MapStyle, index: int) -> None:
    """Raise a TypeError for a slice, and an IndexError unless the index is from -N to N - 1."""
    if isinstance(index, slice):
        raise TypeError(
            f"{type(dataset).__name__}: index is {index}, wanted an integer. To select samples use "
            "loaderkit.SubsetDataset(dataset, range(...))."
        )
    if not -len(dataset) <= index < len(dataset):
        raise IndexError(f"{type(dataset).__name__}: index {index} in a dataset of {len(dataset):,} samples.")


def check_indices(dataset: MapStyle, indices: Sequence[int] | Int64Array) -> Int64Array:
    """Return indices as (B,) int64.

    Raise an IndexError unless each is from 0 to N - 1, and a ValueError for a mask or floats.
    """
    found = as_rows(dataset, indices)
    if found.size and found.view(np.uint64).max() >= len(dataset):  # as unsigned, a negative index is large
        outside = found[(found < 0) | (found >= len(dataset))][0]
        raise IndexError(f"{type(dataset).__name__}: index {outside} in a dataset of {len(dataset):,} samples.")
    return found


def as_rows(dataset: MapStyle, indices: Sequence[int] | Int64Array) -> Int64Array:
    """Return indices as (B,) int64, whose range is not checked; raise a ValueError for a mask or floats."""
    found = np.asarray(indices)
    return found if found.dtype == np.int64 and found.ndim == 1 else as_indices(type(dataset).__name__, indices)


def reads_batches(dataset: object) -> bool:
    """Return whether the Loader may call `dataset.read_batch(indices)` for a whole collated batch.

    `read_batch` takes indices (B,) int64. It returns what the default collate returns for these samples, or a
    `Ragged` if their lengths differ, and draws no random numbers. A `transform`, or an override of how
    samples are read, disables it.
    """
    return _has_fast(dataset, "read_batch")


def knows_lengths(dataset: object) -> bool:
    """Return whether `dataset.lengths()` gives the lengths (N,) of all samples.

    A `transform`, or an override of how samples are read, disables it.
    """
    return _has_fast(dataset, "lengths")


def counts_tokens(dataset: object) -> bool:
    """Return whether `dataset.counted()` gives a dataset of the numbers of tokens of the samples.

    Its sample i is the number of tokens in sample i of `dataset`. An override of how samples are read disables it.
    """
    return callable(own_attribute(dataset, "counted", _ANY_READ))


def reads_pieces(dataset: object) -> bool:
    """Return whether `dataset.read_pieces(indices, starts, stops)` gives parts of samples (B,), as a `Ragged`.

    Part i has the tokens from `starts[i]` up to `stops[i]` of sample `indices[i]`, or up to the sample's end.
    `lengths(indices)` of such a dataset gives the lengths (B,) of some samples. A `transform`, or an override of how
    samples are read, disables it.
    """
    return _has_fast(dataset, "read_pieces")


def reads_columns(dataset: object) -> bool:
    """Return whether the Loader may call `dataset.read_columns(indices)`, which reads samples (B,) as columns.

    The result has the structure of one sample, with a column in place of each value: a list of B values, or a tensor or
    array (B, *) of numbers. If the samples' fields differ, it may be a list of the samples themselves. `read_columns`
    draws no random numbers while `dataset.draws_nothing` is true. A `transform`, or an override of how samples are
    read, disables it.
    """
    return _has_fast(dataset, "read_columns")


def reads_many(dataset: object) -> bool:
    """Return whether the Loader may call `dataset.__getitems__(indices)`.

    An override of `__getitem__` disables an inherited `__getitems__`. torch's Subset and StackDataset have a
    `__getitems__` that reads one by one if a dataset inside has none. That one does not count: the Loader could not
    give each sample its seed.
    """
    if not callable(own_attribute(dataset, "__getitems__", _ONE_SAMPLE)):
        return False
    if isinstance(dataset, torch_data.Subset) and not reads_many(dataset.dataset):
        return False
    if isinstance(dataset, torch_data.StackDataset):
        parts = dataset.datasets.values() if isinstance(dataset.datasets, dict) else dataset.datasets
        return all(map(reads_many, parts))
    return True


def read_many(dataset: Any, indices: Sequence[int]) -> list[Any]:
    """Return B samples: by `__getitems__` if `reads_many(dataset)`, else one by one, each under its own seed."""
    if reads_many(dataset):
        return list(dataset.__getitems__(list(indices)))
    return per_sample(dataset.__getitem__, indices)


def _has_fast(dataset: object, method: str) -> bool:
    """Return whether a dataset has a fast method that neither an override nor a transform disables."""
    return callable(own_attribute(dataset, method, _ANY_READ)) and getattr(dataset, "transform", None) is None
