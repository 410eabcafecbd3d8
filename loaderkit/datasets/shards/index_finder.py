"""Find the index of each shard of a new dataset, and make those that are missing."""

import os
from collections.abc import Sequence
from typing import Protocol

from loaderkit.datasets.shards.files import ShardFiles
from loaderkit.datasets.shards.folder_index import FolderIndexes, fitted
from loaderkit.datasets.shards.index import (
    ShardIndex,
    index_error,
    index_name,
    keep_index,
    saved_indexes,
    saved_names,
)
from loaderkit.files.urls import is_remote
from loaderkit.system.parallel import map_waiting
from loaderkit.system.progress import with_progress

_AT_ONCE = 16  # remote shards that are indexed at the same time


class Format(Protocol):
    """What a format says about the indexes of its shards. `ShardedDataset` documents these."""

    @property
    def kind(self) -> str: ...
    @property
    def keeps_index(self) -> bool: ...
    @property
    def gives_indexes(self) -> bool: ...
    def has_offsets(self, index: ShardIndex, /) -> bool: ...
    def given_index(self, shard: str) -> ShardIndex | None: ...
    def scanned_index(self, shard: str) -> ShardIndex: ...


class IndexFinder:
    """Finds shards' indexes: one that comes with the shard, its own index file, its folder's, else a new one.

    A new index is saved. `changed` lists the shards whose indexes no longer fitted them.

    Args:
        format: The shards' format.
        files: The shards' files. They learn the checksums that remote shards must have.
        index_dir: Folder for index files; None is the user's.
    """

    def __init__(
        self,
        format: Format,  # noqa: A002 - as in `index_shards`
        files: ShardFiles,
        index_dir: str | os.PathLike[str] | None,
    ) -> None:
        self._format, self._files = format, files
        self._index_dir = None if index_dir is None else os.fspath(index_dir)
        self._folders = FolderIndexes(files.storage)
        self.changed: list[str] = []

    def find(self, shards: Sequence[str]) -> list[ShardIndex]:
        """Return the indexes of shards."""
        if not self._files.remote:
            return list(map(self._find, shards))
        found: dict[str, ShardIndex] = {}
        unsaved: dict[str, None] = {}  # in the order of the shards
        names = saved_names(self._index_dir) if len(shards) > _AT_ONCE else None
        if names is not None and not self._format.gives_indexes:
            # What can be known of them is in memory: threads for that many would take longer than the search.
            unsaved = {shard: None for shard in shards if is_remote(shard) and index_name(shard) not in names}
            if self._format.keeps_index:
                self._folders.read(unsaved)
            known = {shard: self._known(shard, is_saved=False) for shard in unsaved}
            found = {shard: index for shard, index in known.items() if index is not None}

        def find(shard: str) -> ShardIndex:
            return self._make(shard) if shard in unsaved else self._find(shard)

        if missing := [shard for shard in shards if shard not in found]:
            # For each, a file or the shard is read: one first, which opens the session that the others share.
            made = [find(missing[0])]
            rest = map_waiting(find, missing[1:], _AT_ONCE)
            made += with_progress(rest, len(missing) - 1, "indexing")
            found |= zip(missing, made, strict=True)
        return [found[shard] for shard in shards]

    def _find(self, shard: str) -> ShardIndex:
        return self._format.given_index(shard) or self._known(shard) or self._make(shard)

    def _known(self, shard: str, *, is_saved: bool = True) -> ShardIndex | None:
        """Return a saved index, or that in the index of the folder; None if neither fits."""
        form = self._format
        found = self._files.stat(shard)
        candidates: list[ShardIndex] = []
        for path, index in saved_indexes(shard, form.kind, self._index_dir) if form.keeps_index and is_saved else ():
            if index.fits(found):
                if not form.has_offsets(index):
                    raise index_error(path, "its offsets are not those of a shard")
                return index
            candidates.append(index)
        entry = self._folders.get(shard) if form.keeps_index else None
        candidates += [] if entry is None or entry.kind != form.kind else [entry]
        for known in candidates:
            if (same := fitted(known, shard, found)) is None:
                continue
            if is_remote(shard):
                self._files.expect(shard, same.content, proven=known.fits(found))
            else:  # read the offsets now, so that forked workers share them
                same = same.loaded()
                if not form.has_offsets(same):
                    continue
                if not known.fits(found):  # a copied shard: compare its content only once
                    keep_index(shard, same, self._index_dir)
            return same
        if candidates:
            self.changed.append(shard)
        return None

    def _make(self, shard: str) -> ShardIndex:
        index = self._format.scanned_index(shard)
        if self._format.keeps_index:
            keep_index(shard, index, self._index_dir)
        return index
