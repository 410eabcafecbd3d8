"""What is given to a DataModule for a stage: a dataset, a factory of one, or several of these."""

import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
import torch.utils.data as torch_data

from loaderkit.loader.checks import check_indexed

Data = Any  # a dataset, a zero-argument factory of one, or a dict or list of those


def map_data(stage: str, data: Data, function: Callable[[Any], Any]) -> Any:
    """Apply a function to each dataset of a stage."""
    if isinstance(data, dict):
        return {name: function(one) for name, one in data.items()}
    if stage != "train" and _is_list_of_datasets(data):
        return [function(one) for one in data]
    return function(data)


def check_data(stage: str, data: Data) -> None:
    """Say what is no data, or may be read in two ways.

    Raises:
        TypeError: If it is neither a dataset nor a factory.
        ValueError: If it may be one dataset or several.
    """
    if isinstance(data, dict) and data and all(map(_is_array, data.values())):
        raise ValueError(
            f"DataModule: {stage} is a dict of arrays ({_names(data)}): the columns of one dataset, or several datasets? "
            f"Give lk.ArrayDataset({stage}), or a dict with an lk.ArrayDataset of each."
        )
    if isinstance(data, list | tuple) and data:
        first = data[0]
        if stage == "train" and isinstance(first, torch_data.Dataset):
            raise TypeError(
                f"DataModule: train is a list of datasets ({type(first).__name__}), wanted one: torch.utils.data.ConcatDataset, "
                "or a dict of datasets, which are drawn from side by side."
            )
        if stage != "train" and (isinstance(first, list) or _is_array(first)):
            raise ValueError(
                f"DataModule: {stage} is a list of {len(data)} {type(first).__name__}s: the samples of one dataset, or several "
                f"datasets? Give a dict by name: {{'all': {stage}}}, or one entry for each dataset."
            )
    map_data(stage, data, lambda one: None if _is_factory(one) else check_dataset(stage, one))


def check_dataset(what: str, one: Any) -> None:
    """Say what is no dataset.

    Raises:
        TypeError: If it is none.
    """
    if isinstance(one, torch_data.IterableDataset):
        return
    if isinstance(one, tuple):
        check_indexed(one)
    if isinstance(one, str | os.PathLike):
        raise TypeError(
            f"DataModule: {what} is the path {os.fspath(one)!r}, wanted a dataset. For files: lk.ShardDataModule, "
            "lk.ImageDataModule, lk.TableDataModule, lk.TextDataModule, or a dataset such as lk.ParquetDataset(path)."
        )
    if hasattr(one, "dataset") and hasattr(one, "batch_size") and hasattr(one, "__iter__"):
        raise TypeError(
            f"DataModule: {what} is a {type(one).__name__}, wanted its dataset. The loader's settings go to "
            "DataModule(..., loader=LoaderConfig(...))."
        )
    if isinstance(one, Mapping | set | frozenset) or not (hasattr(one, "__getitem__") and hasattr(one, "__len__")):
        raise TypeError(
            f"DataModule: {what} is of type {type(one).__name__}, wanted a dataset with __len__ and __getitem__, a stream, or a "
            "function without arguments that returns one."
        )


def make_dataset(one: Any) -> Any:
    """Return a dataset, called for if it is a factory."""
    return one() if _is_factory(one) else one


def _is_list_of_datasets(data: Any) -> bool:
    if not isinstance(data, list | tuple):
        return False
    return not data or _is_factory(data[0]) or _is_dataset(data[0])


def _is_factory(one: Any) -> bool:
    return callable(one) and (isinstance(one, type) or not hasattr(one, "__getitem__"))


def _is_dataset(one: Any) -> bool:
    """Say whether this can be nothing else than a dataset: containers are samples."""
    if isinstance(one, torch_data.Dataset):
        return True
    container = isinstance(one, Mapping | list | tuple | str | bytes | torch.Tensor | np.ndarray | np.generic)
    return not container and hasattr(one, "__getitem__") and hasattr(one, "__len__")


def _is_array(one: Any) -> bool:
    return isinstance(one, torch.Tensor | np.ndarray) and one.ndim > 0


def _names(data: Mapping[Any, Any]) -> str:
    return ", ".join(repr(name) for name in list(data)[:5])
