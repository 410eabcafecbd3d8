"""A DataModule for tables: columns to numbers by statistics of the training data, which go with the checkpoint."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from typing_extensions import override

from loaderkit.datasets.memory.array import ArrayDataset
from loaderkit.datasets.remote.storage import Storage
from loaderkit.datasets.remote.urls import Urls
from loaderkit.lightning.base import DataModule
from loaderkit.lightning.parts import Part, factories, given_stages, is_dict_of_tables, parts_of
from loaderkit.lightning.tables.columns import TableColumns, TableStatistics
from loaderkit.lightning.tables.files import read_table
from loaderkit.lightning.tables.fit import fit_table
from loaderkit.lightning.tables.values import Table, Value
from loaderkit.loader.config import LoaderConfig
from loaderkit.loader.loader import Loader

TableData = Mapping[str, Any] | Urls


class TableDataModule(DataModule):
    """Trains on tables: CSV, Parquet or Arrow files, or columns in memory.

    A batch is a dict: "numeric" (B, columns) float32, standardised; "categorical" (B, columns)
    int64, codes with 0 for unknown categories; "target" (B,), int64 classes or float32. Each
    is there where there is such a column. Tables are kept in memory, in this form.

    Means, deviations, categories and classes are fitted to the training data, when they are
    first asked for, and are part of the checkpoint; those of a checkpoint that was loaded take
    their place for good. They are plain values, at most `max_categories` for a column.
    To predict, none of the training data is read: pass `ckpt_path=` to the Trainer, or use
    `TableDataModule.load_from_checkpoint(path, predict=...)`.
    Lightning files them under the class's name: load a checkpoint with the class that saved it.

    Args:
        train: A path, folder, glob or URL, a list of them, or columns (N,) by name (also a DataFrame).
        val: The same; or a dict of paths, folders, globs, URLs or tables by name: several sets, one after another, and
            `dataloader_idx` counts them.
        test: The same as val.
        predict: The same; it needs no target.
        columns: What the columns are for.
        missing_values: What stands for a missing value in a CSV file.
        delimiter: Between the fields of a CSV file.
        storage: How remote files are reached, and where copies of them are kept.
        loader: The loaders' settings.
        eval_loader: Those for val, test and predict.

    Raises:
        FileNotFoundError: When the data is read, if there are no files.
        ValueError: When the data is read, if it is not what the columns say.
    """

    def __init__(
        self,
        train: TableData | None = None,
        val: TableData | None = None,
        test: TableData | None = None,
        predict: TableData | None = None,
        *,
        columns: TableColumns | None = None,
        missing_values: Sequence[str] = ("",),
        delimiter: str = ",",
        storage: Storage | None = None,
        loader: LoaderConfig | None = None,
        eval_loader: LoaderConfig | None = None,
    ) -> None:
        if columns is not None and not isinstance(columns, TableColumns):
            raise TypeError(
                f"{type(self).__name__}: columns is {columns!r}, wanted a TableColumns such as lk.TableColumns(target='price')."
            )
        given = given_stages(train=train, val=val, test=test, predict=predict)
        parts = parts_of(type(self).__name__, given, is_several=is_dict_of_tables)
        super().__init__(**factories(parts, _unread), loader=loader, eval_loader=eval_loader)
        self.columns, self._columns_given = columns or TableColumns(), columns is not None
        self._missing_values, self._delimiter, self._storage = tuple(missing_values), delimiter, storage
        self._statistics: TableStatistics | None = None
        self._encoded: dict[str, ArrayDataset] = {}

    @property
    def statistics(self) -> TableStatistics:
        """The statistics of a checkpoint, else of the training data, which is read for them.

        Raises:
            ValueError: If there is neither.
        """
        if self._statistics is None:
            part = self._data("train")
            if part is None:
                raise ValueError(
                    f"{type(self).__name__}: no statistics: there is no training data, and no checkpoint of this class was "
                    "loaded. Pass train=, or ckpt_path= with a checkpoint that a DataModule of the same class name saved."
                )
            table = self._read(part)
            self._statistics = fit_table(table, self.columns, "train")
            self._keep(part, table)  # so that it is not read again
        return self._statistics

    @property
    def num_classes(self) -> int:
        """Number of classes.

        Raises:
            ValueError: If the task is no classification.
        """
        return len(self.classes)

    @property
    def classes(self) -> list[Value]:
        """The target's values, each at the place of its code.

        Raises:
            ValueError: If the task is no classification.
        """
        if self.statistics.classes is None:
            raise ValueError(
                f"{type(self).__name__}: no classes: the target is {self.statistics.target!r}, a regression. "
                "For a classification: TableColumns(target=..., task='classification')."
            )
        return self.statistics.classes

    @property
    def num_numeric(self) -> int:
        """Number of numeric columns."""
        return len(self.statistics.numeric)

    @property
    def cardinalities(self) -> list[int]:
        """For each categorical column the number of its codes, the one for unknown categories included."""
        return self.statistics.cardinalities

    @override
    def state_dict(self) -> dict[str, Any]:
        state = super().state_dict()
        return state if self._statistics is None else {**state, "statistics": self._statistics.to_state()}

    @override
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        if "statistics" in state_dict:
            self._statistics = TableStatistics.from_state(state_dict["statistics"])
            self._encoded.clear()
            self._check_columns(self._statistics)
        super().load_state_dict(state_dict)

    def _check_columns(self, fitted: TableStatistics) -> None:
        """Say where the columns differ from what a checkpoint's statistics were fitted to."""
        given = self.columns
        pairs: list[tuple[str, Any, Any]] = [
            (name, getattr(given, name), getattr(fitted, name)) for name in ("target", "missing", "unknown")
        ]
        pairs += [
            (role, sorted(getattr(given, role)), sorted(getattr(fitted, role)))
            for role in ("numeric", "categorical")
            if not set(getattr(given, role)) <= set(getattr(fitted, role))
        ]
        if both := {*fitted.numeric, *fitted.categorical} & set(given.ignore):
            pairs.append(("ignore", sorted(given.ignore), f"with {sorted(both)} as features"))
        said = "; ".join(f"{name} {mine!r}, fitted {theirs!r}" for name, mine, theirs in pairs if mine != theirs)
        if self._columns_given and said:
            warnings.warn(
                f"{type(self).__name__}: columns= differs from what the checkpoint was fitted to: {said}. The checkpoint's "
                "values are used: its weights belong to them. Give the same TableColumns, or train anew.",
                stacklevel=2,
            )

    @override
    def _make(self, name: str, make: Callable[[Any], Loader]) -> Any:
        # Only now: Lightning loads a checkpoint between setup and the first loader.
        return super()._make(name, lambda part: make(self._encode(part)))

    def _encode(self, part: Part) -> ArrayDataset:
        if str(part) not in self._encoded:
            self.statistics  # noqa: B018 - fitted now, if no checkpoint has brought them
        if str(part) not in self._encoded:
            self._keep(part, self._read(part))
        return self._encoded[str(part)]

    def _keep(self, part: Part, table: Table) -> None:
        arrays = self.statistics.encode(table, str(part), with_target=part.stage != "predict")
        self._encoded[str(part)] = ArrayDataset(arrays)

    def _read(self, part: Part) -> Table:
        text = {*self.columns.categorical}
        if (fitted := self._statistics) is not None:
            values = {**fitted.categorical, **({fitted.target: fitted.classes or []} if fitted.target else {})}
            text |= {name for name, found in values.items() if any(isinstance(value, str) for value in found)}
        return read_table(
            part.data,
            str(part),
            text=text,
            ignore=self.columns.ignore,
            missing_values=self._missing_values,
            delimiter=self._delimiter,
            storage=self._storage,
        )


def _unread(part: Part) -> Part:
    return part
