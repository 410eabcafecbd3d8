"""One lane of a stream: shards read one after another, samples shuffled within windows that can be read again."""

import functools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, Self

import numpy as np

from loaderkit.datasets.bad_samples import RAISE, BadSamples, BadSamplesError, describe
from loaderkit.datasets.streams.samples import Failed, PendingSample, Step, alone
from loaderkit.seeding.keys import hash_positions
from loaderkit.seeding.samples import SampleSeeds

_END = object()
_FAILURES = 32  # in a row, before a shard is given up


class Place(tuple[int, ...]):
    """Where a lane stands: behind `taken` samples of the window that starts at a sample of a shard.

    Five integers. A lane made of others has more behind them, which are its `parts`.

    Args:
        cycle: How often the lane has been read to its end.
        shard: Among the lane's.
        sample: In that shard.
        taken: Of the window; 0 where samples are not shuffled.
        position: Of the window's start, in the lane.
        parts: What a lane needs that is made of others.
    """

    __slots__ = ()

    def __new__(
        cls, cycle: int = 0, shard: int = 0, sample: int = 0, taken: int = 0, position: int = 0, *parts: int
    ) -> Self:
        return super().__new__(cls, (cycle, shard, sample, taken, position, *parts))

    @property
    def cycle(self) -> int:
        return self[0]

    @property
    def shard(self) -> int:
        return self[1]

    @property
    def sample(self) -> int:
        return self[2]

    @property
    def taken(self) -> int:
        return self[3]

    @property
    def position(self) -> int:
        return self[4]

    @property
    def parts(self) -> tuple[int, ...]:
        return self[5:]

    def with_taken(self, taken: int) -> "Place":
        """Return the place behind so many samples of the window."""
        return Place(self.cycle, self.shard, self.sample, taken, self.position)

    def __getnewargs__(self) -> tuple[Any, ...]:
        return tuple(self)


class ShardShare(NamedTuple):
    """A shard, or its blocks number, number + of, number + 2 of, ..."""

    shard: str
    number: int = 0
    of: int = 1


class Lane(Protocol):
    """What a loader asks of a lane."""

    @property
    def place(self) -> Place:
        """Where the next sample to be taken stands."""
        ...

    def fill(self, count: int) -> bool:
        """Read until so many samples can be taken; say whether they can."""
        ...

    def take(self, count: int) -> list[PendingSample]:
        """Take so many samples, or as many as there are."""
        ...


class Shards(Protocol):
    """What a lane that reads shards asks of its stream."""

    read: Any
    window: int
    shuffle: bool
    seed: int
    block: int

    def deal(self, cycle: int, lane: int, path: Sequence[int] = ()) -> list[ShardShare]:
        """Return a lane's shards, or parts of them."""
        ...


class _Read(NamedTuple):
    sample: Any
    position: int  # in the lane, in the order of delivery
    shard: int  # among the lane's
    number: int  # in that shard


@dataclass(slots=True)
class _Window:
    start: Place
    samples: list[_Read]  # in the order of delivery
    taken: int = 0


