"""What the peers' scripts share for the resume table: the samples, and a job."""

import base64
import os
import pickle
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

SAMPLES, SHARDS, BATCH = 1013, 11, 8
PAYLOAD = 1000  # bytes that a sample has besides its number
SEED = 7


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Of a run.

    Args:
        folder: Where `write` wrote.
        shuffle: Or in order.
        workers: Processes.
        batch: Samples a batch and rank.
        rank: Of this process.
        world: Number of ranks.
    """

    folder: Path
    shuffle: bool
    workers: int
    batch: int
    rank: int
    world: int

    @classmethod
    def of(cls, folder: str, shuffle: bool, workers: int, batch: int) -> "Setting":
        rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
        return cls(folder=Path(folder), shuffle=shuffle, workers=workers, batch=batch, rank=rank, world=world)


def shard_sizes() -> list[int]:
    return [SAMPLES * (shard + 1) // SHARDS - SAMPLES * shard // SHARDS for shard in range(SHARDS)]


def numbers_of(shard: int) -> range:
    start = sum(shard_sizes()[:shard])
    return range(start, start + shard_sizes()[shard])


def payload(number: int) -> bytes:
    """Bytes that don't compress, or a shard could not be cut at a sample."""
    return random.Random(number).randbytes(PAYLOAD)


def augment(number: int) -> dict[str, Any]:
    """A sample with a random augmentation, as torch's transforms draw it."""
    return {"id": number, "draw": float(torch.rand(()))}


def resume_job(
    make: Callable[[Setting], Any],
    *,
    save: Callable[[Any], Any] = lambda loader: loader.state_dict(),
    load: Callable[[Any, Any], None] = lambda loader, state: loader.load_state_dict(state),
) -> Callable[..., dict[str, Any]]:
    """Return the function that runs a loader, from a state or the start, for some batches or to the epoch's end."""

    def run(
        *, folder: str, shuffle: bool, workers: int, batch: int, take: int, state: Sequence[str] | None = None
    ) -> dict[str, Any]:
        torch.manual_seed(1 if state is None else 2)  # the resuming process draws other numbers of its own
        setting = Setting.of(folder, shuffle, workers, batch)
        loader = make(setting)
        if state is not None:
            mine = state[min(setting.rank, len(state) - 1)]  # a new rank gets the last one's
            load(loader, pickle.loads(base64.b64decode(mine)))
        ids: list[list[int]] = []
        draws: list[list[float]] = []
        saved = None
        for found in loader:
            ids.append([int(number) for number in found["id"]])
            draws.append([float(draw) for draw in found["draw"]])
            if len(ids) == take:
                saved = save(loader)
                break
        text = base64.b64encode(pickle.dumps(saved)).decode()
        return {"ids": ids, "draws": draws, "state": text, "state_bytes": len(pickle.dumps(saved))}

    return run
