"""A table's columns as numbers: statistics are fitted to the training data once, then applied to any data."""

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from loaderkit.seeding import Int64Array

Value = str | int | float | bool
Task = Literal["classification", "regression"]
Missing = Literal["raise", "mean", "median"]
Unknown = Literal["code", "raise"]

VERSION = 1
_MOST_CLASSES = 100  # that integers are taken for, unless the task is given


@dataclass(frozen=True)
class Categories:
    """A column (N,) of few different values, each `values[code]`; code -1 is a missing value."""

    values: list[Value]
    codes: Int64Array

    def __len__(self) -> int:
        return len(self.codes)


Column = npt.NDArray[Any] | Categories  # numbers, with NaN for missing ones; or categories
Table = Mapping[str, Column]


@dataclass(frozen=True, kw_only=True)
class TableColumns:
    """What a table's columns are for, and how they become numbers.

    Columns that are not named are features: numbers are numeric, text and booleans categorical.

    Args:
        target: The column to predict.
        task: By default classification for text, booleans and integers, regression for floats.
        numeric: Columns of numbers; standardised to mean 0 and standard deviation 1.
        categorical: Columns of categories, also where these are written as numbers.
        ignore: Columns that are left out.
        missing: What happens to missing numbers: an error, or the training data's mean or median is
            filled in. Missing categories are errors with "raise", else unknown ones.
        unknown: What happens to a category that the training data does not have: it gets
            code 0, or is an error.
        max_categories: Of a column. The most frequent ones are kept, the others are unknown, with a warning.

    Raises:
        ValueError: If a column is named twice, or a setting is out of range.
    """

    target: str | None = None
    task: Task | None = None
    numeric: Sequence[str] = ()
    categorical: Sequence[str] = ()
    ignore: Sequence[str] = ()
    missing: Missing = "raise"
    unknown: Unknown = "code"
    max_categories: int = 10_000

    def __post_init__(self) -> None:
        named = [*self.numeric, *self.categorical, *self.ignore, *([] if self.target is None else [self.target])]
        if any(isinstance(names, str) for names in (self.numeric, self.categorical, self.ignore)):
            raise ValueError("TableColumns: numeric, categorical and ignore are lists of names, found a string.")
        if twice := sorted({name for name in named if named.count(name) > 1}):
            raise ValueError(f"TableColumns: {twice} are named more than once, wanted each column in one role.")
        for name, kinds in (("task", Task), ("missing", Missing), ("unknown", Unknown)):
            found = getattr(self, name)
            if found not in get_args(kinds) and not (name == "task" and found is None):
                wanted = " or ".join(map(repr, get_args(kinds)))
                raise ValueError(f"TableColumns: {name} is {found!r}, wanted {wanted}.")
        if self.max_categories < 1:
            raise ValueError(f"TableColumns: max_categories is {self.max_categories}, wanted at least 1.")


