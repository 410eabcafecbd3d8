"""The cache shows whole shards alone, each downloaded once, and stays within its bound, whoever is killed in between."""

import contextlib
import errno
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from loaderkit.files.cache import Cache, Part

FORK = multiprocessing.get_context("fork")


def key(number: int, data: int = 0) -> str:
    """Return the key of a shard of some data."""
    return f"{data:08x}{number:024x}"


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


def open_if_room(
    cache: Cache, key: str, size_bytes: int, download: Callable[[BinaryIO], object], at_any_cost: bool = False
) -> BinaryIO | None:
    with cache.reserve(key, size_bytes, at_any_cost=at_any_cost) as part:
        if isinstance(part, Part):
            download(part.file)
            return part.open()
        return part


def open_shard(cache: Cache, key: str, size_bytes: int, download: Callable[[BinaryIO], object]) -> BinaryIO:
    file = open_if_room(cache, key, size_bytes, download, at_any_cost=True)
    assert file is not None
    return file


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != "loaderkit.lock")


def test_a_shard_is_downloaded_once_and_read_again(tmp_path: Path) -> None:
    cache, log = Cache(tmp_path / "new" / "folder", 10**6), tmp_path / "log"
    for _ in range(3):
        with open_shard(cache, key(1), 1000, writes(1, log)) as file:
            assert file.read() == content(1)
    assert log.read_text() == "1\n"
    assert names(cache.folder) == [key(1) + ".lkshard"]
    with open_shard(cache, key(2), 0, lambda file: None) as file:
        assert file.read() == b""


def open_each(cache: Cache, *keys: str, log: Path | None = None) -> list[str]:
    """Open and close shards one after another, and return the keys of those that are there then."""
    for each in keys:
        open_shard(cache, each, 1000, writes(int(each[8:], 16), log)).close()
        time.sleep(0.02)  # the times of their last use differ
    return [name.partition(".")[0] for name in names(cache.folder)]


def test_passes_over_larger_data_find_as_much_as_they_can(tmp_path: Path) -> None:
    """With room for three of six shards, half of each later pass. Had the oldest shards gone, it would be none."""
    cache, log = Cache(tmp_path / "cache", 3000, data_bytes=6000), tmp_path / "log"
    for passes in (1, 2, 3):
        open_each(cache, *map(key, range(1, 7)), log=log)
        assert len(log.read_text().split()) == 3 + 3 * passes


@pytest.mark.parametrize("data_bytes", [0, 3000])
def test_data_that_fits_takes_the_room_of_other_data(tmp_path: Path, data_bytes: int) -> None:
    cache = Cache(tmp_path, 3000, data_bytes)
    open_each(cache, key(1, data=1), key(2, data=2), key(3, data=1), key(1, data=1))  # 1 is used again
    assert open_each(cache, key(4)) == [key(4), key(1, data=1), key(3, data=1)]
    assert open_each(cache, key(5)) == [key(4), key(5), key(1, data=1)]
    assert open_each(cache, key(6)) == [key(4), key(5), key(6)]


def test_data_that_does_not_fit_leaves_half_to_other_data(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 4000, data_bytes=9000)
    open_each(cache, *(key(number, data=1) for number in (1, 2, 3, 4)))
    small = {key(3, data=1), key(4, data=1)}
    for _ in range(2):
        kept = open_each(cache, *map(key, range(9)))
        assert small < set(kept)
        assert len(kept) == 4


def test_only_our_own_files_go(tmp_path: Path) -> None:
    (tmp_path / "mine.lkshard").write_bytes(bytes(5000))
    (tmp_path / f"{key(9)[:-1]}.lkshard").write_bytes(bytes(5000))
    (tmp_path / "sub").mkdir()
    target = tmp_path / "sub" / "linked"
    target.write_bytes(bytes(5000))
    (tmp_path / f"{key(8)}.lkshard").symlink_to(target)
    foreign = names(tmp_path)
    open_each(Cache(tmp_path, 1000), key(1), key(2))
    assert names(tmp_path) == sorted([*foreign, f"{key(2)}.lkshard"])
    assert target.stat().st_size == 5000


