"""The shards that the threads of a process have open, and those that they download before they open them."""

import dataclasses
import errno
import os
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any, BinaryIO, Generic

from typing_extensions import TypeVar

from loaderkit.datasets.shards.files import ShardFiles
from loaderkit.files.arriving import Arrival
from loaderkit.system.arrays import Int64Array
from loaderkit.system.open_files import FileLimit, OpenFiles, files_allowed
from loaderkit.system.per_thread import PerThread

Opened = TypeVar("Opened", default=Any)  # an open shard

_FETCHED = 32  # most downloads of a thread at a time
_WORKERS = 16  # most workers that share a sequential read, each skipping the batches of the others


class OpenShards(Generic[Opened]):
    """The shards that each thread has open, by number. A copy, pickled or not, starts with none.

    Args:
        owner: Name of the dataset's class, for errors.
        shards: The shards' names.
        files: The shards' files.
        limit: How many shards all threads together keep open, and the files of each. Downloads count.
    """

    def __init__(self, owner: str, shards: Sequence[str], files: ShardFiles, limit: FileLimit) -> None:
        self._owner, self._shards, self._files, self._limit = owner, shards, files, limit
        self._opened = PerThread(OpenFiles, limit)
        self._last_read: int | None = None

    def get(self, part: int, open_shard: Callable[[int], Opened]) -> Opened:
        """Return this thread's open shard number `part`; open it by `open_shard(part)` if needed."""
        opened = self._opened.own
        if opened.process != os.getpid():  # a forked worker must not share file positions with its parent
            opened.reset_after_fork(closing=True)
        handles = opened.handles
        if part in handles:
            handles.move_to_end(part)
        else:
            opened.make_room()
            handles[part] = self._open(part, open_shard, opened)
            opened.close_some([~part])  # its format opens shards in another way than `open_soon`
        found: Opened = handles[part]
        return found

    def open_soon(self, shard: str) -> BinaryIO:
        """Open a shard to read bytes. If possible, read its first samples by range requests during the download."""
        part = next((part for part, arrival in self.fetched.items() if arrival.url == shard), None)
        arrival: Arrival | None = None if part is None else self._opened.own.handles.pop(~part)
        return self._files.open_soon(shard, arrival)

    def follows(self, part: int, wanted: Int64Array) -> bool:
        """Return whether a read continues the last one. Then let go of the shards before it.

        Args:
            part: Number of the shard that is read, which is open.
            wanted: Indices of the samples that are read (B,).
        """
        first, last = int(wanted[0]), int(wanted[-1])
        is_run, before = last - first == len(wanted) - 1, self._last_read
        self._last_read = last
        if before is None or not is_run:  # the first read has all connections
            return False
        skipped = first - before - 1
        if not 0 <= skipped < _WORKERS * len(wanted):
            return False
        if not skipped:  # no other worker shares this sequential read
            self.close_some([one for one in self._opened.own.handles if 0 <= one < part])
        self.close_some([~one for one in self.fetched if one < part])
        return True

    @property
    def fetched(self) -> dict[int, Arrival]:
        """Downloads of this thread whose shards it has not opened, by the shards' numbers."""
        opened = self._opened.own
        return {~key: one for key, one in opened.handles.items() if key < 0} if opened.process == os.getpid() else {}

    @property
    def can_fetch(self) -> int:
        """How many more shards this thread may fetch now."""
        going_on = sum(not arrival.is_over for arrival in self.fetched.values())
        return max(1, min(_FETCHED, self._limit.handles // 4)) - going_on

    def fetch(self, parts: Iterable[int], needs_download: Callable[[int], bool]) -> None:
        """Begin to download shards in the background, in this order, as far as `can_fetch`.

        Args:
            parts: The shards' numbers.
            needs_download: Returns whether a shard is remote, and not in the cache.
        """
        opened = self._opened.own
        if opened.process != os.getpid():
            opened.reset_after_fork(closing=True)
        handles = opened.handles
        missing = (part for part in parts if part not in handles and ~part not in handles and needs_download(part))
        for part in islice(missing, self.can_fetch):
            if (arrival := self._files.fetch(self._shards[part])) is not None:
                handles[~part] = arrival

    def close(self) -> None:
        """Close this thread's open shards; `get` opens them again."""
        self._opened.own.close()

    def close_some(self, parts: Iterable[int]) -> None:
        """Close the shards with these numbers, if this thread has them open."""
        opened = self._opened.own
        if opened.process == os.getpid():
            opened.close_some(parts)

    def _open(self, part: int, open_shard: Callable[[int], Opened], opened: OpenFiles) -> Opened:
        """Open a shard. If too many files are open, close this thread's other shards and try again."""
        try:
            return open_shard(part)
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
        opened.close()
        try:
            return open_shard(part)
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise OSError(
                    error.errno,
                    f"{self._owner}: too many files are open in this process, which may open {files_allowed()}, to open "
                    f"{self._shards[part]}. Allow more (ulimit -n), or keep fewer shards open: max_open={self._limit.handles} now.",
                ) from error
            raise

    def __getstate__(self) -> dict[str, object]:
        limit = dataclasses.replace(self._limit)  # a copy counts its own files
        return self.__dict__ | {"_limit": limit, "_opened": PerThread(OpenFiles, limit)}
