"""What plans by length ask of their settings."""

from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from loaderkit.plan import Tail
from loaderkit.seeding import Int64Array

TooLong = Literal["error", "drop", "alone"]
TAILS = get_args(Tail)


def as_lengths(lengths: npt.ArrayLike, name: str) -> Int64Array:
    """Check lengths (N,).

    Raises:
        ValueError: If they are not integers of at least 0 on one axis, or there are none.
    """
    found = np.asarray(lengths)
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
