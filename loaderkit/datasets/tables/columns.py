"""The roles of a table's columns, and the statistics that turn columns into numbers."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from loaderkit.datasets.tables.values import (
    FILL_CATEGORIES,
    FILL_NUMBERS,
    FILL_TARGET,
    Column,
    Table,
    Value,
    as_categories,
    as_numbers,
    recode,
    refuse_missing,
    refuse_unknown,
)
from loaderkit.system.arrays import Int64Array
from loaderkit.system.checks import listed
from loaderkit.system.state import Rule, open_state, seal
from loaderkit.system.suggest import did_you_mean
from loaderkit.system.types import Array

Task = Literal["classification", "regression"]
Missing = Literal["raise", "mean", "median"]
Unknown = Literal["code", "raise"]

_FORM = {
    "numeric": Rule("a list of names, each with mean, deviation and fill", lambda rows: _are_rows(rows, _are_numbers)),
    "categorical": Rule(
        "a list of names, each with its values",
        lambda rows: _are_rows(rows, lambda rest: len(rest) == 1 and _are_values(rest[0])),
    ),
    "target": Rule("a name, or None", lambda name: name is None or isinstance(name, str)),
    "classes": Rule("a list of values, or None", lambda values: values is None or _are_values(values)),
    "missing": Rule(f"one of {get_args(Missing)}", get_args(Missing).__contains__),
    "unknown": Rule(f"one of {get_args(Unknown)}", get_args(Unknown).__contains__),
}


def _are_rows(rows: Any, holds: Callable[[Sequence[Any]], bool]) -> bool:
    """Return whether rows begin with distinct names, and `holds` is true for the rest of each row."""
    if not _is_list(rows) or not all(_is_list(row) and row and isinstance(row[0], str) for row in rows):
        return False
    return len({row[0] for row in rows}) == len(rows) and all(holds(row[1:]) for row in rows)


def _are_numbers(found: Sequence[Any]) -> bool:
    return len(found) == 3 and all(type(number) in (int, float) and math.isfinite(number) for number in found)


def _are_values(found: Any) -> bool:
    return _is_list(found) and all(isinstance(value, Value) for value in found)


def _is_list(found: object) -> bool:
    return isinstance(found, list | tuple)


@dataclass(frozen=True, kw_only=True)
class TableColumns:
    """The role of each column of a table, and how columns become numbers.

    All other columns are features: numbers are numeric, text and booleans are categorical.

    Args:
        target: The column to predict.
        task: Default: "classification" for text, booleans and integers, "regression" for floats.
        numeric: Columns of numbers, standardised to mean 0 and standard deviation 1.
        categorical: Columns of categories. Their values may be numbers.
        ignore: Columns to leave out.
        missing: What to do with a missing number: "raise" an error, or fill in the training data's
            "mean" or "median". A missing category is an error with "raise", otherwise unknown.
        unknown: What to do with a category that is not in the training data: encode it as 0 ("code"),
            or "raise" an error.
        max_categories: Largest number of categories in a column. If there are more, a warning is issued
            and only the most frequent ones are known.

    Raises:
        ValueError: If a column is named twice, or a setting is out of range.

    Examples:
        >>> lk.TableColumns(target="price", categorical=["postcode"], ignore=["id"], missing="median").target
        'price'
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
        for name in ("numeric", "categorical", "ignore"):
            listed("TableColumns", name, getattr(self, name))
        named = [*self.numeric, *self.categorical, *self.ignore, *([] if self.target is None else [self.target])]
        if twice := sorted({name for name in named if named.count(name) > 1}):
            raise ValueError(f"TableColumns: {twice} are named more than once, wanted each column in one role.")
        for name, kinds in (("task", Task), ("missing", Missing), ("unknown", Unknown)):
            found = getattr(self, name)
            if found not in get_args(kinds) and not (name == "task" and found is None):
                wanted = " or ".join(map(repr, get_args(kinds)))
                hint = did_you_mean(str(found), get_args(kinds))
                raise ValueError(f"TableColumns: {name} is {found!r}, wanted {wanted}.{hint}")
        if self.max_categories < 1:
            raise ValueError(f"TableColumns: max_categories is {self.max_categories}, wanted at least 1.")


