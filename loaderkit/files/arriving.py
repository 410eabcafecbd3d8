"""Downloads in the background: until one is complete, the first samples are read by range requests."""

import contextlib
import itertools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, BinaryIO, ClassVar

from loaderkit.files.ranges import RangeFile
from loaderkit.files.requests import BLOCK

if TYPE_CHECKING:
    from loaderkit.files.copies import Copy

_AT_ONCE = 8  # requested blocks of this process: while there are fewer, the next download begins


class _NotWantedError(Exception):
    """Nobody wants a download whose turn has come."""


class _Line:
    """Where the background downloads of a process wait for their turn.

    Blocks are counted, not files. So many small files are downloaded at once, and a large file begins before the last
    blocks of the one before it have arrived. Files that a reader waits for go first, then those that began first.
    """

    here: ClassVar["_Line"]  # of this process

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: list[Arrival] = []
        self._numbers = itertools.count()
        self._blocks = 0  # requested and not arrived

    @classmethod
    def reset(cls) -> None:
        cls.here = cls()

    def draw(self) -> int:
        """Return the next number."""
        return next(self._numbers)

    def enter(self, arrival: "Arrival", blocks: int) -> None:
        """Wait for a download's turn, and count its blocks."""
        with self._changed:
            self._waiting.append(arrival)
            self._changed.wait_for(lambda: self._blocks < _AT_ONCE and min(self._waiting, key=_rank) is arrival)
            self._waiting.remove(arrival)
            self.count(blocks)

    def count(self, blocks: int) -> None:
        """Add to the number of requested blocks, and let others look whether it is their turn."""
        with self._changed:
            self._blocks += blocks
            self._changed.notify_all()


_Line.reset()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_Line.reset)  # the threads that have a turn are missing in the child


class Arrival:
    """The download of one copy in its own daemon thread, which `begin` starts."""

    def __init__(self, copy: "Copy") -> None:
        self.url, self._copy, self._line = copy.url, copy, _Line.here
        self.number, self.is_awaited = 0, False
        self._file: BinaryIO | None = None
        self._is_wanted = True
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Begin the download, if it has not begun."""
        if self._thread is None:
            self.number = self._line.draw()
            self._thread = threading.Thread(target=self._run, name="loaderkit download", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        try:
            file = self._copy.open(turn=self._turn) if self._is_wanted else None
            if file is None and self._is_wanted:
                self._copy.refuse_change()  # no room: range requests must read the same version
            self._file = file
            if not self._is_wanted:
                self.close()
        except _NotWantedError:
            pass
        except BaseException as error:  # the reader raises it
            self._error = error

    @contextlib.contextmanager
    def _turn(self) -> Iterator[Callable[[], None]]:
        """Wait for the turn of the download. Yield a function to call after each block."""
        left = -(-self._copy.found.size_bytes // BLOCK)
        self._line.enter(self, left)

        def has_come() -> None:
            nonlocal left
            if left:
                left -= 1
                self._line.count(-1)

        try:
            if not self._is_wanted:
                raise _NotWantedError
            yield has_come
        finally:
            self._line.count(-left)

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
        self.is_awaited = True
        self._line.count(0)
        self.begin()
        if self._thread is not None:
            self._thread.join()
        error, file = self._error, self._file
        self._error = self._file = self._thread = None
        self.is_awaited = False
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


def _rank(arrival: Arrival) -> tuple[bool, int]:
    return not arrival.is_awaited, arrival.number