def test_the_bound_holds_though_few_downloads_look_at_all_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the account is damaged; what others put into the folder is counted after 64 downloads at the latest."""
    looks: list[Path] = []
    found = Cache._found
    monkeypatch.setattr(Cache, "_found", lambda cache, part: looks.append(part) or found(cache, part))
    cache, bound = Cache(tmp_path, 500_000), 500_000

    def held() -> int:
        return sum(path.stat().st_size for path in tmp_path.glob("*.lk*"))

    other = tmp_path / (key(1, data=7) + ".lkshard")
    for number in range(400):
        open_shard(cache, key(number), 1000, writes(number)).close()
        assert held() == (number + 1) * 1000
    assert 0 < len(looks) <= 400 // 64 + 1
    other.write_bytes(bytes(90_000))  # there is room for 10 more
    for number in range(400, 464):
        open_shard(cache, key(number), 1000, writes(number)).close()
    assert held() <= bound
    (tmp_path / "loaderkit.lock").write_bytes(b"00 not an account")
    for number in range(464, 700):
        open_shard(cache, key(number), 1000, writes(number)).close()
        assert held() <= bound
    assert held() == bound


def test_what_is_open_stays(tmp_path: Path) -> None:
    """Also a shard that was found there, and one that is downloaded. The limit is exceeded at any cost only."""
    cache, log = Cache(tmp_path, 2000), tmp_path / "log"
    open_shard(cache, key(2), 1000, writes(2)).close()
    found = cache.find(key(2), 1000)
    with open_shard(cache, key(1), 1000, writes(1)) as first:
        assert found is not None
        assert open_if_room(cache, key(3), 1000, writes(3, log)) is None
        assert not log.exists()
        assert names(tmp_path) == [key(1) + ".lkshard", key(2) + ".lkshard"]
        open_shard(cache, key(3), 1000, writes(3)).close()
        assert key(3) + ".lkshard" in names(tmp_path)
        assert first.read() + found.read() == content(1) + content(2)
    found.close()
    opened = open_if_room(cache, key(4), 2000, writes(4, size=2000))
    assert opened is not None
    assert opened.read() == content(4, 2000)
    opened.close()
    assert names(tmp_path) == [key(4) + ".lkshard"]


def test_a_shard_that_is_larger_than_the_cache_hangs_nobody(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 500)
    assert open_if_room(cache, key(1), 1000, writes(1)) is None
    with open_shard(cache, key(1), 1000, writes(1)) as file:
        assert file.read() == content(1)


def test_a_forked_child_keeps_what_it_has_open_and_releases_nothing_of_its_parent(tmp_path: Path) -> None:
    """A lock belongs to the open file, which a fork shares: it ends when the last of the two closes it."""
    cache = Cache(tmp_path, 1000)
    for first_closes in ("child", "parent"):
        file = open_shard(cache, key(1), 1000, writes(1))
        closes, ends = FORK.Event(), FORK.Event()

        def hold(file: BinaryIO = file, closes: Any = closes, ends: Any = ends) -> None:
            closes.wait(30)
            file.close()
            ends.wait(30)

        child = FORK.Process(target=hold)
        child.start()
        if first_closes == "child":
            closes.set()
            time.sleep(0.2)
        else:
            file.close()
        assert open_if_room(cache, key(2), 1000, writes(2)) is None
        closes.set()
        file.close()
        end = time.monotonic() + 30
        while (opened := open_if_room(cache, key(2), 1000, writes(2))) is None and time.monotonic() < end:
            time.sleep(0.02)
        assert opened is not None
        opened.close()
        assert child.is_alive()
        ends.set()
        child.join(30)


def test_an_orphan_of_a_killed_process_does_not_keep_its_download(tmp_path: Path) -> None:
    """Workers outlive their trainer for a while, and have its files open."""
    pid, connection = FORK.Value("i"), tmp_path / "downloads"

    def trainer() -> None:
        def download(file: BinaryIO) -> None:
            child = FORK.Process(target=time.sleep, args=(60,))
            child.start()
            pid.value = child.pid or 0
            connection.touch()
            time.sleep(60)

        open_shard(Cache(tmp_path / "cache", 2000), key(1), 1000, download)

    process = FORK.Process(target=trainer)
    process.start()
    end = time.monotonic() + 30
    while not connection.exists() and time.monotonic() < end:
        time.sleep(0.01)
    process.kill()
    process.join()  # with a time limit it would wait for the child, too
    try:
        with open_shard(Cache(tmp_path / "cache", 2000), key(1), 1000, writes(1)) as file:
            assert file.read() == content(1)
        os.kill(pid.value, 0)  # it lives
    finally:
        os.kill(pid.value, signal.SIGKILL)


def bytes_in(folder: Path) -> int:
    while True:
        with contextlib.suppress(FileNotFoundError):  # a download that is whole gets another name
            return sum(path.stat().st_size for path in folder.glob("*.lk[sp]*"))


def race(folder: Path, log: Path, size_bytes: int, failed: "multiprocessing.Queue[str]") -> None:
    cache = Cache(folder, size_bytes)
    for number in (1, 2, 3, 4):
        while (file := open_if_room(cache, key(number), 1000, writes(number, log, 0.02))) is None:
            time.sleep(0.001)
        with file:
            if file.read() != content(number):
                failed.put(f"{number} is wrong")
            with cache.locked():  # so that nobody evicts and reserves in between
                used = bytes_in(folder)
            if used > size_bytes:
                failed.put(f"{used} bytes used")


@pytest.mark.parametrize("size_bytes", [10**6, 2500])
def test_processes_that_race_share_downloads_and_the_bound(tmp_path: Path, size_bytes: int) -> None:
    """With little space they find none until others have closed theirs; with enough each shard is downloaded once."""
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
    open_shard(Cache(folder, 2000), key(1), 1000, download)


@pytest.mark.parametrize(
    "place", ["before the first byte", "in the middle", "before it is visible", "while space is taken"]
)
def test_a_killed_download_hangs_nobody_and_leaves_nothing_that_is_used(tmp_path: Path, place: str) -> None:
    child = FORK.Process(target=killed_at, args=(tmp_path, place))
    child.start()
    child.join(60)
    assert child.exitcode == -signal.SIGKILL
    assert names(tmp_path) == [key(1) + ".lkpart"]
    with open_shard(Cache(tmp_path, 2000), key(2), 2000, writes(2, size=2000)) as file:  # needs the space of the part
        assert file.read() == content(2, 2000)
    assert names(tmp_path) == [key(2) + ".lkshard"]
    with open_shard(Cache(tmp_path, 2000), key(1), 1000, writes(1)) as file:
        assert file.read() == content(1)


def test_a_waiting_process_takes_over_from_a_killed_one(tmp_path: Path) -> None:
    def slow() -> None:
        open_shard(Cache(tmp_path, 2000), key(1), 1000, writes(1, wait_s=60))

    child = FORK.Process(target=slow)
    child.start()
    part = tmp_path / (key(1) + ".lkpart")
    while not part.exists() or part.stat().st_size < 1000:
        time.sleep(0.01)
    other = FORK.Process(target=lambda: open_shard(Cache(tmp_path, 2000), key(1), 1000, writes(1)).close())
    other.start()
    time.sleep(0.3)
    assert other.is_alive()  # it waits
    child.kill()
    other.join(60)
    assert other.exitcode == 0
    with open_shard(Cache(tmp_path, 2000), key(1), 1000, lambda file: None) as file:
        assert file.read() == content(1)
    child.join(60)


def test_a_failed_or_short_download_leaves_nothing(tmp_path: Path) -> None:
    def broken(file: BinaryIO) -> None:
        file.write(b"half")
        raise ConnectionResetError("dropped")

    with pytest.raises(ConnectionResetError, match="dropped"):
        open_shard(Cache(tmp_path, 2000), key(1), 1000, broken)
    with pytest.raises(OSError, match="the download has 4 bytes, wanted 1,000"):
        open_shard(Cache(tmp_path, 2000), key(1), 1000, lambda file: file.write(b"half"))
    assert names(tmp_path) == []


def test_a_cut_shard_is_downloaded_again(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 2000)
    open_shard(cache, key(1), 1000, writes(1)).close()
    os.truncate(tmp_path / (key(1) + ".lkshard"), 500)
    with open_shard(cache, key(1), 1000, writes(1)) as file:
        assert file.read() == content(1)


def test_a_full_disk_evicts_ours_then_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Cache(tmp_path, 10**6)
    open_shard(cache, key(1), 1000, writes(1)).close()
    real, calls = os.posix_fallocate, []

    def full(descriptor: int, start: int, size: int) -> None:
        calls.append(size)
        if len(calls) == 1 or size > 5000:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor, start, size)

    monkeypatch.setattr(os, "posix_fallocate", full)
    open_shard(cache, key(2), 1000, writes(2)).close()
    assert names(tmp_path) == [key(2) + ".lkshard"]
    with pytest.raises(OSError, match=r"no space for a shard of 6,000 bytes in the cache .* cache_dir=None") as caught:
        open_shard(cache, key(3), 6000, writes(3))
    assert caught.value.errno == errno.ENOSPC
    assert names(tmp_path) == []


def test_a_disk_that_fills_up_while_writing_leaves_nothing(tmp_path: Path) -> None:
    def full(file: BinaryIO) -> None:
        with open("/dev/full", "wb", buffering=0) as device:  # noqa: PTH123 - a real ENOSPC
            device.write(b"x")

    with pytest.raises(OSError, match="no space for a shard of 1,000 bytes") as caught:
        open_shard(Cache(tmp_path, 2000), key(1), 1000, full)
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
        with open_shard(cache, key(1), 1000, download) as file:
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
        open_shard(Cache(tmp_path / "file" / "cache", 2000), key(1), 1000, writes(1))
