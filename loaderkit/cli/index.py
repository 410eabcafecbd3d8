"""`loaderkit index`: write the index files of shards in parallel; a rerun skips shards with a fresh index."""

import argparse
import contextlib
import dataclasses
import functools
import re
import sys
import time
import warnings
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loaderkit.cli.arguments import add_jobs, add_settings, see_own_modules, size
from loaderkit.cli.report import complain, say
from loaderkit.datasets.errors import ShardError
from loaderkit.datasets.formats import format_named, format_of, formats_of, known_suffixes
from loaderkit.datasets.remote.storage import Storage
from loaderkit.datasets.remote.urls import expand, is_remote, stat
from loaderkit.datasets.shards.index import content_checksum, index_path, read_index, save_index
from loaderkit.datasets.shards.sharded import ShardedDataset
from loaderkit.system.process_pool import map_in_processes
from loaderkit.system.progress import with_progress
from loaderkit.system.terminal import coloured

_PART = re.compile(r"[.][0-9a-f]{32}[.]part$")
_GOOD = ("made", "fresh", "without")
_LEFT_AFTER_S = 3600  # an older partial index file belongs to a run that was killed


@dataclass(frozen=True, slots=True)
class _Job:
    """What to do with each shard."""

    format: str | None  # its name; None: decide by suffix
    index_dir: str | None  # None: next to the shards
    options: dict[str, Any]  # keyword arguments of the format's dataset
    check: bool  # only report each index's status
    checksum: bool  # write and compare checksums of the shards' content
    storage: Storage


@dataclass(frozen=True, slots=True)
class _Outcome:
    """A shard's result."""

    status: str  # made, fresh, without (needs no index), missing, stale, damaged or failed
    count: int = 0  # samples
    detail: str = ""


def add_to(commands: Any) -> None:
    """Add the command to a parser's subcommands."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "index",
        help="write the index files of shards",
        description="Write the index files of shards, next to them or in a folder. Shards with a fresh index are "
        "skipped. The exit code is 1 if a shard failed, or with --check if an index is not fresh.",
        examples=(
            ("loaderkit index 'shards/*.tar'", "index all tar shards of a folder"),
            (
                "loaderkit index s3://bucket/shards/ --format jsonl --index-dir indexes/",
                "keep the index files of remote shards in a local folder",
            ),
        ),
    )
    parser.add_argument("paths", nargs="+", metavar="PATH", help="a file, folder, glob or URL")
    parser.add_argument("--format", help="such as jsonl or tar, or MODULE:CLASS; default: by suffix")
    parser.add_argument("--index-dir", metavar="DIR", help="folder of the index files; default: next to the shards")
    add_jobs(parser)
    parser.add_argument("--check", action="store_true", help="only report the index files' status")
    parser.add_argument(
        "--checksum",
        action="store_true",
        help="read each shard: record its checksum, or compare it with the recorded one",
    )
    parser.add_argument("--quiet", action="store_true", help="print only shards that failed")
    add_settings(parser, "--option", "an argument of the format's dataset; VALUE is JSON or plain text")
    add_settings(parser, "--storage-option", "an argument of the fsspec file system, such as endpoint_url=http://...")
    parser.add_argument("--cache-dir", metavar="DIR", help="folder for copies of remote shards")
    parser.add_argument("--cache-bytes", type=size, metavar="BYTES", help="most bytes that the copies take")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Index the shards, print the results and return the exit code."""
    try:
        storage = _storage(arguments)
        see_own_modules()
        kind = format_named(arguments.format) if arguments.format else None
        shards = expand(arguments.paths, kind.suffixes if kind else known_suffixes(), storage)
    except (ValueError, OSError, ImportError) as error:
        complain(f"loaderkit index: {error}")
        return 1
    options = dict(arguments.option)
    job = _Job(arguments.format, arguments.index_dir, options, arguments.check, arguments.checksum, storage)
    if not job.check:
        _remove_old_parts({index_path(shard, job.index_dir).parent for shard in shards})
    counts: Counter[str] = Counter()
    samples = 0
    fork = not any(map(is_remote, shards))  # fsspec's threads don't survive a fork
    done = map_in_processes(functools.partial(_index_one, job=job), shards, jobs=arguments.jobs, fork=fork)
    for shard, result in with_progress(done, len(shards), "checking" if job.check else "indexing"):
        outcome = _Outcome("failed", detail=str(result)) if isinstance(result, Exception) else result
        counts[outcome.status] += 1
        samples += outcome.count
        line = _line(shard, outcome)
        if outcome.status in _GOOD:
            if not arguments.quiet:
                say(line)
        else:
            complain(line)
    summary = ", ".join(f"{number:,} {status}" for status, number in sorted(counts.items()))
    say(f"{len(shards):,} shard{'s' * (len(shards) != 1)}: {summary}; {samples:,} samples")
    return 0 if counts.total() == sum(counts[status] for status in _GOOD) else 1