@dataclass(frozen=True, kw_only=True)
class TableStatistics:
    """What training data says of its columns: plain values, small enough for a checkpoint.

    Args:
        numeric: For each numeric column its mean, its standard deviation (of the
            population; 1 for a constant column), and what takes a missing value's place.
        categorical: For each categorical column its categories, sorted; their codes are 1, 2, ...
        target: Name of the column to predict.
        classes: Of a classification, sorted; their codes are 0, 1, ...
        missing: See TableColumns.
        unknown: See TableColumns.
    """

    numeric: Mapping[str, tuple[float, float, float]] = field(default_factory=dict)
    categorical: Mapping[str, list[Value]] = field(default_factory=dict)
    target: str | None = None
    classes: list[Value] | None = None
    missing: Missing = "raise"
    unknown: Unknown = "code"

    @property
    def cardinalities(self) -> list[int]:
        """For each categorical column the number of its codes: its categories, and one for unknown ones."""
        return [1 + len(values) for values in self.categorical.values()]

    def to_state(self) -> dict[str, Any]:
        """Return plain values that JSON and `torch.load(weights_only=True)` take."""
        return {
            "version": VERSION,
            "numeric": [[name, *numbers] for name, numbers in self.numeric.items()],
            "categorical": [[name, list(values)] for name, values in self.categorical.items()],
            "target": self.target,
            "classes": self.classes,
            "missing": self.missing,
            "unknown": self.unknown,
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "TableStatistics":
        """Read what `to_state` returned.

        Raises:
            ValueError: If it is of another version.
        """
        if state.get("version") != VERSION:
            raise ValueError(
                f"cannot resume: the table's statistics are of version {state.get('version')}, this loaderkit reads "
                f"{VERSION}. Use the loaderkit that wrote the checkpoint, or train anew."
            )
        return cls(
            numeric={name: (mean, std, fill) for name, mean, std, fill in state["numeric"]},
            categorical={name: list(values) for name, values in state["categorical"]},
            **{name: state[name] for name in ("target", "classes", "missing", "unknown")},
        )

    def encode(self, table: Table, where: str, *, with_target: bool) -> dict[str, npt.NDArray[Any]]:
        """Turn a table of N rows into arrays.

        Args:
            table: Its columns; those that were not fitted are passed over.
            where: What the table is, for messages.
            with_target: Whether it has to have the target.

        Returns:
            "numeric" (N, columns) float32; "categorical" (N, columns) int64;
            "target" (N,), int64 classes or float32; each where there is such a column.

        Raises:
            ValueError: If a column is not there, holds other values than it was fitted to, or lacks some.
        """
        needed = [*self.numeric, *self.categorical, *([self.target] if with_target and self.target else [])]
        if lost := [name for name in needed if name not in table]:
            raise ValueError(f"{where}: lacks the columns {lost}, has {list(table)}.")
        size = len(next(iter(table.values()), ()))
        arrays: dict[str, npt.NDArray[Any]] = {}
        if self.numeric:
            arrays["numeric"] = np.empty((size, len(self.numeric)), dtype=np.float32)
            for place, (name, (mean, std, fill)) in enumerate(self.numeric.items()):
                column = as_numbers(table[name], f"{where}, column {name!r}")
                if self.missing == "raise":
                    _refuse_missing(np.isnan(column), f"{where}, column {name!r}")
                arrays["numeric"][:, place] = (np.where(np.isnan(column), fill, column) - mean) / std
        if self.categorical:
            arrays["categorical"] = np.empty((size, len(self.categorical)), dtype=np.int64)
            for place, (name, values) in enumerate(self.categorical.items()):
                arrays["categorical"][:, place] = self._codes(table[name], values, f"{where}, column {name!r}")
        if self.target is not None and with_target:
            arrays["target"] = self._encode_target(table[self.target], f"{where}, target {self.target!r}")
        return arrays

    def _codes(self, column: Column, values: list[Value], where: str) -> Int64Array:
        found = as_categories(column)
        if self.missing == "raise":
            _refuse_missing(found.codes < 0, where)
        codes = _recode(found, values, where) + 1
        if self.unknown == "raise":
            _refuse_unknown(found, (codes == 0) & (found.codes >= 0), values, where)
        return codes

    def _encode_target(self, column: Column, where: str) -> npt.NDArray[Any]:
        if self.classes is None:
            numbers = as_numbers(column, where)
            _refuse_missing(np.isnan(numbers), where)
            return numbers.astype(np.float32)
        found = as_categories(column)
        _refuse_missing(found.codes < 0, where)
        codes = _recode(found, self.classes, where)
        _refuse_unknown(found, codes < 0, self.classes, where)
        return codes


def fit_table(table: Table, columns: TableColumns, where: str) -> TableStatistics:
    """Fit statistics to training data.

    Raises:
        ValueError: If there are no rows or no features, a column is not there, or its
            values are not what it was said to hold.
    """
    named = [*columns.numeric, *columns.categorical, *([] if columns.target is None else [columns.target])]
    if unknown := [name for name in named if name not in table]:
        raise ValueError(f"{where}: has no columns {unknown}, its columns are {list(table)}.")
    features = [name for name in table if name not in columns.ignore and name != columns.target]
    if not features or not len(table[features[0]]):
        raise ValueError(
            f"{where}: nothing to fit to: columns {list(table)}, features {features}; wanted rows of some."
        )
    numeric: dict[str, tuple[float, float, float]] = {}
    categorical: dict[str, list[Value]] = {}
    for name in features:
        place = f"{where}, column {name!r}"
        if name in columns.numeric or (name not in columns.categorical and _is_numeric(table[name], place)):
            numeric[name] = _fit_numbers(as_numbers(table[name], place), columns.missing, place)
        else:
            categorical[name] = _fit_categories(as_categories(table[name]), columns, place)
    return TableStatistics(
        numeric=numeric,
        categorical=categorical,
        target=columns.target,
        classes=_fit_classes(table, columns, where),
        missing=columns.missing,
        unknown=columns.unknown,
    )


def as_column(values: Any, where: str) -> Column:
    """Take a sequence, array or tensor (N,) for a column."""
    array = np.asarray(values)
    if array.dtype.kind == "U" and not hasattr(values, "dtype"):
        array = np.asarray(values, dtype=object)  # else numbers among text would be text
    if array.ndim != 1:
        raise ValueError(f"{where}: has the shape {array.shape}, wanted one axis, of rows.")
    if array.dtype.kind in "iuf":
        return array
    if array.dtype.kind not in "bUO":
        raise ValueError(f"{where}: holds {array.dtype}, wanted numbers, booleans or text.")
    if array.dtype.kind != "O":
        found, codes = np.unique(array, return_inverse=True)
        return Categories(found.tolist(), codes.astype(np.int64))
    table: dict[tuple[type, Any], int] = {}
    plain = [value.item() if isinstance(value, np.generic) else value for value in array.tolist()]
    codes = np.fromiter(
        (-1 if _is_missing(v) else table.setdefault((type(v), v), len(table)) for v in plain), np.int64, len(plain)
    )
    kept = Categories([value for _, value in table], codes)
    kinds = {type(value) for value in kept.values}
    if kinds and kinds <= {int, float}:
        return as_numbers(kept, where)
    _kind(kept.values, where)
    return kept


def as_numbers(column: Column, where: str) -> npt.NDArray[np.float64]:
    """Return a column's numbers (N,), NaN where one is missing.

    Raises:
        ValueError: If it holds something else, or infinities.
    """
    if isinstance(column, Categories):
        text = [value for value in column.values if isinstance(value, str)]
        if text:
            worst = next((value for value in text if not _is_number(value)), text[0])
            row = int(np.flatnonzero(column.codes == column.values.index(worst))[0])
            raise ValueError(
                f"{where}: holds text, {worst!r} in row {row:,}; wanted numbers. Mend it, name what stands for a "
                "missing value (missing_values=), or make the column categorical."
            )
        numbers = np.array([*column.values, math.nan], dtype=np.float64)[column.codes]
    else:
        numbers = column.astype(np.float64)
    infinite = np.isinf(numbers)
    if infinite.any():
        raise ValueError(
            f"{where}: has {int(infinite.sum()):,} infinite values, the first in row {int(infinite.argmax()):,}; "
            "wanted finite ones. Replace them."
        )
    return numbers


def as_categories(column: Column) -> Categories:
    """Return a column's different values and their codes; whole numbers are integers."""
    if isinstance(column, Categories):
        return column
    missing = np.isnan(column) if column.dtype.kind == "f" else np.zeros(len(column), dtype=bool)
    found, codes = np.unique(column[~missing], return_inverse=True)
    if found.dtype.kind == "f" and np.all(found == np.floor(found)) and np.all(np.abs(found) < 2**53):
        found = found.astype(np.int64)  # integers with gaps are read as floats
    whole = np.full(len(column), -1, dtype=np.int64)
    whole[~missing] = codes
    return Categories(found.tolist(), whole)


def _is_numeric(column: Column, where: str) -> bool:
    """Say what a column is that nobody has named; text that is nearly all numbers is for the user to decide."""
    if not isinstance(column, Categories):
        return True
    text = [value for value in column.values if isinstance(value, str)]
    others = [value for value in text if not _is_number(value)]
    if text and 2 * len(others) <= len(text):
        raise ValueError(
            f"{where}: holds numbers and {others[:3]}. Say what it is: numeric=, with missing_values={others[:3]}, "
            "or categorical=."
        )
    return False


def _fit_numbers(numbers: npt.NDArray[np.float64], missing: Missing, where: str) -> tuple[float, float, float]:
    present = numbers[~np.isnan(numbers)]
    if missing == "raise":
        _refuse_missing(np.isnan(numbers), where)
    if not len(present):
        raise ValueError(f"{where}: all {len(numbers):,} values are missing. Leave it out: ignore=.")
    with np.errstate(over="ignore", invalid="ignore"):
        mean, std = float(present.mean()), float(present.std())
    if not math.isfinite(mean) or not math.isfinite(std):
        raise ValueError(f"{where}: its values go up to {np.abs(present).max()}, too large for a mean. Rescale it.")
    constant = bool((present == present[0]).all())  # rounding may leave a tiny deviation
    fill = float(np.median(present)) if missing == "median" else mean
    return (float(present[0]), 1.0, float(present[0])) if constant or std == 0 else (mean, std, fill)


def _fit_categories(column: Categories, columns: TableColumns, where: str) -> list[Value]:
    if columns.missing == "raise":
        _refuse_missing(column.codes < 0, where)
    _kind(column.values, where)
    counts = np.bincount(column.codes[column.codes >= 0], minlength=len(column.values))
    seen = sorted((-int(count), value) for value, count in zip(column.values, counts, strict=True) if count)
    if len(seen) > columns.max_categories:
        lost = seen[columns.max_categories :]
        warnings.warn(
            f"{where}: has {len(seen):,} categories, the {columns.max_categories:,} most frequent are kept "
            f"(max_categories); the others, {-sum(count for count, _ in lost):,} of {len(column):,} rows, are unknown.",
            stacklevel=2,
        )
    return sorted(value for _, value in seen[: columns.max_categories])


def _fit_classes(table: Table, columns: TableColumns, where: str) -> list[Value] | None:
    if columns.target is None or columns.task == "regression":
        return None
    column, where = table[columns.target], f"{where}, target {columns.target!r}"
    if columns.task is None and not isinstance(column, Categories) and column.dtype.kind == "f":
        return None
    found = as_categories(column)
    _kind(found.values, where)
    if columns.task is None and not isinstance(column, Categories) and len(found.values) > _MOST_CLASSES:
        raise ValueError(
            f"{where}: has {len(found.values):,} different integers, which may be classes or amounts. "
            "Say which: task='classification' or task='regression'."
        )
    return sorted(found.values)


def _recode(column: Categories, values: list[Value], where: str) -> Int64Array:
    """Return each row's place in other values, -1 where it has none."""
    if values and column.values and _kind(column.values, where) != _kind(values, where):
        raise ValueError(
            f"{where}: holds {_kind(column.values, where)} such as {column.values[0]!r}, was fitted to "
            f"{_kind(values, where)} such as {values[0]!r}. Give it the type of the training data."
        )
    place = {value: code for code, value in enumerate(values)}
    # Missing values have code -1: the last entry.
    return np.array([*(place.get(value, -1) for value in column.values), -1], dtype=np.int64)[column.codes]


def _kind(values: Iterable[Value], where: str) -> str:
    names = {str: "text", bool: "booleans", int: "numbers", float: "numbers"}
    kinds = sorted({names.get(type(value), type(value).__name__) for value in values})
    if len(kinds) > 1 or not set(kinds) <= set(names.values()):
        raise ValueError(f"{where}: holds {' and '.join(kinds)}, wanted numbers, booleans or text, one of them.")
    return kinds[0] if kinds else "nothing"


def _refuse_missing(missing: npt.NDArray[np.bool_], where: str) -> None:
    if missing.any():
        raise ValueError(
            f"{where}: {int(missing.sum()):,} of {len(missing):,} values are missing, the first in row "
            f"{int(missing.argmax()):,}. Fill them in, or say how for features: missing='mean' or 'median'."
        )


def _refuse_unknown(column: Categories, unknown: npt.NDArray[np.bool_], values: list[Value], where: str) -> None:
    if unknown.any():
        row = int(unknown.argmax())
        raise ValueError(
            f"{where}: {column.values[column.codes[row]]!r} in row {row:,} was not in the training data, which has "
            f"{values[:5]}{' ...' if len(values) > 5 else ''}. Mend it, or train with it."
        )


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def _is_number(text: Value) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
