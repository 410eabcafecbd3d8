"""The subject of a measurement: a dataset and its loader's settings."""

import argparse
import dataclasses
from dataclasses import dataclass
from typing import Any

import torch.utils.data as torch_data

from loaderkit.cli.arguments import count
from loaderkit.cli.source import add_source, loader_within, source_from
from loaderkit.datasets.shards.sharded import ShardedDataset, shards_within
from loaderkit.loader.config import LoaderConfig
from loaderkit.loader.loader import Loader
from loaderkit.system.overrides import is_map_style

_BATCH_SIZE = 32


@dataclass(frozen=True, order=True, slots=True)
class Setting:
    """An engine and a number of workers."""

    workers: int
    engine: str

    def __str__(self) -> str:
        return f'engine="{self.engine}", num_workers={self.workers}'


INLINE = Setting(0, "inline")


@dataclass(frozen=True, slots=True)
class Subject:
    """A dataset and its loader's settings.

    Each measurement sets its own engine and workers.
    """

    dataset: Any
    config: LoaderConfig
    engine: str = "auto"  # the source's own

    @property
    def is_stream(self) -> bool:
        """Whether the data has no index."""
        return isinstance(self.dataset, torch_data.IterableDataset)

    def loader(self, setting: Setting, **changes: object) -> Loader:
        """Return a loader with the setting's engine and workers, and other changes to the settings."""
        if setting.workers:
            changes = {"persistent_workers": True, **changes}
            if setting.engine == "threads":
                changes["multiprocessing_context"] = None
        else:
            for_workers = dict.fromkeys(("prefetch_factor", "persistent_workers", "multiprocessing_context"))
            changes = {**for_workers, "timeout": 0, **changes}
        changes |= {"engine": setting.engine, "num_workers": setting.workers}
        return Loader.from_config(changes.pop("dataset", self.dataset), self.config, **changes)

    @property
    def _has_plan(self) -> bool:
        return self.config.plan is not None or self.config.batch_sampler is not None

    @property
    def remote(self) -> ShardedDataset | None:
        """The dataset of remote shards that are read through a cache; None if there is none."""
        data = shards_within(self.dataset)
        return data if data is not None and data.files.remote_bytes and data.storage.cache_dir is not None else None

    def samples_per_batch(self) -> float:
        """Return the mean number of samples in a batch."""
        if self._has_plan:
            return len(self.dataset) / max(1, len(self.loader(INLINE)))
        size = self.config.batch_size or 1
        return size if self.is_stream else min(size, len(self.dataset))

    def __str__(self) -> str:
        name = type(self.dataset).__name__
        if self.is_stream:
            return f"{name}, a stream; batches of {self.config.batch_size}"
        batches = len(self.loader(INLINE))
        how = "by a plan" if self._has_plan else f"of {self.config.batch_size}"
        return f"{name}, {len(self.dataset):,} samples; {batches:,} batches an epoch, {how}"


def add_subject(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    """Add the arguments that name a subject."""
    add_source(parser, required=required)
    parser.add_argument(
        "--batch-size", type=count, metavar="N", help=f"default: the loader's; {_BATCH_SIZE} for a dataset"
    )


def subject_from(arguments: argparse.Namespace) -> Subject:
    """Return the subject that the arguments name."""
    source, _ = source_from(arguments)
    return subject_of(source, batch_size=arguments.batch_size, spawn=arguments.spawn)


def subject_of(source: object, *, batch_size: int | None, spawn: bool) -> Subject:
    """Return the subject for a source.

    Args:
        source: A Loader, a DataModule (its training data), a DataLoader, or a dataset.
        batch_size: Replaces the source's batch size.
        spawn: Whether to spawn workers, instead of the source's own start method.

    Raises:
        ValueError: If the source is none of these, is empty, or has a batch sampler.
    """
    source = loader_within(source)
    if isinstance(source, Loader):
        found = Subject(source.dataset, source.config, source.config.engine)
        if found.is_stream:  # torch's workers read it, with any engine
            found = dataclasses.replace(found, engine="torch")
    elif isinstance(source, torch_data.DataLoader):
        found = _of_data_loader(source)
    elif isinstance(source, torch_data.IterableDataset):
        found = Subject(source, LoaderConfig(batch_size=_BATCH_SIZE), "torch")
    elif is_map_style(source) and not isinstance(source, dict | str):
        found = Subject(source, LoaderConfig(batch_size=_BATCH_SIZE, shuffle=True))  # as training does
    else:
        raise ValueError(
            f"the source is of type {type(source).__name__}, wanted a Loader, a DataModule with one training dataset, or a "
            "dataset."
        )
    changes: dict[str, Any] = {}
    if spawn:
        changes["multiprocessing_context"] = "spawn"
    if batch_size is not None:
        if found._has_plan:
            raise ValueError("the loader's plan or batch sampler sets the batch size: leave out --batch-size.")
        changes["batch_size"] = batch_size
    if not found.is_stream and not len(found.dataset):
        raise ValueError(f"the dataset ({type(found.dataset).__name__}) is empty: 0 samples.")
    changes |= {"num_workers": 1, "engine": "auto"}
    return dataclasses.replace(found, config=dataclasses.replace(found.config, **changes))


def _of_data_loader(loader: Any) -> Subject:
    if loader.batch_size is None or type(loader.batch_sampler) not in (torch_data.BatchSampler, type(None)):
        raise ValueError("the DataLoader has its own batch sampler. Give a lk.Loader with a plan, or the dataset.")
    config = LoaderConfig(
        batch_size=loader.batch_size,
        shuffle=isinstance(loader.sampler, torch_data.RandomSampler),
        collate_fn=None if loader.collate_fn is torch_data.default_collate else loader.collate_fn,
        worker_init_fn=loader.worker_init_fn,
    )
    return Subject(loader.dataset, config, "torch")
