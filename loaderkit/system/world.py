"""The rank of this process among those that share the data."""

import os
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class World:
    """Rank `rank` of `size` processes, each of which reads its own part of every step.

    Args:
        rank: This process's number, from 0.
        size: How many processes share the data.
        on_host: How many of them run on this host and share its CPUs; None if unknown.

    Raises:
        ValueError: If the rank is not in [0, size).

    Examples:
        >>> data = torch.arange(8)
        >>> [torch.cat(list(lk.Loader(data, 2, world=lk.World(rank, 2)))).tolist() for rank in (0, 1)]
        [[0, 1, 4, 5], [2, 3, 6, 7]]
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
        """Return the world of torch.distributed, else that of torchrun's RANK and WORLD_SIZE, else a world of one."""
        distributed = torch.distributed
        on_host = os.environ.get("LOCAL_WORLD_SIZE", "")
        here = int(on_host) if on_host.isdigit() and int(on_host) else None
        if distributed.is_available() and distributed.is_initialized():
            return cls(distributed.get_rank(), distributed.get_world_size(), here)
        if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
            return cls(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), here)
        return cls()

    @property
    def nodes(self) -> int | None:
        """How many hosts share the data; None if unknown."""
        return -(-self.size // self.on_host) if self.on_host else None

    @classmethod
    def from_trainer(cls, trainer: Any) -> "World":
        """Return the world of a Lightning Trainer, as its strategy gives it.

        Only ranks that read different data count. Under model parallelism they are fewer than all ranks.
        """
        kwargs = getattr(trainer.strategy, "distributed_sampler_kwargs", None)
        on_host = getattr(trainer, "num_devices", None)
        if kwargs is None:
            return cls(on_host=on_host)
        return cls(kwargs["rank"], kwargs["num_replicas"], on_host)
