"""Wrap datasets of other libraries that declare dtypes but return rows without them."""

from typing import Any

from loaderkit.datasets.base import as_dataset
from loaderkit.datasets.hf import HFDataset, is_rows


def typed(dataset: object) -> Any:
    """Return a `datasets.Dataset` as an `HFDataset`, whose rows have the declared dtypes.

    Return any other dataset unchanged.
    """
    return HFDataset(dataset) if is_rows(dataset) else dataset


def as_typed_dataset(value: object, where: str, way_out: str = "") -> Any:
    """Return a value as a dataset whose samples are read by position and have the declared dtypes.

    See `as_dataset`, `typed`.
    """
    return typed(as_dataset(value, where, way_out))
