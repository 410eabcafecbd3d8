"""A folder of downloaded shards with a size limit, shared by all processes of a host.

A shard becomes visible when it is complete, and never changes. The process that downloads a shard locks its part file; the kernel
releases the lock when that process ends for any reason. Other processes delete parts without a lock. Evicting a shard
unlinks its file: processes that have it open continue to read.
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
_OURS = re.compile(rf"[0-9a-f]{{32}}({re.escape(WHOLE)}|{re.escape(PART)})")
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class Cache:
    """Shards in a folder; the least recently opened shards are evicted first.

    Args:
        folder: The folder. The cache creates it, and leaves other files in it alone.
        size_bytes: Limit for complete shards and parts together. An evicted shard takes space until it is closed.
    """

    folder: Path
    size_bytes: int

    def open(self, key: str, size_bytes: int, download: Callable[[BinaryIO], None]) -> BinaryIO:
        """Open a shard; one process downloads it if it is missing, and the others wait.

        `key` has 32 hexadecimal digits, which name the shard and its content. `download` writes the shard to a file.
        """
        part = self.folder / (key + PART)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            found = self.find(key, size_bytes)
            if found is not None:
                return found
            descriptor = _lock(part)
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise
            raise type(error)(
                error.errno,
                f"cannot write to the cache {self.folder} ({os.strerror(error.errno or 0)}). Give a folder that you can write "
                "to, lk.Storage(cache_dir=...), or read without a cache: cache_dir=None.",
            ) from error
        try:
            found = self.find(key, size_bytes)  # another process may have downloaded it
            if found is None:
                found = self._download(part, descriptor, size_bytes, download)
            else:
                part.unlink()
            return found
        except BaseException as error:
            with contextlib.suppress(FileNotFoundError):
                part.unlink()
            if isinstance(error, OSError) and error.errno in _FULL:
                raise OSError(
                    error.errno,
                    f"no space for a shard of {size_bytes:,} bytes in the cache {self.folder} ({os.strerror(error.errno)}). "
                    "Free some space, use another cache_dir or a smaller cache_bytes, or read without a cache: cache_dir=None.",
                ) from error
            raise
        finally:
            _unlock(descriptor)

    def has(self, key: str) -> bool:
        """Return whether a shard is there, without opening it."""
        return (self.folder / (key + WHOLE)).exists()

    def find(self, key: str, size_bytes: int) -> BinaryIO | None:
        """Open a shard if it is there."""
        path = self.folder / (key + WHOLE)
        try:
            file = path.open("rb")
        except FileNotFoundError:
            return None
        if os.fstat(file.fileno()).st_size != size_bytes:  # truncated
            file.close()
            path.unlink(missing_ok=True)
            return None
        with contextlib.suppress(PermissionError):  # another user's file
            os.utime(file.fileno())  # marks the last use; most disks do not keep access times
        return file

    def _download(self, part: Path, descriptor: int, size_bytes: int, download: Callable[[BinaryIO], None]) -> BinaryIO:
        os.ftruncate(descriptor, 0)  # left by a killed process
        while not self._reserve(part, descriptor, size_bytes):
            time.sleep(_POLL_S)
        with os.fdopen(os.dup(descriptor), "wb") as file:
            download(file)
            file.flush()
            found = file.tell()
            if found != size_bytes:
                raise OSError(f"{part}: the download has {found:,} bytes, wanted {size_bytes:,}.")
            os.fsync(file.fileno())
        opened = part.open("rb")  # before other processes see it and may evict it
        part.replace(part.with_suffix(WHOLE))
        return opened

    def _reserve(self, part: Path, descriptor: int, size_bytes: int) -> bool:
        """Reserve space for a part by evicting old shards; return False while other downloads fill the cache."""
        with self._locked():
            shards = []
            downloading = 0
            for entry in self._entries():
                with contextlib.suppress(FileNotFoundError):
                    if entry.name.endswith(WHOLE):
                        found = entry.stat(follow_symlinks=False)
                        shards.append((found.st_mtime_ns, found.st_size, entry.path))
                    elif entry.name != part.name and not _discard(Path(entry.path)):
                        downloading += entry.stat(follow_symlinks=False).st_size
            shards.sort(reverse=True)
            used = downloading + sum(size for _, size, _ in shards)
            while used + size_bytes > self.size_bytes and shards:
                used -= _evict(shards)
            if used + size_bytes > self.size_bytes and downloading:
                return False
            while True:
                try:
                    _allocate(descriptor, size_bytes)
                except OSError as error:
                    os.ftruncate(descriptor, 0)
                    if error.errno not in _FULL or not shards:
                        raise
                    _evict(shards)
                else:
                    return True

    def _entries(self) -> Iterator["os.DirEntry[str]"]:
        with os.scandir(self.folder) as entries:
            for entry in entries:
                if _OURS.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                    yield entry

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        descriptor = os.open(self.folder / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            _unlock(descriptor)


def _lock(path: Path) -> int:
    """Create a file if needed, wait for its lock, and return its descriptor."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if _is_at(descriptor, path):
                return descriptor
        except BaseException:
            _unlock(descriptor)
            raise
        _unlock(descriptor)  # another process finished or deleted it meanwhile


def _unlock(descriptor: int) -> None:
    """Release the lock explicitly, then close: a process forked meanwhile has the file open too, and would keep the lock."""
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


def _discard(part: Path) -> bool:
    """Delete a part that no process downloads; return whether it is gone."""
    try:
        descriptor = os.open(part, os.O_RDWR)
    except FileNotFoundError:
        return True
    except PermissionError:  # another user's file
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_at(descriptor, part):
            part.unlink()
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


def _evict(shards: list[tuple[int, int, str]]) -> int:
    _, size, path = shards.pop()
    Path(path).unlink(missing_ok=True)
    return size


def _allocate(descriptor: int, size_bytes: int) -> None:
    if not size_bytes:
        return
    try:
        os.posix_fallocate(descriptor, 0, size_bytes)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            raise
        os.ftruncate(descriptor, size_bytes)  # other processes see at least the final size
