"""The values that a sampler gives: indices of samples, or keys of another kind, such as pairs (index, size)."""

import io
import operator
import pickle
from collections.abc import Iterable
from typing import Any

import numpy as np
from torch import Tensor

from loaderkit.system.digests import digest
from loaderkit.system.indices import FROM_MASK
from loaderkit.system.types import Array

Keys = Array  # indices (N,) int64, or keys (N,) of any other kind as objects

_NO_KEYS = (bool, float, list, np.bool_, np.floating, np.ndarray, type(None))


def drawn_keys(values: list[Any]) -> Keys:
    """Return a sampler's values as an array: indices (N,) int64, or keys (N,) of another kind as objects.

    Raises:
        TypeError: If it gives masks, floats, lists or arrays, or both indices and other keys.
    """
    kinds = set(map(type, values))
    if kinds <= {int}:
        return np.fromiter(values, dtype=np.int64, count=len(values))
    if any(issubclass(kind, Tensor) for kind in kinds):
        values = [value.numpy(force=True)[()] if isinstance(value, Tensor) else value for value in values]
    bad = next((value for value in values if isinstance(value, _NO_KEYS)), _NO_KEYS)
    if bad is not _NO_KEYS:
        raise _no_keys(bad)
    integers = [hasattr(type(value), "__index__") for value in values]
    if all(integers):
        return np.fromiter(map(operator.index, values), dtype=np.int64, count=len(values))
    if any(integers):
        raise _no_keys(values[integers.index(not integers[0])])
    return as_keys(values)


def as_keys(values: Iterable[object]) -> Keys:
    """Return keys (N,) as an array of objects, also if they are sequences."""
    listed = list(values)
    keys = np.empty(len(listed), dtype=object)
    for row, value in enumerate(listed):
        keys[row] = value
    return keys


def like(keys: Keys, values: list[object]) -> Keys:
    """Return values (N,) as an array of the same kind as `keys`: int64 indices, or objects."""
    return as_keys(values) if keys.dtype == object else np.array(values, dtype=np.int64)


def digest_of(keys: Keys) -> str:
    """Return a hash of indices or keys.

    Raises:
        TypeError: If a key does not pickle.
    """
    if keys.dtype != object:
        return digest(keys)
    content = io.BytesIO()
    pickler = pickle.Pickler(content, protocol=5)
    pickler.fast = True  # equal keys give equal bytes, whichever objects they share
    for key in keys:
        try:
            pickler.dump(key)
        except (pickle.PicklingError, TypeError, AttributeError, ValueError) as error:
            raise TypeError(
                f"loader: the order gives the key {key!r}, which does not pickle: {error}. A state holds a digest of the keys, and "
                "they travel to workers. Give keys of plain values."
            ) from error
    return digest(content.getvalue())


def _no_keys(value: object) -> TypeError:
    return TypeError(
        f"loader: the order gives {value!r}, wanted integers, the samples' indices, or keys that are all of another kind, such as "
        f"tuples, slices or texts. {FROM_MASK} Give a sampler of batches as batch_sampler=, and a plan of your own as plan=."
    )
