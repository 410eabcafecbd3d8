"""A file of cached entries that the processes of a host share. An entry is written once, and read only when complete.

The file has a head, one record for each index, then the entries in the order in which they were added. To add an entry,
a process takes the lock, extends the file by the entry's size, and releases the lock. It then writes the entry, and the
record last. So the file's size includes all reserved space, even if a process is killed. The kernel releases the lock
of a killed process. Each record has a checksum of its entry: an entry that was lost in a power failure counts as
missing.
"""

import contextlib
import errno
import fcntl
import logging
import os
import struct
import tempfile
import time
import uuid
import weakref
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from loaderkit.system.arrays import UInt64Array

ALIGNMENT = 64  # bytes
_HEAD = struct.Struct("<8sQ16s")  # magic, number of records, token
_MAGIC = b"LKENTRY1"
_SAID, _HEAD_SIZE = _HEAD.size, ALIGNMENT  # after the head comes one byte for each warning of `say_once`
_RECORD = struct.Struct("<QQQ")  # an entry's start and size in bytes, and the checksum
_MAPPED = Path("/proc/self/fd")
_CALL_BYTES = 1 << 30  # Linux reads and writes at most 2 GB by one call
_PATIENCE_S = 1.0  # to wait for the lock, which is held for microseconds
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_logger = logging.getLogger("loaderkit")


