"""Check the data that a DataModule gets for each stage: a dataset, a factory, a path, or several of these."""

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.utils.data as torch_data

from loaderkit.loader.checks import check_indexed
from loaderkit.loader.summary import describe_data
from loaderkit.system.overrides import defines, is_map_style
from loaderkit.system.tables import frame_way_out, is_frame

STAGES = ("train", "val", "test", "predict")
Data = Any  # a dataset, a factory without arguments that returns one, or a dict or list of these


def map_data(stage: str, data: Data, function: Callable[[Any], object]) -> Any:
    """Apply a function to each dataset of a stage."""
    if isinstance(data, dict):
        return {name: function(one) for name, one in data.items()}
    if stage != "train" and _is_list_of_datasets(data):
        return [function(one) for one in data]
    return function(data)


def check_data(stage: str, data: Data) -> None:
    """Check the data that a user gave for a stage.

    Raises:
        TypeError: If it is neither a dataset nor a factory, or a list of training datasets.
        ValueError: If it may be one dataset or several: a dict of arrays, or a list of lists or arrays.
    """
    if isinstance(data, dict) and data and all(map(_is_array, data.values())):
        names = ", ".join(map(repr, list(data)[:5]))
        raise ValueError(
            f"DataModule: {stage} is a dict of arrays ({names}): the columns of one dataset, or several datasets? "
            f"Give lk.ArrayDataset({stage}), or a dict of lk.ArrayDatasets."
        )
    if isinstance(data, list | tuple) and data:
        first = data[0]
        if stage == "train" and isinstance(first, torch_data.Dataset):
            raise TypeError(
                f"DataModule: train is a list of datasets ({type(first).__name__}), wanted one. Join them with "
                "torch.utils.data.ConcatDataset, or give a dict to draw from all of them in parallel."
            )
        if stage != "train" and (isinstance(first, list) or _is_array(first)):
            raise ValueError(
                f"DataModule: {stage} is a list of {len(data)} {type(first).__name__}s: the samples of one dataset, or several "
                f"datasets? Give a dict by name: {{'all': {stage}}}, or one entry for each dataset."
            )
    map_data(stage, data, lambda one: None if _is_factory(one) else check_dataset(stage, one))


def check_dataset(name: str, dataset: object) -> None:
    """Raise TypeError if this is not a dataset; the message calls it `name`."""
    if isinstance(dataset, torch_data.IterableDataset):
        return
    if isinstance(dataset, tuple):
        check_indexed(dataset)
    if isinstance(dataset, str | os.PathLike):
        raise TypeError(
            f"DataModule: {name} is the path {os.fspath(dataset)!r}, wanted a dataset. For files: lk.ShardDataModule, "
            "lk.ImageDataModule, lk.TableDataModule, lk.TextDataModule, or a dataset such as lk.ParquetDataset(path)."
        )
    if defines(dataset, "dataset", "batch_size", "__iter__"):
        raise TypeError(
            f"DataModule: {name} is a {type(dataset).__name__}, wanted its dataset. Pass the loader's settings as "
            "DataModule(..., loader=LoaderConfig(...))."
        )
    if is_frame(dataset):
        raise TypeError(
            f"DataModule: {name} is a table ({type(dataset).__name__}), wanted a dataset. For columns with roles use "
            f"lk.TableDataModule. {frame_way_out(dataset)}"
        )
    if isinstance(dataset, Mapping | set | frozenset) or not is_map_style(dataset):
        raise TypeError(
            f"DataModule: {name} is of type {type(dataset).__name__}, wanted a dataset with __len__ and __getitem__, a stream, "
            "or a function without arguments that returns one."
        )


def make_dataset(one: Any) -> Any:
    """Return the dataset; call it first if it is a factory."""
    return one() if _is_factory(one) else one


@dataclass(frozen=True, slots=True)
class StageData:
    """The source of one dataset of a stage."""

    stage: str
    source: Any  # what the user gave: a path, columns, samples, ...
    name: str | None = None  # if the stage has several datasets
    is_share: bool = False  # of the training data

    def __str__(self) -> str:
        return self.stage if self.name is None else f"{self.stage} {self.name!r}"

    @property
    def key(self) -> str:
        """A name for the data's source: "train" for all shares of the training data, else the stage, and `name` if given."""
        return "train" if self.is_share else str(self)


