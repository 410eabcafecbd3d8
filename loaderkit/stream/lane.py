"""One lane of a stream: shards read one after another, samples shuffled within windows that can be read again."""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch.utils.data as torch_data

from loaderkit.seeding import SampleSeeds, hash_positions

_END = object()


class Place(NamedTuple):
    """Where a lane stands: behind `taken` samples of the window that starts at a sample of a shard."""

    cycle: int = 0  # how often the lane has been read to its end
    shard: int = 0  # among the lane's
    sample: int = 0  # in that shard
    taken: int = 0  # of the window; 0 where samples are not shuffled
    position: int = 0  # of the window's start, in the lane


class Taken(NamedTuple):
    """A sample as it was read."""

    sample: Any
    position: int  # in the lane, in the order of delivery
    shard: int  # among the lane's
    number: int  # in that shard


class Stream(Protocol):
    """What a lane asks of its stream."""

    read: Any
    transform: Callable[[Any], Any] | None
    window: int
    shuffle: bool
    seed: int

    def deal(self, cycle: int, lane: int) -> list[str]:
        """Return the names of a lane's shards."""
        ...


@dataclass(slots=True)
class _Window:
    start: Place
    samples: list[Taken]  # in the order of delivery
    taken: int = 0


class LaneReader:
    """Reads a lane from a place to its end.

    Raises:
        ValueError: If the place's window has fewer samples than were taken of it.
    """

    def __init__(self, stream: Stream, lane: int, place: Place) -> None:
        self.stream, self.lane, self.cycle = stream, lane, place.cycle
        self.shards = stream.deal(place.cycle, lane)
        self._next = place._replace(taken=0)  # to be read
        self._source: Iterator[Any] | None = None
        self._windows: deque[_Window] = deque()
        if place.taken:
            self._read(stream.window)
            found = len(self._windows[0].samples) if self._windows else 0
            if found <= place.taken:
                raise ValueError(
                    f"cannot resume: {place.taken:,} samples were read from sample {place.sample:,} of shard "
                    f"{self._name(place.shard)} on, and more followed; now there are {found:,}. The data has changed: "
                    "restore it, or start a new epoch with loader.seek(epoch=...)."
                )
            self._windows[0].taken = place.taken

    @property
    def place(self) -> Place:
        """Where the next sample to be taken stands."""
        if not self._windows:
            return self._next
        window = self._windows[0]
        if self.stream.shuffle:
            return window.start._replace(taken=window.taken)
        following = window.samples[window.taken]
        return Place(self.cycle, following.shard, following.number, 0, following.position)

    def fill(self, count: int) -> bool:
        """Read until so many samples can be taken; say whether they can."""
        while (ready := sum(len(window.samples) - window.taken for window in self._windows)) < count:
            if not self._read(self.stream.window if self.stream.shuffle else count - ready):
                return False
        return True

    def take(self, count: int) -> list[Taken]:
        """Take so many samples, or as many as there are."""
        self.fill(count)
        taken: list[Taken] = []
        while self._windows and len(taken) < count:
            window = self._windows[0]
            part = window.samples[window.taken : window.taken + count - len(taken)]
            taken += part
            window.taken += len(part)
            if window.taken == len(window.samples):
                self._windows.popleft()
        return taken

    def _read(self, count: int) -> bool:
        """Read a window of so many samples, or what is left; say whether there was any."""
        stream, start = self.stream, self._next
        positions = np.arange(start.position, start.position + count, dtype=np.int64)
        samples: list[Taken] = []
        shard, number = start.shard, start.sample
        with SampleSeeds(
            hash_positions(positions, "read", stream.seed, self.cycle, self.lane), restore=_alone()
        ) as seeds:
            while len(samples) < count and shard < len(self.shards):
                seeds.enter(len(samples))
                try:
                    if self._source is None:
                        self._source = iter(stream.read(self.shards[shard], number))
                    sample = next(self._source, _END)
                except Exception as error:
                    error.add_note(f"loaderkit: raised while reading sample {number} of shard {self._name(shard)}.")
                    raise
                if sample is _END:
                    self._source, shard, number = None, shard + 1, 0
                    continue
                samples.append(Taken(sample, start.position + len(samples), shard, number))
                number += 1
        self._next = Place(self.cycle, shard, number, 0, start.position + len(samples))
        if stream.shuffle:
            words = hash_positions(positions[: len(samples)], "window", stream.seed, self.cycle, self.lane)
            order = np.argsort(words, kind="stable").tolist()
            samples = [samples[row]._replace(position=start.position + place) for place, row in enumerate(order)]
        if samples:
            self._windows.append(_Window(start, samples))
        return bool(samples)

    def _name(self, shard: int) -> str:
        return repr(self.shards[shard]) if shard < len(self.shards) else "(none)"


def prepared(
    lane: LaneReader, taken: list[Taken], finish: Callable[[list[Any], SampleSeeds], Any] | None = None
) -> Any:
    """Transform samples of a lane, each under its own seed.

    Args:
        lane: Where they were taken.
        taken: What `take` returned; not empty.
        finish: Makes a batch of them, within their seeds.
    """
    stream = lane.stream
    positions = np.array([each.position for each in taken], dtype=np.int64)
    words = hash_positions(positions, "sample", stream.seed, lane.cycle, lane.lane)
    with SampleSeeds(words, restore=_alone()) as seeds:
        samples = []
        for row, each in enumerate(taken):
            sample = each.sample
            if stream.transform is not None:
                seeds.enter(row)
                try:
                    sample = stream.transform(sample)
                except Exception as error:
                    name = lane.shards[each.shard]
                    error.add_note(f"loaderkit: raised while transforming sample {each.number} of shard {name!r}.")
                    raise
            samples.append(sample)
        return samples if finish is None else finish(samples, seeds)


def _alone() -> bool:
    """Say whether the generators of this process are the caller's, not a worker's."""
    return torch_data.get_worker_info() is None
