"""Downloads in the background: until one is complete, the first samples are read by range requests."""

import os
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, BinaryIO

from loaderkit.files.ranges import RangeFile

if TYPE_CHECKING:
    from loaderkit.files.copies import Copy

_AT_ONCE = 2  # downloads of a process; each has several connections


class _Turns:
    """Limits how many downloads of this process run at once."""

    semaphore = threading.Semaphore(_AT_ONCE)

    @classmethod
    def reset(cls) -> None:
        cls.semaphore = threading.Semaphore(_AT_ONCE)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_Turns.reset)  # the threads that hold a turn are missing in the child


class Arrival:
    """The download of one copy in its own daemon thread, which `begin` starts."""

    def __init__(self, copy: "Copy") -> None:
        self.url, self._copy, self._turns = copy.url, copy, _Turns.semaphore
        self._file: BinaryIO | None = None
        self._is_wanted = True
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Begin the download, if it has not begun."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="loaderkit download", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        with self._turns:
            try:
                file = self._copy.open() if self._is_wanted else None
                if file is None and self._is_wanted:
                    self._copy.refuse_change()  # no room: range requests must read the same version
                self._file = file
                if not self._is_wanted:
                    self.close()
            except BaseException as error:  # the reader raises it
                self._error = error

    def close(self) -> None:
        """Close the copy. A download that has begun goes on, for other readers."""
        self._is_wanted = False
        file, self._file = self._file, None
        if file is not None:
            file.close()

    @property
    def is_over(self) -> bool:
        """Whether no download is going on."""
        return self._thread is None or not self._thread.is_alive()

    def wait(self) -> BinaryIO | None:
        """Wait until the download ends, and return the open copy; None if the cache has no room for it.

        Another call starts a new download.

        Raises:
            OSError: If the download failed.
            ValueError: If the file has changed.
        """
        self.begin()
        if self._thread is not None:
            self._thread.join()
        error, file = self._error, self._file
        self._error = self._file = self._thread = None
        if error is not None:
            raise error
        return file


class ArrivingFile(RangeFile):
    """A remote file that is downloaded while it is used.

    The first read uses range requests, so it does not wait for the download, which begins after it. If the cache has no
    room for a copy, all reads use range requests. The download is then tried again after each read, until a sixteenth
    of the file's bytes have been requested.

    Args:
        copy: The file's local copy, which another process may download.
        arrival: This process's download of the copy.
        waits: Whether the first read also waits for the download.
    """

    def __init__(self, copy: "Copy", arrival: Arrival, *, waits: bool) -> None:
        super().__init__(copy.url, copy.found.size_bytes, copy.requests)
        self._copy, self._arrival, self._waits = copy, arrival, waits
        self._had_room = True
        self._left = copy.found.size_bytes // 16  # bytes to request before the file stops trying to make a copy

    def close(self) -> None:
        super().close()
        self._arrival.close()

    def read_into(self, spans: Sequence[tuple[int, int]], content: memoryview) -> None:
        super().read_into(spans, content)
        self._left -= len(content)
        if self._had_room or self._left > 0:
            self._arrival.begin()
            self._waits = self._had_room
        else:
            self._arrival.close()

    def copy(self) -> BinaryIO | None:
        """Return the local copy, waiting for the download if need be; None if the next read must use range requests."""
        if not self._waits and (self._had_room or self._left <= 0 or not self._arrival.is_over):
            return None if self._had_room else self._copy.find()
        copy = self._arrival.wait()
        self._had_room = self._waits = copy is not None
        return copy