class SampleFile:
    """A file of up to N entries that all processes of a host may read and add to.

    A pickled copy opens the same file. Threads and forked processes may share an object.

    Args:
        path: Path of the file, which is created if it is missing. None makes a file in memory that vanishes with its
            last user.
        records: N.
        max_bytes: Limit for the file's size.
        token: 16 bytes that identify the data. An existing file must have the same.

    Raises:
        ValueError: If `max_bytes` has no room for the records, or the file has another format, N or token.
        PermissionError: If the file belongs to another user, because reading an entry may run code.
    """

    def __init__(self, path: Path | None, *, records: int, max_bytes: int, token: bytes) -> None:
        self.records, self.max_bytes = records, max_bytes
        self._stopped = False  # whether writing has failed
        self._in_memory = path is None
        self._start = -(-(_HEAD_SIZE + records * _RECORD.size) // ALIGNMENT) * ALIGNMENT
        self._token = token
        if max_bytes < self._start:
            raise ValueError(
                f"CachedDataset: max_bytes is {max_bytes:,}, wanted at least {self._start:,}: {_RECORD.size} bytes for each of "
                f"{records:,} samples come before the samples themselves."
            )
        if path is None:
            self._make_in_memory()
        else:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._open(path)

    @property
    def size_bytes(self) -> int:
        """Size of the file in bytes, including space that killed processes had reserved."""
        return os.fstat(self._descriptor).st_size

    def count(self) -> int:
        """Return how many entries have been added."""
        found, chunk = 0, 1 << 16
        for first in range(0, self.records, chunk):
            size = min(chunk, self.records - first) * _RECORD.size
            found += int(
                np.count_nonzero(np.frombuffer(os.pread(self._descriptor, size, self._place(first)), "<u8")[1::3])
            )
        return found

    def read(self, index: int) -> UInt64Array | None:
        """Return a copy of an entry; None if it is missing, incomplete or damaged."""
        record = os.pread(self._descriptor, _RECORD.size, self._place(index)) if index < self.records else b""
        if len(record) < _RECORD.size:
            return None
        start, size, checksum = _RECORD.unpack(record)
        if not size or size % ALIGNMENT or start + size > self.size_bytes:
            return None
        words = np.empty(size // 8, dtype=np.uint64)
        return words if _fill(self._descriptor, words, start) and _checksum(index, start, words) == checksum else None

    def write(self, index: int, words: UInt64Array) -> None:
        """Add an entry, unless another process has done so, or there is no room.

        Args:
            index: The entry's index. Nothing is added if it is N or more.
            words: The entry; its size in bytes is a multiple of `ALIGNMENT`.
        """
        if self._stopped or index >= self.records or self.read(index) is not None:
            return
        try:
            start = self._reserve(words.nbytes)
            if start is not None:
                _write(self._descriptor, words.data.cast("B"), start)
                record = _RECORD.pack(start, words.nbytes, _checksum(index, start, words))
                _write(self._descriptor, memoryview(record), self._place(index))
        except OSError as error:
            self._stopped = True
            what = "no space is left" if error.errno in _FULL else f"writing fails ({error})"
            _logger.warning(
                "CachedDataset: %s for %s. This process adds no more samples; it makes them each time.", what, self
            )

    def say_once(self, number: int, text: str) -> None:
        """Log a warning, unless a process that shares the file has logged warning `number` before."""
        with contextlib.suppress(OSError), self._locked():
            if os.pread(self._descriptor, 1, _SAID + number) != b"\0":
                return
            os.pwrite(self._descriptor, b"\1", _SAID + number)
        _logger.warning("CachedDataset: %s", text)

    def _reserve(self, size: int) -> int | None:
        """Extend the file by `size` bytes, and return where they begin; None if `max_bytes` leaves no room."""
        with self._locked():
            end = self.size_bytes
            if end + size <= self.max_bytes:
                os.ftruncate(self._descriptor, end + size)
                return end
        self.say_once(
            0,
            f"{self} is full: {self.count():,} of {self.records:,} samples are in max_bytes={self.max_bytes:,}. The others are "
            "made each time.",
        )
        return None

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the file's lock. Raise a TimeoutError if another process holds it longer than `_PATIENCE_S`."""
        # Open the file again: a lock belongs to an open file, not to a process, and forks share `self._descriptor`.
        descriptor = os.open(self._again, os.O_RDWR | os.O_CLOEXEC)
        try:
            deadline = time.monotonic() + _PATIENCE_S
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise TimeoutError(f"another process has held the lock for {_PATIENCE_S:g} s") from None
                    time.sleep(1e-4)
            yield
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # a child forked meanwhile would keep the lock
            os.close(descriptor)

    def _open(self, path: Path) -> None:
        flags = os.O_RDWR | os.O_CLOEXEC | (0 if self._in_memory else os.O_CREAT)
        self._use(os.open(path, flags, 0o600), path)
        owner = os.fstat(self._descriptor).st_uid
        if owner not in (0, os.geteuid()):
            raise PermissionError(
                f"CachedDataset: {path} belongs to user {owner}, this process to user {os.geteuid()}. Samples in it are pickles, "
                "which can run code. Give a folder of your own."
            )
        head = _HEAD.pack(_MAGIC, self.records, self._token)
        with self._locked():
            if self.size_bytes < self._start and not self._in_memory:  # new, or its maker was killed here
                os.pwrite(self._descriptor, head, 0)
                os.ftruncate(self._descriptor, self._start)
            elif os.pread(self._descriptor, len(head), 0) != head:
                raise ValueError(
                    f"CachedDataset: {path} is damaged or no cache: its head is not that of these {self.records:,} samples. "
                    "Delete it."
                )

    def _make_in_memory(self) -> None:
        """Make a nameless file in memory if the system can, else a temporary file that this process deletes at exit."""
        self._token = uuid.uuid4().bytes  # another file may have the same path later
        if hasattr(os, "memfd_create"):
            self._use(os.memfd_create("loaderkit samples"), None)
        else:
            descriptor, path = tempfile.mkstemp(prefix="loaderkit-samples-")
            self._use(descriptor, Path(path))
            weakref.finalize(self, _unlink, path, os.getpid())
        os.pwrite(self._descriptor, _HEAD.pack(_MAGIC, self.records, self._token), 0)
        os.ftruncate(self._descriptor, self._start)

    def _use(self, descriptor: int, path: Path | None) -> None:
        self._descriptor, self._path = descriptor, path
        # Reopen by descriptor where /proc allows it: the file may have been deleted.
        self._again = path if path and not _MAPPED.exists() else _MAPPED / str(descriptor)
        weakref.finalize(self, os.close, descriptor)

    def _place(self, index: int) -> int:
        return _HEAD_SIZE + index * _RECORD.size

    def __getstate__(self) -> dict[str, Any]:
        path = self._path or Path(f"/proc/{os.getpid()}/fd/{self._descriptor}")
        return {
            "path": path,
            **{
                name: vars(self)[name]
                for name in ("records", "max_bytes", "_stopped", "_in_memory", "_start", "_token")
            },
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        path = state.pop("path")
        self.__dict__.update(state)
        try:
            self._open(path)
        except (OSError, ValueError):
            if not self._in_memory:
                raise
            _logger.warning(
                "CachedDataset: the process whose memory holds the cache has ended, or /proc is not readable. This copy starts "
                "an empty cache of its own."
            )
            self._make_in_memory()

    def __str__(self) -> str:
        return "the cache in memory" if self._in_memory else str(self._path)


def _checksum(index: int, start: int, words: UInt64Array) -> int:
    # A sum of the words detects lost parts in a tenth of the time of a CRC over the entry.
    return zlib.crc32(struct.pack("<QQQQ", index, start, words.nbytes, int(words.sum(dtype=np.uint64))))


def _fill(descriptor: int, words: UInt64Array, start: int) -> bool:
    """Fill `words` from the file at byte `start`; return False if the file ends before."""
    left = words.data.cast("B")
    while left:
        read = os.preadv(descriptor, [left[:_CALL_BYTES]], start)
        if not read:
            return False
        left, start = left[read:], start + read
    return True


def _write(descriptor: int, content: memoryview, start: int) -> None:
    while content:
        written = os.pwrite(descriptor, content[:_CALL_BYTES], start)
        content, start = content[written:], start + written


def _unlink(path: str, process: int) -> None:
    if os.getpid() == process:
        Path(path).unlink(missing_ok=True)
