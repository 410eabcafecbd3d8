"""Downloads that go on in the background, while the first samples are read by ranges."""

import os
import threading
from collections.abc import Callable, Sequence
from typing import BinaryIO

from loaderkit.datasets.remote.ranges import RangeFile, ReadSpans

_AT_ONCE = 2  # downloads of a process; each has several connections


class _Turns:
    """Lets a few downloads of this process run, in the order in which they were begun."""

    semaphore = threading.Semaphore(_AT_ONCE)

    @classmethod
    def reset(cls) -> None:
        cls.semaphore = threading.Semaphore(_AT_ONCE)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_Turns.reset)  # the threads that hold a turn are missing in the child


class Arrival:
    """A download in a thread of its own, which ends with the process. It begins with `begin`."""

    def __init__(self, open_copy: Callable[[], BinaryIO]) -> None:
        self._open_copy, self._turns = open_copy, _Turns.semaphore
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
                self._file = self._open_copy()
                if not self._is_wanted:
                    self._file.close()
            except BaseException as error:  # the reader raises it
                self._error = error

    def close(self) -> None:
        """Let go of the copy. The download goes on, for other readers."""
        self._is_wanted = False
        if self._file is not None:
            self._file.close()

    def wait(self) -> BinaryIO:
        """Wait for the end of the download, and hand the open copy over.

        Raises:
            OSError: If the download failed.
            ValueError: If the file has changed.
        """
        self.begin()
        if self._thread is not None:
            self._thread.join()
        if self._error is not None:
            error, self._error, self._thread = self._error, None, None  # the next reader tries again
            raise error
        file, self._file = self._file, None
        if file is None:
            raise RuntimeError("the copy has been handed over already")
        return file


class ArrivingFile(RangeFile):
    """A remote file that is downloaded while it is used.

    The first spans are requested by ranges, before the download begins, so that nobody waits for the rest of the file.
    """

    def __init__(self, url: str, size_bytes: int, read_spans: ReadSpans, arrival: Arrival) -> None:
        super().__init__(url, size_bytes, read_spans)
        self._arrival, self._is_first = arrival, True

    def close(self) -> None:
        super().close()
        self._arrival.close()

    def read_into(self, spans: Sequence[tuple[int, int]], content: memoryview) -> None:
        super().read_into(spans, content)
        self._arrival.begin()

    def copy(self) -> BinaryIO | None:
        """Return the local copy, after waiting for it; None for the first call."""
        if self._is_first:
            self._is_first = False
            return None
        return self._arrival.wait()