def _storage(arguments: argparse.Namespace) -> Storage:
    cache = {"cache_dir": arguments.cache_dir, "cache_bytes": arguments.cache_bytes}
    return Storage(dict(arguments.storage_option), **{name: value for name, value in cache.items() if value})


def _index_one(shard: str, job: _Job) -> _Outcome:
    """Index one shard, or check its index."""
    kinds = [format_named(job.format)] if job.format else list(formats_of(shard).values())
    if not any(kind.keeps_index for kind in kinds):
        stat(shard, job.storage)
        return _Outcome("without", detail="this format needs no index")
    kind = kinds[0] if job.format else format_of(shard)
    return _check(shard, kind, job) if job.check else _make(shard, kind, job)


def _make(shard: str, kind: type[ShardedDataset], job: _Job) -> _Outcome:
    path = index_path(shard, job.index_dir)
    if _check(shard, kind, job).status not in ("fresh", "missing"):
        path.unlink(missing_ok=True)
    before = _identity(path)
    # Before the scan: if the shard changes during it, the checksum will not fit.
    content = content_checksum(shard, job.storage) if job.checksum and before is None else ""
    # A user's own format need not know `storage`.
    storage: dict[str, Any] = {"storage": job.storage} if is_remote(shard) else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a changed shard is expected here
        dataset = kind(shard, index_dir=job.index_dir, **storage, **job.options)
    if content and path.exists():
        index = read_index(path)
        save_index(shard, dataclasses.replace(index, content=content), job.index_dir)
    samples = int(dataset.shard_sizes[0])
    return _Outcome("fresh" if _identity(path) == before else "made", samples)


def _check(shard: str, kind: type[ShardedDataset], job: _Job) -> _Outcome:
    path = index_path(shard, job.index_dir)
    found = stat(shard, job.storage)
    try:
        index = read_index(path)
    except FileNotFoundError:
        return _Outcome("missing", detail="has no index")
    except (ShardError, LookupError, ValueError) as error:
        return _Outcome("damaged", detail=str(error))
    name = getattr(kind, "kind", None)
    if isinstance(name, str) and name != index.kind:
        return _Outcome("stale", detail=f"its index is of kind {index.kind}, wanted {name}")
    if index.size_bytes != found.size_bytes:
        return _Outcome("stale", detail=f"has {found.size_bytes:,} bytes, had {index.size_bytes:,} when it was indexed")
    if not index.fits(found):
        return _Outcome("stale", detail="was changed after it was indexed")
    if not kind.has_offsets(index):
        return _Outcome("damaged", detail=f"{path}: its offsets are not those of a shard")
    if job.checksum and index.content != content_checksum(shard, job.storage):
        what = "its content changed after it was indexed, but not its size and time"
        return _Outcome("stale", detail=what if index.content else "its index has no checksum")
    return _Outcome("fresh", index.count)


def _identity(path: Path) -> tuple[int, int] | None:
    """Return a value that changes if the file is replaced; None if there is no file."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns


def _remove_old_parts(folders: set[Path]) -> None:
    """Remove partial index files that a killed run left."""
    for folder in folders:
        for part in folder.glob(".*.part"):
            with contextlib.suppress(FileNotFoundError):
                if _PART.search(part.name) and time.time() - part.stat().st_mtime > _LEFT_AFTER_S:
                    part.unlink()


def _line(shard: str, outcome: _Outcome) -> str:
    good = outcome.status in _GOOD
    stream, style = (sys.stdout, "green") if good else (sys.stderr, "bold red")
    status = coloured(outcome.status, style, stream) + " " * (8 - len(outcome.status))
    if good and outcome.status != "without":
        return f"{status}{shard}  {outcome.count:,} samples"
    name = "" if outcome.detail.startswith(shard) else f"{shard}: "  # a ShardError names its shard
    return f"{status}{name}{outcome.detail}"
