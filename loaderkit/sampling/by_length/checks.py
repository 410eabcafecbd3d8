"""What plans by length ask of their settings."""

from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from loaderkit.sampling.order import Order
from loaderkit.sampling.plan import Tail
from loaderkit.system.arrays import Int64Array

TooLong = Literal["error", "drop", "alone"]
TAILS = get_args(Tail)


def as_lengths(lengths: npt.ArrayLike, name: str) -> Int64Array:
    """Check lengths (N,).

    Raises:
        ValueError: If they are not integers of at least 0 on one axis, or there are none.
    """
    try:
        found = np.asarray(lengths)
    except ValueError as error:  # such as samples
        raise ValueError(
            f"{name}: lengths are a {type(lengths).__name__} that is no array ({error}), wanted the length of each sample: "
            "loaderkit.measure_lengths(dataset) finds them."
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


def check_order(order: Any, lengths: Int64Array, name: str) -> None:
    """Refuse what is no order, or one of more samples than there are lengths."""
    if not isinstance(order, Order):
        raise TypeError(
            f"{name}: order is {order!r:.60}, wanted a loaderkit.Order such as loaderkit.Shuffled(size) or loaderkit.Subset(indices)."
        )
    if order.reach > len(lengths):
        raise ValueError(
            f"{name}: the order has indices up to {order.reach - 1:,}, there are {len(lengths):,} lengths. "
            "Give the length of each sample of the dataset."
        )


def check_count(value: Any, name: str, what: str) -> None:
    """Raise ValueError unless a setting is an integer of at least 1."""
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name}: {what} is {value!r}, wanted an integer of at least 1.")


def too_few(samples: int, ranks: int) -> ValueError:
    """Make the error for samples that the ranks can't share."""
    return ValueError(
        f"plan: the last {samples} samples of an epoch can't be shared evenly by {ranks} ranks (tail='keep'): each "
        "rank needs as many batches, none of them empty. Use fewer ranks, a larger window, or tail='drop' or 'pad'."
    )


def check_tail(tail: str, name: str) -> Tail:
    """Return the tail policy, or raise ValueError."""
    if tail not in TAILS:
        raise ValueError(f"{name}: tail is {tail!r}, wanted one of {', '.join(map(repr, TAILS))}.")
    return tail  # type: ignore[return-value]  # it is one


def check_too_long(too_long: str, name: str, wanted: tuple[str, ...] = get_args(TooLong)) -> TooLong:
    """Return the policy for long samples, or raise ValueError."""
    if too_long not in wanted:
        raise ValueError(f"{name}: too_long is {too_long!r}, wanted one of {', '.join(map(repr, wanted))}.")
    return too_long  # type: ignore[return-value]  # it is one


def check_longest(costs: Int64Array, limit: int, name: str, what: str, way_out: str) -> None:
    """Raise ValueError if a sample is longer than allowed."""
    if costs.max() > limit:
        longest, count = int(costs.argmax()), int(np.count_nonzero(costs > limit))
        raise ValueError(
            f"{name}: sample {longest:,} counts {costs[longest]:,}, over {what}={limit:,} ({count:,} samples are). Raise "
            f"the limit, {way_out}."
        )


def small_window(plan: str, window: int, samples: int, needed: float, ranks: int) -> str | None:
    """Say that a window is too small for a full batch on each rank, where a larger one would help.

    Args:
        plan: Its name.
        window: Samples arranged together.
        samples: Of the data.
        needed: Samples of a full step, about.
        ranks: That share it.
    """
    if 1.25 * window >= needed or samples < 2 * window:  # what samples take differs, `needed` is by their mean
        return None
    return (
        f"{plan}: a window of {window:,} samples is less than a full step, about {round(needed):,} for {ranks} ranks, so that "
        "batches are smaller than they may be. Give a larger window=."
    )
