"""Give the rows of a Hugging Face dataset the dtypes that its features declare.

Without a set format, the library returns Python numbers, which would become int64 and float64 in a batch, and lists,
which the default collate would transpose.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from loaderkit.system.stack import CollateError, from_array, named, stack_field
from loaderkit.system.types import Array, DType

# Dtypes that Python's bool, int and float become in a batch.
_PLAIN = (np.dtype(bool), np.dtype(np.int64), np.dtype(np.float64))


class Numbers(list[object]):
    """A list of numbers, or of lists of numbers, that collates and converts to an array of its column's dtype.

    In all else it is a list, so code that joins lists or checks for them still works.
    """

    def __init__(self, values: Sequence[object], dtype: DType, name: str) -> None:
        super().__init__(values)
        self.dtype = dtype
        self.name = name

    def __reduce__(self) -> tuple[object, ...]:
        return Numbers, (list(self), self.dtype, self.name)

    def __array__(self, dtype: DType | None = None, copy: bool | None = None) -> Array:
        if _has_none(self):  # numpy would turn None into NaN
            raise ValueError(f"field {self.name!r} has missing values, wanted numbers")
        return np.array(list(self), dtype=self.dtype).astype(self.dtype if dtype is None else dtype, copy=False)

    @staticmethod
    def collate(samples: Sequence[Any]) -> object:
        """Stack rows to a batch (B, *); raise a CollateError for a missing value, or lists that form no array."""
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
    """Return rows as one array (B, *).

    Return None if a value may be missing or lengths differ: each row must then be checked.
    """
    dtype = samples[0].dtype
    if dtype.kind == "b" or any(type(sample) is not Numbers for sample in samples):  # numpy would turn None into False
        return None
    try:
        whole = np.array([list(sample) for sample in samples], dtype=dtype)
    except (TypeError, ValueError, OverflowError):
        return None
    return None if dtype.kind == "f" and np.isnan(whole).any() else whole  # a NaN may have been None


class Rule(Protocol):
    """How to give values of a feature their dtype. `convert` returns values of an unexpected type unchanged."""

    def convert(self, value: object) -> object: ...


class Scalar(NamedTuple):
    """Rule for a number: make it a numpy scalar of this dtype."""

    dtype: DType

    def convert(self, value: object) -> object:
        return self.dtype.type(value) if type(value) in (int, float) else value


class Lists(NamedTuple):
    """Rule for a list of numbers, nested to any depth: make it `Numbers`."""

    dtype: DType
    name: str

    def convert(self, value: object) -> object:
        return Numbers(value, self.dtype, self.name) if type(value) is list else value


class Each(NamedTuple):
    """Rule for a list of other values: convert each by the rule `inner`."""

    inner: Rule

    def convert(self, value: object) -> object:
        return list(map(self.inner.convert, value)) if type(value) is list else value


class Fields(NamedTuple):
    """Rule for a row, or a struct in a row: convert each named field by its rule."""

    fields: dict[str, Rule]

    def convert(self, value: object) -> object:
        if not isinstance(value, dict):
            return value
        fields = self.fields
        return {name: fields[name].convert(part) if name in fields else part for name, part in value.items()}


def rule_of(feature: object, name: str = "") -> Rule | None:
    """Return the rule that gives a feature's values their dtype.

    Return None if they need no conversion. `name` is the column's, for errors.
    """
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
    if isinstance(element, Mapping) and type(feature).__name__ == "Sequence":  # whose values are dicts of lists
        return rule_of({key: [part] for key, part in element.items()}, name)
    rule = rule_of(element, name)
    return None if rule is None else Each(rule)


def _numbers_of(feature: Any) -> tuple[DType | None, int]:
    """Return a numeric feature's dtype, and how deep its lists are nested (0 for a plain number).

    (None, 0) for other features.
    """
    depth = 0
    while (element := _element(feature)) is not None:
        feature, depth = element, depth + 1
    kind = type(feature).__name__
    if kind not in ("Value", "Array2D", "Array3D", "Array4D", "Array5D"):
        return None, 0
    try:
        dtype = np.dtype(feature.dtype)
    except TypeError:  # a type that only Arrow has, such as timestamp[s]
        return None, 0
    is_number = dtype.kind in "biuf"
    return (dtype, depth + (kind != "Value")) if is_number else (None, 0)


def _element(feature: object) -> object:
    """Return the feature of a list feature's elements; None if `feature` is not a list."""
    if isinstance(feature, list | tuple):
        return feature[0] if len(feature) == 1 else None
    return getattr(feature, "feature", None)


def _has_none(values: Iterable[object]) -> bool:
    return any(value is None or (isinstance(value, list) and _has_none(value)) for value in values)
