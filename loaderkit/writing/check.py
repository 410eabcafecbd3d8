"""Check shards against their manifest: sizes and checksums of files, and that each sample can be read."""

import os
import tempfile
from collections.abc import Generator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from loaderkit.datasets.arrow.parquet import ParquetDataset
from loaderkit.datasets.errors import ShardError
from loaderkit.datasets.shards.documents import DocumentDataset
from loaderkit.datasets.shards.index import content_checksum, saved_indexes
from loaderkit.datasets.shards.sharded import ShardedDataset
from loaderkit.datasets.tar.dataset import TarDataset
from loaderkit.files.urls import is_remote
from loaderkit.system.process_pool import map_tasks
from loaderkit.system.progress import with_progress
from loaderkit.writing.format import WriteError
from loaderkit.writing.manifest import (
    MANIFEST,
    Piece,
    Plan,
    Record,
    folder_of_manifest,
    is_ours,
    manifest_of,
    read_plan,
    read_records,
)

_READ = 64  # samples


def verify_shards(path: str | os.PathLike[str], *, jobs: int = 1, executor: Executor | None = None) -> int:
    """Compare shards with their manifest; return the number of samples.

    It reads every shard in the manifest, which `write_shards` wrote.

    Args:
        path: The folder of shards, or its manifest.
        jobs: Processes that read.
        executor: Reads instead of processes: any `concurrent.futures.Executor`, such as Dask's `client.get_executor()` or
            `RayExecutor()`. All its workers must see the folder under the same path.

    Raises:
        WriteError: If a shard is missing, damaged, or differs from its manifest, or a file has no entry there.

    Examples:
        >>> manifest = lk.write_shards([{"cls": label} for label in range(5)], "shards", samples_per_shard=2)
        >>> lk.verify_shards("shards")
        5
    """
    check_local(path)
    claims, extra = claims_of(Path(path).absolute())
    wrong = [f"{path}: {name} is not in the manifest." for name in extra]
    samples = 0
    for _, result in with_progress(check_each(claims, jobs=jobs, executor=executor), len(claims), "verifying"):
        if isinstance(result, Exception):
            wrong.append(str(result))
        else:
            samples += result
    if wrong:
        raise WriteError(f"{len(wrong):,} of the shards or files are wrong. The first: {min(wrong)}")
    return samples


@dataclass(frozen=True, slots=True)
class Claim:
    """A shard and its entry in the manifest."""

    folder: Path
    plan: Plan
    record: Record


def check_local(path: str | os.PathLike[str]) -> None:
    """Raise a WriteError if a path is a URL.

    Raises:
        WriteError: If it is a URL.
    """
    if is_remote(os.fspath(path)):
        raise WriteError(
            f"{os.fspath(path)}: is a URL, wanted a folder of this machine. Copy the shards with their manifest, or mount the bucket."
        )


def claims_of(path: Path) -> tuple[list[Claim], list[str]]:
    """Return the entries of a manifest, and the names of files in its folder that have no entry.

    `path` is the folder of shards or its manifest.

    Raises:
        WriteError: If the manifest is missing, not readable, or contradicts itself.
    """
    folder, manifest = (folder_of_manifest(path), path) if path.name == MANIFEST else (path, manifest_of(path))
    if not manifest.is_file():
        raise WriteError(
            f"{folder}: has no {MANIFEST} in {manifest.parent}. `loaderkit shard` did not write it, or did not finish: run it "
            "again. Or the shards were copied without it: copy that folder too."
        )
    plan, records = read_plan(manifest), read_records(manifest)
    samples = sum(record.counts["samples"] for record in records)
    if len(records) != plan.shards or samples != plan.source["samples"]:
        raise WriteError(
            f"{manifest}: names {len(records):,} shards with {samples:,} samples, wanted {plan.shards:,} "
            f"with {plan.source['samples']:,}."
        )
    names = {piece.name for record in records for piece in (record.file, *record.sides)}
    extra = sorted(file.name for file in folder.iterdir() if file.name not in names and not is_ours(file.name))
    return [Claim(folder, plan, record) for record in records], extra


def check_each(
    claims: Sequence[Claim], *, jobs: int = 1, executor: Executor | None = None
) -> Generator[tuple[Claim, int | Exception], None, None]:
    """Check shards in parallel. Yield each claim with its number of samples, or with an error that names the shard."""
    for claim, result in map_tasks(check_shard, claims, executor=executor, jobs=jobs):
        name = str(claim.folder / claim.record.file.name)
        named = not isinstance(result, Exception) or name in str(result)
        yield claim, result if named else ShardError(f"{name}: {result}")


def check_shard(claim: Claim) -> int:
    """Read a whole shard and return its number of samples.

    Raises:
        ShardError: If it differs from its manifest.
    """
    for piece in (claim.record.file, *claim.record.sides):
        _check_piece(claim.folder / piece.name, piece)
    shard = str(claim.folder / claim.record.file.name)
    wanted = claim.record.counts["samples"]
    found = _read_tokens(claim) if claim.plan.format == "tokens" else _read_samples(shard, claim.plan.format)
    if found != wanted:
        raise ShardError(f"{shard}: has {found:,} samples, wanted {wanted:,}.")
    return found


def _check_piece(path: Path, piece: Piece) -> None:
    if not path.is_file():
        raise ShardError(f"{path}: is missing.")
    size_bytes = path.stat().st_size
    if size_bytes != piece.size_bytes:
        raise ShardError(f"{path}: has {size_bytes:,} bytes, wanted {piece.size_bytes:,}.")
    found = content_checksum(str(path))
    if found != piece.blake2b:
        raise ShardError(f"{path}: has the checksum {found}, wanted {piece.blake2b}.")


def _read_samples(shard: str, form: str) -> int:
    kinds: dict[str, type[ShardedDataset]] = {"tar": TarDataset, "parquet": ParquetDataset}
    if form not in kinds:
        raise ShardError(f"{shard}: its format is {form!r}, wanted one of tar, parquet, tokens.")
    with tempfile.TemporaryDirectory() as folder:  # an empty folder, so that indexes are made anew
        data = kinds[form](shard, index_dir=folder)
        _check_index(shard, data)
        for start in range(0, len(data), _READ):
            data.__getitems__(range(start, min(start + _READ, len(data))))
        data.close()
    return len(data)


def _check_index(shard: str, data: ShardedDataset) -> None:
    found = data.files.stat(shard)
    fitting = (index for _, index in saved_indexes(shard, data.kind, None) if index.fits(found))
    kept = next(fitting, None) or data.proven_index(0)  # the folder's index, or a new one
    count, offsets = data.scan(shard)
    known = np.empty(0) if kept.offsets is None else kept.offsets
    if kept.count != count or not np.array_equal(known, np.asarray(offsets)):
        raise ShardError(f"{shard}: its index belongs to another shard. Delete it, then run loaderkit index.")


def _read_tokens(claim: Claim) -> int:
    path = claim.folder / claim.record.file.name
    data = DocumentDataset(str(path), dtype=claim.plan.settings["dtype"])
    for start in range(0, len(data), _READ):
        data.read_batch(np.arange(start, min(start + _READ, len(data))))
    data.close()
    return len(data)
