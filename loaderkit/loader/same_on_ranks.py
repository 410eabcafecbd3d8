"""Warn if ranks that share the data read different data, another order, or from another place on."""

import json
import weakref
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch

from loaderkit.system.world import World, default_store

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

# For each process group, how many loaders of a kind have begun in this process.
_begun: "weakref.WeakKeyDictionary[ProcessGroup, Counter[str]]" = weakref.WeakKeyDictionary()


def differing(kind: str, world: World, tell: Callable[[], Mapping[str, str]]) -> str | None:
    """Return a warning if the rank that began first reads something else than this one does; else None.

    The first rank leaves what it reads in the store of the process group, and the others compare. Nobody waits for another rank.
    Loaders of one kind are taken for the same if they begin in the same order on each rank.

    Args:
        kind: What the loader has in common with others of its kind.
        world: The ranks that share the data. Those that a user has numbered are compared if they are all ranks.
        tell: Called if there is a store. Returns what this rank reads, by name.
    """
    store, group = default_store(), torch.distributed.group.WORLD
    if (
        world.size == 1
        or store is None
        or group is None
        or not (world.group or world.size == torch.distributed.get_world_size())
    ):
        return None
    meeting, mine = f"{kind}/{world.size}{world.group}", dict(tell())
    begun = _begun.setdefault(group, Counter())
    begun[meeting] += 1
    key = f"loaderkit/same/{meeting}/{begun[meeting]}"
    told = json.dumps([world.rank, mine])
    try:
        rank, first = json.loads(store.compare_set(key, "", told))
        if store.add(f"{key}/ranks", 1) == world.size:  # an attempt after this one may use the same store
            store.delete_key(key)
            store.delete_key(f"{key}/ranks")
    except (RuntimeError, ValueError):  # the store is gone, or is of another kind
        return None
    return _compare(world.rank, mine, rank, first)


def _compare(rank: int, mine: Mapping[str, str], other: int, first: Mapping[str, str]) -> str | None:
    found = [
        f"{name} {mine[name]}, there {first[name]}" for name in mine if name in first and mine[name] != first[name]
    ]
    if not found:
        return None
    return (
        f"Loader: ranks {rank} and {other} share the data, but differ, so samples come twice or never. Here: {'; '.join(found)}. Give all ranks "
        "the same data in the same order (sort what a glob or a set finds), the same seed, and the same state. If each rank has data of its own, "
        "say so: world=loaderkit.World()."
    )