def sources_by_stage(*, train: object, val: object, test: object, predict: object) -> dict[str, object]:
    """Return the sources by stage, without those that are None."""
    sources = {"train": train, "val": val, "test": test, "predict": predict}
    return {stage: source for stage, source in sources.items() if source is not None}


def list_stage_data(
    owner: str,
    sources: Mapping[str, Any],
    splits: Mapping[str, float] | None = None,
    *,
    several: Collection[str] = STAGES[1:],
    is_several: Callable[[object], bool] = lambda source: isinstance(source, Mapping),
) -> list[StageData]:
    """Return one StageData for each dataset; messages call the DataModule `owner`.

    A source that `is_several` is a dict of sources by name. Only the stages in `several` may have one.
    `splits` has the share of the training data by stage.
    """
    shares = dict(splits or {})
    own = set(shares) & set(sources) - {"train"}
    if shares and (own or not {"train"} <= set(shares) <= set(STAGES) or "train" not in sources):
        raise ValueError(
            f"{owner}: splits={shares} with data for {sorted(sources)}; wanted shares of the training data, for train and for "
            "stages without their own data."
        )
    found: list[StageData] = []
    for stage, source in sources.items():
        if not is_several(source):
            found.append(StageData(stage, source, is_share=stage in shares))
        elif stage not in several or not source:
            raise ValueError(
                f"{owner}: {stage} has {len(source)} datasets by name ({sorted(map(str, source))[:5]}), wanted "
                + ("at least one." if stage in several else "one. Only val, test and predict may have several.")
            )
        else:
            found += [StageData(stage, one, str(name)) for name, one in source.items()]
    return found + [StageData(stage, sources["train"], is_share=True) for stage in shares if stage not in sources]


def factories(stage_data: list[StageData], make: Callable[[StageData], object]) -> dict[str, Data]:
    """Return the arguments for DataModule: each stage's factory, or a dict of factories by name."""
    found: dict[str, Data] = {}
    for one in stage_data:
        factory = _StageFactory(make, one)
        if one.name is None:
            found[one.stage] = factory
        else:
            found.setdefault(one.stage, {})[one.name] = factory
    return found


@dataclass(frozen=True, slots=True)
class _StageFactory:
    """Makes the dataset of a stage."""

    make: Callable[[StageData], object]
    data: StageData

    def __call__(self) -> object:
        return self.make(self.data)

    def __str__(self) -> str:
        source = self.data.source
        if isinstance(source, str | os.PathLike):
            return os.fspath(source)
        return f"{len(source)} columns" if isinstance(source, Mapping) else describe_data(source)


def is_dict_of_tables(source: object) -> bool:
    """Return whether this is a dict of tables or paths by name; a dict of columns is one table."""
    return isinstance(source, Mapping) and not is_frame(source) and any(map(_is_table, source.values()))


def _is_table(value: Any) -> bool:
    if isinstance(value, str | os.PathLike | Mapping) or is_frame(value) or defines(value, "column_names"):
        return True
    return is_map_style(value) and len(value) > 0 and isinstance(next(iter(value)), Mapping)


def _is_list_of_datasets(data: object) -> bool:
    if not isinstance(data, list | tuple):
        return False
    return not data or _is_factory(data[0]) or _is_dataset(data[0])


def _is_factory(one: object) -> bool:
    return callable(one) and (isinstance(one, type) or not hasattr(type(one), "__getitem__"))


def _is_dataset(one: object) -> bool:
    """Return whether this can only be a dataset; containers may be samples."""
    if isinstance(one, torch_data.Dataset):
        return True
    container = isinstance(one, Mapping | list | tuple | str | bytes | torch.Tensor | np.ndarray | np.generic)
    return not container and is_map_style(one)


def _is_array(one: object) -> bool:
    return isinstance(one, torch.Tensor | np.ndarray) and one.ndim > 0
