"""Where a sample is stored: the file, and the sample's number, first byte and name in the file."""

from typing import NamedTuple

import numpy as np

from loaderkit.datasets.base import check_index
from loaderkit.datasets.cached import CachedDataset
from loaderkit.datasets.combine import ConcatDataset, MapDataset, SubsetDataset, ZipDataset
from loaderkit.datasets.pieces import PieceDataset
from loaderkit.system.overrides import own_attribute


class Place(NamedTuple):
    """Where a sample is stored.

    Attributes:
        file: Path or URL.
        row: The sample's number in the file; None if the file has only this sample.
        start: The sample's first byte in the file; None if the format has none.
        key: The sample's name in the file; None if the format has none.
    """

    file: str
    row: int | None = None
    start: int | None = None
    key: str | None = None

    def __str__(self) -> str:
        parts = [self.file, *([] if self.row is None else [f"sample {self.row:,}"])]
        parts += [] if self.start is None else [f"byte {self.start:,}"]
        parts += [] if self.key is None else [repr(self.key)]
        return ", ".join(parts)


def place_of(dataset: object, index: int) -> Place | None:
    """Return where a sample is stored, without reading it; None if the dataset cannot tell.

    A dataset tells it by a method `place(index)`. For subsets, maps, caches, concatenations and pieces the dataset
    inside is asked, and for a ZipDataset its first part.
    """
    place = own_attribute(dataset, "place")
    if callable(place):
        found: Place | None = place(index)
        return found
    if isinstance(dataset, SubsetDataset):
        return place_of(dataset.dataset, dataset.index_of(index))
    if isinstance(dataset, PieceDataset):
        return place_of(dataset.dataset, dataset.document(index))
    if isinstance(dataset, MapDataset | CachedDataset):
        return place_of(dataset.dataset, index)
    if isinstance(dataset, ZipDataset):
        return place_of(dataset.datasets[0], index)
    if isinstance(dataset, ConcatDataset):
        check_index(dataset, index)
        ends = np.cumsum([len(part) for part in dataset.datasets])
        index %= int(ends[-1])
        part = int(np.searchsorted(ends, index, side="right"))
        return place_of(dataset.datasets[part], index - (int(ends[part - 1]) if part else 0))
    return None
