"""The dtypes that the features of a Hugging Face dataset declare, given to its rows.

In its own format the library gives Python's numbers, which would become int64 and float64 in a batch, and lists, which the
default collate would transpose.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from loaderkit.system.stack import CollateError, from_array, named, stack_field
from loaderkit.system.types import Array, DType

_PLAIN = (np.dtype(bool), np.dtype(np.int64), np.dtype(np.float64))  # what Python's own numbers become


class Numbers(list[object]):
    """A list of numbers, or of lists of them, which stacks and converts to an array of its column's dtype.

    Everything else that lists do stays the same: code that joins lists, or looks for them, is not changed.
    """

    def __init__(self, values: Sequence[object], dtype: DType, name: str) -> None:
        super().__init__(values)
        self.dtype = dtype
        self.name = name

    def __reduce__(self) -> tuple[object, ...]:
        return Numbers, (list(self), self.dtype, self.name)

    def __array__(self, dtype: DType | None = None, copy: bool | None = None) -> Array:
        if _has_none(self):  # which numpy takes for NaN
            raise ValueError(f"field {self.name!r} has missing values, wanted numbers")
        return np.array(list(self), dtype=self.dtype).astype(self.dtype if dtype is None else dtype, copy=False)

    @staticmethod
    def collate(samples: Sequence[Any]) -> object:
        """Stack rows as arrays (B, *)."""
        if (whole := _as_one(samples)) is not None:
            return from_array(whole)
        name, arrays = samples[0].name, []
        for row, sample in enumerate(samples):
            if not isinstance(sample, Numbers):
                what = "is missing" if sample is None else f"is of type {type(sample).__name__}"
                raise CollateError(f"collate: {named(name)} {what}, wanted numbers. Replace it in the dataset", [row])
            try:
                arrays.append(np.asarray(sample))
            except ValueError as error:
                raise CollateError(
                    f"collate: {named(name)} has lists that form no array: {error}. Pad or fill them in the dataset, or pass "
                    "collate_fn",
                    [row],
                ) from None
        return stack_field(arrays, name)


def _as_one(samples: Sequence[Any]) -> Array | None:
    """Return rows as one array (B, *); None if a value may be missing or lengths differ, so that each row has to be looked at."""
    dtype = samples[0].dtype
    if dtype.kind == "b" or any(type(sample) is not Numbers for sample in samples):  # numpy takes None for False
        return None
    try:
        whole = np.array([list(sample) for sample in samples], dtype=dtype)
    except (TypeError, ValueError, OverflowError):
        return None
    return None if dtype.kind == "f" and np.isnan(whole).any() else whole  # it takes None for NaN, too


class Rule(Protocol):
    """What gives a value the dtype of its column."""

    def convert(self, value: object) -> object: ...


class Scalar(NamedTuple):
    """A number."""

    dtype: DType

    def convert(self, value: object) -> object:
        return self.dtype.type(value) if type(value) in (int, float) else value


class Lists(NamedTuple):
    """Lists of numbers, of any depth."""

    dtype: DType
    name: str

    def convert(self, value: object) -> object:
        return Numbers(value, self.dtype, self.name) if type(value) is list else value


class Each(NamedTuple):
    """A list of other values."""

    inner: Rule

    def convert(self, value: object) -> object:
        return list(map(self.inner.convert, value)) if type(value) is list else value


class Fields(NamedTuple):
    """A row, or a struct in it."""

    fields: dict[str, Rule]

    def convert(self, value: object) -> object:
        if not isinstance(value, dict):
            return value
        fields = self.fields
        return {name: fields[name].convert(part) if name in fields else part for name, part in value.items()}


def rule_of(feature: object, name: str = "") -> Rule | None:
    """Return what gives the values of a feature their dtype; None if Python's own values have it."""
    if isinstance(feature, Mapping):
        inner = {key: rule_of(part, f"{name}.{key}" if name else str(key)) for key, part in feature.items()}
        found = {key: rule for key, rule in inner.items() if rule is not None}
        return Fields(found) if found else None
    dtype, depth = _numbers_of(feature)
    if dtype is not None:
        return Lists(dtype, name) if depth else None if dtype in _PLAIN else Scalar(dtype)
    element = _element(feature)
    if element is None:
        return None
    if isinstance(element, Mapping) and type(feature).__name__ == "Sequence":  # such a struct has lists
        return rule_of({key: [part] for key, part in element.items()}, name)
    rule = rule_of(element, name)
    return None if rule is None else Each(rule)


def _numbers_of(feature: Any) -> tuple[DType | None, int]:
    """Return the dtype of numbers, and the depth of the lists that they are in."""
    depth = 0
    while (element := _element(feature)) is not None:
        feature, depth = element, depth + 1
    kind = type(feature).__name__
    if kind not in ("Value", "Array2D", "Array3D", "Array4D", "Array5D"):
        return None, 0
    try:
        dtype = np.dtype(feature.dtype)
    except TypeError:  # of Arrow alone, such as timestamp[s]
        return None, 0
    is_number = dtype.kind in "biuf"
    return (dtype, depth + (kind != "Value")) if is_number else (None, 0)


def _element(feature: object) -> object:
    """Return the feature of a list's elements; None if a feature is no list."""
    if isinstance(feature, list | tuple):
        return feature[0] if len(feature) == 1 else None
    return getattr(feature, "feature", None)


def _has_none(values: Iterable[object]) -> bool:
    return any(value is None or (isinstance(value, list) and _has_none(value)) for value in values)
