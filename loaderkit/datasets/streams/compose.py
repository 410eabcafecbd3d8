"""Streams made of streams: one after another, or side by side by weights."""

import hashlib
import warnings
from collections.abc import Mapping, Sequence
from typing import Literal, get_args

from loaderkit.datasets.bad_samples import BadSamples
from loaderkit.datasets.streams.dataset import StreamDataset
from loaderkit.datasets.streams.filter import PulledLane
from loaderkit.datasets.streams.lane import Lane, Place
from loaderkit.datasets.streams.samples import PendingSample, Step

Ends = Literal["all", "first", "again"]

_ROUNDS = 20  # bits of a cycle's number that count how often a source is read in it
_MOST_EMPTY = 100  # passes of a source without a sample, after one with some
_SCALE = 1 << 40  # weights are integers: the order is the same on every machine


def chain(*streams: StreamDataset) -> StreamDataset:
    """Return a stream that reads others one after another, in each lane.

    Windows don't cross from one to the next. The streams need the same lanes and seed; what they draw differs.

    Raises:
        ValueError: If there are none, one comes twice, or their lanes or seeds differ.
    """
    return _Chain(streams)


def interleave(weights: Mapping[StreamDataset, float], *, ends: Ends = "all") -> StreamDataset:
    """Return a stream that reads others side by side, in proportion to weights.

    After any number of samples of a lane each source has its share, exact to one
    sample (Tijdeman, Discrete Mathematics 1980). The streams need the same lanes and
    seed; what they draw differs.

    Args:
        weights: Of each stream, above 0; need not sum to 1.
        ends: What comes of a lane where a source ends. "all": the others go on in
            proportion, each sample comes once an epoch. "first": the lane's epoch ends, what
            is left of the others is left out. "again": that source begins again, in
            another order if it shuffles, until each has ended once.

    Warns:
        UserWarning: If some lanes lack a source from their start ("all").

    Raises:
        ValueError: If a weight is not above 0, their lanes or seeds differ, or a source has
            nothing to read in some lanes, whose shares would be wrong ("first", "again").
    """
    return _Interleave(weights, ends)


class _Composed(StreamDataset):
    def __init__(self, what: str, streams: Sequence[StreamDataset]) -> None:
        for number, stream in enumerate(streams):
            if not isinstance(stream, StreamDataset):
                raise ValueError(f"{what}: source {number} is {type(stream).__name__}, wanted a StreamDataset.")
        if not streams:
            raise ValueError(f"{what}: there are no streams, wanted at least one.")
        if len(set(streams)) < len(streams):
            raise ValueError(
                f"{what}: a stream comes twice, wanted each once. Make a second StreamDataset of the same shards."
            )
        self.lanes, self.seed = streams[0].lanes, streams[0].seed
        for name in ("lanes", "seed"):
            found = [getattr(stream, name) for stream in streams]
            if len(set(found)) > 1:
                raise ValueError(
                    f"{what}: the streams have {name} {found}, wanted one value: give all StreamDataset(..., {name}={found[0]})."
                )
        self.streams = list(streams)
        self.shards = [f"{number}/{shard}" for number, stream in enumerate(streams) for shard in stream.shards]
        self._start(())

    def fingerprint(self) -> str:
        """Describe the shards, so that a resume can tell others from them."""
        text = "\x1f".join(stream.fingerprint() for stream in self.streams)
        return f"{len(self.shards):,} shards of {len(self.streams)} streams ({_digest(text)})"

    def _orders(self) -> str:
        text = "; ".join(stream.order() for stream in self.streams)
        return text if len(text) <= 200 else f"{len(self.streams)} streams, {_digest(text)}"


class _Chain(_Composed):
    def __init__(self, streams: Sequence[StreamDataset]) -> None:
        super().__init__("chain", streams)

    @property
    def parts(self) -> int:
        return sum(stream.parts for stream in self.streams)

    def order(self) -> str:
        """Name the order of the samples, with its version and all that shapes it."""
        return f"chain-1({self._orders()})"

    def _lane(self, lane: int, place: Place, path: Sequence[int], steps: Sequence[Step], policy: BadSamples) -> Lane:
        return _ChainLane(self.streams, lane, place, path, steps, policy)


class _ChainLane(PulledLane):
    def __init__(
        self,
        streams: Sequence[StreamDataset],
        lane: int,
        place: Place,
        path: Sequence[int],
        steps: Sequence[Step],
        policy: BadSamples,
    ) -> None:
        super().__init__()
        self._streams, self._path, self._steps, self._policy = streams, path, steps, policy
        self._cycle, self._number = place.cycle, place.shard
        self._lanes = []  # of the streams: where one leaves lanes without shards, the next begins with those
        for stream in streams:
            self._lanes.append(lane)
            lane = (lane - stream.parts) % stream.lanes
        self._inner = self._open(Place(*place.parts) if place.parts else Place(self._cycle))

    def _open(self, place: Place) -> Lane:
        path = (*self._path, self._number)
        return self._streams[self._number].open(self._lanes[self._number], place, path, self._policy)

    def _stand(self) -> Place:
        return Place(self._cycle, self._number, 0, 0, 0, *self._inner.place)

    def _pull(self, count: int) -> list[PendingSample]:
        while not (taken := self._inner.take(count)):
            if self._number + 1 == len(self._streams):
                return []
            self._number += 1
            self._inner = self._open(Place(self._cycle))
        return _with_steps(taken, self._steps)


