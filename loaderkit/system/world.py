"""The process among those that share the data."""

import os
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class World:
    """Rank `rank` of `size` processes, each of which reads its own part of every step.

    Args:
        on_host: How many processes train on this host, where that is known; they share its CPUs.
    """

    rank: int = 0
    size: int = 1
    on_host: int | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.size < 1 or not 0 <= self.rank < self.size:
            raise ValueError(
                f"world: rank {self.rank} of {self.size}, wanted a size of at least 1 and a rank from 0 to size - 1."
            )

    @classmethod
    def detect(cls) -> "World":
        """Find out from torch.distributed, else from torchrun's RANK and WORLD_SIZE, else be alone."""
        distributed = torch.distributed
        if distributed.is_available() and distributed.is_initialized():
            return cls(distributed.get_rank(), distributed.get_world_size())
        if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
            return cls(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
        return cls()

    @classmethod
    def from_trainer(cls, trainer: Any) -> "World":
        """Ask a Lightning Trainer's strategy, which knows the ranks that have data of their own.

        Under model parallelism those are fewer than all ranks.
        """
        kwargs = getattr(trainer.strategy, "distributed_sampler_kwargs", None)
        on_host = getattr(trainer, "num_devices", None)
        if kwargs is None:
            return cls(on_host=on_host)
        return cls(kwargs["rank"], kwargs["num_replicas"], on_host)
