"""Arrays in files: the rows of np.load, one file after another; a batch is one gather."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from drawing import equal
from shards import SIZES, check_laws, check_reads, with_draws

import loaderkit as lk
from loaderkit.datasets.base import reads_batches
from loaderkit.system.stack import stack


def write(folder: Path, sizes: list[int], row: tuple[int, ...] = (2,), dtype: str = "int32") -> list[Any]:
    samples: list[Any] = []
    for shard, size in enumerate(sizes):
        start = len(samples) * int(np.prod(row))
        values = np.arange(start, start + size * int(np.prod(row))).reshape(size, *row).astype(dtype)
        np.save(folder / f"{shard:03}.npy", np.asfortranarray(values) if shard % 2 else values)
        samples += list(values.astype(np.dtype(dtype).newbyteorder("=")))
    return samples


@pytest.mark.parametrize("dtype", ["int32", "uint16", "float16", ">f8", "bool", "complex64"])
@pytest.mark.parametrize("row", [(), (3,), (2, 2)], ids=str)
def test_the_samples_are_the_rows(row: tuple[int, ...], dtype: str, tmp_path: Path) -> None:
    wanted = write(tmp_path, [3, 0, 5, 1], row, dtype)
    data = lk.NpyDataset(tmp_path)
    check_reads(data, wanted)
    indices = np.array([8, 0, 3, 8, 2])
    assert equal(data.read_batch(indices), stack([wanted[index] for index in indices]))
    assert equal(next(iter(lk.Loader(data, 9))), stack(wanted))


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_the_laws(sizes: list[int], tmp_path: Path) -> None:
    wanted = write(tmp_path, sizes)
    check_reads(lk.NpyDataset(tmp_path, max_open=1), wanted)
    check_laws(lambda: lk.NpyDataset(tmp_path, transform=with_draws), lambda row: int(row[0]) // 2)
    batches = list(lk.Loader(lk.NpyDataset(tmp_path), 4, shuffle=True, num_workers=1))
    assert sorted(torch.cat(batches)[:, 0].tolist()) == [row[0] for row in wanted]
    assert not list(tmp_path.glob("*.lkindex"))  # the header says it all


def test_batches_are_read_at_once_only_if_all_rows_have_one_shape(tmp_path: Path) -> None:
    write(tmp_path, [2], (2,))
    assert reads_batches(lk.NpyDataset(tmp_path))
    assert not reads_batches(lk.NpyDataset(tmp_path, transform=with_draws))
    np.save(tmp_path / "1.npy", np.ones((2, 3), np.int32))
    data = lk.NpyDataset(tmp_path)
    assert not reads_batches(data)
    assert [len(sample) for sample in data.__getitems__([0, 1, 2, 3])] == [2, 2, 3, 3]
    np.save(tmp_path / "1.npy", np.ones((0, 3)))
    assert reads_batches(lk.NpyDataset(tmp_path))  # no rows, no difference


def test_samples_and_batches_are_copies(tmp_path: Path) -> None:
    wanted = write(tmp_path, [4])
    data = lk.NpyDataset(tmp_path)
    data.read_batch(np.arange(4)).zero_()
    data[0][:] = 0
    check_reads(data, wanted)


def content(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


GOOD = content(np.arange(100))


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (b"", "not a whole .npy file"),
        (b"PK\3\4 something else", "not a whole .npy file"),
        (GOOD[:50], "not a whole .npy file"),
        (GOOD[:-1], "cut at byte 927, its header says 928 bytes"),
        (GOOD.replace(b"(100,)", b"(-10,)"), "has the shape"),
        (GOOD.replace(b"(100,)", b"(10**9"), "not a whole .npy file"),
        (GOOD.replace(b"(100,)", b"[100,]"), "not a whole .npy file"),
        (content(np.array([{}, None])), "holds object, wanted numbers"),
        (content(np.array(["a", "b"])), "holds <U1, wanted numbers"),
        (content(np.array(1.0)), "wanted at least one axis"),
    ],
)
def test_what_is_no_array_is_named(bad: bytes, message: str, tmp_path: Path) -> None:
    np.save(tmp_path / "0.npy", np.arange(3))
    (tmp_path / "bad.npy").write_bytes(bad)
    with pytest.raises(lk.ShardError, match=rf"bad\.npy: .*{message}"):
        lk.NpyDataset(tmp_path)


def test_remote_files_are_mapped_from_the_cache_and_only_from_it(tmp_path: Path) -> None:
    import fsspec

    fsspec.filesystem("memory").pipe("/npy/a.npy", GOOD)
    found = lk.NpyDataset("memory://npy/a.npy", storage=lk.Storage(cache_dir=tmp_path))
    assert len(found) == len(np.load(io.BytesIO(GOOD))) > 0
    with pytest.raises(lk.ShardError, match="a remote file, wanted a local one"):
        lk.NpyDataset("memory://npy/a.npy", storage=lk.Storage(cache_dir=None))


def test_the_fingerprint_knows_the_layout(tmp_path: Path) -> None:
    write(tmp_path, [4], (2,))
    first = lk.NpyDataset(tmp_path).fingerprint()
    write(tmp_path, [4], (3,))
    assert lk.NpyDataset(tmp_path).fingerprint() != first
