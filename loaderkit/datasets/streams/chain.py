"""`chain`: several streams one after another."""

from collections.abc import Sequence

from loaderkit.datasets.streams.composed import Composed
from loaderkit.datasets.streams.dataset import StreamDataset
from loaderkit.datasets.streams.lane import Lane, LaneSpec, Place
from loaderkit.datasets.streams.pulled import PulledLane
from loaderkit.datasets.streams.samples import PendingSample, with_steps


def chain(*streams: StreamDataset) -> StreamDataset:
    """Return a stream that reads several streams one after another, in each lane.

    A shuffle window never crosses from one stream to the next.

    Args:
        *streams: The streams, with the same `lanes` and `seed`. Their samples still draw different random numbers.

    Raises:
        ValueError: If there are no streams, one comes twice, or their lanes or seeds differ.

    Examples:
        >>> one = lk.StreamDataset(["a"], lambda shard, start: range(start, 3), lanes=1)
        >>> two = lk.StreamDataset(["b"], lambda shard, start: range(10 + start, 12), lanes=1)
        >>> [int(x) for batch in lk.Loader(lk.chain(one, two), batch_size=2) for x in batch]
        [0, 1, 2, 10, 11]
    """
    return _Chain(streams)


class _Chain(Composed):
    def __init__(self, streams: Sequence[StreamDataset]) -> None:
        super().__init__("chain", streams)

    @property
    def shares(self) -> int:
        return sum(stream.shares for stream in self.streams)

    def order(self) -> str:
        return f"chain-1({self.orders()})"

    def _lane(self, spec: LaneSpec) -> Lane:
        return _ChainLane(self.streams, spec)

    def _flaw(self, lane: int, place: Place) -> str | None:
        if place.shard >= len(self.streams) or any(place[2:5]):
            return f"the number of one of {len(self.streams)} streams"
        if not place.inner:
            return "no number of a stream without a place in it" if place.shard else None
        if place.inner[0] != place.cycle:
            return f"cycle {place.cycle} in its stream too"
        stream: StreamDataset = self.streams[place.shard]
        return stream.flaw(lanes_of(self.streams, lane)[place.shard], place.inner)


def lanes_of(streams: Sequence[StreamDataset], lane: int) -> list[int]:
    """Return the lane that a chain's lane reads in each stream.

    Each stream is shifted, so that its shards first go to the lanes that have fewer shards of the streams before it.
    """
    lanes = []
    for stream in streams:
        lanes.append(lane)
        lane = (lane - stream.shares) % stream.lanes
    return lanes


class _ChainLane(PulledLane):
    def __init__(self, streams: Sequence[StreamDataset], spec: LaneSpec) -> None:
        super().__init__()
        self._streams, self._spec = streams, spec
        lane, place = spec.lane, spec.place
        self._cycle, self._number = place.cycle, int(place.shard)
        self._lanes = lanes_of(streams, lane)
        self._inner = self._open(Place(*place.inner) if place.inner else Place(self._cycle))

    def _open(self, place: Place) -> Lane:
        number, spec = self._number, self._spec
        return self._streams[number].open(self._lanes[number], place, (*spec.path, number), spec.policy)

    def _source_place(self) -> Place:
        return Place(self._cycle, self._number, 0, 0, 0, *self._inner.place)

    def _pull(self, count: int) -> list[PendingSample]:
        while not (pending := self._inner.take(count)):
            if self._number + 1 == len(self._streams):
                return []
            self._number += 1
            self._inner = self._open(Place(self._cycle))
        return with_steps(pending, self._spec.steps)
