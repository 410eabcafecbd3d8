"""Balance: the batches of one step cost about the same on every rank."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from loaderkit.sampling.by_length.segments import Arrangement
from loaderkit.seeding.keys import hash_positions
from loaderkit.system.arrays import Float64Array, Int64Array
from loaderkit.system.checks import check_integer
from loaderkit.system.digests import digest
from loaderkit.system.types import Array

Cost = Callable[[Int64Array], Array]
_PROBES = 64  # lengths at which the cost functions of a loader and a state are compared


@dataclass(frozen=True)
class AttentionCost:
    """What a document costs a transformer: a linear part, and its attention.

    A document of T tokens costs T x (12 x hidden_size + T). This is proportional to the floating-point operations of a layer
    whose MLP is four times as wide as the model, with attention inside the document. With `causal=False`, each token attends
    to all others, and the document costs T x (6 x hidden_size + T). For another model, give `balance=` a function of your own.

    Source: Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM" (2021).

    Args:
        hidden_size: Width of the model.
        causal: Whether a token attends only to those before it.

    Raises:
        ValueError: If the width is not an integer of at least 1.

    Examples:
        >>> lk.AttentionCost(hidden_size=1024)(np.array([1, 4096])).tolist()
        [12289, 67108864]
        >>> lengths = [900, 100, 500, 500, 800, 200, 400, 600]
        >>> lk.PackPlan(lengths, 1000, balance=lk.AttentionCost(hidden_size=64)).batches(0)
        4
    """

    hidden_size: int
    causal: bool = True

    def __post_init__(self) -> None:
        check_integer("AttentionCost", "hidden_size", self.hidden_size, 1)
        object.__setattr__(self, "hidden_size", int(self.hidden_size))

    def __call__(self, lengths: Int64Array) -> Int64Array:
        """Return the cost of documents of these lengths (N,)."""
        return lengths * ((12 if self.causal else 6) * self.hidden_size + lengths)


def costs_of(cost: Cost, lengths: Int64Array, name: str = "balance") -> Float64Array:
    """Return the cost of each sample (N,).

    Raises:
        TypeError: If `cost` is not a function.
        ValueError: If the function gives anything but a finite number of at least 0 for each length.
    """
    if not callable(cost):
        raise TypeError(
            f"{name}: balance is {cost!r:.60}, wanted lk.AttentionCost(hidden_size=...), or a function from lengths (N,) to costs (N,)."
        )
    found = np.asarray(cost(lengths))
    if found.shape != lengths.shape or found.dtype.kind not in "iuf":
        raise ValueError(
            f"{name}: balance gives shape {found.shape} and dtype {found.dtype} for {len(lengths):,} lengths, wanted a number "
            "for each. Compute with the whole array: lambda lengths: lengths + lengths**2 / 1000."
        )
    if not (np.isfinite(found) & (found >= 0)).all():
        row = int(np.flatnonzero(~(np.isfinite(found) & (found >= 0)))[0])
        raise ValueError(
            f"{name}: balance gives {found[row]} for length {lengths[row]:,}, wanted a finite number of at least 0."
        )
    return found.astype(np.float64)


def cost_key(cost: Cost, lengths: Int64Array, name: str) -> str:
    """Return a text that names a cost function in a state. Check the function's values for some lengths."""
    most = max(1, int(lengths.max()))
    costs = costs_of(cost, np.unique(np.geomspace(1, most, _PROBES).astype(np.int64)), name)
    return repr(cost) if isinstance(cost, AttentionCost) else f"costs {digest(costs)}"


def sums(values: Float64Array, bounds: Int64Array) -> Float64Array:
    """Return the sum of each stretch of values (B,), added in order, so that it is the same on every machine.

    `bounds` (B + 1,) are the starts of the stretches, the first one 0, and the end of the last one.
    """
    stretches = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
    return np.bincount(stretches, values[: len(stretches)], len(bounds) - 1).astype(np.float64)


def sort_batches(found: Arrangement, costs: Float64Array) -> Arrangement:
    """Return batches without rows, sorted by cost, so that those of one step cost about the same."""
    places, bounds = _permuted(found.places, found.bounds, np.argsort(costs, kind="stable"))
    return Arrangement(places, bounds)


def deal_rows(found: Arrangement, rows: Int64Array, costs: Float64Array, ranks: int) -> Arrangement:
    """Deal packed rows to new batches: the rows of a step have like costs, and so do its batches.

    Rows are sorted by cost, and each `ranks` rows make a layer. A step takes the next layers. The most expensive row of
    a layer goes to the batch that costs least so far.

    Args:
        found: The arrangement.
        rows: Start of each row in `found.places`, and the end of the last one (R + 1,).
        costs: The cost of each row (R,).
        ranks: Batches of a step.
    """
    steps = (len(found.bounds) - 1) // ranks
    full, rest = divmod(len(costs), ranks)
    order = np.argsort(-costs, kind="stable")
    each, more = divmod(full, max(1, steps))
    # Steps with one layer more come first, so the last step has room for the rows that do not fill a layer.
    groups = ((more, each + 1), (steps - more, each))
    dealt: list[Int64Array] = []
    start = 0
    for count, layers in groups:
        end = start + count * layers * ranks
        dealt += list(_deal(order[start:end].reshape(count, layers, ranks), costs))
        start = end
    batches = [batch for step in dealt for batch in step]
    for number in range(rest):
        batches[number - ranks] = np.append(batches[number - ranks], order[start + number])
    # Without a shuffle the most expensive steps would come first.
    mixed = np.argsort(hash_positions(np.arange(steps, dtype=np.int64), "steps"), kind="stable").tolist()
    batches = [batches[step * ranks + rank] for step in mixed for rank in range(ranks)]
    places, ends = _permuted(found.places, rows, np.concatenate(batches) if batches else order)
    sizes = np.array([len(batch) for batch in batches], dtype=np.int64)
    return Arrangement(places, ends[np.append(0, np.cumsum(sizes))], ends)


def _deal(rows: Int64Array, costs: Float64Array) -> Int64Array:
    """Deal rows (S, layers, ranks), most expensive first, to each step's batches; return them (S, ranks, layers)."""
    steps, layers, ranks = rows.shape
    done, dealt = np.zeros((steps, ranks)), np.empty((steps, ranks, layers), dtype=np.int64)
    for layer in range(layers):
        least = np.argsort(done, axis=1, kind="stable")
        np.put_along_axis(dealt[:, :, layer], least, rows[:, layer], axis=1)
        done += costs[dealt[:, :, layer]]
    return dealt


def _permuted(places: Int64Array, starts: Int64Array, order: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Return stretches of places in another order, and their starts.

    Starts are (R + 1,): the last entry is the end of the last stretch.
    """
    sizes = np.diff(starts)[order]
    ends = np.append(0, np.cumsum(sizes))
    rows = np.repeat(starts[order] - ends[:-1], sizes) + np.arange(ends[-1])
    return places[rows], ends
