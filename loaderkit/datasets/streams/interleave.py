"""`interleave`: several streams mixed by weights."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Literal, get_args

from loaderkit.datasets.streams.composed import Composed
from loaderkit.datasets.streams.dataset import StreamDataset
from loaderkit.datasets.streams.lane import Lane, LaneSpec, Place
from loaderkit.datasets.streams.pulled import PulledLane
from loaderkit.datasets.streams.samples import PendingSample, with_steps
from loaderkit.system.state import COUNT

Ends = Literal["all", "first", "again"]

_REPEATS = 1 << 20  # most passes over a stream in one cycle (epoch) of the mixture
_MOST_EMPTY = 100  # empty passes over a stream in a row, after one with samples
_SCALE = 1 << 40  # weights become integers, so that the order is the same on every machine


def interleave(weights: Mapping[StreamDataset, float], *, ends: Ends = "all") -> StreamDataset:
    """Return a stream that mixes several streams in proportion to weights.

    After any number of samples of a lane, each stream has given its share, to within one sample (Tijdeman, Discrete
    Mathematics 1980).

    Args:
        weights: A weight above 0 for each stream; they need not sum to 1. The streams have the same `lanes` and `seed`. Their
            samples still draw different random numbers.
        ends: What happens in a lane when one stream ends. "all": the others go on in proportion, and each sample comes
            once an epoch. "first": the lane's epoch ends, and the other streams' remaining samples are left out.
            "again": the stream starts again, in a new order if it is shuffled, until each stream has ended once.

    Warns:
        UserWarning: If a stream has nothing to read in some lanes, and ends is "all".

    Raises:
        ValueError: If a weight is not above 0, or lanes or seeds differ. Also if a stream has nothing to read in some lanes,
            and ends is "first" or "again": the shares would be wrong there.

    Examples:
        >>> web = lk.StreamDataset(["web"], lambda shard, start: ["w"] * (6 - start), lanes=1)
        >>> books = lk.StreamDataset(["books"], lambda shard, start: ["b"] * (3 - start), lanes=1)
        >>> mixed = lk.interleave({web: 2, books: 1})
        >>> "".join(next(iter(lk.Loader(mixed, batch_size=9, collate_fn=list))))
        'wbwwbwwbw'
    """
    return _Interleave(weights, ends)


class _Interleave(Composed):
    def __init__(self, weights: Mapping[StreamDataset, float], ends: Ends) -> None:
        super().__init__("interleave", list(weights))
        found = list(weights.values())
        for number, weight in enumerate(found):
            if not isinstance(weight, int | float) or isinstance(weight, bool) or not 0 < weight < float("inf"):
                raise ValueError(f"interleave: weight {number} is {weight!r}, wanted a number above 0.")
        if ends not in get_args(Ends):
            raise ValueError(f"interleave: ends is {ends!r}, wanted one of {', '.join(map(repr, get_args(Ends)))}.")
        shares = [stream.shares for stream in self.streams]
        if ends != "all" and min(shares) < self.lanes:
            raise ValueError(
                f"interleave: ends={ends!r}, and the streams have {shares} shards for {self.lanes} lanes: in some lanes a "
                f"stream would be missing. Give lanes={min(shares)}, share= if the reader skips, or ends='all'."
            )
        if lacking := max(0, min(self.lanes, self.shares) - min(shares)):
            warnings.warn(
                f"interleave: the streams have {shares} shards for {self.lanes} lanes: in {lacking} of them a stream is missing, "
                f"and the shares are not the weights. Give lanes={min(shares)}, or share= if the reader skips.",
                UserWarning,
                stacklevel=3,
            )
        self.ends = ends
        self.weights = [max(1, round(weight / sum(found) * _SCALE)) for weight in found]

    @property
    def shares(self) -> int:
        return max(stream.shares for stream in self.streams)

    def order(self) -> str:
        weights = ", ".join(f"{weight / _SCALE:.9g}" for weight in self.weights)
        return f"interleave-1({self.orders()}; by {weights}; ends={self.ends})"

    def _lane(self, spec: LaneSpec) -> Lane:
        return _InterleavedLane(self, spec)

    def first_cycle(self, cycle: int) -> int:
        """Return the streams' cycle number at the start of a cycle of the mixture."""
        # A stream that starts again takes the next cycle number; the numbers of two cycles of the mixture stay apart.
        return cycle * _REPEATS if self.ends == "again" else cycle

    def _flaw(self, lane: int, place: Place) -> str | None:
        first, left = self.first_cycle(place.cycle), list(place.inner)
        last = first + (_REPEATS - 1 if self.ends == "again" else 0)
        if any(place[1:5]):
            return "a cycle, four zeros, and a count and a place for each stream"
        for number, stream in enumerate(self.streams if left else ()):
            count, length = left[:2] if len(left) > 1 else (0, -1)
            if not COUNT.holds(count) or not COUNT.holds(length):
                return f"a count and a place of stream {number}"
            inner, left = left[2 : 2 + length], left[2 + length :]
            if flaw := stream.flaw(lane, inner):
                return f"{flaw} (in stream {number})"
            if not first <= inner[0] <= last:
                return f"a cycle from {first} to {last} in stream {number}"
        return f"places of {len(self.streams)} streams" if left else None


