"""Read a whole table into memory, from CSV, Parquet or Arrow files, or from arrays."""

import importlib.util
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from loaderkit.datasets.errors import ShardError
from loaderkit.datasets.find_shards import expand
from loaderkit.datasets.tables.values import Categories, Column, Table, as_column
from loaderkit.files.storage import Storage
from loaderkit.files.urls import Urls, open_file
from loaderkit.system.tables import columns_of, is_arrow, is_frame

if TYPE_CHECKING:
    import pyarrow as pa

_TEXT, _BINARY = (".csv", ".tsv"), (".parquet", ".pq", ".arrow", ".feather", ".ipc")


def read_table(
    data: Urls | Mapping[str, object],
    where: str,
    *,
    text: Collection[str],
    ignore: Collection[str],
    missing_values: Sequence[str],
    delimiter: str,
    storage: Storage | None,
) -> Table:
    """Read a table from a mapping of columns of equal length, or from files with the same columns.

    The columns in `text` of a CSV file stay text, even if all their values are numbers. The columns in `ignore` are
    left out. Messages call the table `where`. The other settings are those of TableDataModule.
    """
    if (found := columns_of(data)) is not None:
        columns = {
            str(name): _in_memory(values, f"{where}, column {name!r}")
            for name, values in found.items()
            if name not in ignore
        }
        lengths = {name: len(column) for name, column in columns.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"{where}: its columns have the lengths {lengths}, wanted one length.")
        return columns
    if is_frame(data):
        raise TypeError(
            f"{where}: is a {type(data).__name__}, which is not in memory; wanted a table that is: frame.collect() of polars, "
            "dataset.to_table() of Arrow, frame.compute() of dask, or the files themselves."
        )
    if importlib.util.find_spec("pyarrow") is None:
        raise ImportError(
            f"{where}: reading files needs pyarrow. Run: pip install '.[arrow]' in a checkout of loaderkit."
        )
    urls: Any = data
    whole = _read_files(expand(urls, _TEXT + _BINARY, storage), where, missing_values, delimiter, storage)
    return {
        name: _to_column(whole.column(name), f"{where}, column {name!r}", parse=name not in text)
        for name in whole.column_names
        if name not in ignore
    }


def _read_files(
    shards: Sequence[str], where: str, missing_values: Sequence[str], delimiter: str, storage: Storage | None
) -> "pa.Table":
    """Read files with the same columns as one Arrow table."""
    import pyarrow as pa

    tables: list[pa.Table] = []
    for shard in shards:
        with open_file(shard, storage) as file:
            try:
                shard_table = _read_file(file, shard, missing_values, delimiter)
            except (pa.ArrowException, OSError, ValueError) as error:
                raise ShardError(f"{shard}: can't be read as a table: {error}") from error
        names = shard_table.column_names
        if len(set(names)) < len(names) or (tables and sorted(names) != sorted(tables[0].column_names)):
            wanted = tables[0].column_names if tables else "each name once"
            raise ShardError(f"{shard}: has the columns {names}, wanted {wanted}.")
        tables.append(shard_table.select(tables[0].column_names) if tables else shard_table)
    try:
        return pa.concat_tables(tables, promote_options="permissive")
    except pa.ArrowException as error:
        raise ShardError(f"{where}: its files have columns of different types: {error}") from error


def _in_memory(values: object, where: str) -> Column:
    if not is_arrow(values):
        return as_column(values, where)
    import pyarrow as pa

    return _to_column(values if isinstance(values, pa.ChunkedArray) else pa.chunked_array([values]), where, parse=False)


def _read_file(file: BinaryIO, shard: str, missing_values: Sequence[str], delimiter: str) -> "pa.Table":
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    if shard.endswith(_BINARY):
        if shard.endswith((".parquet", ".pq")):
            return pa.parquet.read_table(file)
        return pa.ipc.open_file(file).read_all()
    parse = pa.csv.ParseOptions(delimiter="\t" if shard.endswith(".tsv") else delimiter, newlines_in_values=True)
    names = pa.csv.open_csv(file, parse_options=parse).schema.names
    file.seek(0)
    # Read as text, because Arrow infers a column's type from only the first megabyte.
    kinds = pa.csv.ConvertOptions(
        column_types=dict.fromkeys(names, pa.string()), null_values=list(missing_values), strings_can_be_null=True
    )
    return pa.csv.read_csv(file, parse_options=parse, convert_options=kinds)


def _to_column(values: "pa.ChunkedArray", where: str, *, parse: bool) -> Column:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.types as kinds

    kind = values.type
    if kinds.is_dictionary(kind):
        values = values.cast(kind.value_type)
        kind = values.type
    if kinds.is_string(kind) or kinds.is_large_string(kind):
        for wanted in (pa.int64(), pa.float64()) if parse else ():
            try:
                return _to_column(pc.cast(pc.utf8_trim_whitespace(values), wanted), where, parse=False)
            except pa.ArrowInvalid:
                continue
    elif kinds.is_decimal(kind):
        values = values.cast(pa.float64())
    elif not (kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_boolean(kind) or kinds.is_null(kind)):
        raise ValueError(f"{where}: holds {kind}, wanted numbers, booleans or text. Leave it out with ignore=.")
    if kinds.is_integer(values.type) or kinds.is_floating(values.type):
        return np.asarray(values.to_numpy())
    coded = values.combine_chunks().dictionary_encode()
    if isinstance(coded, pa.ChunkedArray):
        coded = coded.combine_chunks()
    return Categories(coded.dictionary.to_pylist(), coded.indices.fill_null(-1).to_numpy().astype(np.int64))
