"""Datasets of other libraries that know their dtypes, and do not give them to their rows."""

from typing import Any

from loaderkit.datasets.base import as_dataset
from loaderkit.datasets.hf import HFDataset, is_rows


def typed(dataset: object) -> Any:
    """Return a `datasets.Dataset` as what gives its rows their dtypes, and any other dataset as it is."""
    return HFDataset(dataset) if is_rows(dataset) else dataset


def as_typed_dataset(value: object, where: str, way_out: str = "") -> Any:
    """Return a value as a dataset whose samples are read by position, and have their dtypes; see `as_dataset`."""
    return typed(as_dataset(value, where, way_out))
