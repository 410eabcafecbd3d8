"""Tables in files: the rows that pyarrow's own to_pylist gives, whatever the file's kind and its row groups."""

import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
import torch
from drawing import equal
from shards import SIZES, check_laws, with_draws

import loaderkit as lk
from loaderkit.datasets.base import reads_batches
from loaderkit.datasets.shards.index import index_path
from loaderkit.system.stack import stack

KINDS = ["parquet", "arrow", "stream", "feather"]


def table(start: int, size: int) -> pa.Table:
    ids = list(range(start, start + size))
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "text": [None if i % 5 == 1 else f"é {i}" for i in ids],
            "tokens": pa.array([list(range(i % 4)) for i in ids], pa.list_(pa.uint16())),
            "holes": pa.array([None if i % 3 == 0 else [None] * (i % 2) + [i] for i in ids], pa.list_(pa.int32())),
            "fixed": pa.array([[i, i + 0.5] for i in ids], pa.list_(pa.float32(), 2)),
            "nested": [[{"a": [i]}] for i in ids],
            "words": pa.array([["a", "b"][: i % 3] for i in ids], pa.list_(pa.string())),
            "kind": pa.array([f"k{i % 2}" for i in ids], pa.string()).dictionary_encode(),
        }
    )


def write_table(path: Path, data: pa.Table, kind: str, group: int = 3) -> None:
    if kind == "parquet":
        pq.write_table(data, path, row_group_size=group, write_page_checksum=True)
    elif kind == "feather":
        feather.write_feather(data, str(path), compression="lz4", chunksize=group)
    else:
        new = pa.ipc.new_file if kind == "arrow" else pa.ipc.new_stream
        with new(str(path), data.schema) as writer:
            writer.write_table(data, max_chunksize=group)


def write(folder: Path, sizes: list[int], kind: str = "parquet", group: int = 3) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for shard, size in enumerate(sizes):
        data = table(len(rows), size)
        write_table(folder / f"{shard:03}.{'arrow' if kind == 'stream' else kind}", data, kind, group)
        rows += data.to_pylist()
    return rows


