"""What the peers' scripts share for the throughput: the data, the collate, and a timed job."""

import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torchvision.io  # noqa: F401 - has the decoder; else each worker would import it while the clock runs
from torch import Tensor

from loaderkit.datasets.images.decode import decode_picture

BATCH = 64
SHARDS = 10
SEED = 3
Loader = Any


def load_tokens(folder: str) -> tuple[Any, Any]:
    """Return all tokens (T,) uint16 and where each of the sequences ends (N,)."""
    return np.load(Path(folder) / "tokens.npy", mmap_mode="r"), np.load(Path(folder) / "ends.npy")


def sequences(folder: str) -> Iterator[Any]:
    tokens, ends = load_tokens(folder)
    for start, end in zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True):
        yield np.array(tokens[start:end])


def load_pictures(folder: str) -> list[tuple[bytes, int]]:
    """Return JPEG files and their classes."""
    found: list[tuple[bytes, int]] = pickle.loads((Path(folder) / "pictures.pkl").read_bytes())
    return found


def shards_of(size: int) -> list[range]:
    return [range(size * shard // SHARDS, size * (shard + 1) // SHARDS) for shard in range(SHARDS)]


def pack(samples: Sequence[Any]) -> tuple[Tensor, Tensor]:
    """Collate arrays of tokens end to end, with offsets: the cheapest that keeps all."""
    arrays = [sample["tokens"] if isinstance(sample, dict) else sample for sample in samples]
    offsets = np.zeros(len(arrays) + 1, dtype=np.int64)
    np.cumsum([len(array) for array in arrays], out=offsets[1:])
    return torch.from_numpy(np.concatenate(arrays)), torch.from_numpy(offsets)


def decode(entry: dict[str, Any]) -> tuple[Tensor, int]:
    """Decode as all do, with loaderkit's decoder."""
    return decode_picture(entry["jpg"]), int(entry["cls"])


def size_of(batch: Any) -> int:
    """Count the samples in a batch of `pack`, or of pictures."""
    if isinstance(batch, dict):
        return len(batch["jpg"])
    first, second = batch
    return len(second) - 1 if first.ndim == 1 else len(first)


def timed_job(
    make: Callable[[str, str, bool, int], Loader], size: Callable[[Any], int] = size_of
) -> Callable[..., Any]:
    """Return the function that times a loader's first epoch, and one more of the same loader.

    Each from its first batch to its end, or for so many seconds. A generator is made again for the second.
    """

    def run(*, folder: str, kind: str, shuffle: bool, workers: int, seconds: float) -> dict[str, Any]:
        started = time.perf_counter()
        loader = make(folder, kind, shuffle, workers)
        batches = iter(loader)
        next(batches)
        first_batch = time.perf_counter() - started
        first = rate(batches, size, seconds)
        if batches is loader:
            loader = make(folder, kind, shuffle, workers)
        del batches  # and its workers, where the epoch was longer
        batches = iter(loader)
        next(batches)
        return {"first_batch_s": first_batch, "first": first, "later": rate(batches, size, seconds)}

    return run


def rate(batches: Iterator[Any], size: Callable[[Any], int], seconds: float) -> float:
    """Return the samples a second."""
    begun = time.perf_counter()
    samples = 0
    for batch in batches:
        samples += size(batch)
        now = time.perf_counter()
        if now - begun > seconds:
            return samples / (now - begun)
    return samples / (time.perf_counter() - begun)
