"""Checks of the settings of plans by length."""

from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from loaderkit.sampling.order import Order
from loaderkit.sampling.plan import Tail
from loaderkit.system.arrays import Int64Array

TooLong = Literal["error", "drop", "alone"]
TAILS: tuple[Tail, ...] = get_args(Tail)
TOO_LONG: tuple[TooLong, ...] = get_args(TooLong)


def as_lengths(lengths: "npt.ArrayLike", name: str) -> Int64Array:
    """Return lengths as an array (N,) int64.

    Raises:
        TypeError: If they are a function.
        ValueError: If they are not integers of at least 0 on one axis, or there are none.
    """
    try:
        if callable(lengths):
            raise TypeError(
                f"{name}: lengths are the function {getattr(lengths, '__qualname__', lengths)}, wanted the length of each "
                "sample. Call it: data.lengths()."
            )
        found = np.asarray(lengths)
    except ValueError as error:  # such as samples
        raise ValueError(
            f"{name}: lengths are a {type(lengths).__name__} that numpy can't make an array of ({error}), wanted the length "
            "of each sample. loaderkit.measure_lengths(dataset) finds them."
        ) from None
    if found.shape == (0,):
        raise ValueError(f"{name}: there are no lengths, wanted the length of each sample.")
    if found.ndim != 1 or found.dtype.kind not in "iu":
        raise ValueError(
            f"{name}: lengths have shape {found.shape} and dtype {found.dtype}, wanted one axis of integers, the length of "
            "each sample."
        )
    if found.min() < 0:
        raise ValueError(f"{name}: sample {int(found.argmin()):,} has length {found.min()}, wanted at least 0.")
    return found.astype(np.int64)


def check_order(order: object, lengths: Int64Array, name: str) -> None:
    """Raise an error unless `order` is an Order with indices below the number of lengths."""
    if not isinstance(order, Order):
        raise TypeError(
            f"{name}: order is {order!r:.60}, wanted a loaderkit.Order such as loaderkit.Shuffled(size) or loaderkit.Subset(indices)."
        )
    if order.reach > len(lengths):
        raise ValueError(
            f"{name}: the order has indices up to {order.reach - 1:,}, there are {len(lengths):,} lengths. "
            "Give the length of each sample of the dataset."
        )


def check_longest(costs: Int64Array, limit: int, name: str, what: str, way_out: str) -> None:
    """Raise ValueError if a sample's tokens, `costs` (N,), are over the limit. `what` is the setting that limits."""
    if costs.max() > limit:
        longest, count = int(costs.argmax()), int(np.count_nonzero(costs > limit))
        raise ValueError(
            f"{name}: sample {longest:,} counts {costs[longest]:,}, over {what}={limit:,} ({count:,} samples are). Raise "
            f"the limit, {way_out}."
        )


def too_few(samples: int, ranks: int) -> ValueError:
    """Return the error for an epoch whose last samples can't be shared evenly by the ranks."""
    return ValueError(
        f"plan: the last {samples} samples of an epoch can't be shared evenly by {ranks} ranks (tail='keep'): each "
        "rank needs as many batches, none of them empty. Use fewer ranks, a larger window, or tail='drop' or 'pad'."
    )


def small_window(plan: str, window: int, samples: int, needed: float, ranks: int) -> str | None:
    """Return a remark if a larger window would give larger batches, else None. `needed` is the samples of a full step."""
    if 1.25 * window >= needed or samples < 2 * window:  # 1.25: `needed` comes from the mean length
        return None
    return (
        f"{plan}: a window of {window:,} samples is less than a full step, about {round(needed):,} for {ranks} ranks, so "
        "batches are smaller than they could be. Give a larger window=."
    )
