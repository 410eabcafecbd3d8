"""Write the index files of shards in parallel; a rerun skips shards whose index is up to date."""

import contextlib
import dataclasses
import functools
import os
import re
import time
import warnings
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loaderkit.datasets.errors import ShardError
from loaderkit.datasets.find_shards import expand
from loaderkit.datasets.formats import format_named, format_of, formats_of, known_suffixes
from loaderkit.datasets.shards.folder_index import (
    fitted,
    folder_of,
    local_folder_indexes,
    read_folder_index,
    read_whole_index,
    replace_indexes,
)
from loaderkit.datasets.shards.index import (
    ShardIndex,
    beside_path,
    content_checksum,
    default_folder,
    index_path,
    read_index,
    save_index,
)
from loaderkit.datasets.shards.sharded import ShardedDataset
from loaderkit.files.atomic import write_atomically
from loaderkit.files.listing import Stat
from loaderkit.files.storage import Storage
from loaderkit.files.urls import Urls, is_remote, shard_name, stat
from loaderkit.system.parallel import map_waiting
from loaderkit.system.process_pool import map_tasks
from loaderkit.system.progress import with_progress

GOOD = ("made", "fresh", "without")
_PART = re.compile(r"[.][0-9a-f]{32}[.]part$")
_TOGETHER = 16  # remote shards that a process indexes at the same time
_LEFT_AFTER_S = 3600  # an older partial index file belongs to a run that was killed

Task = tuple[str, ShardIndex | Exception | None]  # a shard, and its entry in the index of its remote folder, if any


def index_shards(
    urls: Urls,
    *,
    format: str | None = None,  # noqa: A002 - as in `write_shards`
    index_dir: str | os.PathLike[str] | None = None,
    beside: bool = False,
    folder_index: bool = False,
    jobs: int = 1,
    executor: Executor | None = None,
    storage: Storage | None = None,
) -> int:
    """Write the index files of shards, and return the number of samples.

    This is what the command `loaderkit index` does. Shards whose index is up to date are skipped, but counted. If a
    shard fails, the others are still indexed.

    Args:
        urls: A path, folder, glob or URL, or a list of them.
        format: A format's name such as "jsonl" or "tar", or "module:Class". By default a shard's suffix decides.
        index_dir: Folder for index files. None: LOADERKIT_INDEX_DIR, else ~/.cache/loaderkit/index.
        beside: Whether to write each local shard's index next to it too, as `NAME.lkindex`. Other tools that read all files
            of the folder then fail.
        folder_index: Whether to write one index of all shards of a folder next to the folder, also in a bucket:
            `.NAME.loaderkit/folder.lkindex`. It can be copied along with the shards, and opening a remote dataset takes
            one or two requests for it. It replaces index files that lie between local shards.
        jobs: Number of processes. Each indexes 16 remote shards at a time.
        executor: Runs the work in place of local processes: any `concurrent.futures.Executor`, such as Dask's
            `client.get_executor()` or `RayExecutor()`. All its workers must see local shards and `index_dir` under the
            same path.
        storage: How to reach remote shards.

    Raises:
        FileNotFoundError: If there are no shards.
        OSError: If a folder's index cannot be written.
        ShardError: If shards could not be indexed; the message names the first.
        ValueError: If `beside` is for remote shards.

    Examples:
        >>> _ = lk.write_shards([{"cls": label} for label in range(5)], "shards", samples_per_shard=2)
        >>> lk.index_shards("shards/*.tar")
        5
    """
    kind = format_named(format) if format else None
    folder = None if index_dir is None else os.fspath(index_dir)
    job = IndexJob(format, folder, beside=beside, storage=storage or Storage())
    shards = expand(urls, kind.suffixes if kind else known_suffixes(), job.storage)
    samples, failed = 0, []
    for shard, outcome in index_each(shards, job, jobs=jobs, executor=executor):
        samples += outcome.count
        if outcome.status not in GOOD:
            failed.append(outcome.detail if shard in outcome.detail else f"{shard}: {outcome.detail}")
    if failed:
        raise ShardError(f"{len(failed):,} of {len(shards):,} shards have no index. The first: {min(failed)}")
    if folder_index:
        write_folder_indexes(shards, job)
    return samples


