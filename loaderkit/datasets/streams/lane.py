"""One lane of a stream: it reads its shards one after another, and a place says where it is.

Samples may be shuffled within windows. A run that resumes within a window reads that window again.
"""

import functools
import operator
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, Self

import numpy as np

from loaderkit.datasets.bad_samples import BadSamples, BadSamplesError, describe
from loaderkit.datasets.streams.deal import Deal
from loaderkit.datasets.streams.samples import Failed, PendingSample, Step
from loaderkit.seeding.keys import hash_positions
from loaderkit.seeding.sample_seeds import SampleSeeds
from loaderkit.system.state import COUNT
from loaderkit.system.worker_info import in_worker_process

_END = object()
_OWN = 5  # numbers in a place, before those of inner places
_FAILURES = 32  # failed reads in a row after which a shard raises an error


class Place(tuple[int, ...]):
    """Where a lane is: `used` samples into the window that starts at a sample of a shard.

    A place is a tuple of five integers. Lanes that read other lanes append the places of those. Each kind of lane may
    use the numbers in its own way.

    Args:
        cycle: How often the lane has been read to its end.
        shard: The number of the shard among those of the lane.
        sample: The number of the window's first sample in that shard.
        used: How many samples of the window were taken; 0 without shuffling.
        position: The number of the window's first sample in the lane.
        inner: The places of the lanes that this lane reads.
    """

    __slots__ = ()

    def __new__(
        cls, cycle: int = 0, shard: int = 0, sample: int = 0, used: int = 0, position: int = 0, *inner: int
    ) -> Self:
        return super().__new__(cls, (cycle, shard, sample, used, position, *inner))

    cycle = property(operator.itemgetter(0))
    shard = property(operator.itemgetter(1))
    sample = property(operator.itemgetter(2))
    used = property(operator.itemgetter(3))
    position = property(operator.itemgetter(4))
    inner = property(operator.itemgetter(slice(5, None)))

    def with_used(self, used: int) -> "Place":
        """Return the place `used` samples into the same window."""
        return Place(self.cycle, self.shard, self.sample, used, self.position)

    def __getnewargs__(self) -> tuple[object, ...]:
        return tuple(self)


def are_counts(place: Sequence[object]) -> bool:
    """Return whether a place from a state has the numbers that a Place needs.

    A cycle may exceed the limit of other counts, because `interleave` multiplies it.
    """
    return len(place) >= _OWN and type(place[0]) is int and place[0] >= 0 and all(map(COUNT.holds, place[1:_OWN]))


class Lane(Protocol):
    """A part of a stream that is read in sequence."""

    @property
    def place(self) -> Place:
        """Where the next sample that `take` returns is."""

    def fill(self, count: int) -> bool:
        """Read ahead until `count` samples can be taken. Return False if the lane has fewer left."""

    def take(self, count: int) -> list[PendingSample]:
        """Return the next `count` samples, or fewer at the lane's end."""


class LaneSpec(NamedTuple):
    """The arguments with which a lane is opened."""

    lane: int  # its number
    place: Place  # where to start
    path: Sequence[int]  # numbers of the stream in composed streams; part of the samples' seeds
    steps: Sequence[Step]  # to apply to each sample
    policy: BadSamples  # if reading fails; a sample that is left out becomes `Failed`


class _Read(NamedTuple):
    sample: object
    position: int  # number in the lane, in the order of delivery
    shard: int  # number among the lane's shards
    number: int  # in that shard


@dataclass(slots=True)
class _Window:
    start: Place
    samples: list[_Read]  # in the order of delivery
    used: int = 0


