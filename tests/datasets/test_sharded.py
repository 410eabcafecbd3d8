"""Shards with an index: handles, index files and changes, over a format of single bytes."""

import copy
import io
import multiprocessing
import os
import pickle
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from drawing import equal
from leftovers import free_what_threads_had
from shards import SIZES, check_laws, check_reads, with_draws

import loaderkit as lk
from loaderkit.datasets.shards.index import ShardIndex, beside_path, index_path
from loaderkit.datasets.shards.sharded import ShardedDataset
from loaderkit.system.arrays import Int64Array


class ByteFile:
    alive: ClassVar[set["ByteFile"]] = set()
    most: ClassVar[int] = 0

    def __init__(self, shard: str) -> None:
        self.pid = os.getpid()
        self.file = Path(shard).open("rb")  # noqa: SIM115 - closed by close()
        self.alive.add(self)
        ByteFile.most = max(ByteFile.most, len(self.alive))

    def close(self) -> None:
        self.file.close()
        self.alive.discard(self)


class Bytes(ShardedDataset):
    kind = "bytes-1"
    suffixes = (".bin",)
    scans: ClassVar[list[str]] = []

    def scan(self, shard: str) -> tuple[int, Int64Array | None]:
        self.scans.append(shard)
        return Path(shard).stat().st_size, None

    def open(self, shard: str, index: ShardIndex) -> ByteFile:
        return ByteFile(shard)

    def read(self, handle: ByteFile, rows: Int64Array, index: ShardIndex) -> list[Any]:
        assert handle.pid == os.getpid(), "a handle of another process"
        found = []
        for row in rows.tolist():
            handle.file.seek(row)
            found.append(handle.file.read(1)[0])
        return found


@pytest.fixture(autouse=True)
def _fresh() -> None:
    ByteFile.alive.clear()
    ByteFile.most = 0
    Bytes.scans.clear()


def write(folder: Path, sizes: list[int]) -> list[int]:
    values = list(range(sum(sizes)))
    rest = list(values)
    for shard, size in enumerate(sizes):
        mine, rest = rest[:size], rest[size:]
        (folder / f"{shard:03}.bin").write_bytes(bytes(mine))
    return values


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("max_open", [1, 8])
def test_samples_lie_in_shards_one_after_another(sizes: list[int], max_open: int, tmp_path: Path) -> None:
    wanted = write(tmp_path, sizes)
    data = Bytes(tmp_path, max_open=max_open)
    check_reads(data, wanted)
    assert data.shard_sizes.tolist() == sizes
    assert 0 < ByteFile.most <= max_open
    data.close()
    assert not ByteFile.alive
    assert data[0] == wanted[0]
    del data
    free_what_threads_had()
    assert not ByteFile.alive


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_the_laws(sizes: list[int], tmp_path: Path) -> None:
    write(tmp_path, sizes)
    check_laws(lambda: Bytes(tmp_path, transform=with_draws), int)


def test_the_shard_used_longest_ago_is_closed(tmp_path: Path) -> None:
    write(tmp_path, [1, 1, 1])
    data = Bytes(tmp_path, max_open=2)
    for index in (0, 1, 0, 2):
        assert data[index] == index
    assert sorted(Path(handle.file.name).name for handle in ByteFile.alive) == ["000.bin", "002.bin"]


def test_open_handles_are_not_pickled(tmp_path: Path) -> None:
    wanted = write(tmp_path, [3, 2])
    data = Bytes(tmp_path)
    check_reads(data, wanted)
    copy = pickle.loads(pickle.dumps(data))
    assert len(ByteFile.alive) == 2
    check_reads(copy, wanted)
    assert len(ByteFile.alive) == 4
    assert copy.fingerprint() == data.fingerprint()


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_workers_open_their_own(method: str, tmp_path: Path) -> None:
    """`read` checks it."""
    wanted = write(tmp_path, [40, 40])
    data = Bytes(tmp_path)
    assert data[0] == 0
    assert data[50] == 50
    loader = lk.Loader(data, 4, num_workers=2, multiprocessing_context=method)
    assert torch.cat(list(loader)).tolist() == wanted
    assert len(ByteFile.alive) == 2  # those of this process, still usable
    assert data[79] == 79


def test_each_thread_opens_its_own_and_they_are_closed_when_it_ends(tmp_path: Path) -> None:
    wanted = write(tmp_path, [3, 2, 2])
    data = Bytes(tmp_path, max_open=8)
    check_reads(data, wanted)
    mine = set(ByteFile.alive)
    assert len(mine) == 3
    with ThreadPoolExecutor(3) as pool:
        barrier = threading.Barrier(3)

        def read_all(_: int) -> tuple[list[Any], int]:
            found = data.__getitems__(range(len(wanted)))
            barrier.wait(60)
            alive = len(ByteFile.alive)
            barrier.wait(60)
            return found, alive

        for found, alive in pool.map(read_all, range(3)):
            assert found == wanted
            assert 3 + 3 <= alive <= 8 + 3  # all threads share max_open, and each may have one
    assert ByteFile.alive == mine
    data.close()
    assert not ByteFile.alive


def test_what_threads_have_open_is_closed_with_the_dataset(tmp_path: Path) -> None:
    write(tmp_path, [3, 2])
    kept = [Bytes(tmp_path)]
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(lambda: kept[0][0]).result(60) == kept[0][0]
        assert len(ByteFile.alive) == 2
        kept.clear()
        free_what_threads_had()
        assert not ByteFile.alive


def test_a_copy_opens_its_own(tmp_path: Path) -> None:
    wanted = write(tmp_path, [3, 2])
    data = Bytes(tmp_path)
    check_reads(data, wanted)
    other = copy.copy(data)
    check_reads(other, wanted)
    assert len(ByteFile.alive) == 4
    other.close()
    assert len(ByteFile.alive) == 2