def write_folder_indexes(shards: Sequence[str], job: "IndexJob") -> list[str]:
    """Write one index next to each folder of indexed shards, and remove the index files of its local shards.

    Return the paths and URLs of the indexes written.

    Raises:
        OSError: If a folder cannot be written to.
        ShardError: If a folder already has an index, and it is damaged.
    """
    by_folder: dict[str, list[str]] = {}
    for shard in shards:
        by_folder.setdefault(folder_of(shard), []).append(shard)
    written = []
    for folder, mine in sorted(by_folder.items()):
        known = {} if is_remote(folder) else read_folder_index(folder, job.storage)
        indexes = {name: entry for name, entry in known.items() if Path(folder, name).exists()}
        for shard in mine:
            found = None if is_remote(shard) else stat(shard)  # a remote shard's version has just been checked
            index = _saved_index(shard, job, found)
            if index is not None and (found is None or index.fits(found)):
                indexes[shard_name(shard)] = index
        old = [] if is_remote(folder) else _replaced(mine, job)
        written.append(replace_indexes(folder, indexes, old, job.storage))
    return [place for place in written if place is not None]  # some formats need no index


def _replaced(shards: Sequence[str], job: "IndexJob") -> list[Path]:
    """Return the index files of local shards that are not needed once their folder has an index."""
    kept = [] if job.index_dir is not None else [index_path(shard, None) for shard in shards]
    return kept if job.beside else [*kept, *map(beside_path, shards)]


