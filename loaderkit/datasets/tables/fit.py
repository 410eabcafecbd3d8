"""Fit a table's statistics to the training data."""

import math
import warnings

import numpy as np
import numpy.typing as npt

from loaderkit.datasets.tables.columns import Missing, TableColumns, TableStatistics
from loaderkit.datasets.tables.values import (
    FILL_CATEGORIES,
    FILL_NUMBERS,
    Categories,
    Column,
    Table,
    Value,
    as_categories,
    as_numbers,
    is_number,
    kind_of,
    refuse_missing,
)

_MOST_CLASSES = 100  # an integer target with more distinct values may be amounts: the user must give the task


def fit_table(table: Table, columns: TableColumns, where: str) -> TableStatistics:
    """Compute the statistics of training data. Messages call the table `where`."""
    named = [*columns.numeric, *columns.categorical, *([] if columns.target is None else [columns.target])]
    if unknown := [name for name in named if name not in table]:
        raise ValueError(f"{where}: has no columns {unknown}, its columns are {list(table)}.")
    features = [name for name in table if name not in columns.ignore and name != columns.target]
    if not features or not len(table[features[0]]):
        raise ValueError(
            f"{where}: nothing to fit: found columns {list(table)} and features {features}, wanted a feature with rows."
        )
    numeric: dict[str, tuple[float, float, float]] = {}
    categorical: dict[str, list[Value]] = {}
    for name in features:
        column = f"{where}, column {name!r}"
        if name in columns.numeric or (name not in columns.categorical and _is_numeric(table[name], column)):
            numeric[name] = _fit_numbers(as_numbers(table[name], column), columns.missing, column)
        else:
            categorical[name] = _fit_categories(as_categories(table[name]), columns, column)
    return TableStatistics(
        numeric=numeric,
        categorical=categorical,
        target=columns.target,
        classes=_fit_classes(table, columns, where),
        missing=columns.missing,
        unknown=columns.unknown,
    )


def _is_numeric(column: Column, where: str) -> bool:
    """Return whether a column without a given role is numeric; raise a ValueError for text that is mostly numbers."""
    if not isinstance(column, Categories):
        return True
    text = [value for value in column.values if isinstance(value, str)]
    others = [value for value in text if not is_number(value)]
    if text and 2 * len(others) <= len(text):
        raise ValueError(
            f"{where}: holds numbers and {others[:3]}. Name it in numeric=, with missing_values={others[:3]}, or in "
            "categorical=."
        )
    return False


def _fit_numbers(numbers: npt.NDArray[np.float64], missing: Missing, where: str) -> tuple[float, float, float]:
    present = numbers[~np.isnan(numbers)]
    if missing == "raise":
        refuse_missing(np.isnan(numbers), where, FILL_NUMBERS)
    if not len(present):
        raise ValueError(f"{where}: all {len(numbers):,} values are missing. Leave it out: ignore=.")
    with np.errstate(over="ignore", invalid="ignore"):
        mean, std = float(present.mean()), float(present.std())
    if not math.isfinite(mean) or not math.isfinite(std):
        raise ValueError(f"{where}: values up to {np.abs(present).max()} are too large for a mean. Rescale the column.")
    constant = bool((present == present[0]).all())  # std may be tiny instead of 0, due to rounding
    fill = float(np.median(present)) if missing == "median" else mean
    return (float(present[0]), 1.0, float(present[0])) if constant or std == 0 else (mean, std, fill)


def _fit_categories(column: Categories, columns: TableColumns, where: str) -> list[Value]:
    if columns.missing == "raise":
        refuse_missing(column.codes < 0, where, FILL_CATEGORIES)
    kind_of(column.values, where)
    counts = np.bincount(column.codes[column.codes >= 0], minlength=len(column.values))
    seen = sorted((-int(count), value) for value, count in zip(column.values, counts, strict=True) if count)
    if len(seen) > columns.max_categories:
        lost = seen[columns.max_categories :]
        warnings.warn(
            f"{where}: has {len(seen):,} categories. The {columns.max_categories:,} most frequent are known (max_categories); "
            f"the others, in {-sum(count for count, _ in lost):,} of {len(column):,} rows, are unknown.",
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
    kind_of(found.values, where)
    if columns.task is None and not isinstance(column, Categories) and len(found.values) > _MOST_CLASSES:
        raise ValueError(
            f"{where}: has {len(found.values):,} different integers, which may be classes or amounts. "
            "Give task='classification' or task='regression'."
        )
    return sorted(found.values)
