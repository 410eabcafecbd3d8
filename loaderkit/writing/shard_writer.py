"""Write a dataset to shards. A run that stops can be continued, and each visible shard is complete."""

import contextlib
import dataclasses
import hashlib
import io
import os
import uuid
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from loaderkit.datasets.base import MapStyle, read_many
from loaderkit.datasets.shards.folder_index import read_folder_index, replace_indexes
from loaderkit.datasets.shards.index import beside_path, content_checksum
from loaderkit.files.atomic import sync_folder, write_atomically
from loaderkit.files.storage import Storage
from loaderkit.files.urls import is_remote
from loaderkit.sampling.fingerprint import fingerprint, named_as_saved
from loaderkit.sampling.order import Order, Sequential, Shuffled
from loaderkit.seeding.keys import hash_positions
from loaderkit.seeding.private import PrivateGenerators
from loaderkit.seeding.sample_seeds import SampleSeeds
from loaderkit.system.arrays import UInt64Array
from loaderkit.system.process_pool import map_tasks
from loaderkit.system.start import survives_fork
from loaderkit.system.types import Json
from loaderkit.writing.format import Format, Sample, WriteError
from loaderkit.writing.manifest import LOCK_TIMEOUT_S, Folder, Piece, Plan, Record
from loaderkit.writing.parquet import ParquetFormat
from loaderkit.writing.tar import TarFormat
from loaderkit.writing.tokens import TokenFormat

FORMATS: dict[str, type[Any]] = {"tar": TarFormat, "parquet": ParquetFormat, "tokens": TokenFormat}
DEFAULT_SHARD_BYTES = 256 << 20

_PROBED = 64  # samples that are read first, to learn the schema and the size of a sample
_READ = 64  # samples read at once
_SEED = "writing"


def write_shards(
    dataset: MapStyle,
    dest: str | os.PathLike[str],
    *,
    format: str | Format = "tar",  # noqa: A002 - the field's name
    samples_per_shard: int | None = None,
    shard_bytes: int | None = None,
    shuffle: bool = False,
    seed: int = 0,
    jobs: int = 1,
    executor: Executor | None = None,
    multiprocessing_context: Literal["fork", "spawn"] = "fork",
    on_shard: Callable[[int, int], None] | None = None,
    lock_timeout_s: float = LOCK_TIMEOUT_S,
) -> Path:
    """Write a dataset to shards, or finish what an earlier call began.

    The folder is local. The written bytes depend on the dataset and the settings, not on `jobs` or `executor`. Each
    sample draws its own random numbers, as in a Loader. A shard appears once it is complete. In the end the folder
    holds only shards, and for tokens the ends of documents. The manifest and the index lie next to it, in
    `.NAME.loaderkit/`. If they are lost, the shards still open, but more slowly. `loaderkit verify` checks shards by
    their manifest.

    Args:
        dataset: Anything with `__len__` and `__getitem__`.
        dest: A folder that is new, is empty, or was begun by an earlier call with the same dataset and settings.
        format: "tar", "parquet" or "tokens", or a TarFormat, ParquetFormat or TokenFormat.
        samples_per_shard: Samples in each shard but the last.
        shard_bytes: Approximate size of a shard in bytes, instead of `samples_per_shard`. Default: 256 MiB.
        shuffle: Whether to write samples in random order. Recommended for sorted data.
        seed: The seed of the random order.
        jobs: Processes that write.
        executor: Writes instead of processes: any `concurrent.futures.Executor`, such as Dask's `client.get_executor()`
            or `RayExecutor()`. All its workers must see `dest` under the same path.
        multiprocessing_context: How processes start. Use "spawn" for datasets that do not survive a fork.
        on_shard: Called with the number of finished shards and the number of all shards.
        lock_timeout_s: How long to wait for another writer in `dest`, in seconds.

    Returns:
        The path of the manifest.

    Raises:
        WriteError: If the dataset is empty, a sample cannot be read or written, or dest holds other shards or cannot be
            written to.

    Examples:
        >>> samples = [{"cls": label, "txt": f"text {label}"} for label in range(5)]
        >>> manifest = lk.write_shards(samples, "shards", samples_per_shard=2)
        >>> sorted(os.listdir("shards")), manifest.parent.name
        (['shard-000000.tar', 'shard-000001.tar', 'shard-000002.tar'], '.shards.loaderkit')
        >>> lk.TarDataset("shards")[4]
        {'__key__': '000000004', 'cls': 4, 'txt': 'text 4'}
    """
    writing = Writing(dataset, dest, format, samples_per_shard, shard_bytes, shuffle, seed)
    for done, total in writing.run(jobs, multiprocessing_context, lock_timeout_s, executor):
        if on_shard is not None:
            on_shard(done, total)
    return writing.manifest


