"""Datasets made of other datasets: concatenated, zipped, a subset, or with a transform."""

import functools
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, Generic

import numpy as np

from loaderkit.datasets.base import (
    MapStyle,
    Sample,
    as_rows,
    check_index,
    knows_lengths,
    read_many,
    reads_batches,
    reads_columns,
    reads_many,
    reads_pieces,
)
from loaderkit.datasets.typed import as_typed_dataset
from loaderkit.sampling.fingerprint import fingerprint_of_part
from loaderkit.sampling.order import Order
from loaderkit.seeding.draws import Declares
from loaderkit.seeding.sample_seeds import part_of_batch, per_sample
from loaderkit.system.arrays import Int64Array
from loaderkit.system.checks import check_ordered
from loaderkit.system.digests import digest
from loaderkit.system.indices import as_indices
from loaderkit.system.overrides import own_attribute


class ConcatDataset(Declares, Generic[Sample]):
    """Several datasets one after another.

    Args:
        datasets: Datasets with a length and samples by index.

    Raises:
        ValueError: If there are none.
        TypeError: If one is not a dataset.

    Examples:
        >>> data = lk.ConcatDataset([lk.RecordDataset("ab"), lk.RecordDataset("c")])
        >>> list(lk.Loader(data, batch_size=2))
        [['a', 'b'], ['c']]
    """

    def __init__(self, datasets: Sequence[MapStyle[Sample]]) -> None:
        check_ordered("ConcatDataset", "datasets", datasets)
        self.datasets: list[MapStyle[Sample]] = [
            as_typed_dataset(dataset, f"ConcatDataset: part {number}") for number, dataset in enumerate(datasets)
        ]
        if not self.datasets:
            raise ValueError("ConcatDataset: no datasets given, wanted at least one.")
        self._ends = np.array(list(accumulate(len(dataset) for dataset in self.datasets)), dtype=np.int64)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, index: int) -> Sample:
        check_index(self, index)
        index %= len(self)
        part = int(np.searchsorted(self._ends, index, side="right"))
        return self.datasets[part][index - self._start(part)]

    def __getitems__(self, indices: Sequence[int]) -> list[Sample]:
        if not any(reads_many(dataset) for dataset in self.datasets):
            return per_sample(self.__getitem__, indices)
        wanted = as_rows(self, indices)
        parts = np.searchsorted(self._ends, wanted, side="right")
        samples: list[Any] = [None] * len(wanted)
        for part in np.unique(parts).tolist():
            rows = np.flatnonzero(parts == part)
            with part_of_batch(0, rows.tolist()):
                read = read_many(self.datasets[part], (wanted[rows] - self._start(part)).tolist())
            for row, sample in zip(rows.tolist(), read, strict=True):
                samples[row] = sample
        return samples

    def __getattr__(self, name: str) -> Any:
        # A method exists here only if all datasets have it.
        parts: list[Any] = self.__dict__.get("datasets", [])
        if name == "shard_sizes" and parts:
            sizes = [own_attribute(dataset, name) for dataset in parts]
            if all(size is not None for size in sizes):
                return np.concatenate(sizes)
        if name == "lengths" and parts and all(map(knows_lengths, parts)):
            return lambda: np.concatenate([dataset.lengths() for dataset in parts])
        raise AttributeError(name)

    def _parts(self) -> list[object]:
        return list(self.datasets)

    def fingerprint(self) -> str:
        return "concat(" + ", ".join(map(fingerprint_of_part, self.datasets)) + ")"

    def _start(self, part: int) -> int:
        return int(self._ends[part - 1]) if part else 0


class ZipDataset(Declares):
    """Several datasets of equal length, read together.

    A sample is a tuple or dict with the sample of the same index from each dataset.

    Args:
        datasets: A list of datasets, or a dict of them by name.

    Raises:
        ValueError: If the lengths differ, or there are no datasets.

    Examples:
        >>> data = lk.ZipDataset({"text": lk.RecordDataset("ab"), "label": lk.ArrayDataset(torch.arange(2))})
        >>> next(iter(lk.Loader(data, batch_size=2)))
        {'text': ['a', 'b'], 'label': tensor([0, 1])}
    """

    def __init__(self, datasets: Sequence[MapStyle] | dict[str, MapStyle]) -> None:
        check_ordered("ZipDataset", "datasets", datasets)
        self._names = list(datasets) if isinstance(datasets, dict) else None
        named = datasets.items() if isinstance(datasets, dict) else enumerate(datasets)
        self.datasets: list[MapStyle] = [
            as_typed_dataset(dataset, f"ZipDataset: part {name!r}") for name, dataset in named
        ]
        lengths = [len(dataset) for dataset in self.datasets]
        if len(set(lengths)) != 1:
            raise ValueError(
                f"ZipDataset: the datasets have lengths {lengths}, wanted at least one, all of one length."
            )

    def __len__(self) -> int:
        return len(self.datasets[0])

    def __getitem__(self, index: int) -> Any:
        return self._join([dataset[index] for dataset in self.datasets])

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        if not any(reads_many(dataset) for dataset in self.datasets):
            return per_sample(self.__getitem__, indices)
        columns = []
        for number, dataset in enumerate(self.datasets):
            with part_of_batch(number):
                columns.append(read_many(dataset, indices))
        return [self._join(list(parts)) for parts in zip(*columns, strict=True)]

    def _parts(self) -> list[object]:
        return list(self.datasets)

    def __getattr__(self, name: str) -> Any:
        # A method exists here only if all datasets have it.
        parts = self.__dict__.get("datasets", [])
        if name == "read_batch" and parts and all(map(reads_batches, parts)):
            return lambda indices: self._join([dataset.read_batch(indices) for dataset in parts])
        raise AttributeError(name)

    def fingerprint(self) -> str:
        return "zip(" + ", ".join(map(fingerprint_of_part, self.datasets)) + ")"

    def _join(self, parts: list[object]) -> object:
        return tuple(parts) if self._names is None else dict(zip(self._names, parts, strict=True))


