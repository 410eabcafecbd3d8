"""What is left of a window as one line, from which steps of any geometry take their samples: a place in it is a number."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from loaderkit.sampling.by_length.segment import Cut, Geometry
from loaderkit.seeding.keys import hash_positions
from loaderkit.system.arrays import Int64Array

_BLOCKS = 32  # of like lengths: a step mostly lies within one, and short samples don't all come first


class Room(NamedTuple):
    """What a step has room for at most, over all ranks; any samples, one to a rank, must fit.

    costs (N,) say what each sample takes of it at least, 0 where it is left out.
    """

    costs: Int64Array
    most: int
    samples: int


class CutFunction(Protocol):
    """Arranges samples of lengths (N,); None if they are too few for a batch on each rank, and more are to come."""

    def __call__(self, lengths: Int64Array, geometry: Geometry, *, last: bool) -> Cut | None:
        """Return the batches."""


def lined_up(lengths: Int64Array, *key: int) -> Int64Array:
    """Return samples of lengths (N,) in a line (N,): in blocks of like lengths, which a key mixes."""
    rows = np.argsort(lengths, kind="stable")
    if not key:
        return rows
    blocks = np.array_split(rows, _BLOCKS)
    turns = np.argsort(hash_positions(np.arange(_BLOCKS, dtype=np.int64), "line", *key), kind="stable")
    return np.concatenate([blocks[turn] for turn in turns.tolist()])


def deal(
    lengths: Int64Array, room: Room, cut: CutFunction, geometry: Geometry, *, stop: int, last: bool, keep: bool
) -> Iterator[tuple[int, Cut]]:
    """Deal a line: each step takes as many samples as it can hold, the next ones, and arranges them by length.

    Which these are depends on what lies ahead alone, so that a step comes out the same wherever the run began.

    Args:
        lengths: Of the line's samples (N,).
        room: Of a step, and what they take of it.
        cut: Makes batches of samples.
        geometry: Of the steps.
        stop: Where no more step is to begin.
        last: Whether nothing comes after the line: then the tail policy decides what can't be spread evenly.
        keep: Whether it says that nothing is left out or repeated.

    Yields:
        Where in the line a step ends, and its batches: none where all samples are left out. Ends before `stop` where too few
        are left for a step, and more are to come.
    """
    ranks, size = geometry[0], len(lengths)
    usable, total = np.flatnonzero(room.costs), np.cumsum(room.costs)
    at = 0
    while at < stop:
        first = int(np.searchsorted(usable, at))
        left = len(usable) - first

        def after(count: int, first: int = first) -> int:
            return int(usable[first + count]) if first + count < len(usable) else size

        end = after(left)
        if left > ranks:
            before = int(total[at - 1]) if at else 0
            most = min(int(np.searchsorted(total, before + room.most, side="right")), after(room.samples))
            end = _longest(lengths[at:], cut, geometry, after(ranks) - at, most - at) + at
        if left == 0 or (last and end == size):
            yield size, _sure(cut(lengths[at:], geometry, last=True))
            return
        if left < ranks:
            return
        behind = len(usable) - int(np.searchsorted(usable, end))
        if last and keep and behind < ranks:  # who comes last needs a sample for each rank
            if left < 2 * ranks:
                yield size, _sure(cut(lengths[at:], geometry, last=True))
                return
            end = after(left - ranks)
        elif last and keep and behind < 2 * ranks and left >= 3 * ranks and not _is_step(lengths[end:], cut, geometry):
            end = after(left - 2 * ranks)
        yield end, _sure(cut(lengths[at:end], geometry, last=False))
        at = end


def joined(cuts: Sequence[Cut], starts: Sequence[int], *, with_rows: bool) -> Cut:
    """Lay cuts of stretches end to end.

    Args:
        cuts: Of one step each.
        starts: Where each one's samples begin.
        with_rows: Whether batches have rows of several samples.
    """
    before = np.cumsum([0, *(len(cut.places) for cut in cuts)])[: len(cuts)].tolist()
    zero, none = np.zeros(1, dtype=np.int64), np.empty(0, dtype=np.int64)
    places = np.concatenate([none, *(cut.places + start for cut, start in zip(cuts, starts, strict=True))])
    bounds = np.concatenate([zero, *(cut.bounds[1:] + past for cut, past in zip(cuts, before, strict=True))])
    if not with_rows:
        return Cut(places, bounds)
    rows = [cut.rows[1:] + past for cut, past in zip(cuts, before, strict=True) if cut.rows is not None]
    return Cut(places, bounds, np.concatenate([zero, *rows]))


def _longest(lengths: Int64Array, cut: CutFunction, geometry: Geometry, least: int, most: int) -> int:
    """Return how many samples, the first ones, one step holds: from `least`, which it does, to `most`."""
    if most <= least or _is_step(lengths[:most], cut, geometry):
        return most
    return least + bisect_left(
        range(least + 1, most), True, key=lambda count: not _is_step(lengths[:count], cut, geometry)
    )


def _is_step(lengths: Int64Array, cut: CutFunction, geometry: Geometry) -> bool:
    found = cut(lengths, geometry, last=False)
    return found is not None and len(found.bounds) - 1 == geometry[0]


def _sure(cut: Cut | None) -> Cut:
    if cut is None:
        raise RuntimeError("plan: samples that fit in a step made none.")
    return cut