class Writing:
    """One dataset to write, with its checked settings."""

    def __init__(
        self,
        dataset: MapStyle,
        dest: str | os.PathLike[str],
        format: str | Format = "tar",  # noqa: A002
        samples_per_shard: int | None = None,
        shard_bytes: int | None = None,
        shuffle: bool = False,
        seed: int = 0,
    ) -> None:
        if isinstance(format, str) and format not in FORMATS:
            raise ValueError(f"format is {format!r}, wanted one of {', '.join(FORMATS)}.")
        if samples_per_shard is not None and shard_bytes is not None:
            raise ValueError("both samples_per_shard and shard_bytes are given, wanted one of them.")
        for name, value in (("samples_per_shard", samples_per_shard), ("shard_bytes", shard_bytes)):
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}, wanted at least 1.")
        if is_remote(os.fspath(dest)):
            raise WriteError(
                f"{dest}: is a URL, wanted a local folder. Write the shards there, then copy them. The manifest has their checksums."
            )
        self.dataset, self.folder = dataset, Folder(Path(dest))
        self.format: Format = FORMATS[format]() if isinstance(format, str) else format
        self.samples_per_shard = samples_per_shard
        self.shard_bytes = shard_bytes or (None if samples_per_shard else DEFAULT_SHARD_BYTES)
        self.shuffle, self.seed = shuffle, seed
        self.size = len(dataset)
        if not self.size:
            raise WriteError("the dataset has no samples, wanted at least one.")
        self.manifest = Path()

    def run(
        self,
        jobs: int,
        multiprocessing_context: str = "fork",
        lock_timeout_s: float = LOCK_TIMEOUT_S,
        executor: Executor | None = None,
    ) -> Generator[tuple[int, int], None, None]:
        """Write the missing shards. Yield the number of finished shards and the number of all shards.

        Raises:
            WriteError: As `write_shards`.
        """
        if jobs < 1:
            raise ValueError(f"jobs is {jobs}, wanted at least 1.")
        if multiprocessing_context not in ("fork", "spawn"):
            raise ValueError(f"multiprocessing_context is {multiprocessing_context!r}, wanted 'fork' or 'spawn'.")
        fork = multiprocessing_context == "fork" and survives_fork(self.dataset)
        if executor is not None:  # its workers have other current folders
            self.folder = Folder(self.folder.path.absolute())
        try:
            with self.folder.locked(lock_timeout_s):
                plan, job = self._plan(jobs, fork, executor)
                records = self.folder.begin(plan, job.run)
                yield len(records), plan.shards
                missing = [number for number in range(plan.shards) if number not in records]
                results = map_tasks(job.write, missing, executor=executor, jobs=jobs, fork=fork)
                with contextlib.closing(results):  # on an error, end the processes before unlocking the folder
                    for number, result in results:
                        if isinstance(result, Exception):
                            name = job.name(number)
                            said = str(result) if name in str(result) else f"{name}: {result}"
                            raise WriteError(said) from result
                        records[number] = result
                        yield len(records), plan.shards
                classes = getattr(self.dataset, "classes", None)
                more = {"classes": list(classes)} if classes is not None else {}
                self._write_folder_index(records)
                self.manifest = self.folder.finish(plan, records, more)
        except OSError as error:
            raise WriteError(_describe(error, self.folder.path)) from error

    def _write_folder_index(self, records: dict[int, Record]) -> None:
        """Write the index of the whole folder, if the format has one. Keep entries that a killed run wrote."""
        folder = str(self.folder.path)
        checksums = {record.file.name: record.file.blake2b for record in records.values()}
        known = {name: self.folder.kept_index(name) for name in checksums}
        for name, entry in read_folder_index(folder, Storage()).items():
            if known.get(name) is None and entry.content == checksums.get(name):
                known[name] = entry
        indexes = {name: index for name, index in known.items() if index is not None}
        replace_indexes(folder, indexes, [beside_path(str(self.folder.path / name)) for name in checksums])

    def _source(self) -> dict[str, str]:
        """Return the dataset's fingerprint. If an earlier loaderkit began the folder, use that version's form."""
        begun = self.folder.plan()
        return named_as_saved(
            lambda: {"fingerprint": fingerprint(self.dataset, self.size)}, {} if begun is None else begun.source
        )

    def _plan(self, jobs: int, fork: bool, executor: Executor | None) -> tuple[Plan, "Job"]:
        order: Order = Shuffled(self.size, seed=self.seed) if self.shuffle else Sequential(self.size)
        job = Job(self.dataset, self.folder, self.format, order, 0, None, uuid.uuid4().hex)
        places = sorted({row * (self.size - 1) // max(1, _PROBED - 1) for row in range(_PROBED)})
        # Probe in another process: a dataset that has opened files must not be forked.
        inline = not fork or self.size == 1
        [(_, probe)] = map_tasks(job.probe, [places], executor=executor, jobs=jobs, fork=fork, inline=inline)
        if isinstance(probe, Exception):
            raise WriteError(str(probe)) from probe
        per_shard = self.samples_per_shard
        if per_shard is None:
            per_shard = max(1, (self.shard_bytes or 1) * len(places) // max(1, probe.size_bytes))
        settings = {"samples_per_shard": self.samples_per_shard, "shard_bytes": self.shard_bytes}
        settings |= {"shuffle": self.shuffle, "seed": self.seed if self.shuffle else None}
        plan = Plan(
            format=self.format.name,
            source=self._source() | {"samples": self.size, "probe": probe.digest},
            settings={**settings, **self.format.settings()},
            shards=-(-self.size // per_shard),
            learned=probe.learned,
        )
        return plan, dataclasses.replace(job, per_shard=per_shard, learned=probe.learned)


@dataclass(frozen=True, slots=True)
class _Probe:
    learned: Json
    digest: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Job:
    """All that a process needs to write any of the shards."""

    dataset: Any
    folder: Folder
    format: Format
    order: Order
    per_shard: int
    learned: Json
    run: str
    private: PrivateGenerators = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "private", PrivateGenerators({"dataset": self.dataset}))

    def probe(self, places: list[int]) -> _Probe:
        """Read the samples at some positions. Return what the format learns from them, their digest and their size."""
        indices = [int(self.order.indices(0, place, place + 1)[0]) for place in places]
        samples = list(zip(indices, self._read(indices), strict=True))
        learned = self.format.learn(samples)
        file = io.BytesIO()
        written = self.format.write(file, samples, learned)
        content = file.getvalue()
        digest = hashlib.blake2b(content + b"".join(written.sides.values()), digest_size=16).hexdigest()
        return _Probe(learned, digest, len(content))

    def name(self, number: int) -> str:
        """Return a shard's file name."""
        return f"shard-{number:06d}{self.format.suffix}"

    def write(self, number: int) -> Record:
        """Write a shard: first hidden, then recorded, then visible.

        Raises:
            WriteError: If it can't be written, or this run has ended.
        """
        name = self.name(number)
        folder, part = self.folder.path, self.folder.part()
        try:
            with part.open("xb") as file:
                # Check once the part is open: if the run ends later, the part is removed, which stops this task too.
                self.folder.check_run(self.run)
                written = self.format.write(file, self._samples(number), self.learned)
                file.flush()
                os.fsync(file.fileno())
            piece = Piece(name=name, size_bytes=part.stat().st_size, blake2b=content_checksum(str(part)))
            index = self.format.index(part, written)
            if index is not None:
                if index.count != written.counts["samples"]:
                    raise WriteError(f"has {index.count:,} samples, wanted {written.counts['samples']:,}.")
                self.folder.keep_index(name, dataclasses.replace(index, content=piece.blake2b))
            sides = [self._side(name + suffix, content) for suffix, content in written.sides.items()]
            record = Record(file=piece, sides=sides, counts=written.counts)
            self.folder.keep(number, record)
            part.replace(folder / name)
            sync_folder(folder)
        except OSError as error:
            raise WriteError(_describe(error, folder / name)) from error
        finally:
            part.unlink(missing_ok=True)
        return record

    def _side(self, name: str, content: bytes) -> Piece:
        write_atomically(self.folder.path / name, content)
        return Piece(name=name, size_bytes=len(content), blake2b=content_checksum(str(self.folder.path / name)))

    def _samples(self, number: int) -> Iterator[Sample]:
        start, stop = number * self.per_shard, min((number + 1) * self.per_shard, self.order.size(0))
        for begin in range(start, stop, _READ):
            indices = self.order.indices(0, begin, min(begin + _READ, stop)).tolist()
            yield from zip(indices, self._read(indices), strict=True)

    def _read(self, indices: list[int]) -> list[object]:
        words = hash_positions(np.array(indices, dtype=np.int64), _SEED, 0)
        try:
            return self.private.use(lambda: self._read_seeded(words, indices))
        except Exception as error:
            if len(indices) == 1:
                raise WriteError(
                    f"sample {indices[0]} of the source can't be read: {type(error).__name__}: {error}"
                ) from error
            for index in indices:  # find the sample
                self._read([index])
            raise WriteError(
                f"samples {min(indices)} to {max(indices)} of the source can't be read at once: "
                f"{type(error).__name__}: {error}"
            ) from error

    def _read_seeded(self, words: UInt64Array, indices: list[int]) -> list[object]:
        with SampleSeeds(words) as seeds:
            seeds.enter_batch()
            return read_many(self.dataset, indices)


def _describe(error: OSError, path: Path) -> str:
    what = error.strerror or str(error)
    return f"{path}: can't be written: {what}. Finished shards stay. Make room or fix it, then run it again."
