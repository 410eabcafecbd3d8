"""A batch has the dtype and shape of its column, in every format that has types, with all fast paths and without."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from drawing import equal

import loaderkit as lk
from loaderkit.system.stack import stack

DTYPES = [
    "bool",
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    "float16",
    "float32",
    "float64",
]
SHAPES = [(), (3,), (2, 3), (2, 1, 2)]
ROWS = 5


def arrow(array: Any) -> Any:
    """A table with the array as the column x: a fixed shape tensor if it has axes."""
    flat = pa.array(array.ravel())
    if array.ndim == 1:
        return pa.table({"x": flat})
    storage = pa.FixedSizeListArray.from_arrays(flat, math.prod(array.shape[1:]))
    return pa.table({"x": pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(flat.type, array.shape[1:]), storage)})


def parquet(folder: Path, array: Any) -> Any:
    pq.write_table(arrow(array), folder / "a.parquet", row_group_size=2)
    return lk.ParquetDataset(folder / "a.parquet")


def arrow_file(folder: Path, array: Any) -> Any:
    table = arrow(array)
    with pa.ipc.new_file(str(folder / "a.arrow"), table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    return lk.ParquetDataset(folder / "a.arrow")


def npy(folder: Path, array: Any) -> Any:
    np.save(folder / "a.npy", array)
    return lk.ZipDataset({"x": lk.NpyDataset(folder / "a.npy")})


def hdf5(folder: Path, array: Any) -> Any:
    with h5py.File(folder / "a.h5", "w") as file:
        file["x"] = array
    return lk.ArrayDataset({"x": h5py.File(folder / "a.h5")["x"]})


def zarr(folder: Path, array: Any) -> Any:
    return lk.ArrayDataset({"x": pytest.importorskip("zarr").array(array)})


def written(form: str) -> Callable[[Path, Any], Any]:
    def write(folder: Path, array: Any) -> Any:
        lk.write_shards([{"x": row} for row in array], folder / form, format=form, samples_per_shard=3, jobs=1)
        if form == "parquet":
            return lk.ParquetDataset(folder / form)
        return lk.TarDataset(folder / form, transform=lambda sample: {"x": sample["x.npy"]})

    return write


FORMATS: dict[str, Callable[[Path, Any], Any]] = {
    "Parquet": parquet,
    "Arrow": arrow_file,
    "npy": npy,
    "HDF5": hdf5,
    "Zarr": zarr,
    "write_shards, Parquet": written("parquet"),
    "write_shards, tar": written("tar"),
    "Arrow in memory": lambda _, array: lk.ArrayDataset({"x": arrow(array).column("x")}),
}


@pytest.mark.each_value
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("form", FORMATS)
def test_a_batch_has_the_dtype_and_shape_of_its_column(form: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    for dtype in DTYPES:
        if form == "write_shards, tar" and not shape and "int" in dtype:
            continue  # a text, as readers of WebDataset's layout expect
        array = (np.arange(ROWS * math.prod(shape)) % 7).astype(dtype).reshape(ROWS, *shape)
        folder = tmp_path / dtype
        folder.mkdir()
        data = FORMATS[form](folder, array)
        rows = [3, 0, 4, 4]
        wanted = torch.from_numpy(array[rows])
        assert len(data) == ROWS
        assert equal(stack([data[row]["x"] for row in rows]), wanted)
        for dataset in (data, lk.SubsetDataset(data, range(ROWS)), lk.MapDataset(data, dict)):
            batch = next(iter(lk.Loader(dataset, len(rows), order=rows)))
            assert equal(batch["x"], wanted), dtype
