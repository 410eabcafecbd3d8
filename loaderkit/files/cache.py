"""A folder of downloaded shards with a size limit, shared by all processes of a host.

A shard becomes visible when it is complete, and never changes. Locks say what is in use: a process that downloads a shard locks its
part file alone, and each open shard has a shared lock. The kernel releases them when the process ends for any reason. The next
download deletes parts without a lock; shards without one may be evicted.
"""

import contextlib
import errno
import fcntl
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

WHOLE, PART, LOCK = ".lkshard", ".lkpart", "loaderkit.lock"
SAME_DATA = 8  # digits of a key that the shards of one dataset have in common
_OURS = re.compile(rf"[0-9a-f]{{32}}({re.escape(WHOLE)}|{re.escape(PART)})")
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_POLL_S = 0.02


class _NoRoomError(Exception):
    """All shards in the cache are in use."""


@dataclass(frozen=True, slots=True)
class Cache:
    """Shards in a folder. Those that nobody has open are evicted to make room.

    The shards of other data go first, least recently opened first. Then go those of the same data, most recently opened first: a
    pass over the data wants these again last. Data that is larger than the cache leaves half of it to other data.

    Args:
        folder: The folder. The cache creates it, and leaves other files in it alone.
        size_bytes: Limit for complete shards and parts together.
        data_bytes: Size of the data whose shards are opened; 0 if it is unknown.
    """

    folder: Path
    size_bytes: int
    data_bytes: int = 0

    def find(self, key: str, size_bytes: int) -> BinaryIO | None:
        """Open a shard if it is there."""
        path = self.folder / (key + WHOLE)
        try:
            file = path.open("rb")
        except FileNotFoundError:
            return None
        fcntl.flock(file, fcntl.LOCK_SH)  # others hold the exclusive one for a moment only
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
        """Return whether a shard is there, without opening it."""
        return (self.folder / (key + WHOLE)).exists()

    @contextlib.contextmanager
    def reserve(self, key: str, size_bytes: int, *, at_any_cost: bool = False) -> Iterator["Part | BinaryIO | None"]:
        """Reserve room for a shard, or open it if it is there. One process downloads it, and the others wait.

        Args:
            key: 32 hexadecimal digits, which name the shard and its content. Shards of the same data begin with the same 8.
            size_bytes: Size of the shard.
            at_any_cost: If all other shards are in use, evict some nevertheless: their space is free when they are closed. Otherwise
                there is None.
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
        """Return the open shard if it is there, else the descriptor of its locked part."""
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
        """Take space for a part by evicting shards; return False while other downloads fill the cache.

        Raises:
            _NoRoomError: If there is no room next to what is in use, unless it is wanted at any cost.
        """
        with self.locked():
            shards, downloading = self._found(part)
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
            while True:
                try:
                    _allocate(descriptor, size_bytes)
                except OSError as error:
                    os.ftruncate(descriptor, 0)
                    if error.errno not in _FULL or not _evict(shards):
                        raise
                else:
                    return True

    def _found(self, part: Path) -> tuple[list[tuple[str, int]], int]:
        """Return paths and sizes of the shards in the order of eviction, and the size of other processes' parts."""
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
    def locked(self) -> Iterator[None]:
        """Let nobody else evict or rename shards meanwhile."""
        descriptor = os.open(self.folder / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            _unlock(descriptor)


@dataclass(frozen=True, slots=True)
class Part:
    """Room for a shard that nobody else downloads.

    Args:
        cache: The cache.
        path: Where the part is.
        size_bytes: Size of the shard.
        file: Takes the content.
    """

    cache: Cache
    path: Path
    size_bytes: int
    file: BinaryIO

    def open(self) -> BinaryIO:
        """Open the shard that has been written, and show it to other processes.

        Raises:
            OSError: If the part has another size, or cannot be written.
        """
        self.file.flush()
        size = self.file.tell()
        if size != self.size_bytes:
            raise OSError(f"{self.path}: the download has {size:,} bytes, wanted {self.size_bytes:,}.")
        os.fsync(self.file.fileno())
        opened = self.path.open("rb")
        with self.cache.locked():  # nobody evicts it in between
            self.path.replace(self.path.with_suffix(WHOLE))
            fcntl.flock(self.file, fcntl.LOCK_UN)
            fcntl.flock(opened, fcntl.LOCK_SH)
        return opened


_parts: set[int] = set()  # descriptors of the parts that this process downloads


def _let_parts_go() -> None:
    """Close them in a forked child: it would keep their locks if its parent is killed."""
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
            if _is_at(descriptor, path):  # nobody has finished or deleted it meanwhile
                return descriptor
        except BlockingIOError:  # to wait for the lock itself would be to wait until nobody has the whole shard open
            time.sleep(_POLL_S)
        except BaseException:
            _unlock_part(descriptor)
            raise
        _unlock_part(descriptor)


def _unlock_part(descriptor: int) -> None:
    _parts.discard(descriptor)
    _unlock(descriptor)


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
    return _delete_unlocked(part, descriptor)


def _evict(shards: list[tuple[str, int]]) -> int:
    """Delete the first shard that nobody has open, and remove it from the list; return its size, or 0 if there is none."""
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
    """Delete an open file unless somebody else has a lock on it, and close it; return whether it is gone."""
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


def _allocate(descriptor: int, size_bytes: int) -> None:
    if not size_bytes:
        return
    try:
        os.posix_fallocate(descriptor, 0, size_bytes)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            raise
        os.ftruncate(descriptor, size_bytes)  # other processes see at least the final size
