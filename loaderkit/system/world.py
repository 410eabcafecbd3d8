"""The rank of this process among those that share the data."""

import dataclasses
import hashlib
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from loaderkit.system.checks import plain_integer
from loaderkit.system.cpus import local_world_size

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

Ranks: TypeAlias = "World | DeviceMesh | ProcessGroup"  # what `world=` takes

# Words in the names of mesh dimensions whose ranks read the same data.
_SHARING = {
    *("tp", "cp", "pp", "sp", "mp", "tensor", "context", "pipeline", "pipe"),
    *("sequence", "seq", "model", "ulysses"),
}


@dataclass(frozen=True, slots=True)
class World:
    """Rank `rank` of `size` processes that share the data.

    Each reads its own part of every step.

    Args:
        rank: This process's number, from 0.
        size: How many processes share the data.
        on_host: How many of them run on this host and share its CPUs; None if unknown.
        group: Name of this group of ranks, if there are several groups that each read the whole data. Each group synchronises
            on its own.

    Raises:
        ValueError: If the rank is not in [0, size).

    Examples:
        `World.from_mesh(mesh["dp"])` and `World.from_group(group)` return the world of ranks that share data with others.

        >>> data = torch.arange(8)
        >>> [torch.cat(list(lk.Loader(data, 2, world=lk.World(rank, 2)))).tolist() for rank in (0, 1)]
        [[0, 1, 4, 5], [2, 3, 6, 7]]
    """

    rank: int = 0
    size: int = 1
    on_host: int | None = field(default=None, compare=False, repr=False)
    group: str = field(default="", compare=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("rank", "size"):
            object.__setattr__(self, name, plain_integer(getattr(self, name)))
        if self.size < 1 or not 0 <= self.rank < self.size:
            raise ValueError(
                f"world: rank {self.rank} of {self.size}, wanted a size of at least 1 and a rank from 0 to size - 1."
            )

    @classmethod
    def detect(cls) -> "World":
        """Return the world of torch.distributed, else that of torchrun's RANK and WORLD_SIZE, else a world of one."""
        distributed, here = torch.distributed, local_world_size()
        if distributed.is_available() and distributed.is_initialized():
            return cls(distributed.get_rank(), distributed.get_world_size(), here)
        if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
            return cls(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), here)
        return cls()

    @classmethod
    def from_mesh(cls, mesh: "DeviceMesh") -> "World":
        """Return this process's rank along the data-parallel dimensions of a mesh, and their number of ranks.

        Ranks that differ in other dimensions get the same rank here, so they read the same batches.

        Args:
            mesh: Data-parallel dimensions, such as `mesh["dp"]` or `mesh["dp_replicate", "dp_shard"]`. Several count as one, in
                row-major order.

        Raises:
            ValueError: If the process is not in the mesh, or a dimension is named like one whose ranks read the same data.
        """
        if shared := [name for name in mesh.mesh_dim_names or () if _shares(name)]:
            raise ValueError(
                f"world: a mesh with the dimensions {list(mesh.mesh_dim_names or ())}, and ranks along {shared} read the same "
                "data. Give the data-parallel dimensions alone, such as mesh['dp']. For another meaning of these names, give "
                "loaderkit.World(rank, size)."
            )
        return cls._among(mesh.mesh.flatten().tolist())

    @classmethod
    def from_group(cls, group: "ProcessGroup") -> "World":
        """Return this process's rank in a data-parallel process group, and the group's size.

        Raises:
            ValueError: If the process is not in the group.
        """
        distributed = torch.distributed
        ranks = distributed.get_process_group_ranks(group) if isinstance(group, distributed.ProcessGroup) else []
        return cls._among(ranks)

    @classmethod
    def _among(cls, ranks: Sequence[int]) -> "World":
        """Return the world of a group, given as ranks of torch.distributed.

        Raises:
            ValueError: If this process is not one of them.
        """
        own, local = torch.distributed.get_rank(), local_world_size()
        if own not in ranks:
            raise ValueError(
                f"world: rank {own} of torch.distributed is not in the group of the ranks {list(ranks)}. Make the Loader in its "
                "ranks alone, or give it the group of this rank."
            )
        on_host = local and sum(rank // local == own // local for rank in ranks)
        name = hashlib.blake2b(repr(ranks).encode(), digest_size=8).hexdigest()
        return cls(ranks.index(own), len(ranks), on_host, f"/{name}")

    @property
    def nodes(self) -> int | None:
        """How many hosts share the data; None if unknown."""
        return -(-self.size // self.on_host) if self.on_host else None

    @classmethod
    def from_trainer(cls, trainer: Any) -> "World":
        """Return the world of a Lightning Trainer or Fabric, as its strategy gives it.

        Only ranks that read different data count. Under model parallelism they are fewer than all ranks.
        """
        strategy = trainer.strategy
        on_host = getattr(trainer, "num_devices", None) or getattr(strategy, "num_processes", None)
        kwargs = getattr(strategy, "distributed_sampler_kwargs", None)
        if kwargs is None:
            return cls(on_host=on_host)
        mesh: Any = getattr(strategy, "device_mesh", None)
        if "data_parallel" in (getattr(mesh, "mesh_dim_names", None) or ()):
            return dataclasses.replace(cls.from_mesh(mesh["data_parallel"]), on_host=on_host)
        return cls(kwargs["rank"], kwargs["num_replicas"], on_host)


def as_world(given: "Ranks | None") -> World | None:
    """Return the World that a setting `world=` means; None stays None.

    Raises:
        ValueError: If `given` is something else than a World, a DeviceMesh or a process group.
    """
    if given is None or isinstance(given, World):
        return given
    if torch.distributed.is_available():
        from torch.distributed.device_mesh import DeviceMesh

        if isinstance(given, DeviceMesh):
            return World.from_mesh(given)
        if isinstance(given, torch.distributed.ProcessGroup):
            return World.from_group(given)
    raise ValueError(
        f"loader: world is {given!r}, wanted a World such as loaderkit.World(0, 2): rank 0 of 2; or the data-parallel "
        "dimensions of a DeviceMesh, such as mesh['dp']; or a process group."
    )


def sharing_dimensions() -> dict[str, int]:
    """Return this process's mesh dimensions whose ranks read the same data: a dict from names to numbers of ranks.

    Dimensions of one rank are left out. A dimension of all ranks is not found: it has no process group of its own.
    """
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return {}
    # There is no public list of meshes or groups.
    groups: Iterable[ProcessGroup] = distributed.distributed_c10d._world.pg_map
    meshes = [group for group in groups if group.group_desc.startswith("mesh_")]
    sizes = {group.group_desc.removeprefix("mesh_"): group.size() for group in meshes}
    return {name: size for name, size in sizes.items() if size > 1 and _shares(name)}


def default_store() -> Any:
    """Return the store of torch's process group, through which its ranks can exchange values; None if there is none."""
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return None
    try:
        return distributed.distributed_c10d._get_default_store()
    except ValueError:  # MPI has none
        return None


def _shares(dimension: str) -> bool:
    return not _SHARING.isdisjoint(re.findall("[a-z]+", dimension.lower()))
