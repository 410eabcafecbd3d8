"""What the repr of a loader or a DataModule says of its data and settings, in a few words: nothing is read or called for it."""

import functools
from typing import Any

import torch.utils.data as torch_data

from loaderkit.loader.config import LoaderConfig
from loaderkit.system.world import World


def brief_data(data: Any) -> str:
    """Describe a dataset, or a factory of one."""
    if isinstance(data, torch_data.IterableDataset):
        return f"{type(data).__name__}, a stream"
    if hasattr(data, "__len__") and not isinstance(data, type):
        return f"{type(data).__name__} of {len(data):,} sample{'s' * (len(data) != 1)}"
    made = data.func if isinstance(data, functools.partial) else data
    return f"what {getattr(made, '__name__', type(made).__name__)} makes"


def brief_several(found: str | list[str] | dict[Any, str]) -> str:
    """Describe what a stage is given, of which each dataset is described."""
    if isinstance(found, str):
        return found
    if isinstance(found, list):
        return f"[{', '.join(found)}]"
    return f"{{{', '.join(f'{name!r}: {one}' for name, one in found.items())}}}"


def brief_settings(config: LoaderConfig, world: World) -> str:
    """Describe settings: who makes batches of how many samples, for whom."""
    size = f"batch_size={config.batch_size}" if config.plan is None else f"plan={type(config.plan).__name__}"
    return f"{size}, num_workers={config.num_workers!r}, engine={config.engine!r}, rank {world.rank} of {world.size}"
