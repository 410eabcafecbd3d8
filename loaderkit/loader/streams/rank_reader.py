"""Read a rank's lanes batch by batch, and know where each lane is after the last batch that was yielded."""

from collections.abc import Callable, Iterator, Sequence

from loaderkit.datasets.bad_samples import Reported
from loaderkit.loader.streams.lanes import Item
from loaderkit.loader.streams.state import LanePlace

# Takes places, a cycle and a turn. Returns the items of that cycle from there on.
Read = Callable[[Sequence[LanePlace], int, int], Iterator[Item]]

_EMPTY_CYCLES = 100  # in a row, before a rank gives up


class RankReader:
    """Yields the batches of a rank's lanes, one cycle after another.

    Each call that reads gets the function that reads the lanes. If the reader kept this function, the reader and its
    position would refer to each other. Workers would then run until the garbage collector finds them, which waits 5 s
    for each worker.
    """

    def __init__(self, lanes: Sequence[int], places: Sequence[LanePlace], turn: int) -> None:
        self.places, self.turn = list(places), turn
        self._lanes = lanes  # the lanes' numbers
        self._items: Iterator[Item] | None = None
        self.cycle: int = min(place.cycle for place in places)  # the one that is being read
        self._unheard: set[int] = set()  # lanes that have given no item yet, and may be empty
        self.ahead: Item | None = None  # the item whose batch is ready
        self._ended: list[Item] = []  # items of lanes that ended without a batch, read before the batch that is ready
        self._reports: list[Reported] = []

    def look_ahead(self, read: Read, *, again: bool) -> bool:
        """Have a batch ready; say whether there is one. `again` starts the next cycle if all lanes have ended."""
        cycle = self.cycle
        while not self._find(read):
            # Another cycle deals the shards differently, so this rank may have samples in a later one.
            if not again or self.cycle > cycle + _EMPTY_CYCLES:
                return False
            self._end_cycle()
        return True

    def advance(self) -> None:
        """Move past the batch that is ready."""
        item, self.ahead = self.ahead, None
        if item is None:
            raise RuntimeError("loader: no batch is ready.")
        self._record_ended()
        self._record(item)
        self.turn = (item.row + 1) % len(self._lanes)

    def end_if_over(self, read: Read) -> bool:
        """Go to the next cycle's start if the last batch of this one was taken; say whether it was."""
        has_more = self._items is not None and bool(self._open_rows() - self._unheard)
        if has_more or self._find(read):  # do not wait for an item if a lane is known to have one
            return False
        self._end_cycle()
        return True

    def is_at(self, turn: int, places: Sequence[LanePlace]) -> bool:
        """Say whether the reader continues from these places."""
        in_cycle = self.cycle == min(place.cycle for place in places)  # if not, it must first leave an empty cycle
        return in_cycle and self.turn == turn and self.places == list(places)

    def take_reports(self) -> list[Reported]:
        """Return the reports of lanes that ended without a batch, so no batch carries them. Each is returned once."""
        found, self._reports = self._reports, []
        return found

    def close(self) -> None:
        """Stop the workers and drop what was read ahead; it is read again."""
        self._items = self.ahead = None
        self._ended = []

    def _find(self, read: Read) -> bool:
        """Read to the cycle's next batch; say whether there is one."""
        if self.ahead is None and self._items is None:
            self._unheard = self._open_rows()
            self._items = read(tuple(self.places), self.cycle, self.turn)
        while self.ahead is None and self._items is not None:
            if not self._open_rows():
                self._record_ended()
                return False
            item = next(self._items, None)
            if item is None:
                early = [self._lanes[row] for row in sorted(self._open_rows())]
                if early:  # the epoch would end without an error
                    raise RuntimeError(f"loader: lanes {early} stopped before their end. A worker has ended by itself.")
                return False
            if item.samples:
                self.ahead = item
            else:
                # Recorded later: the reader's places must not depend on how far it has looked ahead.
                self._ended.append(item)
        return True

    def _end_cycle(self) -> None:
        self._items, self.turn = None, 0
        self.cycle = min(place.cycle for place in self.places)

    def _open_rows(self) -> set[int]:
        """Return the rows of the lanes that are not known to have ended."""
        rows = {row for row, place in enumerate(self.places) if place.cycle == self.cycle}
        return rows - {item.row for item in self._ended}

    def _record_ended(self) -> None:
        for item in self._ended:
            self._record(item)
            if type(item.batch) is Reported:
                self._reports.append(item.batch)
        self._ended = []

    def _record(self, item: Item) -> None:
        self.places[item.row] = item.place
        self._unheard.discard(item.row)

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_items": None, "ahead": None, "_ended": []}
