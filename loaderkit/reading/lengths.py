"""Measure the lengths of a dataset's samples, in parallel, and cache them in a file."""

import functools
import io
import json
import os
import reprlib
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

import numpy as np

from loaderkit.datasets.base import MapStyle, counts_tokens, knows_lengths
from loaderkit.files.atomic import write_atomically
from loaderkit.files.regular_file import read_regular
from loaderkit.reading.batch_reader import BatchReader
from loaderkit.sampling.fingerprint import fingerprint, spread_rows
from loaderkit.sampling.plan import BatchKey
from loaderkit.system.arrays import Int64Array
from loaderkit.system.checks import check_integer, plain_integer
from loaderkit.system.open_before_fork import warn_of_open_files
from loaderkit.system.process_pool import LostTaskError, map_tasks
from loaderkit.system.progress import with_progress
from loaderkit.system.stack import CollateError
from loaderkit.system.start import survives_fork

Length = Callable[[Any], int] | str | int
VERSION = "loaderkit lengths 1"
_READ = 64  # samples read at once
_EXECUTOR_WORKERS = 8  # assumed: an executor does not tell its number; makes about 500 tasks


def measure_lengths(
    dataset: MapStyle,
    length: Length | None = None,
    *,
    num_workers: int = 0,
    executor: Executor | None = None,
    cache: str | os.PathLike[str] | None = None,
    multiprocessing_context: Literal["fork", "spawn"] = "fork",
    bad_length: int | None = None,
) -> Int64Array:
    """Return the length of each sample (N,), for plans by length.

    Those plans are `LengthBuckets`, `TokenBudget` and `PackPlan`. If the dataset has `lengths()` and no transform, as
    DocumentDataset, no sample is read. Otherwise each sample is read once, under its own seed as in a Loader. For
    `MultimodalDataset`, `ChatDataset` and `PreferenceDataset`, tokens are counted without decoding pictures; the length
    of a preference pair is twice that of its longer side.

    The cache is used if the number of samples, the dataset's fingerprint and the name of `length` are the same as when
    it was written. The lengths of 16 samples, which are read again, must be the same too. Otherwise a warning says what
    differs, and all lengths are measured again.

    Args:
        dataset: Anything with a length and an index.
        length: A function from a sample to its length, or the key or index of a field. A field that is an integer is
            the length itself; for any other field it is its `len`. By default the sample itself is the field.
        num_workers: Processes that read; 0 reads in this one.
        executor: Reads instead of processes: any `concurrent.futures.Executor`, such as Dask's `client.get_executor()` or
            `RayExecutor()`.
        cache: Path of a file that keeps the lengths. It is written once all are measured.
        multiprocessing_context: How processes start. Use "spawn" for datasets that do not survive a fork.
        bad_length: The length to give to a sample that cannot be read; a Loader's `BadSamples` handles it later. None
            raises.

    Raises:
        ValueError: If a setting is out of range, a sample has no length, or the cache is another kind of file.
        RuntimeError: If a sample cannot be read; the message names it.

    Examples:
        >>> texts = [{"tokens": [1, 2, 3]}, {"tokens": [4]}, {"tokens": [5, 6]}]
        >>> lk.measure_lengths(texts, "tokens")
        array([3, 1, 2])
        >>> lk.measure_lengths(texts, lambda text: sum(text["tokens"]), cache="lengths.npz")
        array([ 6,  4, 11])
    """
    num_workers = plain_integer(num_workers)
    if not isinstance(num_workers, int) or num_workers < 0 or multiprocessing_context not in ("fork", "spawn"):
        raise ValueError(
            f"measure_lengths: num_workers is {num_workers!r} and multiprocessing_context {multiprocessing_context!r}, wanted an "
            "integer of at least 0, and 'fork' or 'spawn'."
        )
    if bad_length is not None:
        check_integer("measure_lengths", "bad_length", bad_length, 0, ", or None")
    if length is None and knows_lengths(dataset):
        return np.asarray(dataset.lengths(), dtype=np.int64)  # type: ignore[attr-defined]  # `knows_lengths` has asked
    if length is None and counts_tokens(dataset):
        dataset = dataset.counted()  # type: ignore[attr-defined]  # `counts_tokens` has asked
    return measure(
        dataset,
        LengthOf(length),
        num_workers=num_workers,
        executor=executor,
        cache=cache,
        fork=multiprocessing_context == "fork",
        bad_length=bad_length,
    )


