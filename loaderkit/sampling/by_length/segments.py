"""How samples become segments: windows, what is left of one under another geometry, and lines after many of these."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from loaderkit.sampling.by_length.line import CutFunction, Room, deal, joined, lined_up
from loaderkit.sampling.by_length.segment import Cut, Geometry, Segment
from loaderkit.sampling.cursor import Cursor
from loaderkit.sampling.order import Order
from loaderkit.seeding.keys import hash_positions
from loaderkit.system.arrays import Int64Array

# Characters that the geometries of a window may take in a state until no more of them are added: with one more and the rest of
# it, names of 200 characters included, it is under 1 KB.
_FULL = 180


def end_of_window(start: int, size: int, window: int) -> int:
    """Return where the window ends that a place of so many samples is in."""
    number = start // window
    return size if number >= size // window - 1 else (number + 1) * window  # the last one has what is left too


def is_border(start: int, size: int, window: int) -> bool:
    """Say whether a window begins at a place, or the samples end there."""
    return start == size or (start % window == 0 and (start == 0 or end_of_window(start - 1, size, window) == start))


@dataclass(frozen=True, kw_only=True, slots=True)
class Cutter:
    """Makes the segment that a cursor stands in, as a pure function of it and of the geometry of who reads on.

    A cursor's plan names the geometries with which a window was cut, one after the other: for each the samples consumed
    before and after the segment, then the geometry. Where these became too many, one more number says how many samples
    were consumed there: what was left then is a line, in which a number of samples is a place for any geometry.
    """

    name: str
    order: Order
    lengths: Int64Array
    window: int
    seed: int
    mixed: bool  # whether steps come in shuffled order
    alike: bool  # whether a step wants samples of like lengths
    cut: CutFunction
    room: Callable[[Int64Array, Geometry], Room]

    def segment(self, cursor: Cursor, geometry: Geometry, *, keep: bool) -> Segment | None:
        """Return what a run of a geometry reads from, None at the epoch's end.

        Args:
            cursor: Where it stands.
            geometry: Its own.
            keep: Whether its tail policy says that nothing is left out or repeated.

        Raises:
            ValueError: If the cursor is damaged, or the ranks can't share the end of the epoch.
        """
        epoch, samples, width = cursor.epoch, cursor.samples, 2 + len(geometry)
        if not cursor.plan:
            return self.fresh(epoch, samples, geometry)
        over = len(cursor.plan) % width
        if over > 1 or len(cursor.plan) < width:
            raise ValueError(
                f"cannot resume: the cursor's plan has {len(cursor.plan)} numbers, wanted a multiple of {width} for "
                f"{self.name}. The state is damaged, or of another plan."
            )
        chain, begun = cursor.plan[: len(cursor.plan) - over], cursor.plan[-1] if over else samples
        segment = self._restored(epoch, chain, width)
        if segment is None or (not over and chain[-len(geometry) :] == geometry):
            return segment
        if not over and sum(len(str(number)) + 2 for number in chain) <= _FULL:
            left, origin = segment.left(samples), segment.origin
            return self._arranged(epoch, samples, segment.end, left, geometry, origin)
        return self._dealt(cursor, segment, begun, geometry, keep=keep)

    def fresh(self, epoch: int, start: int, geometry: Geometry) -> Segment | None:
        """Return a window, or what follows of it behind a place; None at the epoch's end."""
        end = end_of_window(start, self._size(epoch), self.window)
        positions = np.arange(start, end, dtype=np.int64)
        return self._arranged(epoch, start, end, positions, geometry, ()) if end > start else None

    def _restored(self, epoch: int, chain: tuple[int, ...], width: int) -> Segment | None:
        """Make a segment again from the geometries that followed each other in a window."""
        segment: Segment | None = None
        for place in range(0, len(chain), width):
            start, end, *geometry = chain[place : place + width]
            sound = 0 <= start < end <= self._size(epoch) and min(geometry) >= 0 and min(geometry[:2]) >= 1
            try:
                if not sound:
                    raise ValueError("a number is out of range")
                positions = np.arange(start, end, dtype=np.int64)
                if segment is not None:
                    positions = np.concatenate([segment.left(start), np.arange(segment.end, end, dtype=np.int64)])
                segment = self._arranged(epoch, start, end, positions, tuple(geometry), chain[:place])
            except (ArithmeticError, LookupError, ValueError) as error:
                raise ValueError(
                    f"cannot resume: {self.name} can't cut samples {start} to {end} by {geometry}, as the cursor's plan "
                    "says. The state is damaged, or of other data."
                ) from error
        return segment

    def _arranged(
        self, epoch: int, start: int, end: int, positions: Int64Array, geometry: Geometry, origin: tuple[int, ...]
    ) -> Segment | None:
        """Cut samples, together with those of the next windows if they are too few by themselves."""
        size = self._size(epoch)
        while True:
            whole = len(positions) == end - positions[0] if len(positions) else False
            found = self.order.indices(epoch, int(positions[0]), end) if whole else self.order.at(epoch, positions)
            cut = self.cut(self.lengths[found], geometry, last=end == size)
            if cut is not None:
                break
            if end == size:
                return None
            more = end_of_window(end, size, self.window)
            positions, end = np.concatenate([positions, np.arange(end, more, dtype=np.int64)]), more
        ranks = geometry[0]
        turns = np.arange((len(cut.bounds) - 1) // ranks, dtype=np.int64)
        if self.mixed:
            turns = np.argsort(hash_positions(turns, "steps", self.seed, epoch, start), kind="stable")
        ends = start + np.cumsum(cut.samples_of_steps(ranks, len(positions))[turns])
        ends[-1:] = end  # what the tail policy or the longest allowed length leaves out counts as consumed
        return Segment(
            start=start,
            end=end,
            positions=positions,
            indices=found,
            cut=cut,
            ranks=ranks,
            turns=turns,
            ends=ends,
            origin=(*origin, start, end, *geometry),
        )

    def _dealt(self, cursor: Cursor, segment: Segment, begun: int, geometry: Geometry, *, keep: bool) -> Segment:
        """Deal the line that begins in a segment, from the cursor on.

        Where too few are left at its end, the step goes on with the first samples of the next window.
        """
        epoch, start, size = cursor.epoch, cursor.samples, self._size(cursor.epoch)
        positions = segment.left(begun)
        if not 0 <= start - begun < max(1, len(positions)):
            raise ValueError(
                f"cannot resume: {self.name} has {len(positions)} samples in line behind sample {begun}, as the cursor's plan "
                f"says, and the cursor stands behind sample {start}. The state is damaged, or of other data."
            )
        if self.alike:
            key = (self.seed, epoch, begun) if self.mixed else ()
            positions = positions[lined_up(self.lengths[self.order.at(epoch, positions)], *key)]
        positions = positions[start - begun :]
        found = self.order.at(epoch, positions)
        stop, end = len(positions), segment.end
        at, starts, ends, cuts = 0, list[int](), list[int](), list[Cut]()
        while at < stop:
            lengths = self.lengths[found[at:]]
            room, last = self.room(lengths, geometry), end == size
            first = at
            for place, cut in deal(lengths, room, self.cut, geometry, stop=stop - at, last=last, keep=keep):
                if len(cut.bounds) > 1:
                    starts.append(at)
                    cuts.append(cut)
                    ends.append(start + first + place)
                at = first + place
            if at < stop:
                more = end_of_window(end, size, self.window)
                positions = np.concatenate([positions, np.arange(end, more, dtype=np.int64)])
                found, end = np.concatenate([found, self.order.indices(epoch, end, more)]), more
        after = segment.end + at - stop
        ends[-1:] = [after] * bool(ends)  # as above
        return Segment(
            start=start,
            end=after,
            positions=positions[:at],
            indices=found[:at],
            cut=joined(cuts, starts, with_rows=any(cut.rows is not None for cut in cuts)),
            ranks=geometry[0],
            turns=np.arange(len(cuts), dtype=np.int64),
            ends=np.array(ends, dtype=np.int64),
            origin=(*segment.origin, begun),
        )

    def _size(self, epoch: int) -> int:
        return int(self.order.size(epoch))
