"""Where a rank's lanes stand, and where they stood."""

import math
from abc import abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from loaderkit.loader.config import LoaderConfig
from loaderkit.loader.position import Position
from loaderkit.loader.streams.rank_reader import RankReader
from loaderkit.loader.streams.state import RankCursor, StreamCursor
from loaderkit.loader.streams.workers import Item
from loaderkit.sampling.cursor import Cursor


class LaneStand(Position):
    """The part of a position along lanes that knows its place: where it has been, not computed."""

    _place: ClassVar[Any]  # where a lane stands: a NamedTuple with a cycle, how often the lane has been read to its end

    def __init__(self, dataset: Any, config: LoaderConfig) -> None:
        super().__init__(dataset, config)
        self._reader: RankReader | None = None  # the rank's lanes, once it is known which those are
        self._kept: deque[RankCursor] | None = None  # where it stood since the mark
        self._forgotten = 0  # batches since the mark that are no longer kept
        self._stand_at(StreamCursor())

    def place(self) -> RankCursor:
        return self._now()

    def cursor_at(self, place: RankCursor | None) -> Cursor:
        epoch, batches = (self._epoch, self._batches) if place is None else (place.epoch, place.batches)
        return Cursor(epoch=epoch, batches=batches)

    def return_to(self, place: RankCursor) -> None:
        self._return_to(place)
        self._begun = True
        while self._kept is not None and len(self._kept) > 1 and self._kept[-1] != place:
            self._kept.pop()

    def mark(self) -> int:
        start = self._upcoming()
        self._kept, self._forgotten = deque([start]), 0
        return start.epoch

    def rewind(self) -> None:
        if self._kept is not None:
            self._return_to(self._kept[0])
            self.mark()

    def forget(self, batches: int) -> None:
        while self._kept is not None and self._forgotten < batches and len(self._kept) > 1:
            self._kept.popleft()
            self._forgotten += 1

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
        self.turn += 1

    @abstractmethod
    def _lanes(self) -> int:
        """Return how many lanes all ranks have."""

    @abstractmethod
    def _run(self, places: Sequence[Any], cycle: int, turn: int) -> Iterator[Item]:
        """Read a cycle of this rank's lanes from there on."""

    def _stand_at(self, position: StreamCursor) -> None:
        self.close()
        self._origin, self._since = position, 0
        self._epoch, self._batches = position.epoch, position.batches
        self.bad.start(position.epoch)
        self._reader, self._begun = None, False

    def _return_to(self, standing: RankCursor) -> None:
        """Stand where this rank, or the one in whose place it comes, stood before."""
        reader = self._reader
        self._origin, self._since, self._epoch, self._batches, turn, places, bad = standing
        self.bad.start(self._epoch, bad)
        self._begun = False
        self.turn += 1
        if reader is None or not reader.stands_at(turn, places):
            self.close()
            self._reader = RankReader(self._own(), places, turn)

    def _own(self) -> range:
        """Return the numbers of this rank's lanes."""
        return range(self.world.rank, self._lanes(), self.world.size)

    def _bind(self) -> RankReader:
        """Take this rank's lanes, where they stand."""
        if self._reader is not None:
            return self._reader
        world, origin, lanes, config = self.world, self._origin, self._lanes(), self.config
        if world.size > lanes:
            raise ValueError(
                f"loader: {lanes} lanes for {world.size} ranks, wanted at least one for each. "
                f"Give StreamDataset lanes={world.size} or a multiple of it."
            )
        if world.size > 1 and config.steps is None and config.stop is None:
            raise ValueError(
                f"loader: {world.size} ranks read data of unknown length, and would have unequal numbers of "
                "batches. Say when an epoch ends: steps=..., stop='shortest', stop='repeat', or stop='each'."
            )
        places = [origin.lanes[lane] if origin.lanes else self._place(cycle=origin.epoch) for lane in self._own()]
        turn = origin.turns[world.rank] if len(origin.turns) == world.size else 0
        self._reader = RankReader(self._own(), places, turn or 0)
        self.bad.start(origin.epoch, self._left_out(origin))
        return self._reader

    def _left_out(self, origin: StreamCursor) -> int:
        """Return what this rank has left out before: of other ranks' an equal part."""
        found, world = origin.bad, self.world
        return found[world.rank] if len(found) == world.size else math.ceil(sum(found) / world.size)

    def _now(self) -> RankCursor:
        reader = self._bind()
        places, bad = tuple(reader.places), self._bad_now()
        return RankCursor(self._origin, self._since, self._epoch, self._batches, reader.turn, places, bad)

    def _bad_now(self) -> int:
        return self.bad.at(self._epoch, self._batches)

    def _after(self, batches: int) -> RankCursor:
        """Return where it stood so many batches after the mark."""
        if batches < self._forgotten:
            raise RuntimeError(
                f"loader: asked for the state after {batches} batches, and those before {self._forgotten} are forgotten."
            )
        kept = self._kept or deque([self._now()])
        # Where several datasets are read side by side, one may have ended before the others.
        return kept[min(batches - self._forgotten, len(kept) - 1)]

    def _upcoming(self) -> RankCursor:
        """Return where the next pass begins."""
        return self._ended(self._now()) if self._begun else self._now()

    def _ended(self, standing: RankCursor) -> RankCursor:
        """Return the next epoch's start, if one is left in its middle."""
        if not standing.batches:
            return standing
        epoch = standing.epoch + 1
        if self.config.steps:  # the data goes on from here
            return standing._replace(epoch=epoch, batches=0, bad=0)
        places = tuple(self._place(cycle=epoch) for _ in standing.places)
        return RankCursor(StreamCursor(epoch=epoch), 0, epoch, 0, 0, places)