class LaneReader:
    """Reads a lane of shards from a place to its end.

    Args:
        stream: Whose lane it is.
        lane: Its number.
        place: Where it begins.
        steps: To be done to each sample.
        path: Tells apart the streams that others are made of.
        policy: What is done where reading fails. A sample that is left out comes as `Failed`.

    Raises:
        ValueError: If the place's window has fewer samples than were taken of it.
    """

    def __init__(
        self,
        stream: Shards,
        lane: int,
        place: Place,
        steps: Sequence[Step] = (),
        path: Sequence[int] = (),
        policy: BadSamples = RAISE,
    ) -> None:
        self.stream, self.cycle, self._policy = stream, place.cycle, policy
        self._failures = 0  # in a row
        self.shards = stream.deal(place.cycle, lane, path)
        self._keys = (stream.seed, place.cycle, lane, *path)
        self._steps = steps
        self._next = place.with_taken(0)  # to be read
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
            return window.start.with_taken(window.taken)
        following = window.samples[window.taken]
        return Place(self.cycle, following.shard, following.number, 0, following.position)

    def fill(self, count: int) -> bool:
        """Read until so many samples can be taken; say whether they can."""
        while (ready := sum(len(window.samples) - window.taken for window in self._windows)) < count:
            if not self._read(self.stream.window if self.stream.shuffle else count - ready):
                return False
        return True

    def take(self, count: int) -> list[PendingSample]:
        """Take so many samples, or as many as there are."""
        self.fill(count)
        taken: list[_Read] = []
        while self._windows and len(taken) < count:
            window = self._windows[0]
            part = window.samples[window.taken : window.taken + count - len(taken)]
            taken += part
            window.taken += len(part)
            if window.taken == len(window.samples):
                self._windows.popleft()
        positions = np.array([each.position for each in taken], dtype=np.int64)
        words = hash_positions(positions, "sample", *self._keys).tolist()
        return [
            PendingSample(each.sample, word, self.shards[each.shard].shard, each.number, self._steps)
            for each, word in zip(taken, words, strict=True)
        ]

    def _read(self, count: int) -> bool:
        """Read a window of so many samples, or what is left; say whether there was any."""
        stream, start = self.stream, self._next
        positions = np.arange(start.position, start.position + count, dtype=np.int64)
        samples: list[_Read] = []
        shard, number = start.shard, start.sample
        with SampleSeeds(hash_positions(positions, "read", *self._keys), restore=alone()) as seeds:
            while len(samples) < count and shard < len(self.shards):
                part = self.shards[shard]
                if part.of > 1 and number // stream.block % part.of != part.number:  # at a block's end, or the start
                    self._source, number = None, _next_block(number, stream.block, part)
                seeds.enter(len(samples))
                enter = functools.partial(seeds.enter, len(samples))
                try:
                    sample = self._next_of(part.shard, number, enter)
                    self._failures = 0
                except Exception as error:
                    sample = self._mend(error, part.shard, number, enter)
                if sample is _END:
                    self._source, shard, number = None, shard + 1, 0
                    continue
                samples.append(_Read(sample, start.position + len(samples), shard, number))
                number += 1
        self._next = Place(self.cycle, shard, number, 0, start.position + len(samples))
        if stream.shuffle:
            words = hash_positions(positions[: len(samples)], "window", *self._keys)
            order = np.argsort(words, kind="stable").tolist()
            samples = [samples[row]._replace(position=start.position + place) for place, row in enumerate(order)]
        if samples:
            self._windows.append(_Window(start, samples))
        return bool(samples)

    def _next_of(self, shard: str, number: int, enter: Callable[[], None]) -> Any:
        if self._source is None:
            self._source = iter(self.stream.read(shard, number))
            enter()  # what was drawn on the way to the sample is not the sample's
        return next(self._source, _END)

    def _mend(self, error: Exception, shard: str, number: int, enter: Callable[[], None]) -> Any:
        """Read a sample again, from a shard that is opened there, where the error may pass; else leave it out.

        Raises:
            Exception: The error, if it does not pass and the policy does not take it for the sample's fault.
            BadSamplesError: If the reader can't go on behind it.
        """

        def again() -> Any:
            self._source = None  # an iterator that has raised is over
            enter()
            return self._next_of(shard, number, enter)

        what = f"sample {number} of shard {shard!r}"
        try:
            sample = self._policy.again(error, again, what)
        except Exception as final:
            final.add_note(f"loaderkit: raised while reading {what}.")
            self._source = None
            self._failures += 1
            if not self._policy.blames(final):
                raise
            if not getattr(self.stream.read, "skips", True):
                raise BadSamplesError(
                    f"stream: {what} can't be read ({describe(final)}), and the reader {self.stream.read!r} can't go on "
                    "behind it: it reads a shard from its start. Give a reader that skips, read(shard, start), or one "
                    "that leaves out itself what it can't read."
                ) from final
            if self._failures >= _FAILURES:
                raise BadSamplesError(
                    f"stream: {_FAILURES} samples in a row can't be read, the last is {what} ({describe(final)}). Mend the "
                    "shard, or leave it out."
                ) from final
            return Failed.of(final)
        self._failures = 0
        return sample

    def _name(self, shard: int) -> str:
        return repr(self.shards[shard].shard) if shard < len(self.shards) else "(none)"


def _next_block(number: int, block: int, part: ShardShare) -> int:
    """Return the start of a part's next block, from a sample that is in none of it."""
    current = number // block
    return (current + (part.number - current) % part.of) * block