class _Interleave(_Composed):
    def __init__(self, weights: Mapping[StreamDataset, float], ends: Ends) -> None:
        super().__init__("interleave", list(weights))
        found = list(weights.values())
        for number, weight in enumerate(found):
            if not isinstance(weight, int | float) or isinstance(weight, bool) or not 0 < weight < float("inf"):
                raise ValueError(f"interleave: weight {number} is {weight!r}, wanted a number above 0.")
        if ends not in get_args(Ends):
            raise ValueError(f"interleave: ends is {ends!r}, wanted one of {', '.join(map(repr, get_args(Ends)))}.")
        parts = [stream.parts for stream in self.streams]
        if ends != "all" and min(parts) < self.lanes:
            raise ValueError(
                f"interleave: ends={ends!r}, and the streams have {parts} shards for {self.lanes} lanes: in some lanes a "
                f"source would be missing. Give lanes={min(parts)}, share= where the reader skips, or ends='all'."
            )
        if lacking := max(0, min(self.lanes, self.parts) - min(parts)):
            warnings.warn(
                f"interleave: the streams have {parts} shards for {self.lanes} lanes: in {lacking} of them a source is missing, "
                f"and the shares are not the weights. Give lanes={min(parts)}, or share= where the reader skips.",
                UserWarning,
                stacklevel=3,
            )
        self.ends = ends
        self.weights = [max(1, round(weight / sum(found) * _SCALE)) for weight in found]

    @property
    def parts(self) -> int:
        return max(stream.parts for stream in self.streams)

    def order(self) -> str:
        """Name the order of the samples, with its version and all that shapes it."""
        weights = ", ".join(f"{weight / _SCALE:.9g}" for weight in self.weights)
        return f"interleave-1({self._orders()}; by {weights}; ends={self.ends})"

    def _lane(self, lane: int, place: Place, path: Sequence[int], steps: Sequence[Step], policy: BadSamples) -> Lane:
        return _InterleavedLane(self, lane, place, path, steps, policy)


class _InterleavedLane(PulledLane):
    def __init__(
        self,
        stream: _Interleave,
        lane: int,
        place: Place,
        path: Sequence[int],
        steps: Sequence[Step],
        policy: BadSamples,
    ) -> None:
        super().__init__()
        self._stream, self._lane, self._path, self._steps, self._policy = stream, lane, path, steps, policy
        self._cycle = place.cycle
        self._first = place.cycle << _ROUNDS if stream.ends == "again" else place.cycle
        saved, self._counts, self._inner = list(place.parts), [], []
        for number in range(len(stream.streams)):
            inner, count = Place(self._first), 0
            if place.parts:
                (count, length), saved = saved[:2], saved[2:]
                inner, saved = Place(*saved[:length]), saved[length:]
            self._counts.append(count)  # of samples pulled in this cycle
            self._inner.append(self._open(number, inner))

    def _open(self, number: int, place: Place) -> Lane:
        return self._stream.streams[number].open(self._lane, place, (*self._path, number), self._policy)

    def _stand(self) -> Place:
        parts: list[int] = []
        for count, inner in zip(self._counts, self._inner, strict=True):
            place = inner.place
            parts += (count, len(place), *place)
        return Place(self._cycle, 0, 0, 0, 0, *parts)

    def _pull(self, count: int) -> list[PendingSample]:
        taken: list[PendingSample] = []
        while len(taken) < count and (number := self._pick()) is not None:
            taken += self._inner[number].take(1)
            self._counts[number] += 1
        return _with_steps(taken, self._steps)

    def _pick(self) -> int | None:
        """Return whose turn it is; None at the end."""
        here = range(len(self._inner))
        live = [number for number in here if self._inner[number].fill(1)]
        if len(live) < len(here):
            if self._stream.ends == "first":
                return None
            if self._stream.ends == "again":
                live = self._begin_again(live)
        return most_due(live, self._stream.weights, self._counts) if live else None

    def _begin_again(self, live: list[int]) -> list[int]:
        """Open again the sources that have ended; return those that have samples, or none if each has ended once."""
        here = range(len(self._inner))
        if all(number not in live or self._inner[number].place.cycle > self._first for number in here):
            return []
        for number in here:
            for _ in range(_MOST_EMPTY):
                # A source of which the first pass gave nothing has nothing.
                if number in live or not self._counts[number]:
                    break
                self._inner[number] = self._open(number, Place(self._inner[number].place.cycle + 1))
                if self._inner[number].fill(1):
                    live = sorted([*live, number])
            else:
                raise RuntimeError(
                    f"interleave: source {number} gave no sample of lane {self._lane} in {_MOST_EMPTY} passes, after "
                    f"{self._counts[number]:,} before. Look at its filter, or use ends='all'."
                )
        return live


def most_due(live: Sequence[int], weights: Sequence[int], counts: Sequence[int]) -> int:
    """Return which of the live sources is next, so that each count stays within one sample of its share."""
    if len(live) == 1:
        return live[0]
    whole = sum(weights[number] for number in live)
    position = sum(counts[number] for number in live) + 1
    scale = 2 * len(live) - 2
    behind = {number: scale * (weights[number] * position - counts[number] * whole) for number in live}
    due = [number for number in live if behind[number] >= whole] or live
    # Of those whose turn may be now, the one that has to come first.
    return min(due, key=lambda number: (((scale - 1) * whole - behind[number]) / weights[number], number))


def _with_steps(taken: list[PendingSample], steps: Sequence[Step]) -> list[PendingSample]:
    return [each._replace(steps=(*each.steps, *steps)) for each in taken] if steps else taken


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