def read_in_child(data: Bytes, results: Any) -> None:
    results.put(data.__getitems__(range(len(data))))


def test_a_fork_amid_another_threads_read_does_not_wait_for_it(tmp_path: Path) -> None:
    """Closing that thread's file would: its buffer's lock is held by a thread that the child lacks."""
    wanted = write(tmp_path, [3, 2])
    data = Bytes(tmp_path)
    reading, end = threading.Event(), threading.Event()

    class Slow(io.RawIOBase):
        def readable(self) -> bool:
            return True

        def readinto(self, buffer: Any) -> int:
            reading.set()
            end.wait(60)
            return 0

    def read_slowly() -> None:
        handle = data.handle(0)
        handle.file.close()
        handle.file = io.BufferedReader(Slow())
        handle.file.read(1)

    thread = threading.Thread(target=read_slowly)
    thread.start()
    try:
        assert reading.wait(60)
        context = multiprocessing.get_context("fork")
        results = context.SimpleQueue()
        process = context.Process(target=read_in_child, args=(data, results))
        process.start()
        process.join(60)
        assert process.exitcode == 0
        assert results.get() == wanted
    finally:
        end.set()
        thread.join(60)


class Wrapped:
    """A user's own dataset around one of ours."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[index]


def test_single_reads_draw_for_the_sample_that_is_read(tmp_path: Path) -> None:
    """They do not depend on the batch."""
    write(tmp_path, [6])
    data = Wrapped(Bytes(tmp_path, transform=with_draws))
    runs = [[entry for batch in lk.Loader(data, size, collate_fn=list) for entry in batch] for size in (2, 3)]
    assert len(runs[0]) == 6
    assert equal(runs[0], runs[1])
    assert len({tuple(entry["draws"].tolist()) for entry in runs[0]}) == 6


def test_an_index_is_made_once(tmp_path: Path) -> None:
    write(tmp_path, [3, 2])
    for _ in range(2):
        Bytes(tmp_path)
        assert len(Bytes.scans) == 2
    assert len(list(tmp_path.iterdir())) == 2
    for number in range(2):
        beside_path(str(tmp_path / f"{number:03}.bin")).write_bytes(b"")
    Bytes(str(tmp_path / "*.bin*"))  # index files are no shards
    assert len(Bytes.scans) == 2


def test_an_index_may_lie_in_another_folder(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    wanted = write(tmp_path / "data", [3, 2])
    for _ in range(2):
        check_reads(Bytes(tmp_path / "data", index_dir=tmp_path / "index"), wanted)
    assert len(Bytes.scans) == 2
    assert len(list((tmp_path / "index").iterdir())) == 2
    assert len(list((tmp_path / "data").iterdir())) == 2


@pytest.mark.parametrize("change", ["size", "time"])
def test_a_changed_shard_is_said_and_indexed_again(change: str, tmp_path: Path) -> None:
    write(tmp_path, [3, 2, 2])
    before = Bytes(tmp_path)
    shard = tmp_path / "001.bin"
    if change == "size":
        shard.write_bytes(b"abc")
    else:
        os.utime(shard, ns=(0, 12345))
    with pytest.warns(
        UserWarning, match=r"1 of 3 shards have changed since they were indexed, the first is .*001\.bin"
    ):
        data = Bytes(tmp_path)
    assert Bytes.scans[3:] == [str(shard)]
    assert data.shard_sizes.tolist() == [3, 3 if change == "size" else 2, 2]
    assert (before.fingerprint() == data.fingerprint()) == (change == "time")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Bytes(tmp_path)
    assert len(Bytes.scans) == 4


def test_another_formats_index_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, [3])
    Bytes(tmp_path)
    monkeypatch.setattr(Bytes, "kind", "bytes-2")
    assert len(Bytes(tmp_path)) == 3
    assert len(Bytes.scans) == 2


def test_a_damaged_index_is_named(tmp_path: Path) -> None:
    write(tmp_path, [3])
    Bytes(tmp_path)
    file = index_path(str(tmp_path / "000.bin"), None)
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(
        lk.ShardError, match=r"000\.bin\.lkindex: not a whole index file \(its checksum differs\)\. Delete it"
    ):
        Bytes(tmp_path)


def test_the_fingerprint_knows_names_and_counts_but_not_the_folder(tmp_path: Path) -> None:
    prints = []
    for name, sizes in (("a", [3, 2]), ("b", [3, 2]), ("c", [2, 3]), ("d", [3, 2, 0])):
        (tmp_path / name).mkdir()
        write(tmp_path / name, sizes)
        prints.append(Bytes(tmp_path / name).fingerprint())
    assert prints[0] == prints[1]
    assert len(set(prints)) == 3


def test_a_folder_that_cannot_be_written_to_says_what_to_do(tmp_path: Path) -> None:
    write(tmp_path, [3])
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OSError, match="file") as raised:
        Bytes(tmp_path, index_dir=tmp_path / "file")
    assert "index_dir=..." in raised.value.__notes__[0]


def test_settings_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="max_open is 0, wanted at least 1"):
        Bytes("x", max_open=0)


def test_only_empty_shards_are_an_empty_dataset(tmp_path: Path) -> None:
    write(tmp_path, [0, 0])
    data = Bytes(tmp_path)
    assert len(data) == 0
    assert data.__getitems__([]) == []
    with pytest.raises(IndexError, match="index 0 in a dataset of 0 samples"):
        data[0]


def test_indices_may_be_an_array(tmp_path: Path) -> None:
    write(tmp_path, [2, 3])
    assert Bytes(tmp_path).__getitems__(np.array([4, 0])) == [4, 0]  # type: ignore[arg-type]