class Measure(Protocol):
    """A collate function that returns one number for each sample, (B,) int64, at least 0."""

    what: ClassVar[str]  # the numbers' name in messages: one plural word
    setting: ClassVar[str]  # name of the setting that decides the numbers

    def __call__(self, samples: list[object]) -> Int64Array: ...

    @property
    def name(self) -> str:
        """A name for messages, and for the cache."""


def measure(
    dataset: MapStyle,
    of: Measure,
    *,
    num_workers: int,
    executor: Executor | None,
    cache: str | os.PathLike[str] | None,
    fork: bool,
    bad_length: int | None = None,
) -> Int64Array:
    """Return one number for each sample, (N,) int64: measured in parallel, cached in a file. See `measure_lengths`."""
    fork = fork and survives_fork(dataset)
    size, reader = len(dataset), _Reader(BatchReader(dataset, of, seed=0), bad_length)
    if num_workers > 1:
        warn_of_open_files(dataset, "fork" if fork else "spawn")
    if cache is None:
        return _read_all(reader, of.what, size, num_workers, executor, fork=fork)
    path = Path(cache)
    name = of.name if bad_length is None else f"{of.name}, {bad_length} if unreadable"
    made_of = {"samples": f"{size:,}", "data": fingerprint(dataset, size), of.setting: name}
    found = _load(path)
    if found is not None:
        change = _changed(*found, made_of, of.what, reader)
        if change is None:
            return found[1]
        warnings.warn(f"{path}: kept {of.what} of other data: {change}. They are measured again.", stacklevel=3)
    lengths = _read_all(reader, of.what, size, num_workers, executor, fork=fork)
    _save(path, made_of, lengths)
    return lengths


