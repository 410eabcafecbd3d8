"""Columns in memory: a batch is what the default collate makes of its samples, by one gather per column."""

import pickle
import tempfile
import tracemalloc
from collections import namedtuple
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from drawing import equal
from torch.utils.data import default_collate

import loaderkit as lk
from loaderkit.system.stack import stack

Row = namedtuple("Row", ["a", "b"])  # noqa: PYI024
SIZE = 11


with tempfile.TemporaryFile() as file:
    MAPPED = np.memmap(file, dtype=np.float32, mode="w+", shape=(SIZE, 2))
MAPPED[:] = np.arange(2 * SIZE).reshape(SIZE, 2)
TENSOR = torch.arange(SIZE * 6).reshape(SIZE, 2, 3)
COLUMNS: dict[str, Any] = {
    "tensor": TENSOR,
    "strided tensor": torch.arange(SIZE * 6).reshape(6, SIZE).T[:, ::2],
    "one axis": torch.arange(SIZE),
    "bool": torch.arange(SIZE) % 2 == 0,
    "float16": TENSOR.half(),
    "bfloat16": TENSOR.bfloat16(),
    "complex": TENSOR.to(torch.complex64),
    "numpy": np.arange(SIZE * 2).reshape(SIZE, 2),
    "numpy float16": np.arange(SIZE, dtype=np.float16),
    "numpy bool": (np.arange(SIZE) % 3 == 0).reshape(SIZE, 1),
    "numpy strided": np.arange(SIZE * 4)[::4][::-1],
    "numpy strings": np.array([f"row {number}" for number in range(SIZE)]),
    "memmap": MAPPED,
    "strings": [f"row {number}" for number in range(SIZE)],
    "numbers": [number * 0.5 for number in range(SIZE)],
    "range": range(SIZE),
    "numpy numbers": list(np.arange(SIZE, dtype=np.float32)),
    "truths": [number % 2 == 0 for number in range(SIZE)],
    "tuple": (TENSOR, np.arange(SIZE)),
    "list of columns": [TENSOR, np.arange(SIZE)],
    "dict": {"x": TENSOR, "y": np.arange(SIZE), "z": list("abcdefghijk")},
    "namedtuple": Row(TENSOR, np.arange(SIZE)),
    "nested": {"x": (TENSOR, {"y": np.arange(SIZE)}), "z": Row(TENSOR.float(), MAPPED)},
}


def as_torch(batch: Any) -> Any:
    """The default collate's tuples are lists; it keeps numpy's own strings, which equal ours."""
    if isinstance(batch, dict):
        return {name: as_torch(part) for name, part in batch.items()}
    if isinstance(batch, tuple):
        parts = [as_torch(part) for part in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else parts
    if isinstance(batch, list):
        return [str(part) if isinstance(part, np.str_) else part for part in batch]
    return batch


def batch_of(data: Any, rows: Any) -> Any:
    return next(iter(lk.Loader(data, len(rows), order=lk.Subset(rows))))


@pytest.mark.parametrize("name", COLUMNS)
def test_a_batch_is_the_default_collate_of_its_samples(name: str) -> None:
    data = lk.ArrayDataset(COLUMNS[name])
    assert len(data) == SIZE
    rows = np.array([7, 0, 10, 7])
    wanted = as_torch(default_collate([data[int(row)] for row in rows]))
    assert equal(as_torch(batch_of(data, rows)), wanted)
    many = data.__getitems__(rows.tolist())
    assert len(many) == 4
    assert equal(as_torch(default_collate(many)), wanted)
    loader = lk.Loader(data, 4, order=lk.Subset(rows))
    assert equal(as_torch(next(iter(loader))), wanted)
    with_collate = lk.Loader(data, 4, order=lk.Subset(rows), collate_fn=default_collate)
    assert equal(as_torch(next(iter(with_collate))), wanted)
    copy = pickle.loads(pickle.dumps(data))
    assert copy.fingerprint() == data.fingerprint()
    assert equal(as_torch(batch_of(copy, rows)), wanted)


@pytest.mark.parametrize("column", [[1, 0.1, 2], [0.1, 1, 2], [1, np.float32(0.5), 2], np.arange(3, dtype=">i4")])
def test_a_batch_has_the_dtype_of_the_samples_stacked(column: Any) -> None:
    data = lk.ArrayDataset({"x": column})
    for rows in ([0, 1], [1, 0], [2, 0]):
        assert equal(batch_of(data, rows)["x"], stack([data[row]["x"] for row in rows]))


def test_indices_count_from_the_end_and_stop_there() -> None:
    data = lk.ArrayDataset(torch.arange(SIZE))
    assert data[-1] == SIZE - 1
    for index in (SIZE, -SIZE - 1):
        with pytest.raises(IndexError, match=f"index {index} in a dataset of 11 samples"):
            data[index]


@pytest.mark.parametrize(
    ("given_columns", "error", "message"),
    [
        ((torch.ones(3), np.ones(1200)), ValueError, "0 has 3, 1 has 1,200; wanted columns of one length"),
        ({"x": torch.ones(3), "y": {"z": [1]}}, ValueError, "x has 3, y.z has 1"),
        ((), ValueError, "no columns found"),
        (torch.tensor(3), ValueError, "a column without rows"),
        ({"x": 3}, TypeError, "a column of type int"),
        ("rows.npy", TypeError, "found the text 'rows.npy', wanted .* For files: loaderkit.NpyDataset"),
        (pd.DataFrame({"x": [1, 2]}), TypeError, "a column of type DataFrame, .*ArrayDataset\\(dict\\(frame.items"),
    ],
)
def test_columns_that_do_not_fit_are_refused(given_columns: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        lk.ArrayDataset(given_columns)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.uint16, torch.bool])
def test_a_fingerprint_tells_values_shapes_and_dtypes_apart(dtype: torch.dtype) -> None:
    base = torch.arange(40).remainder(2).to(dtype)
    changed = base.clone()
    changed[0] = True
    others = [changed.roll(1), base.reshape(20, 2), base.to(torch.int64), base[:-1]]
    found = [lk.ArrayDataset(column).fingerprint() for column in (base, *others)]
    assert len(set(found)) == len(found)
    assert lk.ArrayDataset(base.clone()).fingerprint() == found[0]


