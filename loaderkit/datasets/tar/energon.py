"""Tar shards of folders that Megatron Energon prepared. `NAME.tar.idx` says where samples start: no scan is needed."""

import contextlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

from loaderkit.datasets.errors import ShardError
from loaderkit.datasets.shards.lines import LineFile
from loaderkit.datasets.tar.headers import read_headers
from loaderkit.datasets.tar.index import group_files
from loaderkit.datasets.tar.open_shard import Block, Files, to_blocks
from loaderkit.files.listing import Stat
from loaderkit.files.storage import Storage
from loaderkit.files.urls import is_remote
from loaderkit.system.arrays import Int64Array

_SUFFIX = ".idx"
_BLOCK = 512  # bytes; all parts of an archive are multiples of it
_MOST = 1 << 30  # bytes of an index, at most
_END = bytes(2 * _BLOCK)  # the end mark of an archive


def read_starts(shard: str, found: Stat, storage: Storage) -> Int64Array | None:
    """Return where each sample of a shard starts and the last one ends, in bytes (N + 1,); None without an index file.

    Raises:
        ShardError: If the index does not fit a shard of this size.
    """
    place = shard + _SUFFIX
    content = None
    with contextlib.suppress(FileNotFoundError):
        content = storage.read(place, 0, _MOST) if is_remote(shard) else Path(place).read_bytes()
    if content is None:
        return None
    starts = np.frombuffer(content[: len(content) // 8 * 8], "<u8").astype(np.int64)
    fits = len(starts) and len(content) % 8 == 0 and starts[0] == 0 and starts[-1] <= found.size_bytes
    if not fits or (np.diff(starts) <= 0).any() or (starts % _BLOCK).any():
        raise ShardError(
            f"{place}: not an index of {shard}, which has {found.size_bytes:,} bytes. Prepare the folder again (energon prepare), or "
            "give a list of its tar files, which are then scanned."
        )
    return starts


class OpenIndexed:
    """An open shard whose samples' starts are known. A sample's headers are parsed when it is read."""

    def __init__(self, shard: str, file: BinaryIO, starts: Int64Array) -> None:
        self.shard = shard
        self._file = LineFile(shard, file)
        self._starts = starts

    def close(self) -> None:
        self._file.close()

    def read(self, rows: list[int]) -> Iterator[Block]:
        """Yield the samples in these rows (B,) as blocks. Samples that are close together are read at once."""
        starts, ends = self._starts[rows].tolist(), self._starts[np.array(rows, dtype=np.int64) + 1].tolist()
        content, places = self._file.read_together(starts, ends)
        names: dict[str, int] = {}
        files = Files(self.shard, [], [], [], [], [], [], names)
        for start, end, place in zip(starts, ends, places, strict=True):
            self._add(files, names, content[place : place + end - start], start, place)
        yield from to_blocks(files, content)

    def _add(self, files: Files, names: dict[str, int], content: memoryview, start: int, place: int) -> None:
        """Add the files of the sample whose bytes are `content`.

        It begins at byte `start` of the shard, and at `place` in the buffer that was read.
        """
        where = f"{self.shard} from byte {start:,} on"
        headers = read_headers(io.BytesIO(bytes(content) + _END), len(content) + len(_END), where)
        table = group_files(headers, where)
        if len(table.ends) != 1:
            raise ShardError(
                f"{where}: {len(table.ends)} samples, wanted one, as {self.shard}{_SUFFIX} says. Prepare the folder again "
                "(energon prepare), or give a list of its tar files, which are then scanned."
            )
        [key], [count], (offsets, sizes, numbers) = table.samples([0])
        files.keys.append(key)
        files.counts.append(count)
        files.offsets.extend(start + offset for offset in offsets)
        files.starts.extend(place + offset for offset in offsets)
        files.sizes.extend(sizes)
        files.kinds.extend(names.setdefault(table.extensions[number], len(names)) for number in numbers)