class LaneReader:
    """Reads a lane of shards from a place to its end."""

    def __init__(self, read: Callable[[str, int], Iterable[object]], deal: Deal, spec: LaneSpec) -> None:
        lane, place, path, self._steps, self._policy = spec
        self._reader, self._deal, self._cycle = read, deal, place.cycle
        self._failures = 0  # in a row
        self._shards = deal.of(place.cycle, lane, path)
        self._keys = (deal.seed, place.cycle, lane, *path)
        self._next = place.with_used(0)  # the next sample to read
        self._iterator: Iterator[object] | None = None
        self._windows: deque[_Window] = deque()
        if place.used:
            self._read(deal.window)
            found = len(self._windows[0].samples) if self._windows else 0
            if found <= place.used:
                name = repr(self._shards[place.shard].shard) if place.shard < len(self._shards) else "(none)"
                raise ValueError(
                    f"cannot resume: {place.used:,} samples were read from sample {place.sample:,} of shard "
                    f"{name} on, and more followed; now there are {found:,}. The data has changed: "
                    "restore it, or start a new epoch with loader.seek(epoch=...)."
                )
            self._windows[0].used = place.used

    @property
    def place(self) -> Place:
        if not self._windows:
            return self._next
        window = self._windows[0]
        if self._deal.shuffled:
            return window.start.with_used(window.used)
        following = window.samples[window.used]
        return Place(self._cycle, following.shard, following.number, 0, following.position)

    def fill(self, count: int) -> bool:
        while (ready := sum(len(window.samples) - window.used for window in self._windows)) < count:
            if not self._read(self._deal.window if self._deal.shuffled else count - ready):
                return False
        return True

    def take(self, count: int) -> list[PendingSample]:
        self.fill(count)
        found: list[_Read] = []
        while self._windows and len(found) < count:
            window = self._windows[0]
            part = window.samples[window.used : window.used + count - len(found)]
            found += part
            window.used += len(part)
            if window.used == len(window.samples):
                self._windows.popleft()
        positions = np.array([each.position for each in found], dtype=np.int64)
        seeds = hash_positions(positions, "sample", *self._keys).tolist()
        return [
            PendingSample(each.sample, seed, self._shards[each.shard].shard, each.number, self._steps)
            for each, seed in zip(found, seeds, strict=True)
        ]

    def _read(self, count: int) -> bool:
        """Read a window of up to `count` samples. Return False if there are none left."""
        deal, start = self._deal, self._next
        positions = np.arange(start.position, start.position + count, dtype=np.int64)
        samples: list[_Read] = []
        shard, number = start.shard, start.sample
        with SampleSeeds(hash_positions(positions, "read", *self._keys), restore=not in_worker_process()) as seeds:
            while len(samples) < count and shard < len(self._shards):
                share = self._shards[shard]
                block = number // deal.block
                if others := (share.number - block) % share.shares:  # blocks that other lanes read
                    self._iterator, number = None, (block + others) * deal.block
                enter = functools.partial(seeds.enter, len(samples))
                enter()
                try:
                    sample = self._next_of(share.shard, number, enter)
                    self._failures = 0
                except Exception as error:
                    sample = self._read_again(error, share.shard, number, enter)
                if sample is _END:
                    self._iterator, shard, number = None, shard + 1, 0
                    continue
                samples.append(_Read(sample, start.position + len(samples), shard, number))
                number += 1
        self._next = Place(self._cycle, shard, number, 0, start.position + len(samples))
        if deal.shuffled:
            words = hash_positions(positions[: len(samples)], "window", *self._keys)
            order = np.argsort(words, kind="stable").tolist()
            samples = [samples[row]._replace(position=start.position + place) for place, row in enumerate(order)]
        if samples:
            self._windows.append(_Window(start, samples))
        return bool(samples)

    def _next_of(self, shard: str, number: int, enter: Callable[[], None]) -> object:
        if self._iterator is None:
            self._iterator = iter(self._reader(shard, number))
            enter()  # undo what `read` drew on its way to the sample
        return next(self._iterator, _END)

    def _read_again(self, error: Exception, shard: str, number: int, enter: Callable[[], None]) -> object:
        """Reopen the shard at a sample that failed, and retry; return `Failed` if the policy leaves the sample out."""

        def again() -> object:
            self._iterator = None  # an iterator that raised has ended
            enter()
            return self._next_of(shard, number, enter)

        what = f"sample {number} of shard {shard!r}"
        try:
            sample = self._policy.again(error, again, what)
        except Exception as final:
            final.add_note(f"loaderkit: raised while reading {what}.")
            self._iterator = None
            self._failures += 1
            if not self._policy.blames(final):
                raise
            if not getattr(self._reader, "skips", True):
                raise BadSamplesError(
                    f"stream: {what} can't be read ({describe(final)}), and the reader {self._reader!r} can't go on "
                    "after it, because it reads a shard from its start. Give a reader that skips, read(shard, start), or one "
                    "that itself leaves out what it can't read."
                ) from final
            if self._failures >= _FAILURES:
                raise BadSamplesError(
                    f"stream: {_FAILURES} samples in a row can't be read, the last is {what} ({describe(final)}). Mend the "
                    "shard, or leave it out."
                ) from final
            return Failed.of(final)
        self._failures = 0
        return sample
