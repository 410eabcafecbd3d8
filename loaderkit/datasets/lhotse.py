"""The cuts of a lhotse CutSet as a map-style dataset."""

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from loaderkit.datasets.base import Transform, check_index, check_indices
from loaderkit.datasets.memory.packed import Packed
from loaderkit.seeding.draws import Declares
from loaderkit.seeding.sample_seeds import per_sample
from loaderkit.system.arrays import Int64Array
from loaderkit.system.digests import digest


class CutDataset(Declares):
    """The cuts of a lhotse CutSet, with their durations as lengths.

    Use a plan by length, such as `TokenBudget`, in place of lhotse's bucketing samplers: it resumes exactly, with any
    number of ranks and workers. `CutCollate` gives a batch of cuts to a lhotse dataset.

    The cuts are pickled, in memory that workers share. A lazy CutSet is read once, in its order.

    Args:
        cuts: A `lhotse.CutSet`, or any iterable of cuts.
        unit_s: The unit of lengths, in seconds. Durations are rounded up to whole units.
        transform: Called with each cut.

    Raises:
        TypeError: If an element has no id, or no duration that is a finite number, at least 0.
        ValueError: If two cuts have the same id, or unit_s is not above 0.

    Examples:
        >>> from types import SimpleNamespace as Cut
        >>> data = lk.CutDataset([Cut(id="a", duration=1.5), Cut(id="b", duration=0.25)])
        >>> data.lengths()  # hundredths of a second
        array([150,  25])
        >>> plan = lk.TokenBudget(data.lengths(), max_tokens=200 * 100)  # 200 s with padding
        >>> loader = lk.Loader(data, plan=plan, collate_fn=lambda cuts: [cut.id for cut in cuts])
        >>> sorted(next(iter(loader)))
        ['a', 'b']
    """

    def __init__(self, cuts: Iterable[object], *, unit_s: float = 0.01, transform: Transform | None = None) -> None:
        if not unit_s > 0:
            raise ValueError(f"CutDataset: unit_s is {unit_s!r}, wanted seconds, above 0.")
        ids: list[str] = []
        lengths: list[int] = []
        self._cuts = Packed(_noting(cuts, ids, lengths, unit_s), "CutDataset: cut")
        if len(set(ids)) < len(ids):
            twice = next(one for one, other in itertools.pairwise(sorted(ids)) if one == other)
            raise ValueError(
                f"CutDataset: two cuts have the id {twice!r}, wanted an id for each: cuts.modify_ids(...)."
            )
        self._lengths = np.array(lengths, dtype=np.int64)
        self._digest = digest("\x1f".join(ids), self._lengths)
        self.transform = transform

    def __len__(self) -> int:
        return len(self._cuts)

    def __getitem__(self, index: int) -> Any:
        check_index(self, index)
        cut = self._cuts.read_one(index % len(self))
        return cut if self.transform is None else self.transform(cut)

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        cuts = self._cuts.read(check_indices(self, indices))
        return cuts if self.transform is None else per_sample(self.transform, cuts)

    def lengths(self) -> Int64Array:
        """Return the duration of each cut in units of `unit_s`, (N,) int64."""
        return self._lengths

    def fingerprint(self) -> str:
        """Return a digest of the ids and durations of all cuts."""
        return f"cuts({self._digest})"


def _noting(cuts: Iterable[object], ids: list[str], lengths: list[int], unit_s: float) -> Iterator[object]:
    """Yield cuts, and append each one's id and length (in units of `unit_s`) to `ids` and `lengths`."""
    for number, cut in enumerate(cuts):
        name, duration = getattr(cut, "id", None), getattr(cut, "duration", None)
        if name is None or not isinstance(duration, int | float) or not 0 <= duration < math.inf:
            raise TypeError(
                f"CutDataset: cut {number} is a {type(cut).__name__} with the id {name!r} and the duration {duration!r}, wanted a lhotse cut "
                "with both. From recordings: lhotse.CutSet.from_manifests(recordings)."
            )
        ids.append(str(name))
        lengths.append(math.ceil(round(duration / unit_s, 6)))
        yield cut