@dataclass(frozen=True, slots=True)
class IndexJob:
    """The settings for indexing shards, or for checking their indexes."""

    format: str | None = None  # the format's name; None: decide by suffix
    index_dir: str | None = None  # None: the user's folder of indexes
    options: dict[str, Any] = field(default_factory=dict)  # keyword arguments of the format's dataset
    check: bool = False  # only report each index's status
    checksum: bool = False  # write and compare checksums of the shards' content
    beside: bool = False  # write the indexes next to the shards too
    names_default: bool = False  # index_dir is the user's folder of indexes, named for workers with other homes
    storage: Storage = field(default_factory=Storage)

    @property
    def is_default(self) -> bool:
        """Whether indexes next to a shard or its folder count too, as they do if no index_dir was given."""
        return self.index_dir is None or self.names_default


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of indexing or checking one shard."""

    status: str  # made, fresh, without (needs no index), missing, stale, damaged or failed
    count: int = 0  # samples
    detail: str = ""


def index_each(
    shards: Sequence[str], job: IndexJob, *, jobs: int = 1, executor: Executor | None = None
) -> Generator[tuple[str, Outcome], None, None]:
    """Index shards with a progress bar, or check their indexes.

    Yield each shard with its outcome, in the order in which they finish.
    """
    remote = [shard for shard in shards if is_remote(shard)]
    if job.beside and remote:
        raise ValueError(f"{remote[0]}: is remote, wanted local shards for an index beside each. Write a folder index.")
    if executor is not None:  # its workers have other current folders, and other homes
        shards = [shard if is_remote(shard) else str(Path(shard).absolute()) for shard in shards]
        folder = default_folder() if job.index_dir is None else Path(job.index_dir)
        job = dataclasses.replace(job, index_dir=str(folder.absolute()), names_default=job.is_default)
    if not job.check:
        folders = {index_path(shard, job.index_dir).parent for shard in shards}
        _remove_old_parts(folders | {beside_path(shard).parent for shard in shards if job.beside})
        if job.is_default:
            _remove_damaged({folder_of(shard) for shard in shards if not is_remote(shard)})
    entries = _bucket_entries(shards, job.storage) if job.check else {}
    each = [(shard, entries.get(shard)) for shard in shards]
    together = _TOGETHER if remote else 1
    tasks = [each[at : at + together] for at in range(0, len(each), together)]
    fork = not remote  # fsspec's threads don't survive a fork
    done = map_tasks(functools.partial(_index_some, job=job), tasks, executor=executor, jobs=jobs, fork=fork)
    yield from with_progress(_one_by_one(done), len(shards), "checking" if job.check else "indexing")


def _one_by_one(
    done: Iterable[tuple[list[Task], list[Outcome] | Exception]],
) -> Generator[tuple[str, Outcome], None, None]:
    """Yield the outcome of each shard of the tasks. An error of a task, such as the end of its process, is that of all its shards."""
    for task, result in done:
        failed = [Outcome("failed", detail=str(result))] * len(task)
        yield from zip((shard for shard, _ in task), failed if isinstance(result, Exception) else result, strict=True)


def _bucket_entries(shards: Sequence[str], storage: Storage) -> dict[str, ShardIndex | Exception]:
    """Return each remote shard's entry in the index of its folder, or the error if that index can't be read.

    The index of each folder is read once. Shards without an entry are left out.
    """
    by_folder: dict[str, dict[str, str]] = {}
    for shard in filter(is_remote, shards):
        by_folder.setdefault(folder_of(shard), {})[shard_name(shard)] = shard
    found: dict[str, ShardIndex | Exception] = {}
    for folder, mine in by_folder.items():
        try:
            entries = read_whole_index(folder, storage)
        except (ShardError, OSError) as error:
            found |= dict.fromkeys(mine.values(), error)
        else:
            found |= {mine[name]: entry for name, entry in entries.items() if name in mine}
    return found


def _index_some(tasks: list[Task], job: IndexJob) -> list[Outcome]:
    """Index shards, or check their indexes; several at a time, as remote ones mostly wait."""

    def index(task: Task) -> Outcome:
        try:
            return _index_one(task, job)
        except Exception as error:
            return Outcome("failed", detail=str(error))

    with warnings.catch_warnings():  # here, as it is for all threads
        warnings.simplefilter("ignore")  # a changed shard is expected
        return list(map_waiting(index, tasks, _TOGETHER))


def _index_one(task: Task, job: IndexJob) -> Outcome:
    """Index one shard, or check its index."""
    shard, entry = task
    kinds = [format_named(job.format)] if job.format else list(formats_of(shard).values())
    if not any(kind.keeps_index for kind in kinds):
        stat(shard, job.storage)
        return Outcome("without", detail="this format needs no index")
    kind = kinds[0] if job.format else format_of(shard)
    return _check_index(shard, kind, job, entry) if job.check else _make_index(shard, kind, job)


def _make_index(shard: str, kind: type[ShardedDataset], job: IndexJob) -> Outcome:
    path = index_path(shard, job.index_dir)
    checked = _check_index(shard, kind, job)
    if checked.status not in ("fresh", "missing"):
        path.unlink(missing_ok=True)
    before = _identity(path)
    fresh = checked.status == "fresh"
    # Before the scan: if the shard changes during it, the checksum will not fit.
    content = content_checksum(shard, job.storage) if job.checksum and not fresh else ""
    # A user's own format need not know `storage`.
    storage: dict[str, Any] = {"storage": job.storage} if is_remote(shard) else {}
    # If index_dir is named, the dataset writes its index there and ignores indexes next to the shard.
    folder = job.index_dir if fresh else os.fspath(job.index_dir or default_folder())
    dataset = kind(shard, index_dir=folder, **storage, **job.options)
    if kind.keeps_index and not path.exists() and not fresh:  # the dataset took the entry in its folder's index
        index = dataset.proven_index(0) if is_remote(shard) else dataset.scanned_index(shard)
        save_index(shard, index, job.index_dir)
    if content:
        index = read_index(path)
        save_index(shard, dataclasses.replace(index, content=content), job.index_dir)
    if job.beside:
        _write_beside(shard, dataset.proven_index(0) if fresh else read_index(path))
    samples = int(dataset.shard_sizes[0])
    return Outcome("fresh" if _identity(path) == before else "made", samples)


def _check_index(
    shard: str, kind: type[ShardedDataset], job: IndexJob, entry: ShardIndex | Exception | None = None
) -> Outcome:
    found = stat(shard, job.storage)
    try:
        index = _saved_index(shard, job, found)
        if index is None or not index.fits(found):  # look in the same order as a dataset does
            other = _folder_entry(shard, job, entry, found)
            index = other if other is not None and (index is None or entry or other.fits(found)) else index
        if index is None:
            return Outcome("missing", detail="has no index")
    except (ShardError, LookupError, ValueError) as error:
        return Outcome("damaged", detail=str(error))
    name = getattr(kind, "kind", None)
    if isinstance(name, str) and name != index.kind:
        return Outcome("stale", detail=f"its index is of kind {index.kind}, wanted {name}")
    if index.size_bytes != found.size_bytes:
        return Outcome("stale", detail=f"has {found.size_bytes:,} bytes, had {index.size_bytes:,} when it was indexed")
    if not index.fits(found):
        return Outcome("stale", detail="was changed after it was indexed")
    if not kind.has_offsets(index):
        return Outcome("damaged", detail=f"{shard}: the offsets in its index are not those of a shard")
    if job.checksum and index.content != content_checksum(shard, job.storage):
        what = "its content changed after it was indexed, but not its size and time"
        return Outcome("stale", detail=what if index.content else "its index has no checksum")
    return Outcome("fresh", index.count)


def _saved_index(shard: str, job: IndexJob, found: Stat | None) -> ShardIndex | None:
    """Return the index that a dataset takes; None if there is none.

    Look in the folder of indexes, then next to the shard. Take the first index that fits the shard, else the first
    found.
    """
    paths = [index_path(shard, job.index_dir)]
    paths += [beside_path(shard)] if job.is_default and not is_remote(shard) else []
    first: ShardIndex | None = None
    for path in paths:
        if path.exists():
            index = read_index(path)
            if found is None or index.fits(found):
                return index
            first = first or index
    return first


def _write_beside(shard: str, index: ShardIndex) -> None:
    path, content = beside_path(shard), index.to_bytes()
    if not path.is_file() or path.read_bytes() != content:
        write_atomically(path, content)


def _folder_entry(shard: str, job: IndexJob, entry: ShardIndex | Exception | None, found: Stat) -> ShardIndex | None:
    """Return a shard's entry in the index of its folder.

    Return None if it has none. For a remote shard, `entry` is that entry, or an error to raise.
    """
    if isinstance(entry, Exception):
        raise entry
    if entry is not None:
        return fitted(entry.loaded(), shard, found) or entry
    if is_remote(shard) or not job.is_default:
        return None
    local = read_folder_index(folder_of(shard), job.storage).get(shard_name(shard))
    return None if local is None else local.loaded()


def _identity(path: Path) -> tuple[int, int] | None:
    """Return a file's inode and time of change (ns), which differ if it is replaced; None if there is no file."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns


def _remove_damaged(folders: set[str]) -> None:
    """Remove the indexes of local folders that cannot be read, so that their shards are indexed again."""
    for folder in folders:
        try:
            for entry in read_folder_index(folder, Storage()).values():
                entry.loaded()
        except ShardError:
            for path in local_folder_indexes(folder):
                path.unlink()


def _remove_old_parts(folders: set[Path]) -> None:
    """Remove partial index files that a killed run left."""
    for folder in folders:
        for part in folder.glob(".*.part"):
            with contextlib.suppress(FileNotFoundError):
                if _PART.search(part.name) and time.time() - part.stat().st_mtime > _LEFT_AFTER_S:
                    part.unlink()