@dataclass(frozen=True, kw_only=True)
class TableStatistics:
    """Statistics of the training data's columns: plain values, small enough for a checkpoint.

    `numeric` has for each numeric column its mean, its population standard deviation (1 for a constant column), and the
    replacement for a missing value. `target`, `missing` and `unknown` are those of the TableColumns.
    """

    numeric: Mapping[str, tuple[float, float, float]]
    categorical: Mapping[str, list[Value]]  # each column's categories, sorted; their codes are 1, 2, ...
    target: str | None
    classes: list[Value] | None  # sorted; their codes are 0, 1, ...; None without classes, as for a regression
    missing: Missing
    unknown: Unknown

    @property
    def cardinalities(self) -> list[int]:
        """Number of codes of each categorical column: its categories, and one for unknown values."""
        return [1 + len(values) for values in self.categorical.values()]

    def to_state(self) -> dict[str, object]:
        """Return plain values for JSON and `torch.load(weights_only=True)`."""
        return seal(
            {
                "numeric": [[name, *numbers] for name, numbers in self.numeric.items()],
                "categorical": [[name, list(values)] for name, values in self.categorical.items()],
                "target": self.target,
                "classes": self.classes,
                "missing": self.missing,
                "unknown": self.unknown,
            }
        )

    @classmethod
    def from_state(cls, state: Mapping[str, object]) -> "TableStatistics":
        """Restore the statistics from `to_state()`.

        Raises:
            StateError: If the state has another version or is damaged.
        """
        state = open_state(state, _FORM, "the state of a table's statistics", "start a new training")
        return cls(
            numeric={name: (mean, std, fill) for name, mean, std, fill in state["numeric"]},
            categorical={name: list(values) for name, values in state["categorical"]},
            **{name: state[name] for name in ("target", "classes", "missing", "unknown")},
        )

    def encode(self, table: Table, where: str, *, with_target: bool) -> dict[str, Array]:
        """Turn a table of N rows into arrays. Columns without statistics are ignored; messages call the table `where`.

        Returns:
            "numeric" (N, columns) float32, "categorical" (N, columns) int64, and "target" (N,) int64 or
            float32; only those that have columns.
        """
        needed = [*self.numeric, *self.categorical, *([self.target] if with_target and self.target else [])]
        if lost := [name for name in needed if name not in table]:
            raise ValueError(f"{where}: lacks the columns {lost}, has {list(table)}.")
        size = len(next(iter(table.values()), ()))
        arrays: dict[str, Array] = {}
        if self.numeric:
            arrays["numeric"] = np.empty((size, len(self.numeric)), dtype=np.float32)
            for row, (name, (mean, std, fill)) in enumerate(self.numeric.items()):
                column = as_numbers(table[name], f"{where}, column {name!r}")
                if self.missing == "raise":
                    refuse_missing(np.isnan(column), f"{where}, column {name!r}", FILL_NUMBERS)
                arrays["numeric"][:, row] = (np.where(np.isnan(column), fill, column) - mean) / std
        if self.categorical:
            arrays["categorical"] = np.empty((size, len(self.categorical)), dtype=np.int64)
            for row, (name, values) in enumerate(self.categorical.items()):
                arrays["categorical"][:, row] = self._codes(table[name], values, f"{where}, column {name!r}")
        if self.target is not None and with_target:
            arrays["target"] = self._encode_target(table[self.target], f"{where}, target {self.target!r}")
        return arrays

    def _codes(self, column: Column, values: list[Value], where: str) -> Int64Array:
        found = as_categories(column)
        if self.missing == "raise":
            refuse_missing(found.codes < 0, where, FILL_CATEGORIES)
        codes = recode(found, values, where) + 1
        if self.unknown == "raise":
            refuse_unknown(found, (codes == 0) & (found.codes >= 0), values, where)
        return codes

    def _encode_target(self, column: Column, where: str) -> Array:
        if self.classes is None:
            numbers = as_numbers(column, where)
            refuse_missing(np.isnan(numbers), where, FILL_TARGET)
            return numbers.astype(np.float32)
        found = as_categories(column)
        refuse_missing(found.codes < 0, where, FILL_TARGET)
        codes = recode(found, self.classes, where)
        refuse_unknown(found, codes < 0, self.classes, where)
        return codes