def test_an_empty_column_is_a_dataset_of_no_samples() -> None:
    data = lk.ArrayDataset(torch.ones(0, 3))
    assert len(data) == 0
    assert data.fingerprint() == lk.ArrayDataset(torch.ones(0, 3)).fingerprint()
    with pytest.warns(UserWarning, match="no batches in epoch 0: 0 samples"):
        assert list(lk.Loader(data)) == []


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64])
def test_unsigned_columns_keep_their_dtype(dtype: torch.dtype) -> None:
    column = torch.arange(40).reshape(10, 4).to(dtype)
    batch = lk.ArrayDataset(column).read_batch(np.array([9, 0, 3]))
    assert batch.dtype == dtype
    assert batch.tolist() == [column[9].tolist(), column[0].tolist(), column[3].tolist()]


def jitter(sample: tuple[torch.Tensor, int]) -> tuple[torch.Tensor, int]:
    return sample[0] + torch.rand(2) + float(lk.sample_rng().random()), sample[1]


def test_a_transform_draws_the_samples_own_numbers() -> None:
    """The draws do not depend on batch size or workers, and the fingerprint is that of the columns."""
    columns = (torch.arange(24.0).reshape(12, 2), list(range(12)))
    plain, moved = lk.ArrayDataset(columns), lk.ArrayDataset(columns, transform=jitter)
    assert moved.fingerprint() == plain.fingerprint()
    batches = list(lk.Loader(moved, 5, shuffle=True))
    assert [len(batch[1]) for batch in batches] == [5, 5, 2]
    whole = [torch.cat([batch[column] for batch in batches]) for column in (0, 1)]
    for settings in ({"batch_size": 3}, {"batch_size": 5, "num_workers": 2}):
        again = list(lk.Loader(moved, shuffle=True, **settings))
        assert all(torch.equal(torch.cat([batch[column] for batch in again]), whole[column]) for column in (0, 1))
    assert not torch.equal(whole[0], columns[0][whole[1]])


@pytest.mark.parametrize("width", [1, 100])
@pytest.mark.parametrize("size", [1, 7, 64])
def test_rows_of_any_length_are_copied(width: int, size: int) -> None:
    """Numpy copies short rows, torch longer ones."""
    tensor = torch.randn(50, width, dtype=torch.float64)
    rows = np.random.default_rng(size).integers(0, 50, size)
    for column in (tensor, tensor.numpy()):
        data = lk.ArrayDataset(column)
        batch = data.read_batch(rows)
        assert batch.is_contiguous()
        assert torch.equal(batch, tensor[torch.from_numpy(rows)])
        batch += 1
        assert not torch.equal(batch, data.read_batch(rows))
        for outside in (50, -51):
            with pytest.raises(IndexError, match=r"out of (range|bounds)"):
                data.read_batch(np.array([0, outside]))


def test_a_strided_column_is_not_copied_as_a_whole() -> None:
    """`np.take` would copy it for each batch."""
    data = lk.ArrayDataset(np.zeros((20_000, 64))[:, ::2])
    tracemalloc.start()
    data.read_batch(np.arange(4))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100_000


def test_a_column_may_be_moved_to_shared_memory() -> None:
    """Torch does so when a row leaves a worker; an old numpy view would read freed memory."""
    tensor = torch.arange(50)
    data = lk.ArrayDataset(tensor)
    tensor.share_memory_()
    torch.full((1000,), -1)
    assert data.read_batch(np.array([3, 49])).tolist() == [3, 49]
