"""Say in a few words what a Loader reads, and show its settings as a table in notebooks."""

import functools
from typing import Any

import torch.utils.data as torch_data

from loaderkit.loader.config import LoaderConfig
from loaderkit.sampling.cursor import Cursor
from loaderkit.system.world import World


def describe_data(data: Any) -> str:
    """Describe a dataset or a factory of one in a few words, without reading or calling it."""
    if isinstance(data, torch_data.IterableDataset):
        return f"{type(data).__name__}, a stream"
    if hasattr(type(data), "__len__") and not isinstance(data, type):
        return f"{type(data).__name__} of {len(data):,} sample{'s' * (len(data) != 1)}"
    kind: Any = type(data)
    if kind.__str__ is not object.__str__:  # its class describes it
        return str(data)
    made = data.func if isinstance(data, functools.partial) else data
    return f"what {getattr(made, '__name__', type(made).__name__)} makes"


def summary(data: object, config: LoaderConfig, world: World, cursor: Cursor) -> list[tuple[str, object]]:
    """Return what a notebook shows of a Loader: names, and what they are."""
    order = "shuffled" if config.shuffle else "as given" if config.order is None else type(config.order).__name__
    return [
        ("data", describe_data(data)),
        ("batches", f"of {config.batch_size}" if config.plan is None else f"by {type(config.plan).__name__}"),
        ("order", order),
        ("seed", config.seed),
        ("workers", f"{config.num_workers} ({config.engine})"),
        ("rank", f"{world.rank} of {world.size}"),
        ("position", f"epoch {cursor.epoch}, batch {cursor.batches}"),
    ]
