"""A rank's lanes, read batch by batch, and where they stand behind the last batch that was handed on."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from loaderkit.datasets.bad_samples import Reported
from loaderkit.loader.streams.workers import Item

MakeRun = Callable[[Sequence[Any], int, int], Iterator[Item]]

_EMPTY_CYCLES = 100  # in a row, before a rank gives up


class RankReader:
    """Hands on batches of the rank's lanes, those that were read least often first.

    Who makes a run is given with each call: a reader that held its position, which holds it, would leave the run's workers to
    the garbage collector, and that waits 5 s for each of them.

    Args:
        lanes: The rank's, by number.
        places: Where they stand.
        turn: Which of them comes next.
    """

    def __init__(self, lanes: Sequence[int], places: Sequence[Any], turn: int) -> None:
        self.places, self.turn = list(places), turn
        self._lanes = lanes
        self._run: Iterator[Item] | None = None
        self._cycle: int = min(place.cycle for place in places)  # the one that is read
        self._unheard: set[int] = set()  # lanes of the run that may have no data at all
        self._ahead: Item | None = None
        self._passed: list[Item] = []  # of lanes that have nothing, read before the batch that is ready
        self._unyielded: list[Reported] = []

    def look_ahead(self, make_run: MakeRun, *, again: bool) -> bool:
        """Have a batch ready; say whether there is one.

        Args:
            make_run: Called with places, a cycle and a turn; yields that cycle's items from there on.
            again: Where all lanes are at their end, begin anew.
        """
        cycle = self._cycle
        while not self._find(make_run):
            # In a cycle that deals the shards otherwise there may be some for this rank.
            if not again or self._cycle > cycle + _EMPTY_CYCLES:
                return False
            self._end_cycle()
        return True

    @property
    def cycle(self) -> int:
        """The cycle that is read."""
        return self._cycle

    @property
    def batch(self) -> Any:
        """The batch that is ready.

        Raises:
            RuntimeError: If none is.
        """
        return self._ready().batch

    def go_on(self) -> None:
        """Stand behind the batch that is ready."""
        item, self._ahead = self._ready(), None
        self._note_passed()
        self._note(item)
        self.turn = (item.row + 1) % len(self._lanes)

    def end_if_over(self, make_run: MakeRun) -> bool:
        """Say whether the cycle's last batch was taken, and if so go to the next cycle's start."""
        if self._has_more() or self._find(make_run):
            return False
        self._end_cycle()
        return True

    def stands_at(self, turn: int, places: Sequence[Any]) -> bool:
        """Say whether it goes on from there."""
        begun = self._cycle == min(place.cycle for place in places)  # else it has yet to leave a cycle without data
        return begun and self.turn == turn and self.places == list(places)

    def unyielded(self) -> list[Reported]:
        """Return, once, the bad samples that belong to no batch: those of lanes that have no others."""
        found, self._unyielded = self._unyielded, []
        return found

    def close(self) -> None:
        """Stop the workers and drop what was read ahead: the next batch is read again."""
        self._run = self._ahead = None
        self._passed = []

    def _ready(self) -> Item:
        if self._ahead is None:
            raise RuntimeError("loader: no batch is ready.")
        return self._ahead

    def _has_more(self) -> bool:
        """Say whether a lane is known to have another batch."""
        left = self._left()
        return self._run is not None and bool(left - self._unheard)

    def _find(self, make_run: MakeRun) -> bool:
        """Read on to the cycle's next batch; say whether there is one."""
        if self._ahead is None and self._run is None:
            self._unheard = self._left()
            self._run = make_run(tuple(self.places), self._cycle, self.turn)
        while self._ahead is None and self._run is not None:
            if not self._left():
                self._note_passed()
                return False
            item = next(self._run, None)
            if item is None:
                self._check_end()
                return False
            if item.samples:
                self._ahead = item
            else:
                # Not noted yet: where a run stands must not depend on how far it has looked ahead.
                self._passed.append(item)
        return True

    def _check_end(self) -> None:
        early = [self._lanes[row] for row in sorted(self._left())]
        if early:  # it would end the epoch without a word
            raise RuntimeError(f"loader: lanes {early} stopped before their end. A worker has ended by itself.")

    def _end_cycle(self) -> None:
        self._run, self.turn = None, 0
        self._cycle = min(place.cycle for place in self.places)

    def _left(self) -> set[int]:
        """Return the lanes that are not known to be at their end."""
        open_rows = {row for row, place in enumerate(self.places) if place.cycle == self._cycle}
        return open_rows - {item.row for item in self._passed}

    def _note_passed(self) -> None:
        for item in self._passed:
            self._note(item)
            if type(item.batch) is Reported:
                self._unyielded.append(item.batch)
        self._passed = []

    def _note(self, item: Item) -> None:
        self.places[item.row] = item.place
        self._unheard.discard(item.row)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_run": None, "_ahead": None, "_passed": []}