class _InterleavedLane(PulledLane):
    def __init__(self, stream: _Interleave, spec: LaneSpec) -> None:
        super().__init__()
        self._stream, self._spec, place = stream, spec, spec.place
        self._cycle = place.cycle
        self._first = stream.first_cycle(place.cycle)
        saved, self._counts, self._inner = list(place.inner), [], []
        for number in range(len(stream.streams)):
            inner, count = Place(self._first), 0
            if place.inner:
                (count, length), saved = saved[:2], saved[2:]
                inner, saved = Place(*saved[:length]), saved[length:]
            self._counts.append(count)  # samples pulled in this cycle
            self._inner.append(self._open(number, inner))

    def _open(self, number: int, place: Place) -> Lane:
        spec = self._spec
        return self._stream.streams[number].open(spec.lane, place, (*spec.path, number), spec.policy)

    def _source_place(self) -> Place:
        places: list[int] = []
        for count, inner in zip(self._counts, self._inner, strict=True):
            place = inner.place
            places += (count, len(place), *place)
        return Place(self._cycle, 0, 0, 0, 0, *places)

    def _pull(self, count: int) -> list[PendingSample]:
        pending: list[PendingSample] = []
        while len(pending) < count and (number := self._pick()) is not None:
            pending += self._inner[number].take(1)
            self._counts[number] += 1
        return with_steps(pending, self._spec.steps)

    def _pick(self) -> int | None:
        """Return the number of the stream that gives the next sample; None at the end."""
        here = range(len(self._inner))
        live = [number for number in here if self._inner[number].fill(1)]
        if len(live) < len(here):
            if self._stream.ends == "first":
                return None
            if self._stream.ends == "again":
                live = self._start_again(live)
        return most_due(live, self._stream.weights, self._counts) if live else None

    def _start_again(self, live: list[int]) -> list[int]:
        """Restart the streams that have ended. Return the numbers of streams with samples; none once each has ended."""
        here = range(len(self._inner))
        if all(number not in live or self._inner[number].place.cycle > self._first for number in here):
            return []
        for number in here:
            for _ in range(_MOST_EMPTY):
                # A stream that gave nothing in its first pass has nothing.
                if number in live or not self._counts[number]:
                    break
                self._inner[number] = self._open(number, Place(self._inner[number].place.cycle + 1))
                if self._inner[number].fill(1):
                    live = sorted([*live, number])
            else:
                raise RuntimeError(
                    f"interleave: stream {number} gave no sample of lane {self._spec.lane} in {_MOST_EMPTY} passes, after "
                    f"{self._counts[number]:,} before. Look at its filter, or use ends='all'."
                )
        return live


def most_due(live: Sequence[int], weights: Sequence[int], counts: Sequence[int]) -> int:
    """Return the live stream that gives the next sample, so that each count stays within one sample of its share."""
    if len(live) == 1:
        return live[0]
    whole = sum(weights[number] for number in live)
    position = sum(counts[number] for number in live) + 1
    scale = 2 * len(live) - 2
    lag = {number: scale * (weights[number] * position - counts[number] * whole) for number in live}
    due = [number for number in live if lag[number] >= whole] or live
    # Of the streams that may come now, take the one with the earliest deadline.
    return min(due, key=lambda number: (((scale - 1) * whole - lag[number]) / weights[number], number))
