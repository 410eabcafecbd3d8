"""Data without an index: named shards that can only be read from some sample on."""

import functools
import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
import torch.utils.data as torch_data

from loaderkit.seeding import hash_positions
from loaderkit.stream.lane import LaneReader, Place, prepared
from loaderkit.world import World

Read = Callable[[str, int], Iterable[Any]]


class StreamDataset(torch_data.IterableDataset[Any]):
    """Samples of named shards whose lengths nobody knows.

    Each epoch deals the shards to lanes, and lanes to ranks and workers. A lane's
    samples come in the shards' order, or shuffled within windows of so many
    samples, which are read again when a run resumes within one. The shards must
    give the same samples whenever they are read in an epoch.

    `Loader` makes batches of it that resume exactly. In a bare
    `torch.utils.data.DataLoader` it gives single samples, each once over ranks
    and workers; call `set_epoch` before each epoch there.

    Args:
        shards: Their names: paths, URLs, page numbers, dates.
        read: Called with a shard's name and a number `start`; returns an iterable
            of its samples from sample `start` on. `from_start` makes one of a
            function that can't skip. What it draws belongs to the sample that is
            read next.
        transform: Called with each sample, under the sample's own seed.
        lanes: How many shards are read side by side, over all ranks and workers;
            of use if at least ranks x workers. It shapes the order.
        window: How many samples of a lane are shuffled together, and held in memory.
        shuffle: Shuffle the shards, and the samples within windows.
        seed: Of the order and of what transforms draw.

    Raises:
        ValueError: If there are no shards, two have the same name, or a number is
            out of range.
    """

    def __init__(
        self,
        shards: Iterable[str],
        read: Read,
        *,
        transform: Callable[[Any], Any] | None = None,
        lanes: int = 16,
        window: int = 1024,
        shuffle: bool = False,
        seed: int = 0,
    ) -> None:
        if isinstance(shards, str):
            raise ValueError(f"stream: shards is the string {shards!r}, wanted a list of names.")
        self.shards = [str(shard) for shard in shards]
        self.read, self.transform = read, transform
        self.lanes, self.window, self.shuffle, self.seed = lanes, window, shuffle, seed
        if not self.shards:
            raise ValueError("stream: there are no shards, wanted at least one name. Check the pattern they come from.")
        if len(set(self.shards)) < len(self.shards):
            twice = next(name for number, name in enumerate(self.shards) if name in self.shards[:number])
            raise ValueError(f"stream: shard {twice!r} is there twice. Give each shard once, or a name of its own.")
        for name, value in (("lanes", lanes), ("window", window)):
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"stream: {name} is {value!r}, wanted an integer of at least 1.")
        if not isinstance(seed, int) or isinstance(seed, bool):
            raise ValueError(f"stream: seed is {seed!r}, wanted an integer.")
        epoch: Any = torch.zeros((), dtype=torch.int64)
        self._epoch = epoch.share_memory_()  # so that a set_epoch reaches workers that persist
        self._world: World | None = None
        self._order: tuple[int, Sequence[int]] | None = None

    def fingerprint(self) -> str:
        """Describe the shards, so that a resume can tell others from them."""
        text = "\x1f".join(self.shards)
        return f"{len(self.shards):,} shards ({hashlib.blake2b(text.encode(), digest_size=8).hexdigest()})"

    def order(self) -> str:
        """Name the order of the samples, with its version and all that shapes it."""
        shuffled = f"shuffled by {self.window}" if self.shuffle else "as they are"
        return f"stream-1 in {self.lanes} lanes, {shuffled}"

    def deal(self, cycle: int, lane: int) -> list[str]:
        """Return the names of a lane's shards, in the order in which they are read."""
        if self._order is None or self._order[0] != cycle:
            numbers = np.arange(len(self.shards), dtype=np.int64)
            if self.shuffle:
                numbers = np.argsort(hash_positions(numbers, "shards", self.seed, cycle), kind="stable")
            self._order = cycle, numbers.tolist()
        return [self.shards[number] for number in self._order[1][lane :: self.lanes]]

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch the next `iter()` in a bare DataLoader gives; a Loader counts by itself."""
        self._epoch.fill_(epoch)

    def __iter__(self) -> Iterator[Any]:
        info = torch_data.get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        world = self._world or World.detect()
        numbers = range(world.rank, self.lanes, world.size)[worker::workers]
        start = Place(cycle=int(self._epoch))
        lanes = [LaneReader(self, lane, start) for lane in numbers]
        while lanes:
            lanes = [lane for lane in lanes if lane.fill(1)]
            for lane in lanes:
                yield from prepared(lane, lane.take(1))

    def __getstate__(self) -> dict[str, Any]:
        # A worker that is not forked knows no torch.distributed.
        return self.__dict__ | {"_world": self._world or World.detect(), "_order": None}


def from_start(read: Callable[[str], Iterable[Any]]) -> Read:
    """Make a reader that starts anywhere of one that starts at the first sample: it drops those before.

    Args:
        read: Called with a shard's name; returns an iterable of all its samples.
    """
    return functools.partial(_read_from_start, read)


def _read_from_start(read: Callable[[str], Iterable[Any]], shard: str, start: int) -> Iterator[Any]:
    samples = iter(read(shard))
    dropped = sum(1 for _ in itertools.islice(samples, start))
    if dropped < start:
        raise ValueError(
            f"cannot resume: shard {shard!r} has {dropped:,} samples, {start:,} of it were read before. "
            "It has changed: restore it, or start a new epoch with loader.seek(epoch=...)."
        )
    return samples
