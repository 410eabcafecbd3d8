"""A DataModule for tables; it fits statistics to the training data and saves them in the checkpoint."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from typing_extensions import override

from loaderkit.datasets.memory.array import ArrayDataset
from loaderkit.datasets.tables.columns import TableColumns, TableStatistics
from loaderkit.datasets.tables.files import read_table
from loaderkit.datasets.tables.fit import fit_table
from loaderkit.datasets.tables.values import Table, Value
from loaderkit.files.storage import Storage
from loaderkit.files.urls import Urls
from loaderkit.lightning.base import DataModule
from loaderkit.lightning.check_data import StageData, factories, is_dict_of_tables, list_stage_data, sources_by_stage
from loaderkit.loader.config import LoaderConfig
from loaderkit.loader.loader import Loader
from loaderkit.system.checks import listed
from loaderkit.system.state import StateError
from loaderkit.system.suggest import suggest_arguments

TableData = Mapping[str, Any] | Urls


class TableDataModule(DataModule):
    """Trains on tables: CSV, Parquet or Arrow files, or columns in memory.

    A batch is a dict with up to three entries: "numeric" (B, columns) float32, standardised;
    "categorical" (B, columns) int64, with code 0 for unknown categories; "target" (B,), int64 for
    classes or float32. Tables are kept in memory in this form.

    `cardinalities`, `num_numeric` and `num_classes` give a model its sizes.

    The statistics are means, deviations, categories and classes. They are fitted to the training
    data at first use and saved in the checkpoint. A loaded checkpoint replaces them. So prediction
    reads no training data: pass `ckpt_path=` to the Trainer, or use
    `TableDataModule.load_from_checkpoint(path, predict=...)`. Lightning saves them under the class's
    name, so load a checkpoint with a class of the same name.

    Args:
        train: A path, folder, glob or URL, a list of these, or columns (N,) by name (also a DataFrame).
        val: The same, or a dict of these by name: several datasets, evaluated one after another;
            `dataloader_idx` counts them.
        test: The same as val.
        predict: The same as val. It needs no target.
        columns: The role of each column.
        missing_values: Texts that mean a missing value in a CSV file.
        delimiter: Separator of the fields of a CSV file.
        storage: How to reach remote files, and where to keep copies of them.
        loader: The loaders' settings.
        eval_loader: Settings of the loaders for val, test and predict.

    Raises:
        FileNotFoundError: If there are no files when the data is read.
        ValueError: If the data does not fit the columns' roles when it is read.

    Examples:
        >>> table = {"age": [20.0, 30.0, 40.0], "city": ["Bonn", "Rome", "Bonn"], "price": [1.0, 2.0, 4.0]}
        >>> columns = lk.TableColumns(target="price")
        >>> data = lk.TableDataModule(table, columns=columns, loader=lk.LoaderConfig(batch_size=3))
        >>> data.setup("fit")
        >>> batch = next(iter(data.train_dataloader()))
        >>> {name: (tuple(value.shape), value.dtype) for name, value in batch.items()}
        {'numeric': ((3, 1), torch.float32), 'categorical': ((3, 1), torch.int64), 'target': ((3,), torch.float32)}
    """

    @suggest_arguments
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
        sources = sources_by_stage(train=train, val=val, test=test, predict=predict)
        stage_data = list_stage_data(type(self).__name__, sources, is_several=is_dict_of_tables)
        super().__init__(**factories(stage_data, _unread), loader=loader, eval_loader=eval_loader)
        self.columns, self._columns_given = columns or TableColumns(), columns is not None
        self._missing_values = tuple(listed("TableDataModule", "missing_values", missing_values))
        self._delimiter, self._storage = delimiter, storage
        self._statistics: TableStatistics | None = None
        self._encoded: dict[str, ArrayDataset] = {}

    @property
    def statistics(self) -> TableStatistics:
        """The loaded checkpoint's statistics; without a checkpoint, those of the training data.

        Raises:
            ValueError: If there is neither a checkpoint nor training data.
        """
        if self._statistics is None:
            data = self._data("train")
            if data is None:
                raise ValueError(
                    f"{type(self).__name__}: no statistics: there is no training data, and no checkpoint of this class was "
                    "loaded. Pass train=, or ckpt_path= with a checkpoint that a DataModule of the same class name saved."
                )
            table = self._read(data)
            self._statistics = fit_table(table, self.columns, "train")
            self._keep(data, table)  # the table is read only once
        return self._statistics

    @property
    def num_classes(self) -> int:
        """Number of classes.

        Raises:
            ValueError: If the task is a regression.
        """
        return len(self.classes)

    @property
    def classes(self) -> list[Value]:
        """The target's values, in the order of their codes.

        Raises:
            ValueError: If the task is a regression.
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
        """Number of codes of each categorical column, including the one for unknown categories."""
        return self.statistics.cardinalities

    @override
    def state_dict(self) -> dict[str, Any]:
        state = super().state_dict()
        return state if self._statistics is None else {**state, "statistics": self._statistics.to_state()}

    @override
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        if isinstance(state_dict, Mapping) and state_dict.get("train") and "statistics" not in state_dict:
            raise StateError(
                f"cannot resume: found a state with the keys {list(state_dict)}, wanted 'statistics' too: the "
                "model's weights belong to them. Use another checkpoint, or start a new training."
            )
        if isinstance(state_dict, Mapping) and "statistics" in state_dict:
            self._statistics = TableStatistics.from_state(state_dict["statistics"])
            self._encoded.clear()
            self._check_columns(self._statistics)
        super().load_state_dict(state_dict)

    def _check_columns(self, fitted: TableStatistics) -> None:
        """Warn if `columns=` differs from the checkpoint's statistics."""
        columns = self.columns
        pairs: list[tuple[str, object, object]] = [
            (name, getattr(columns, name), getattr(fitted, name)) for name in ("target", "missing", "unknown")
        ]
        pairs += [
            (role, sorted(getattr(columns, role)), sorted(getattr(fitted, role)))
            for role in ("numeric", "categorical")
            if not set(getattr(columns, role)) <= set(getattr(fitted, role))
        ]
        if both := {*fitted.numeric, *fitted.categorical} & set(columns.ignore):
            pairs.append(("ignore", sorted(columns.ignore), f"with {sorted(both)} as features"))
        changes = "; ".join(f"{name} {mine!r}, fitted {theirs!r}" for name, mine, theirs in pairs if mine != theirs)
        if self._columns_given and changes:
            warnings.warn(
                f"{type(self).__name__}: columns= differs from the checkpoint: {changes}. The checkpoint's values are used, "
                "because its weights belong to them. Give the same TableColumns, or start a new training.",
                stacklevel=2,
            )

    @override
    def _make(self, name: str, make: Callable[[Any], Loader]) -> Any:
        # Not in setup: Lightning loads a checkpoint between setup and the first loader.
        return super()._make(name, lambda data: make(self._encode(data)))

    def _encode(self, data: StageData) -> ArrayDataset:
        self.statistics  # noqa: B018 - without a checkpoint, fits them and keeps the training data
        if str(data) not in self._encoded:
            self._keep(data, self._read(data))
        return self._encoded[str(data)]

    def _keep(self, data: StageData, table: Table) -> None:
        arrays = self.statistics.encode(table, str(data), with_target=data.stage != "predict")
        self._encoded[str(data)] = ArrayDataset(arrays)

    def _read(self, data: StageData) -> Table:
        text = {*self.columns.categorical}
        if (fitted := self._statistics) is not None:
            values = {**fitted.categorical, **({fitted.target: fitted.classes or []} if fitted.target else {})}
            text |= {name for name, found in values.items() if any(isinstance(value, str) for value in found)}
        return read_table(
            data.source,
            str(data),
            text=text,
            ignore=self.columns.ignore,
            missing_values=self._missing_values,
            delimiter=self._delimiter,
            storage=self._storage,
        )


def _unread(data: StageData) -> StageData:
    return data
