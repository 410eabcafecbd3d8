"""What a split knows of samples: their keys, groups and strata, as integers or strings."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Keys = npt.NDArray[Any]
By = Callable[[Any], Any] | Sequence[Any] | npt.NDArray[Any]
_KEY = (int, str, np.integer)


def are_keys(data: Any) -> bool:
    """Say whether these are keys rather than a dataset: integers or strings in a list, or on the one axis of an array or Series."""
    if isinstance(data, list | tuple | range):
        return all(isinstance(key, _KEY) for key in data)
    if getattr(data, "ndim", None) != 1 or not hasattr(data, "__array__"):
        return False
    found = np.asarray(data)
    return found.dtype.kind in "iuUS" or (found.dtype == object and all(isinstance(key, _KEY) for key in found))


def column(values: By, dataset: Any, size: int, name: str) -> Keys:
    """Return a value for each sample (N,).

    Args:
        values: They themselves, or a function from a sample to its value.
        dataset: The samples; None where only keys were given.
        size: Their number.
        name: Of the setting, for messages.

    Raises:
        ValueError: If there is not an integer or a string for each sample.
    """
    if callable(values):
        if dataset is None:
            raise ValueError(f"split: {name} is a function of a sample, and keys were given in place of a dataset.")
        values = [values(dataset[index]) for index in range(size)]
    try:
        found = np.asarray(values)
    except ValueError as error:
        raise ValueError(f"split: {name} is no column of values: {error}. Wanted {_wanted(size)}.") from None
    if found.dtype == object and found.shape == (size,):  # as data frames have texts
        for number, value in enumerate(found):
            if not isinstance(value, _KEY):
                raise ValueError(f"split: {name} of sample {number:,} is {value!r}, wanted {_wanted(size)}.")
        found = np.array(found.tolist())
    if found.shape != (size,) or found.dtype.kind not in "iubUS":
        raise ValueError(f"split: {name} has shape {found.shape} and dtype {found.dtype}, wanted {_wanted(size)}.")
    return np.char.decode(found, "utf-8") if found.dtype.kind == "S" else found


def check_unique(keys: Keys) -> None:
    """Refuse keys of which one is there twice."""
    names, counts = np.unique(keys, return_counts=True)
    if len(names) < len(keys):
        raise ValueError(
            f"split: key {names[counts.argmax()].item()!r} is there {counts.max()} times, wanted a key of its own for each sample. "
            "For samples that belong together use group_by=."
        )


def _wanted(size: int) -> str:
    return f"an integer or a string for each of {size:,} samples"