@dataclass(frozen=True, slots=True)
class LengthOf:
    """A collate function that returns the lengths of samples, (B,) int64. `length` is that of `measure_lengths`."""

    what: ClassVar[str] = "lengths"
    setting: ClassVar[str] = "length"

    length: Length | None = None

    def __call__(self, samples: list[object]) -> Int64Array:
        lengths = []
        for row, sample in enumerate(samples):
            try:
                lengths.append(self.of(sample))
            except Exception as error:
                said = f"lengths: {type(error).__name__}: {error}" if type(error) is not ValueError else str(error)
                raise CollateError(said.removesuffix("."), [row]) from error
        return np.array(lengths, dtype=np.int64)

    def of(self, sample: Any) -> int:
        """Return one sample's length."""
        how = self.length
        if callable(how):
            found = how(sample)
        elif how is None and isinstance(sample, Mapping | tuple):
            raise ValueError(
                f"lengths: a sample is a {type(sample).__name__}, whose own length is its number of fields. Give length=: "
                "the key or index of a field, or a function of a sample."
            )
        else:
            found = sample if how is None else self._field(sample, how)
            if hasattr(found, "__len__") and getattr(found, "ndim", None) != 0:
                found = len(found)
        try:
            size = found.__index__()  # also takes numpy integers, and tensors of one element
        except (AttributeError, TypeError) as error:
            raise ValueError(
                f"lengths: {self.name} gave {reprlib.repr(found)} for a sample of type {type(sample).__name__}, wanted an integer. "
                "Give length=: the key or index of a field, or a function of a sample."
            ) from error
        return int(size)

    @staticmethod
    def _field(sample: Any, name: str | int) -> Any:
        try:
            return sample[name]
        except (KeyError, IndexError, TypeError) as error:
            found = f"a dict of {list(sample)}" if isinstance(sample, Mapping) else type(sample).__name__
            raise ValueError(f"lengths: a sample is {found}, wanted one with {name!r} (length=).") from error

    @property
    def name(self) -> str:
        """A name for messages, and for the cache."""
        how = self.length
        if isinstance(how, functools.partial):
            return f"partial({LengthOf(how.func).name}, {how.args}, {how.keywords})"
        if callable(how):
            return f"{getattr(how, '__module__', '')}.{getattr(how, '__qualname__', type(how).__qualname__)}"
        return "len" if how is None else f"len of {how!r}"


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads one number for each sample. One that cannot be read gets `bad_length`; if that is None, it raises."""

    reader: BatchReader
    bad_length: int | None

    def span(self, span: tuple[int, int]) -> Int64Array:
        """Return the numbers of the samples from `span[0]` to before `span[1]`, (B,)."""
        indices = np.arange(*span, dtype=np.int64)
        return np.concatenate([self.at(indices[start : start + _READ]) for start in range(0, len(indices), _READ)])

    def at(self, indices: Int64Array) -> Int64Array:
        """Return the numbers (B,) of the samples at `indices` (B,)."""
        try:
            lengths: Int64Array = self.reader.read(BatchKey(0, indices, indices))
        except Exception as error:
            if self.bad_length is None or isinstance(error, CollateError | MemoryError):
                raise
            if len(indices) == 1:
                return np.full(1, self.bad_length, dtype=np.int64)
            return np.concatenate([self.at(indices[row : row + 1]) for row in range(len(indices))])
        if lengths.size and lengths.min() < 0:
            wrong = int(lengths.argmin())
            raise ValueError(f"lengths: sample {indices[wrong]:,} has length {lengths[wrong]}, wanted at least 0.")
        return lengths


def _read_all(
    reader: _Reader, what: str, size: int, num_workers: int, executor: Executor | None, *, fork: bool
) -> Int64Array:
    workers = max(1, num_workers) if executor is None else _EXECUTOR_WORKERS
    each = min(max(size // (64 * workers), _READ), 1 << 16)
    spans = [(start, min(start + each, size)) for start in range(0, size, each)]
    lengths = np.empty(size, dtype=np.int64)
    done = map_tasks(reader.span, spans, executor=executor, jobs=max(1, num_workers), fork=fork)
    for (start, stop), result in with_progress(done, len(spans), f"measuring {what}"):
        if isinstance(result, LostTaskError):
            raise LostTaskError(f"{what} of the samples {start:,} to {stop - 1:,}: {result}")
        if isinstance(result, Exception):
            raise result
        lengths[start:stop] = result
    return lengths


def _changed(
    before: dict[str, str], lengths: Int64Array, made_of: dict[str, str], what: str, reader: _Reader
) -> str | None:
    """Return in words how a cache differs from the data; None if they agree."""
    for name, now in made_of.items():
        if before.get(name) != now:
            return f"{name} is {now}, was {before.get(name)}"
    picked = spread_rows(len(lengths))
    again = reader.at(picked)
    other = np.flatnonzero(again != lengths[picked])
    if other.size:
        row = other[0]
        return f"sample {picked[row]:,} has {what.removesuffix('s')} {again[row]}, had {lengths[picked[row]]}"
    return None


def _load(path: Path) -> tuple[dict[str, str], Int64Array] | None:
    try:
        content = read_regular(path)
    except FileNotFoundError:
        return None
    try:
        with np.load(io.BytesIO(content)) as file:
            about, lengths = json.loads(str(file["about"])), file["lengths"]
        size = about["samples"].replace(",", "")
        if about.pop("version") != VERSION or lengths.dtype != np.int64 or lengths.shape != (int(size),):
            raise ValueError("version, or number of lengths")
        return about, lengths
    except Exception as error:  # a damaged file also raises errors of zlib and of Python's tokenizer
        raise ValueError(
            f"{path}: not a file of lengths that this version of loaderkit wrote. Give another path, or delete it."
        ) from error


def _save(path: Path, made_of: dict[str, str], lengths: Int64Array) -> None:
    content = io.BytesIO()
    np.savez_compressed(content, about=np.array(json.dumps({"version": VERSION, **made_of})), lengths=lengths)
    try:
        write_atomically(path, content.getvalue())
    except OSError as error:
        error.add_note(f"loaderkit: raised while writing measured lengths to {path}. Choose another path: cache=...")
        raise
