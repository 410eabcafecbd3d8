"""The part of torchtitan that a dataloader meets, for machines without the package: of 0.3.0, and of its main branch of 2026-08-21.

Where the package is installed, a test compares them.
"""

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, ClassVar

from torch.distributed.checkpoint.stateful import Stateful

# What the Trainer calls `Config.build` with.
BUILD = {"dp_world_size", "dp_rank", "tokenizer", "seq_len", "local_batch_size", "snapshot_every_n_steps"}
LATER_BUILD = {"dp_world_size", "dp_rank", "tokenizer", "max_context_length", "num_tokens_per_batch"}


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


class LaterBaseDataLoader(Stateful, ABC, Configurable):  # type: ignore[misc]
    @dataclass(kw_only=True, slots=True)
    class Config(Configurable.Config):  # noqa: D106
        pass

    @abstractmethod
    def __iter__(self) -> Iterator[Any]: ...

    def close(self) -> None:
        pass


def modules(*, later: bool) -> dict[str, ModuleType]:
    """Return what stands for the package in `sys.modules`: for 0.3.0, or for the later main branch."""
    inner = ["data", "data.loader"] if later else ["dataloader"]
    names = ["torchtitan", "torchtitan.components", *(f"torchtitan.components.{name}" for name in inner)]
    found = {name: ModuleType(name) for name in names}
    found[names[-1]].BaseDataLoader = LaterBaseDataLoader if later else BaseDataLoader  # type: ignore[attr-defined]
    return found


def is_later() -> bool:
    """Return whether the imported package, or what stands for it, is the later one."""
    return "torchtitan.components.data.loader" in sys.modules


def arguments(*, length: int, rows: int) -> dict[str, Any]:
    """Return what the Trainer gives for batches of so many rows, beside ranks and tokenizer."""
    if is_later():
        return {"max_context_length": length, "num_tokens_per_batch": rows * length}
    return {"seq_len": length, "local_batch_size": rows, "snapshot_every_n_steps": None}


def unload() -> None:
    """Forget the package, and what was imported with it."""
    for name in [name for name in sys.modules if name.split(".")[0] == "torchtitan"]:
        del sys.modules[name]
    sys.modules.pop("loaderkit.integrations.torchtitan", None)
