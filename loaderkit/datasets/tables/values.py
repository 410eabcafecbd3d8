"""A table's columns in memory: numbers, or categories with integer codes."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from loaderkit.system.arrays import Int64Array
from loaderkit.system.types import Array

Value = str | int | float | bool


@dataclass(frozen=True)
class Categories:
    """A column of N categories: row i holds `values[codes[i]]`, or is missing if the code is -1."""

    values: list[Value]
    codes: Int64Array

    def __len__(self) -> int:
        return len(self.codes)


Column = Array | Categories  # numbers (NaN: missing), or categories
Table = Mapping[str, Column]


def as_column(values: object, where: str) -> Column:
    """Return a sequence, array or tensor (N,) as a column: numbers as an array, text and booleans as Categories.

    Raises:
        ValueError: If it has another shape, or holds values of several kinds or of another kind.
    """
    array = np.asarray(values)
    if array.dtype.kind == "U" and not hasattr(values, "dtype"):
        array = np.asarray(values, dtype=object)  # else numpy would turn numbers among text into text
    if array.ndim != 1:
        raise ValueError(f"{where}: has the shape {array.shape}, wanted (rows,).")
    if array.dtype.kind in "iuf":
        return array
    if array.dtype.kind not in "bUO":
        raise ValueError(f"{where}: holds {array.dtype}, wanted numbers, booleans or text. Leave it out with ignore=.")
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
    kind_of(kept.values, where)
    return kept


def as_numbers(column: Column, where: str) -> npt.NDArray[np.float64]:
    """Return a column's numbers (N,) float64, NaN where missing; raise a ValueError for text or infinite numbers."""
    if isinstance(column, Categories):
        text = [value for value in column.values if isinstance(value, str)]
        if text:
            worst = next((value for value in text if not is_number(value)), text[0])
            row = int(np.flatnonzero(column.codes == column.values.index(worst))[0])
            raise ValueError(
                f"{where}: holds text, {worst!r} in row {row:,}; wanted numbers. Correct it, list it in missing_values=, or make "
                "the column categorical."
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
    """Return a column as categories. If all its floats are whole numbers, they become integers."""
    if isinstance(column, Categories):
        return column
    missing = np.isnan(column) if column.dtype.kind == "f" else np.zeros(len(column), dtype=bool)
    found, codes = np.unique(column[~missing], return_inverse=True)
    if found.dtype.kind == "f" and np.all(found == np.floor(found)) and np.all(np.abs(found) < 2**53):
        found = found.astype(np.int64)  # integers with missing values are read as floats
    whole = np.full(len(column), -1, dtype=np.int64)
    whole[~missing] = codes
    return Categories(found.tolist(), whole)


def recode(column: Categories, values: list[Value], where: str) -> Int64Array:
    """Return the index of each row's category in `values` (N,); -1 if it is missing or not in `values`."""
    if values and column.values and kind_of(column.values, where) != kind_of(values, where):
        raise ValueError(
            f"{where}: holds {kind_of(column.values, where)} such as {column.values[0]!r}, but was fitted to "
            f"{kind_of(values, where)} such as {values[0]!r}. Give it the type of the training data."
        )
    codes = {value: code for code, value in enumerate(values)}
    # A missing value has the code -1, which selects the last entry.
    return np.array([*(codes.get(value, -1) for value in column.values), -1], dtype=np.int64)[column.codes]


def kind_of(values: Iterable[Value], where: str) -> str:
    """Return "text", "booleans", "numbers" or "nothing"; raise a ValueError for values of several or other kinds."""
    names = {str: "text", bool: "booleans", int: "numbers", float: "numbers"}
    kinds = sorted({names.get(type(value), type(value).__name__) for value in values})
    if len(kinds) > 1 or not set(kinds) <= set(names.values()):
        raise ValueError(f"{where}: holds {' and '.join(kinds)}, wanted only numbers, only booleans or only text.")
    return kinds[0] if kinds else "nothing"


def is_number(text: Value) -> bool:
    """Return whether Python can parse a text as a float."""
    try:
        float(text)
    except ValueError:
        return False
    return True


FILL_NUMBERS = "Fill them in, or let TableColumns(missing='mean') or 'median' do that."
FILL_CATEGORIES = (
    "Write a category of their own into the cells, such as 'none'. Or encode them as unknown, with code 0: "
    "TableColumns(missing='median'), which also fills in missing numbers."
)
FILL_TARGET = "Fill them in, or leave out these rows."


def refuse_missing(missing: npt.NDArray[np.bool_], where: str, way_out: str) -> None:
    """Raise a ValueError if any entry of `missing` (N,) is true."""
    if missing.any():
        raise ValueError(
            f"{where}: {int(missing.sum()):,} of {len(missing):,} values are missing, the first in row "
            f"{int(missing.argmax()):,}. {way_out}"
        )


def refuse_unknown(column: Categories, unknown: npt.NDArray[np.bool_], values: list[Value], where: str) -> None:
    """Raise a ValueError if any row of `unknown` (N,) has a category that is not among `values`."""
    if unknown.any():
        row = int(unknown.argmax())
        raise ValueError(
            f"{where}: {column.values[column.codes[row]]!r} in row {row:,} is not in the training data, which has "
            f"{values[:5]}{' ...' if len(values) > 5 else ''}. Correct it, or add it to the training data."
        )


def _is_missing(value: object) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))
