"""An order in stages: each mixes endless sources by its own weights, and continues where the stage before stopped."""

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from loaderkit.sampling.order import Order
from loaderkit.sampling.sources import Sources, split_window, spread
from loaderkit.system.arrays import Int64Array

_PIECES = 256  # the most pieces of a stage whose weights change: this bounds the table of a long stage
_KEPT = 64  # patterns of a window that are kept


class Blend(NamedTuple):
    """The number of samples in a stage, and each source's share at the stage's start and end (S,). Shares sum to 1."""

    samples: int
    first: npt.NDArray[np.float64]
    last: npt.NDArray[np.float64]

    @property
    def is_constant(self) -> bool:
        return np.array_equal(self.first, self.last)


class StagedOrder(Order):
    """One epoch of all stages. Any position is found from a table of pieces, whose shares are constant.

    A piece repeats one pattern of `window` places. So the start of a stage with constant weights does not depend on the
    stage's length.

    Args:
        sources: The sources that are read.
        names: The sources' names.
        blends: The stages.
        window: Places over which each source has its share, exact to one sample.
    """

    def __init__(self, sources: Sources, names: Sequence[str], blends: Sequence[Blend], *, window: int) -> None:
        self._sources, self._names, self._blends, self._window = sources, list(names), list(blends), window
        self.ends = list(accumulate(blend.samples for blend in blends))  # of the stages
        self._epochs: dict[bytes, tuple[Int64Array, Int64Array]] = {}  # patterns, by the shares of a window
        pieces = [piece for blend in blends for piece in _pieces(blend, window)]
        sizes = [size for size, _ in pieces]
        self._shares = np.array([shares for _, shares in pieces], dtype=np.int64)
        self._starts = np.cumsum([0, *sizes])[:-1]
        counts = [self._counts(piece, size) for piece, size in enumerate(sizes)]
        self._before = np.cumsum([np.zeros_like(counts[0]), *counts], axis=0)  # samples of each source before a piece

    def size(self, epoch: int) -> int:
        return self.ends[-1]

    def at(self, epoch: int, positions: Int64Array) -> Int64Array:
        return self._sources.at(*self.dealt(positions))

    @property
    def reach(self) -> int:
        return self._sources.reach

    def key(self, epoch: int) -> str:
        return self.history(self.ends[-1])

    def dealt(self, positions: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return the source (N,) of each position, and how many samples of that source come before it (N,)."""
        source, count = np.empty_like(positions), np.empty_like(positions)
        pieces = np.searchsorted(self._starts, positions, side="right") - 1
        for piece in np.unique(pieces).tolist():
            mine = np.flatnonzero(pieces == piece)
            windows, places = np.divmod(positions[mine] - self._starts[piece], self._window)
            pattern, before = self._pattern(piece)
            here = pattern[places]
            source[mine] = here
            count[mine] = self._before[piece][here] + windows * self._shares[piece][here] + before[places]
        return source, count

    def counts(self, position: int) -> Int64Array:
        """Return how many samples of each source (S,) come before a position."""
        piece = int(np.searchsorted(self._starts, position, side="right")) - 1
        found: Int64Array = self._before[piece] + self._counts(piece, position - int(self._starts[piece]))
        return found

    def history(self, position: int) -> str:
        """Return a text that names the settings that shape the order up to a position, and no others."""
        passed, start = [], 0
        for blend, end in zip(self._blends, self.ends, strict=True):
            if position <= start:
                break
            text = f"{min(position, end) - start} of {self._shown(blend.first)}"
            if not blend.is_constant:
                text += f" to {self._shown(blend.last)} over {blend.samples}"
            passed.append(text)
            start = end
        return f"window {self._window}: {', then '.join(passed) or 'nothing yet'}"

    def _shown(self, shares: npt.NDArray[np.float64]) -> str:
        return " + ".join(
            f"{share:.9g} {name}" for name, share in zip(self._names, shares.tolist(), strict=True) if share
        )

    def _counts(self, piece: int, samples: int) -> Int64Array:
        """Return how many of the first `samples` samples of a piece come from each source (S,)."""
        windows, rest = divmod(samples, self._window)
        counts: Int64Array = windows * self._shares[piece]
        if rest:
            counts = counts + np.bincount(self._pattern(piece)[0][:rest], minlength=len(counts))
        return counts

    def _pattern(self, piece: int) -> tuple[Int64Array, Int64Array]:
        """Return the source (W,) of each place in a window, and how many earlier places have the same source (W,)."""
        shares = self._shares[piece]
        key = shares.tobytes()
        found = self._epochs.get(key)
        if found is None:
            found = spread(shares)
            self._epochs = dict([*self._epochs.items(), (key, found)][-_KEPT:])  # another thread may read the old one
        return found


class StageOrder(Order):
    """One stage of a staged order. Positions count from the start of the whole order, and end with the stage.

    A position before the stage stands for a position inside it. Only the choice of a replacement asks for one.
    """

    def __init__(self, order: StagedOrder, start: int, end: int) -> None:
        self._order, self._start, self._end = order, start, end

    def size(self, epoch: int) -> int:
        return self._end

    def at(self, epoch: int, positions: Int64Array) -> Int64Array:
        inside = self._start + positions % (self._end - self._start)
        return self._order.at(epoch, np.where(positions < self._start, inside, positions))

    @property
    def reach(self) -> int:
        return self._order.reach

    def key(self, epoch: int) -> str:
        return self._order.key(epoch)


def _pieces(blend: Blend, window: int) -> list[tuple[int, Int64Array]]:
    """Return for each piece of a stage its size, and how many samples of a window each source has (S,)."""
    if blend.is_constant:
        return [(blend.samples, split_window(blend.first, window))]
    windows = -(-blend.samples // window)
    count = min(windows, _PIECES)
    bounds = [min(number * windows // count * window, blend.samples) for number in range(count + 1)]
    pieces = []
    for start, end in pairwise(bounds):
        middle = (start + end) / 2 / blend.samples
        shares = blend.first + (blend.last - blend.first) * middle
        pieces.append((end - start, split_window(shares / math.fsum(shares), window)))
    return pieces
