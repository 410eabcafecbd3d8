"""The cache shows whole shards alone, each downloaded once, and stays within its bound, whoever is killed in between."""

import errno
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

import pytest

from loaderkit.datasets import Cache

FORK = multiprocessing.get_context("fork")


def key(number: int) -> str:
    return f"{number:032x}"


def content(number: int, size: int = 1000) -> bytes:
    return bytes((number + place) % 251 for place in range(size))


def writes(number: int, log: Path | None = None, wait_s: float = 0.0, size: int = 1000) -> Callable[[BinaryIO], None]:
    def download(file: BinaryIO) -> None:
        if log is not None:
            with log.open("a") as lines:
                lines.write(f"{number}\n")
        file.write(content(number, size)[: size // 2])
        file.flush()
        time.sleep(wait_s)
        file.write(content(number, size)[size // 2 :])

    return download


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != "loaderkit.lock")


def test_a_shard_is_downloaded_once_and_read_again(tmp_path: Path) -> None:
    cache, log = Cache(tmp_path / "new" / "folder", 10**6), tmp_path / "log"
    for _ in range(3):
        with cache.open(key(1), 1000, writes(1, log)) as file:
            assert file.read() == content(1)
    assert log.read_text() == "1\n"
    assert names(cache.folder) == [key(1) + ".lkshard"]
    with cache.open(key(2), 0, lambda file: None) as file:
        assert file.read() == b""


def test_the_least_recently_opened_go_and_only_our_own(tmp_path: Path) -> None:
    (tmp_path / "mine.lkshard").write_bytes(bytes(5000))
    (tmp_path / f"{key(9)[:-1]}.lkshard").write_bytes(bytes(5000))
    (tmp_path / "sub").mkdir()
    target = tmp_path / "sub" / "linked"
    target.write_bytes(bytes(5000))
    (tmp_path / f"{key(8)}.lkshard").symlink_to(target)
    foreign = names(tmp_path)
    cache = Cache(tmp_path, 3000)
    for number in (1, 2, 3, 1, 4, 5):  # 1 is used again before 4 comes: 2 goes, then 3
        cache.open(key(number), 1000, writes(number)).close()
        time.sleep(0.02)
        kept = set(names(tmp_path)) - set(foreign)
        assert len(kept) <= 3
    assert kept == {key(number) + ".lkshard" for number in (1, 4, 5)}
    assert set(foreign) < set(names(tmp_path))
    assert target.stat().st_size == 5000


def test_an_open_shard_is_read_on_after_it_was_evicted(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 1000)
    with cache.open(key(1), 1000, writes(1)) as first:
        cache.open(key(2), 1000, writes(2)).close()
        assert names(tmp_path) == [key(2) + ".lkshard"]
        assert first.read() == content(1)


def race(folder: Path, log: Path, size_bytes: int, failed: "multiprocessing.Queue[str]") -> None:
    for number in (1, 2, 3, 4):
        with Cache(folder, size_bytes).open(key(number), 1000, writes(number, log, 0.02)) as file:
            if file.read() != content(number):
                failed.put(f"{number} is wrong")
        with Cache(folder, size_bytes)._locked():  # so that nobody evicts and reserves in between
            used = sum(path.stat().st_size for path in folder.glob("*.lkshard"))
        if used > size_bytes:
            failed.put(f"{used} bytes used")


@pytest.mark.parametrize("size_bytes", [10**6, 1500])
def test_processes_that_race_share_downloads_and_the_bound(tmp_path: Path, size_bytes: int) -> None:
    """With little space they wait for each other; with enough each shard is downloaded once."""
    folder, log = tmp_path / "cache", tmp_path / "log"
    folder.mkdir()
    failed: multiprocessing.Queue[str] = FORK.Queue()
    racers = [FORK.Process(target=race, args=(folder, log, size_bytes, failed)) for _ in range(4)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join(60)
        assert racer.exitcode == 0
    assert failed.empty(), failed.get()
    downloads = sorted(log.read_text().split())
    assert set(downloads) == {"1", "2", "3", "4"}
    if size_bytes > 4000:
        assert downloads == ["1", "2", "3", "4"]


def killed_at(folder: Path, place: str) -> None:
    """Kills itself at a place of the download."""

    def die(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    download = writes(1)
    if place == "before the first byte":
        download = die  # type: ignore[assignment]
    elif place == "in the middle":

        def download(file: BinaryIO) -> None:
            file.write(content(1)[:300])
            file.flush()
            die()

    elif place == "before it is visible":
        os.fsync = die  # type: ignore[assignment]
    elif place == "while space is taken":
        os.posix_fallocate = die  # type: ignore[assignment]
    Cache(folder, 2000).open(key(1), 1000, download)


@pytest.mark.parametrize(
    "place", ["before the first byte", "in the middle", "before it is visible", "while space is taken"]
)
def test_a_killed_download_hangs_nobody_and_leaves_nothing_that_is_used(tmp_path: Path, place: str) -> None:
    child = FORK.Process(target=killed_at, args=(tmp_path, place))
    child.start()
    child.join(60)
    assert child.exitcode == -signal.SIGKILL
    assert names(tmp_path) == [key(1) + ".lkpart"]
    with Cache(tmp_path, 2000).open(key(2), 2000, writes(2, size=2000)) as file:  # needs the space of the part
        assert file.read() == content(2, 2000)
    assert names(tmp_path) == [key(2) + ".lkshard"]
    with Cache(tmp_path, 2000).open(key(1), 1000, writes(1)) as file:
        assert file.read() == content(1)


def test_a_waiting_process_takes_over_from_a_killed_one(tmp_path: Path) -> None:
    def slow() -> None:
        Cache(tmp_path, 2000).open(key(1), 1000, writes(1, wait_s=60))

    child = FORK.Process(target=slow)
    child.start()
    part = tmp_path / (key(1) + ".lkpart")
    while not part.exists() or part.stat().st_size < 1000:
        time.sleep(0.01)
    other = FORK.Process(target=lambda: Cache(tmp_path, 2000).open(key(1), 1000, writes(1)).close())
    other.start()
    time.sleep(0.3)
    assert other.is_alive()  # it waits
    child.kill()
    other.join(60)
    assert other.exitcode == 0
    with Cache(tmp_path, 2000).open(key(1), 1000, lambda file: None) as file:
        assert file.read() == content(1)
    child.join(60)


def test_a_failed_or_short_download_leaves_nothing(tmp_path: Path) -> None:
    def broken(file: BinaryIO) -> None:
        file.write(b"half")
        raise ConnectionResetError("dropped")

    with pytest.raises(ConnectionResetError, match="dropped"):
        Cache(tmp_path, 2000).open(key(1), 1000, broken)
    with pytest.raises(OSError, match="the download has 4 bytes, wanted 1,000"):
        Cache(tmp_path, 2000).open(key(1), 1000, lambda file: file.write(b"half"))
    assert names(tmp_path) == []


def test_a_cut_shard_is_downloaded_again(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 2000)
    cache.open(key(1), 1000, writes(1)).close()
    os.truncate(tmp_path / (key(1) + ".lkshard"), 500)
    with cache.open(key(1), 1000, writes(1)) as file:
        assert file.read() == content(1)


def test_a_full_disk_evicts_ours_then_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Cache(tmp_path, 10**6)
    cache.open(key(1), 1000, writes(1)).close()
    real, calls = os.posix_fallocate, []

    def full(descriptor: int, start: int, size: int) -> None:
        calls.append(size)
        if len(calls) == 1 or size > 5000:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor, start, size)

    monkeypatch.setattr(os, "posix_fallocate", full)
    cache.open(key(2), 1000, writes(2)).close()
    assert names(tmp_path) == [key(2) + ".lkshard"]
    with pytest.raises(OSError, match=r"no space for a shard of 6,000 bytes in the cache .* cache_dir=None") as caught:
        cache.open(key(3), 6000, writes(3))
    assert caught.value.errno == errno.ENOSPC
    assert names(tmp_path) == []


def test_a_disk_that_fills_up_while_writing_leaves_nothing(tmp_path: Path) -> None:
    def full(file: BinaryIO) -> None:
        with open("/dev/full", "wb", buffering=0) as device:  # noqa: PTH123 - a real ENOSPC
            device.write(b"x")

    with pytest.raises(OSError, match="no space for a shard of 1,000 bytes") as caught:
        Cache(tmp_path, 2000).open(key(1), 1000, full)
    assert caught.value.errno == errno.ENOSPC
    assert names(tmp_path) == []


def test_a_fork_amid_a_download_keeps_no_other_thread_waiting(tmp_path: Path) -> None:
    """It has the locked file open as well."""
    cache, downloading, go_on = Cache(tmp_path, 10**6), threading.Event(), threading.Event()

    def download(file: BinaryIO) -> None:
        downloading.set()
        assert go_on.wait(60)
        file.write(content(1))

    def read() -> bytes:
        with cache.open(key(1), 1000, download) as file:
            return file.read()

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(read)
        assert downloading.wait(60)
        second = pool.submit(read)
        child = FORK.Process(target=time.sleep, args=(60,))
        child.start()
        try:
            time.sleep(0.1)  # so that the second waits for the lock
            go_on.set()
            assert first.result(60) == second.result(30) == content(1)
            assert child.is_alive()
        finally:
            child.kill()
            child.join(60)


def test_a_folder_that_cannot_be_made_names_the_setting(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OSError, match=r"cannot write to the cache .*file.*cache_dir=\.\.\..*cache_dir=None"):
        Cache(tmp_path / "file" / "cache", 2000).open(key(1), 1000, writes(1))
