"""A folder of downloaded shards with a size limit, shared by all processes of a host.

A shard becomes visible when it is complete, and never changes. File locks show what is in use. A process that downloads
a shard holds an exclusive lock on its part file, and each reader of a shard holds a shared lock. The kernel releases a
process's locks when it ends for any reason. A process's first download deletes unlocked parts; any may evict unlocked shards.
"""

import contextlib
import errno
import fcntl
import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

WHOLE, PART, LOCK = ".lkshard", ".lkpart", "loaderkit.lock"
SAME_DATA = 8  # first hexadecimal digits of a key; the shards of one folder share them
_OURS = re.compile(rf"[0-9a-f]{{32}}({re.escape(WHOLE)}|{re.escape(PART)})")
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_POLL_S = 0.02
_BETWEEN_LOOKS = 63  # downloads, at most
_ACCOUNT = re.compile(rb"([0-9]{20}) ([0-9]{3})\n")


class _NoRoomError(Exception):
    """All shards in the cache are in use."""


@dataclass(frozen=True, slots=True)
class Cache:
    """Shards in a folder. Shards that no process has open are evicted to make room.

    The shards of other data are evicted first, the least recently opened first. Then come shards of the same data, the
    most recently opened first: a pass over the data needs these last. Data larger than the cache leaves half of it to
    other data.

    Args:
        folder: The folder. The cache creates it, and leaves other files in it alone.
        size_bytes: Limit for complete shards and parts together.
        data_bytes: Size of the data whose shards are opened; 0 if it is unknown.
    """

    folder: Path
    size_bytes: int
    data_bytes: int = 0

    def find(self, key: str, size_bytes: int) -> BinaryIO | None:
        """Open a shard; return None if the cache lacks it, or its file has another size than `size_bytes`."""
        path = self.folder / (key + WHOLE)
        try:
            file = path.open("rb")
        except FileNotFoundError:
            return None
        fcntl.flock(file, fcntl.LOCK_SH)  # an exclusive lock is held only briefly
        if not _is_at(file.fileno(), path):  # evicted meanwhile
            file.close()
            return None
        if os.fstat(file.fileno()).st_size != size_bytes:  # truncated
            file.close()
            path.unlink(missing_ok=True)
            return None
        with contextlib.suppress(PermissionError):  # another user's file
            os.utime(file.fileno())  # marks the last use; most disks do not keep access times
        return file

    def has(self, key: str) -> bool:
        """Return whether the cache has a shard, without opening it."""
        return (self.folder / (key + WHOLE)).exists()

    def is_arriving(self, key: str) -> bool:
        """Return whether a process downloads a shard, or was killed while it did."""
        return (self.folder / (key + PART)).exists()

    @contextlib.contextmanager
    def reserve(self, key: str, size_bytes: int, *, at_any_cost: bool = False) -> Iterator["Part | BinaryIO | None"]:
        """Open a shard if the cache has it, else yield a `Part` to download into. Yield None if there is no room.

        If several processes ask for one shard, one gets the `Part`, and the others wait for it.

        Args:
            key: 32 hexadecimal digits, which name the shard and its content. The keys of the same data begin with the
                same 8.
            size_bytes: Size of the shard.
            at_any_cost: If all other shards are in use, delete some of them nevertheless. Their disk space is freed
                when they are closed.
        """
        path = self.folder / (key + PART)
        found, descriptor = self._find_or_lock(key, size_bytes)
        if found is not None:
            yield found
            return
        try:
            found = self.find(key, size_bytes)  # another process may have downloaded it
            if found is not None:
                path.unlink()
                yield found
                return
            os.ftruncate(descriptor, 0)  # left by a killed process
            while not self._make_room(path, descriptor, size_bytes, at_any_cost=at_any_cost):
                time.sleep(_POLL_S)
            with os.fdopen(descriptor, "wb", closefd=False) as file:
                yield Part(self, path, size_bytes, file)
        except _NoRoomError:
            path.unlink(missing_ok=True)
            yield None
        except BaseException as error:
            path.unlink(missing_ok=True)
            if isinstance(error, OSError) and error.errno in _FULL:
                raise OSError(
                    error.errno,
                    f"no space for a shard of {size_bytes:,} bytes in the cache {self.folder} ({os.strerror(error.errno)}). "
                    "Free some space, use another cache_dir or a smaller cache_bytes, or read without a cache: cache_dir=None.",
                ) from error
            raise
        finally:
            _unlock_part(descriptor)

    def _find_or_lock(self, key: str, size_bytes: int) -> tuple[BinaryIO | None, int]:
        """Return the open shard and -1 if the cache has it, else None and the descriptor of its locked part file."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            found = self.find(key, size_bytes)
            return found, -1 if found is not None else _lock(self.folder / (key + PART))
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise
            raise type(error)(
                error.errno,
                f"cannot write to the cache {self.folder} ({os.strerror(error.errno or 0)}). Give a folder that you can write "
                "to, lk.Storage(cache_dir=...), or read without a cache: cache_dir=None.",
            ) from error

    def _make_room(self, part: Path, descriptor: int, size_bytes: int, *, at_any_cost: bool) -> bool:
        """Evict shards and allocate disk space for a part. Return False to wait for other downloads.

        Raises:
            _NoRoomError: If shards in use and other downloads leave no room, unless `at_any_cost`.
        """
        with self.locked() as lock:
            account = Account.read(lock) if self.folder in _looked_at else Account()
            if account.downloads and account.used + size_bytes <= self.size_bytes:
                # Before the allocation: if this process is killed in between, the account is too high, not too low.
                Account(account.used + size_bytes, account.downloads - 1).write(lock)
                _allocate_or_evict(descriptor, size_bytes, lambda: self._found(part)[0])
                return True
            shards, downloading = self._found(part)
            _looked_at.add(self.folder)
            used = downloading + sum(size for _, size in shards)
            while used + size_bytes > self.size_bytes and (freed := _evict(shards)):
                used -= freed
            if used + size_bytes > self.size_bytes:
                if not at_any_cost:
                    raise _NoRoomError
                if downloading:
                    return False
                while used + size_bytes > self.size_bytes and shards:
                    path, size = shards.pop(0)
                    Path(path).unlink(missing_ok=True)
                    used -= size
            Account(used + size_bytes, _BETWEEN_LOOKS).write(lock)
            _allocate_or_evict(descriptor, size_bytes, lambda: shards)
            return True

    def _found(self, part: Path) -> tuple[list[tuple[str, int]], int]:
        """Return paths and sizes of the shards in the order of eviction, and the bytes of other processes' parts."""
        own: list[tuple[int, str, int]] = []
        others: list[tuple[int, str, int]] = []
        downloading = 0
        for entry in self._entries():
            with contextlib.suppress(FileNotFoundError):
                found = entry.stat(follow_symlinks=False)
                if entry.name.endswith(WHOLE):
                    is_own = entry.name[:SAME_DATA] == part.name[:SAME_DATA]
                    (own if is_own else others).append((found.st_mtime_ns, entry.path, found.st_size))
                elif entry.name != part.name and not _discard(Path(entry.path)):
                    downloading += found.st_size
        own.sort(reverse=True)
        others.sort()
        has_half = 2 * sum(size for *_, size in own) >= self.size_bytes
        in_turn = [*own, *others] if has_half and self.data_bytes > self.size_bytes else [*others, *own]
        return [(path, size) for _, path, size in in_turn], downloading

    def _entries(self) -> Iterator["os.DirEntry[str]"]:
        with os.scandir(self.folder) as entries:
            for entry in entries:
                if _OURS.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                    yield entry

    @contextlib.contextmanager
    def locked(self) -> Iterator[int]:
        """Hold the cache's lock: no other process evicts or publishes shards meanwhile. Yield the lock file's descriptor."""
        descriptor = os.open(self.folder / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield descriptor
        finally:
            _unlock(descriptor)


@dataclass(frozen=True, slots=True)
class Account:
    """What a cache's folder holds, kept in its lock file: a look at all files takes 5 ms for each thousand of them.

    It is never too low, unless others put shards into the folder: downloads that fail and files that are deleted stay in it until
    the next look.

    Args:
        used: Bytes of shards and parts.
        downloads: How many downloads may still begin before the next look at the files, by processes that have looked once.
    """

    used: int = 0
    downloads: int = 0

    @staticmethod
    def read(lock: int) -> "Account":
        """Read the account. The next download looks at the files if there is none."""
        found = _ACCOUNT.fullmatch(os.pread(lock, 64, 0))
        return Account(int(found[1]), int(found[2])) if found else Account()

    def write(self, lock: int) -> None:
        """Write the account."""
        os.pwrite(lock, f"{self.used:020} {self.downloads:03}\n".encode(), 0)


@dataclass(frozen=True, slots=True)
class Part:
    """A file to download one shard into, reserved for this process.

    Args:
        cache: The cache.
        path: Path of the part file.
        size_bytes: Size of the shard.
        file: The open part file, to write the shard's content to.
    """

    cache: Cache
    path: Path
    size_bytes: int
    file: BinaryIO

    def open(self) -> BinaryIO:
        """Publish the written shard to other processes, and open it.

        Raises:
            OSError: If the part's size is not `size_bytes`, or writing fails.
        """
        self.file.flush()
        size = self.file.tell()
        if size != self.size_bytes:
            raise OSError(f"{self.path}: the download has {size:,} bytes, wanted {self.size_bytes:,}.")
        os.fsync(self.file.fileno())
        opened = self.path.open("rb")
        with self.cache.locked():  # no other process evicts it in between
            self.path.replace(self.path.with_suffix(WHOLE))
            fcntl.flock(self.file, fcntl.LOCK_UN)
            fcntl.flock(opened, fcntl.LOCK_SH)
        return opened


_looked_at: set[Path] = set()  # folders; a process's first download deletes what killed ones left
_parts: set[int] = set()  # descriptors of the parts that this process downloads


def _let_parts_go() -> None:
    """Close the parts in a forked child. Otherwise the child would keep their locks after its parent was killed."""
    while _parts:
        os.close(_parts.pop())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_parts_go)


