"""The part of torchtitan 0.3.0 that a dataloader meets, for machines without the package. Where it is, a test compares them."""

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, ClassVar

from torch.distributed.checkpoint.stateful import Stateful

# What the Trainer calls `Config.build` with.
BUILD = {"dp_world_size", "dp_rank", "tokenizer", "seq_len", "local_batch_size", "snapshot_every_n_steps"}


class Configurable:
    @dataclass(kw_only=True, slots=True)
    class Config:  # noqa: D106
        _owner: ClassVar[Any] = None

        def build(self, **kwargs: Any) -> Any:
            return self._owner(config=replace(self), **kwargs)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if config := cls.__dict__.get("Config"):
            assert "__slots__" in config.__dict__
            config._owner = cls


class BaseDataLoader(Stateful, ABC, Configurable):  # type: ignore[misc]
    @dataclass(kw_only=True, slots=True)
    class Config(Configurable.Config):  # noqa: D106
        dataset: str = ""
        dataset_path: str | None = None

    @abstractmethod
    def __iter__(self) -> Iterator[Any]: ...


def modules() -> dict[str, ModuleType]:
    """Return what stands for the package in `sys.modules`."""
    names = ("torchtitan", "torchtitan.components", "torchtitan.components.dataloader")
    found = {name: ModuleType(name) for name in names}
    found[names[2]].BaseDataLoader = BaseDataLoader  # type: ignore[attr-defined]
    return found


def unload() -> None:
    """Forget the package, and what was imported with it."""
    for name in [name for name in sys.modules if name.split(".")[0] == "torchtitan"]:
        del sys.modules[name]
    sys.modules.pop("loaderkit.integrations.torchtitan", None)
