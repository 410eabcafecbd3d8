"""The one check of indices that users give: a mask or a float is no index, although numpy turns both into integers."""

import numpy as np
from torch import Tensor

from loaderkit.system.arrays import Int64Array

FROM_MASK = "From a boolean mask: np.flatnonzero(mask)."


def as_indices(owner: str, values: object) -> Int64Array:
    """Return indices (N,) that a user gave, as int64; they may share the memory of `values`.

    Args:
        owner: Begins the message of an error.
        values: A list, range, array, tensor or column of integers.

    Raises:
        ValueError: If they are a mask, floats or not numbers, are masked, or have more than one axis.
    """
    if isinstance(values, range):
        return np.arange(values.start, values.stop, values.step, dtype=np.int64)
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        raise ValueError(f"{owner}: some indices are masked, wanted all of them. Without these: indices.compressed().")
    try:
        found = values.numpy(force=True) if isinstance(values, Tensor) else np.asarray(values)
    except (TypeError, ValueError):  # a dtype that numpy lacks, or lists of different lengths
        found = np.empty((), dtype=object)
    # numpy takes [True, 2] for integers.
    has_bools = isinstance(values, list | tuple) and not {bool, np.bool_}.isdisjoint(map(type, values))
    if found.ndim != 1 or (found.size and (found.dtype.kind not in "iu" or has_bools)):
        shape = tuple(values.shape) if isinstance(values, Tensor) else found.shape
        dtype = "bool" if has_bools else values.dtype if isinstance(values, Tensor) else found.dtype
        raise ValueError(
            f"{owner}: indices have shape {shape} and dtype {dtype}, wanted one axis of integers. {FROM_MASK} "
            "From floats: indices.astype(int)."
        )
    return found.astype(np.int64, copy=False)