def _lock(path: Path) -> int:
    """Create a part file if needed, wait for its lock, and return its descriptor."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        _parts.add(descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(descriptor, path):  # no other process has published or deleted it meanwhile
                return descriptor
        except BlockingIOError:  # poll: a blocking wait on a published shard would last until all its readers close it
            time.sleep(_POLL_S)
        except BaseException:
            _unlock_part(descriptor)
            raise
        _unlock_part(descriptor)


def _unlock_part(descriptor: int) -> None:
    _parts.discard(descriptor)
    _unlock(descriptor)


def _unlock(descriptor: int) -> None:
    """Release a file's lock, then close it. Closing is not enough: a child forked meanwhile would keep the lock."""
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


def _discard(part: Path) -> bool:
    """Delete a part file unless a process downloads into it. Return whether the file is gone."""
    try:
        descriptor = os.open(part, os.O_RDWR)
    except FileNotFoundError:
        return True
    except PermissionError:  # another user's file
        return False
    return _delete_unlocked(part, descriptor)


def _evict(shards: list[tuple[str, int]]) -> int:
    """Delete the first shard that no process has open, also from the list. Return its bytes, or 0 if all are open."""
    for place, (path, size) in enumerate(shards):
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            is_gone = True
        except PermissionError:  # another user's file
            continue
        else:
            is_gone = _delete_unlocked(Path(path), descriptor)
        if is_gone:
            del shards[place]
            return size
    return 0


def _delete_unlocked(path: Path, descriptor: int) -> bool:
    """Delete an open file unless another process holds a lock on it, then close it. Return whether the file is gone."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_at(descriptor, path):
            path.unlink()
        return True
    except BlockingIOError:
        return False
    finally:
        _unlock(descriptor)


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except FileNotFoundError:
        return False


def _allocate_or_evict(descriptor: int, size_bytes: int, find: Callable[[], list[tuple[str, int]]]) -> None:
    """Allocate disk space for a part. If the disk is full, evict what `find` returns, one after another."""
    shards: list[tuple[str, int]] | None = None
    while True:
        try:
            _allocate(descriptor, size_bytes)
        except OSError as error:
            os.ftruncate(descriptor, 0)
            if error.errno not in _FULL:
                raise
            shards = find() if shards is None else shards
            if not _evict(shards):
                raise
        else:
            return


def _allocate(descriptor: int, size_bytes: int) -> None:
    if not size_bytes:
        return
    try:
        os.posix_fallocate(descriptor, 0, size_bytes)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            raise
        os.ftruncate(descriptor, size_bytes)  # reserves no disk space, but shows other processes the final size