class SubsetDataset(Declares, Generic[Sample]):
    """Some samples of a dataset, by their indices.

    Args:
        dataset: The whole dataset.
        indices: (N,) integers, which may repeat; a boolean mask is refused. Or an Order: its epoch 0, computed as it is
            read.

    Raises:
        IndexError: If an index is not in the dataset.
        ValueError: If the indices are a mask or floats, or have more than one axis.

    Examples:
        >>> data = lk.SubsetDataset(lk.RecordDataset("abcd"), [3, 1])
        >>> data[0], len(data)
        ('d', 2)
    """

    def __init__(self, dataset: MapStyle[Sample], indices: Sequence[int] | Int64Array | Order) -> None:
        self.dataset: MapStyle[Sample] = as_typed_dataset(dataset, "SubsetDataset: the dataset")
        self.indices = indices if isinstance(indices, Order) else as_indices("SubsetDataset", indices)
        size = len(dataset)
        if isinstance(self.indices, Order):
            outside = [self.indices.reach - 1] if self.indices.reach > size else []
        else:
            outside = self.indices[(self.indices < 0) | (self.indices >= size)][:1].tolist()
        if outside:
            raise IndexError(f"SubsetDataset: found index {outside[0]}, wanted 0 to {size - 1}.")

    def __len__(self) -> int:
        return self.indices.size(0) if isinstance(self.indices, Order) else len(self.indices)

    def __getitem__(self, index: int) -> Sample:
        return self.dataset[self.index_of(index)]

    def __getitems__(self, indices: Sequence[int]) -> list[Sample]:
        return read_many(self.dataset, self._at(indices).tolist())

    def index_of(self, index: int) -> int:
        """Return the index in the whole dataset of a sample of this subset."""
        if not isinstance(self.indices, Order):
            return int(self.indices[index])
        check_index(self, index)
        return int(self._at([index % len(self)])[0])

    def _at(self, indices: Sequence[int] | Int64Array) -> Int64Array:
        found = as_rows(self, indices)
        if isinstance(self.indices, Order):
            return self.indices.at(0, found)
        return np.take(self.indices, found)

    def _parts(self) -> list[object]:
        return [self.dataset]

    def __getattr__(self, name: str) -> Any:
        dataset: Any = self.__dict__.get("dataset")
        if name == "read_batch" and reads_batches(dataset):
            return lambda indices: dataset.read_batch(self._at(indices))
        if name == "read_columns" and reads_columns(dataset):
            return lambda indices: dataset.read_columns(self._at(indices))
        if name == "lengths" and knows_lengths(dataset):
            return self._lengths
        if name == "read_pieces" and reads_pieces(dataset):
            return lambda indices, starts, stops: dataset.read_pieces(self._at(indices), starts, stops)
        raise AttributeError(name)

    def _lengths(self, indices: Int64Array | None = None) -> Int64Array:
        dataset: Any = self.dataset
        lengths: Int64Array = (
            dataset.lengths()[self._at(np.arange(len(self)))] if indices is None else dataset.lengths(self._at(indices))
        )
        return lengths

    def fingerprint(self) -> str:
        return f"subset({len(self)} of {fingerprint_of_part(self.dataset)}, {self._picked})"

    @functools.cached_property
    def _picked(self) -> str:
        return self.indices.key(0) if isinstance(self.indices, Order) else digest(self.indices)


class MapDataset(Declares, Generic[Sample]):
    """A dataset with a transform.

    In a Loader, random numbers that the transform draws do not depend on the batch size or the workers.

    Args:
        dataset: The raw samples.
        transform: Called with each sample, such as a torchvision v2 transform.

    Examples:
        >>> data = lk.MapDataset(lk.ArrayDataset(torch.arange(3)), lambda x: x + torch.rand(()))
        >>> first, second = (torch.cat(list(lk.Loader(data, batch_size=2))) for _ in range(2))
        >>> torch.equal(first, second)
        True
    """

    def __init__(self, dataset: MapStyle, transform: Callable[[Any], Sample]) -> None:
        self.dataset: MapStyle = as_typed_dataset(dataset, "MapDataset: the dataset")
        self.transform = transform

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Sample:
        return self.transform(self.dataset[index])

    def __getitems__(self, indices: Sequence[int]) -> list[Sample]:
        if reads_many(self.dataset):
            with part_of_batch(0):
                raw = read_many(self.dataset, indices)
            return per_sample(self.transform, raw)
        return per_sample(self.__getitem__, indices)

    def __getattr__(self, name: str) -> Any:
        found = own_attribute(self.__dict__.get("dataset"), name) if name in ("shard_sizes", "epoch_order") else None
        if found is not None:
            return found
        raise AttributeError(name)

    def _parts(self) -> list[object]:
        return [self.dataset, *super()._parts()]

    def fingerprint(self) -> str:
        """Return the fingerprint of the data; the transform may change between runs."""
        return fingerprint_of_part(self.dataset)
