"""Delta tables: the rows of one version, from the files that the table's log lists."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import unquote

from loaderkit.datasets.arrow.parquet import ParquetDataset
from loaderkit.datasets.base import Transform
from loaderkit.datasets.errors import ShardError
from loaderkit.files.storage import Storage
from loaderkit.system.checks import listed

_CHECKPOINT = "Or write the rows to a folder of their own and open that with lk.ParquetDataset."


class DeltaDataset(ParquetDataset):
    """The rows of one version of a Delta table, as `ParquetDataset` gives them.

    The table's log says which files belong to the version, and which values partition columns have. A column that was
    added later is None in rows of older files. Files are read in the order of their names. The version is part of the
    fingerprint, so a run cannot resume on another version.

    Args:
        table: Path or URL of the table's folder.
        version: Version of the table; by default the newest when the dataset is created. To resume after the table has
            changed, give the `dataset.version` of the first run.
        columns: Columns to read; by default all of the table.
        transform: Called with each row; its result replaces the row.
        ragged: As for `ParquetDataset`.
        index_dir: Folder of the index files, as for `ParquetDataset`.
        max_open: Files that a process keeps open, with all its threads.
        storage: How to reach the files of a remote table, and where to keep copies.
        cached_groups: Number of decoded row groups that each reading thread keeps.
        storage_options: How deltalake reaches the log of a remote table, such as `{"AWS_REGION": ...}`.

    Attributes:
        version: The version that is read.

    Raises:
        ShardError: If there is no such table or version, or it has no rows. Also if it uses deletion vectors or column
            mapping: the rows of its files are then not those of the table.
        ImportError: If deltalake is not installed.

    Examples:
        >>> dataset = lk.DeltaDataset("events", version=7)  # doctest: +SKIP
        >>> dataset[0]  # doctest: +SKIP
        {'id': 1, 'date': datetime.date(2024, 1, 1)}
    """

    def __init__(
        self,
        table: str | os.PathLike[str],
        version: int | None = None,
        columns: Sequence[str] | None = None,
        *,
        transform: Transform | None = None,
        ragged: bool = False,
        index_dir: str | os.PathLike[str] | None = None,
        max_open: int = 256,
        storage: Storage | None = None,
        cached_groups: int = 64,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        place = os.fspath(table)
        self.version, names, self._constants = _read_log(place, version, dict(storage_options or {}))
        super().__init__(
            sorted(self._constants),
            names if columns is None else listed("DeltaDataset", "columns", columns),
            transform=transform,
            ragged=ragged,
            index_dir=index_dir,
            max_open=max_open,
            storage=storage,
            cached_groups=cached_groups,
        )

    def constants(self, shard: str) -> Mapping[str, object]:
        """Return a file's values of partition columns, and nulls for all other columns of the table.

        They are used for the columns that the file lacks.
        """
        return self._constants[shard]

    def fingerprint(self) -> str:
        """Return a text of the version, the files, their sizes and the columns."""
        return f"delta version {self.version} {super().fingerprint()}"


def _read_log(
    table: str, version: int | None, options: dict[str, str]
) -> tuple[int, list[str], dict[str, dict[str, object]]]:
    """Return the version, the table's columns, and for each file the values of columns that the file may lack."""
    try:
        import pyarrow as pa
        from deltalake import DeltaTable
    except ImportError as error:
        raise ImportError(f"{table!r} needs deltalake: pip install '.[delta]' in a checkout of loaderkit.") from error

    with _errors_named(table, version):
        log = DeltaTable(table, version=version, storage_options=options or None)
        found = int(log.version())
        _refuse_features(table, log)
        schema = pa.schema(log.schema().to_arrow())
        actions = pa.table(log.get_add_actions(flatten=False))
    if not actions.num_rows:
        raise ShardError(f"{table}: version {found} of the Delta table has no files, wanted rows.")
    nulls = {field.name: pa.scalar(None, field.type) for field in schema}
    partitions = actions["partition"] if "partition" in actions.column_names else [None] * actions.num_rows
    constants = {}
    for path, values in zip(actions["path"].to_pylist(), partitions, strict=True):
        own = {} if values is None else {name: values[name].cast(nulls[name].type) for name in values}
        constants[_join(table, unquote(path))] = nulls | own
    return found, list(schema.names), constants


def _refuse_features(table: str, log: Any) -> None:
    """Raise a ShardError if the table uses column mapping, or has rows that deletion vectors mark as deleted."""
    features = log.protocol().reader_features or []
    mapping = log.metadata().configuration.get("delta.columnMapping.mode", "none")
    if mapping != "none":
        raise ShardError(
            f"{table}: a Delta table with column mapping ({mapping}), whose files have other names for the columns. {_CHECKPOINT}"
        )
    if "deletionVectors" in features and _has_deleted_rows(log):
        raise ShardError(
            f"{table}: a Delta table with deletion vectors, whose files still have the deleted rows. Write them again without: "
            f"REORG TABLE ... APPLY (PURGE) in Spark. {_CHECKPOINT}"
        )


def _has_deleted_rows(log: object) -> bool:
    """Return whether a file of the version has a deletion vector; True if deltalake can't say."""
    if not hasattr(log, "deletion_vectors"):
        return True
    return any(batch.num_rows for batch in log.deletion_vectors())


@contextmanager
def _errors_named(table: str, version: int | None) -> Iterator[None]:
    from deltalake.exceptions import DeltaError

    try:
        yield
    except DeltaError as error:
        wanted = "" if version is None else f"version {version} of "
        raise ShardError(f"{table}: can't read {wanted}the Delta table: {error}") from error


def _join(table: str, path: str) -> str:
    """Return the path or URL of a file. The log names it by path or URL, or relative to the table."""
    if "://" in path or path.startswith("/"):
        return path.removeprefix("file://")
    return f"{table.rstrip('/')}/{path}"