def plain(value: Any) -> Any:
    """Arrays as lists, to compare with to_pylist."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, list):
        return [plain(row) for row in value]
    return {name: plain(part) for name, part in value.items()} if isinstance(value, dict) else value


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sizes", SIZES[1::3], ids=str)
@pytest.mark.parametrize("group", [1, 4, 100])
def test_the_samples_are_the_rows(sizes: list[int], kind: str, group: int, tmp_path: Path) -> None:
    wanted = write(tmp_path, sizes, kind, group)
    data = lk.ParquetDataset(tmp_path, max_open=2)
    assert len(data) == len(wanted) > 0
    assert data.shard_sizes.tolist() == sizes
    assert plain([data[index] for index in range(len(wanted))]) == wanted
    many = [*reversed(range(len(wanted))), 0, len(wanted) - 1, 0]
    assert plain(data.__getitems__(many)) == [wanted[index] for index in many]
    assert data.__getitems__([]) == []
    some = lk.ParquetDataset(tmp_path, ["text", "id"])
    assert some.__getitems__([0]) == [{"text": wanted[0]["text"], "id": 0}]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_the_laws(sizes: list[int], tmp_path: Path) -> None:
    write(tmp_path, sizes)
    check_laws(lambda: lk.ParquetDataset(tmp_path, transform=with_draws), lambda row: int(row["id"]))


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_views_are_read(kind: str, tmp_path: Path) -> None:
    """Arrow files that Polars writes have them, and Arrow takes no rows of them."""
    text = pa.array([None if i == 2 else f"text {i} of more than twelve bytes" for i in range(7)], pa.string_view())
    nested = pa.array([[{"a": row}] for row in text.to_pylist()], pa.list_(pa.struct({"a": pa.string_view()})))
    data = pa.table({"text": text, "data": text.cast(pa.binary_view()), "nested": nested})
    data = data if kind == "arrow" else data.drop_columns("nested")  # which Parquet does not take
    write_table(tmp_path / f"a.{kind}", data, kind)
    read = lk.ParquetDataset(tmp_path / f"a.{kind}")
    rows = [6, 0, 2, 2, 1]
    assert read.__getitems__(rows) == [data.to_pylist()[row] for row in rows]


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_has_the_same_types_in_any_batch(kind: str, tmp_path: Path) -> None:
    """A list is an array by what it holds itself, not by what its neighbours hold."""
    write(tmp_path, [12], kind)
    data = lk.ParquetDataset(tmp_path)
    for alone, among in zip([data[index] for index in range(12)], data.__getitems__(range(12)), strict=True):
        assert {name: type(value) for name, value in alone.items()} == {name: type(v) for name, v in among.items()}
    assert data[3]["tokens"].dtype == np.uint16
    assert data[4]["fixed"].dtype == np.float32
    assert [type(data[index]["holes"]) for index in (0, 1, 2)] == [type(None), list, np.ndarray]
    assert data[2]["holes"].dtype == np.int32
    data[3]["tokens"][:] = 9  # a copy, and writable
    assert data[3]["tokens"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("kind", KINDS)
def test_a_cut_file_is_named_wherever_it_is_cut(kind: str, tmp_path: Path) -> None:
    """Also when its index is there."""
    path = tmp_path / "a.arrow"
    write_table(path, table(0, 9), kind)
    lk.ParquetDataset(path)
    content = path.read_bytes()
    size = len(content)
    for cut in (0, 1, 4, 8, 100, size // 3, size // 2, size - 20, size - 9, size - 1):
        path.write_bytes(content[:cut])
        index_path(str(path), None).unlink(missing_ok=True)
        if kind == "stream" and cut >= size - 9:
            continue  # a stream's end mark may be missing
        with pytest.raises(lk.ShardError, match=r"a\.arrow: "):
            list(lk.ParquetDataset(path).__getitems__(range(9)))


@pytest.mark.parametrize(
    "content",
    [b"", b"PAR1", b"PAR1" * 20, b"ARROW1\0\0" + b"\0" * 50, b"\xff" * 80, b"PK\3\4" + b"a" * 50, b"id,text\n"],
)
def test_what_is_no_table_is_named(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(content)
    with pytest.raises(lk.ShardError, match=r"a\.parquet: "):
        lk.ParquetDataset(tmp_path)


def test_a_broken_page_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(
        pa.table({"id": range(1000)}), path, write_page_checksum=True, compression="none", use_dictionary=False
    )
    content = bytearray(path.read_bytes())
    content[2000] ^= 0xFF
    path.write_bytes(bytes(content))
    data = lk.ParquetDataset(path)
    for workers in (0, 1):
        with pytest.raises(lk.ShardError, match=r"a\.parquet: row group 0 can't be read"):
            list(lk.Loader(data, 4, num_workers=workers))


def test_a_missing_or_doubled_column_is_named(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1], "b": [2]}), tmp_path / "0.parquet")
    pq.write_table(pa.table({"b": [3]}), tmp_path / "1.parquet")
    with pytest.raises(lk.ShardError, match=r"1\.parquet: lacks the column 'a' \(int64\), which .*columns=\['b'\]"):
        lk.ParquetDataset(tmp_path)
    with pytest.raises(lk.ShardError, match=r"0\.parquet: has the columns \['a', 'b'\], wanted \['c'\]"):
        lk.ParquetDataset(tmp_path, ["c"])
    assert lk.ParquetDataset(tmp_path, ["b"]).__getitems__([1, 0]) == [{"b": 3}, {"b": 2}]
    pq.write_table(pa.table([[1], [2]], names=["a", "a"]), tmp_path / "0.parquet")
    with pytest.raises(lk.ShardError, match=r"0\.parquet: has the columns"):
        lk.ParquetDataset(tmp_path / "0.parquet", ["a"])


def test_a_remote_file_is_read_alike(tmp_path: Path) -> None:
    import fsspec

    storage = lk.Storage(cache_dir=tmp_path / "cache")
    files = fsspec.filesystem("memory")
    for kind in KINDS:
        write_table(tmp_path / "a", table(0, 9), kind)
        files.pipe(f"/tables/{kind}.parquet", (tmp_path / "a").read_bytes())
        data = lk.ParquetDataset(f"memory://tables/{kind}.parquet", index_dir=tmp_path / "index", storage=storage)
        assert plain(data.__getitems__(range(9))) == table(0, 9).to_pylist()


def test_the_fingerprint_knows_the_columns(tmp_path: Path) -> None:
    write(tmp_path, [9])
    assert lk.ParquetDataset(tmp_path).fingerprint() != lk.ParquetDataset(tmp_path, ["id"]).fingerprint()


def test_settings_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="cached_groups is 0"):
        lk.ParquetDataset("x", cached_groups=0)
    with pytest.raises(ValueError, match="columns is 'id', wanted a list"):
        lk.ParquetDataset("x", "id")


def plain_table(start: int, size: int) -> pa.Table:
    """Of what makes default batches."""
    ids = list(range(start, start + size))
    more = {
        "number": pa.array([i / 3 for i in ids], pa.float32()),
        "flag": pa.array([i % 3 == 0 for i in ids], pa.bool_()),
        "bytes": pa.array([bytes([i % 256]) for i in ids], pa.binary()),
        "small": pa.array([i % 100 for i in ids], pa.uint8()),
        "tokens": pa.array([list(range(i, i + i % 4)) for i in ids], pa.large_list(pa.uint16())),
    }
    made = table(start, size).select(["id", "fixed", "kind"])
    for name, column in more.items():
        made = made.append_column(name, column)
    return made


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sizes", SIZES[1::3], ids=str)
@pytest.mark.parametrize("group", [1, 4, 100])
def test_a_batch_at_once_is_the_collated_samples(sizes: list[int], kind: str, group: int, tmp_path: Path) -> None:
    for shard, size in enumerate(sizes):
        path = tmp_path / f"{shard:03}.{'arrow' if kind == 'stream' else kind}"
        write_table(path, plain_table(sum(sizes[:shard]), size), kind, group)
    names = ["id", "fixed", "kind", "number", "flag", "bytes", "small"]
    data = lk.ParquetDataset(tmp_path, names, max_open=2, cached_groups=3)
    ragged = lk.ParquetDataset(tmp_path, ["tokens", "id"], ragged=True)
    size = sum(sizes)
    for indices in (np.arange(size), np.arange(size)[::-1], np.array([0, size - 1, 0])):
        samples = data.__getitems__(indices.tolist())
        assert list(samples[0]) == names
        assert equal(data.read_batch(indices), stack(samples))
        batch = ragged.read_batch(indices)
        lists = [sample["tokens"] for sample in ragged.__getitems__(indices.tolist())]
        assert equal(
            [row.numpy() for row in batch["tokens"].values.split(batch["tokens"].offsets.diff().tolist())], lists
        )
        assert batch["id"].tolist() == indices.tolist()


NUMBERS = [
    "bool",
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    "float16",
    "float32",
    "float64",
]
SHAPES = [(), (3,), (2, 3), (2, 2, 2)]
ROWS = 5


def tensors(array: Any) -> Any:
    """An Arrow column of fixed shape tensors, of an array (N, *shape); before Arrow has them of booleans."""
    flat = pa.array(array.ravel())
    kind = pa.fixed_shape_tensor(flat.type, array.shape[1:])
    return pa.ExtensionArray.from_storage(kind, pa.FixedSizeListArray.from_arrays(flat, array[0].size))


def nested(array: Any, sizes: tuple[int, ...]) -> Any:
    """An Arrow column of lists in lists, of an array (N, *shape). A size of -1 makes an axis of lists of any size."""
    column = pa.array(array.ravel())
    for size, inner in reversed(list(zip(sizes, array.shape[1:], strict=True))):
        if size == -1:
            column = pa.ListArray.from_arrays(np.arange(0, len(column) + 1, inner, dtype=np.int32), column)
        else:
            column = pa.FixedSizeListArray.from_arrays(column, size)
    return column


FORMS: dict[str, Any] = {  # of an array (N, *shape) with a shape
    "tensors": tensors,
    "lists": lambda array: nested(array, (-1,) * (array.ndim - 1)),
    "fixed lists": lambda array: nested(array, array.shape[1:]),
    "lists of fixed lists": lambda array: nested(array, (-1, *array.shape[2:])),
}


def forms() -> list[Any]:
    return [(form, shape) for form in FORMS for shape in SHAPES if shape or form == "lists"]


def with_null(column: Any) -> Any:
    """A column with a null after its rows."""
    return pa.concat_arrays([column, pa.nulls(1, column.type)])


def need_fixed_lists_with_nulls() -> None:
    if int(pa.__version__.split(".")[0]) < 25:
        pytest.skip(f"pyarrow {pa.__version__} refuses Parquet's lists of a fixed size that have nulls")


@pytest.mark.parametrize("with_nulls", [False, True])
@pytest.mark.parametrize("kind", ["parquet", "arrow"])
@pytest.mark.parametrize(("form", "shape"), forms(), ids=str)
def test_rows_and_batches_have_the_dtype_and_shape_of_a_column(
    form: str, shape: tuple[int, ...], kind: str, with_nulls: bool, tmp_path: Path
) -> None:
    """Whether the batch is read at once or collated, and whatever other rows hold."""
    if with_nulls and kind == "parquet" and form in ("tensors", "fixed lists"):
        need_fixed_lists_with_nulls()
    arrays = {dtype: (np.arange(ROWS * math.prod(shape)) % 7).astype(dtype).reshape(ROWS, *shape) for dtype in NUMBERS}
    columns = {dtype: FORMS[form](array) for dtype, array in arrays.items()}
    columns = {dtype: with_null(column) if with_nulls else column for dtype, column in columns.items()}
    write_table(tmp_path / f"a.{kind}", pa.table(columns), kind, group=2)
    data = lk.ParquetDataset(tmp_path / f"a.{kind}")
    rows = [3, 0, 4, 4]
    for index, row in enumerate(data[place] for place in range(ROWS)):
        for dtype, array in arrays.items():
            assert np.asarray(row[dtype]).dtype == dtype
            np.testing.assert_array_equal(row[dtype], array[index])
            assert isinstance(row[dtype], np.ndarray) == bool(shape)
    for read in (data, lk.ParquetDataset(tmp_path / f"a.{kind}", transform=dict)):
        batch = next(iter(lk.Loader(read, len(rows), order=rows)))
        assert equal(batch, stack([data[row] for row in rows]))
        for dtype, array in arrays.items():
            assert equal(batch[dtype], torch.from_numpy(array[rows]))
    if with_nulls:
        assert set(data[ROWS].values()) == {None}
        for read in (data, lk.ParquetDataset(tmp_path / f"a.{kind}", transform=dict)):
            with pytest.raises(ValueError, match=r"null|None"):
                next(iter(lk.Loader(read, 2, order=[0, ROWS])))


def test_a_permuted_tensor_has_its_logical_shape(tmp_path: Path) -> None:
    kind = pa.fixed_shape_tensor(pa.int16(), [2, 3], permutation=[1, 0])
    column = pa.ExtensionArray.from_storage(kind, pa.FixedSizeListArray.from_arrays(pa.array(range(24), pa.int16()), 6))
    write_table(tmp_path / "a.arrow", pa.table({"x": column}), "arrow", group=2)
    data = lk.ParquetDataset(tmp_path / "a.arrow")
    batch = data.read_batch(np.array([3, 0]))["x"]
    assert equal(batch, torch.from_numpy(column.to_numpy_ndarray()[[3, 0]]))
    assert equal(batch, stack([data[3], data[0]])["x"])


def test_nulls_inside_of_arrays_are_refused(tmp_path: Path) -> None:
    """Of any depth; the rows are lists with None, or arrays of objects in their shape."""
    columns = {
        "fixed": pa.array([[[1, 2], [3, 4]], [[1, None], [3, 4]], [None, [3, 4]]], pa.list_(pa.list_(pa.int8(), 2), 2)),
        "tensor": pa.ExtensionArray.from_storage(
            pa.fixed_shape_tensor(pa.int8(), [2, 2]),
            pa.array([[1, 2, 3, 4], [1, None, 3, 4], None], pa.list_(pa.int8(), 4)),
        ),
    }
    for name, column in columns.items():
        write_table(tmp_path / f"{name}.arrow", pa.table({name: column}), "arrow")
        data = lk.ParquetDataset(tmp_path / f"{name}.arrow")
        assert data.read_batch(np.array([0, 0]))[name].tolist() == [[[1, 2], [3, 4]]] * 2
        for row in (1, 2):
            with pytest.raises(ValueError, match=f"column '{name}' has a null"):
                data.read_batch(np.array([0, row]))
        assert plain(data[1][name]) == [[1, None], [3, 4]]


def test_lists_of_different_lengths_in_a_row_are_a_list_of_arrays(tmp_path: Path) -> None:
    column = pa.array([[[1], [2, 3]], [[1, 2], [3, 4]], [], [None, [1]]], pa.list_(pa.list_(pa.uint8())))
    pq.write_table(pa.table({"x": column}), tmp_path / "a.parquet")
    uneven, even, empty, hole = [row["x"] for row in lk.ParquetDataset(tmp_path / "a.parquet")]
    assert [part.dtype for part in uneven] == [np.uint8, np.uint8]
    assert plain(uneven) == [[1], [2, 3]]
    assert even.dtype == empty.dtype == np.uint8
    assert (even.shape, empty.shape) == ((2, 2), (0, 0))
    assert plain(hole) == [None, [1]]


def test_numbers_in_structs_and_dictionaries_keep_their_dtype(tmp_path: Path) -> None:
    kind = pa.struct({"a": pa.float32(), "b": pa.list_(pa.uint8()), "c": pa.string()})
    made = {
        "struct": pa.array([{"a": 0.5, "b": [1, 2], "c": "x"}] * 2, kind),
        "structs": pa.array([[{"a": 0.5, "b": [1, 2], "c": "x"}]] * 2, pa.list_(kind)),
        "codes": pa.array([0.5, 0.5], pa.float32()).dictionary_encode(),
    }
    write_table(tmp_path / "a.arrow", pa.table(made), "arrow")
    batch = next(iter(lk.Loader(lk.ParquetDataset(tmp_path / "a.arrow"), 2)))
    for fields in (batch["struct"], batch["structs"][0]):
        assert equal(fields["a"], torch.tensor([0.5, 0.5]))
        assert equal(fields["b"], torch.tensor([[1, 2]] * 2, dtype=torch.uint8))
        assert fields["c"] == ["x", "x"]
    assert equal(batch["codes"], torch.tensor([0.5, 0.5]))


@pytest.mark.parametrize(
    "dtypes", [("int8", "int64"), ("uint8", "int16"), ("float16", "float32"), ("float32", "float64")]
)
def test_shards_of_different_widths_make_batches_of_the_wider(dtypes: tuple[str, str], tmp_path: Path) -> None:
    for shard, dtype in enumerate(dtypes):
        pq.write_table(pa.table({"x": np.arange(3).astype(dtype)}), tmp_path / f"{shard}.parquet")
    data = lk.ParquetDataset(tmp_path)
    for rows in ([0, 4], [4, 0], [1, 2], [5, 4]):
        assert equal(data.read_batch(np.array(rows)), stack([data[row] for row in rows]))


def test_batches_at_once_where_types_allow_them(tmp_path: Path) -> None:
    write(tmp_path, [12])
    assert reads_batches(lk.ParquetDataset(tmp_path, ["id", "text", "kind", "fixed"]))
    assert reads_batches(lk.ParquetDataset(tmp_path, ["tokens"], ragged=True))
    for columns in (["id", "tokens"], ["nested"], ["words"]):
        assert not reads_batches(lk.ParquetDataset(tmp_path, columns))
    assert not reads_batches(lk.ParquetDataset(tmp_path, ["words"], ragged=True))
    assert not reads_batches(lk.ParquetDataset(tmp_path, ["id"], transform=dict))


def test_a_batch_with_nulls_is_refused_and_one_without_is_read(tmp_path: Path) -> None:
    need_fixed_lists_with_nulls()
    columns = {
        "number": pa.array([1, None, 3]),
        "text": pa.array(["a", None, "c"]),
        "list": pa.array([[1], None, [3, 4]], pa.list_(pa.int16())),
        "inner": pa.array([[1, 2], [None], [3]], pa.list_(pa.int16())),
        "fixed": pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int16(), 2)),
        "holes": pa.array([[1, 2], [None, 5], [3, 4]], pa.list_(pa.int16(), 2)),
    }
    for name, column in columns.items():
        path = tmp_path / f"{name}.parquet"
        pq.write_table(pa.table({name: column}), path)
        data = lk.ParquetDataset(path, ragged=True)
        with pytest.raises(ValueError, match=f"column '{name}' has "):
            data.read_batch(np.array([2, 1]))
        found = data.read_batch(np.array([2, 0]))[name]
        wanted = [column[2].as_py(), column[0].as_py()]
        split = found.values.split(found.offsets.diff().tolist()) if isinstance(found, lk.Ragged) else found
        assert [row.tolist() if hasattr(row, "tolist") else row for row in split] == wanted


def test_a_shard_of_another_type_is_named(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1]}), tmp_path / "0.parquet")
    pq.write_table(pa.table({"a": ["x"]}), tmp_path / "1.parquet")
    with pytest.raises(lk.ShardError, match=r"1\.parquet: column 'a' is string, in .*0\.parquet it is int64"):
        lk.ParquetDataset(tmp_path)


def test_the_last_row_groups_of_all_files_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most `cached_groups`, whatever the number of files. A copy and a closed dataset have none."""
    write(tmp_path, [4, 4, 4], group=2)
    decoded: list[int] = []
    read = pq.ParquetFile.read_row_group

    def watched(self: Any, group: int, **settings: Any) -> Any:
        found = read(self, group, **settings)
        decoded.append(found["id"][0].as_py())
        return found

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", watched)
    data = lk.ParquetDataset(tmp_path, ["id"], cached_groups=4)

    def decoded_by(data: lk.ParquetDataset, *indices: int) -> list[int]:
        decoded.clear()
        assert data.read_batch(np.array(indices))["id"].tolist() == list(indices)
        return decoded.copy()

    assert decoded_by(data, 0, 2, 4, 8) == [0, 2, 4, 8]
    assert decoded_by(data, 1, 3, 5, 9) == []
    assert decoded_by(data, 10) == [10]  # drops the group of 0 and 1
    assert decoded_by(data, 2, 4, 8) == []
    assert decoded_by(data, 0) == [0]
    assert decoded_by(pickle.loads(pickle.dumps(data)), 0) == [0]
    data.close()
    assert decoded_by(data, 0) == [0]
    assert [row["id"] for batch in lk.Loader(data, 1, collate_fn=list) for row in batch] == list(range(12))
    assert decoded == [0, 2, 4, 6, 8, 10]
