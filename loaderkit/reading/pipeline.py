"""Pipelines: an indexed dataset with methods (verbs) such as `map`, each of which returns a new pipeline."""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from types import CodeType
from typing import Any, ClassVar, Literal

import numpy as np

from loaderkit.datasets.base import (
    Collate,
    MapStyle,
    Predicate,
    Transform,
    check_index,
    knows_lengths,
    read_many,
    reads_batches,
    reads_columns,
    reads_pieces,
)
from loaderkit.datasets.combine import ConcatDataset, MapDataset, SubsetDataset
from loaderkit.datasets.places import Place, place_of
from loaderkit.datasets.streams.dataset import StreamDataset
from loaderkit.datasets.streams.pack import Rows, TooLong, batches_cannot_be_packed
from loaderkit.datasets.typed import as_typed_dataset
from loaderkit.reading.lengths import measure
from loaderkit.reading.packed_rows import PackedRows, TokenCounts, collate_of
from loaderkit.sampling.fingerprint import fingerprint_of
from loaderkit.sampling.mixture import Mixture
from loaderkit.sampling.order import Order, Sequential, Shuffled
from loaderkit.seeding.draws import Declares, Draws, NoSeeds, draws
from loaderkit.seeding.sample_seeds import seeds_apart
from loaderkit.system.arrays import Int64Array
from loaderkit.system.checks import check_integer, check_ordered, plain_integer
from loaderkit.system.digests import digest
from loaderkit.system.names import function_name
from loaderkit.system.overrides import own_attribute
from loaderkit.system.stack import CollateError, stack

_TOGETHER = 64  # samples that a stream reads by one call
_LARGEST = 1 << 16  # samples in a shard of `stream()`, at most


class Pipeline(Declares):
    """A dataset with verbs, each of which returns a new pipeline.

    Nothing is read until you read the pipeline.
    It takes any dataset with a length and an index: loaderkit's, a list, one of Hugging Face. A pipeline is such a dataset
    itself, with random access and a fingerprint, so a Loader keeps all its guarantees. It pickles as well as its data and
    functions do. `print(pipeline)` draws it.

    A `StreamDataset` has the verbs itself. `shuffle` gives the same order in each epoch; `Loader(shuffle=True)` gives a new one.
    `batch` makes batches for later verbs; `Loader(batch_size=...)` makes those to train on.

    Args:
        dataset: The data.

    Raises:
        TypeError: If the data has no length or no samples by index.

    Examples:
        >>> texts = lk.Pipeline(["to be", "or", "not to be", "that is"])
        >>> long = texts.filter(lambda text: " " in text).map(str.split).take(2)
        >>> list(long)
        [['to', 'be'], ['not', 'to', 'be']]
        >>> long
        list: 4
          .filter(<lambda>): 3
          .map(split): 3
          .take(2): 2
    """

    def __init__(self, dataset: MapStyle) -> None:
        if isinstance(dataset, StreamDataset):
            raise TypeError("Pipeline: a StreamDataset has these verbs itself: stream.map(...).")
        way_out = (
            "For data without an index use lk.StreamDataset, which has the same verbs; for a frame lk.ParquetDataset or "
            "frame.to_dict('records')."
        )
        self.dataset: MapStyle = as_typed_dataset(dataset, "Pipeline: the dataset", way_out)
        self._lines: tuple[str, ...] = (f"{type(dataset).__name__}: {len(dataset):,}",)
        self._rows: Rows | None = dataset._rows if isinstance(dataset, Pipeline) else None

    def map(self, function: Transform) -> "Pipeline":
        """Apply a function to each sample when it is read, under the sample's own seed.

        A state does not name the function, so a resume with another one is accepted.
        """
        return self._then(MapDataset(self.dataset, function), f"map({function_name(function)})")

    def filter(
        self,
        predicate: Predicate,
        *,
        num_workers: int = 0,
        executor: Executor | None = None,
        cache: str | None = None,
        multiprocessing_context: Literal["fork", "spawn"] = "fork",
    ) -> "Pipeline":
        """Keep the samples for which a predicate is true. This reads each sample once, at the call.

        The pipeline then holds the indices of the kept samples, 8 bytes each. The cache is used if the number of
        samples, the data's fingerprint, and the predicate's name and code are the same as when it was written. The
        predicate's result on 16 samples, which are read again, must be the same too. Otherwise a warning says what
        differs, and all samples are read again. The predicate must not depend on random numbers.

        Args:
            predicate: Called with a sample.
            num_workers: Processes that read; 0 reads in this one.
            executor: Reads instead of processes; see `measure_lengths`.
            cache: Path of a file that keeps the predicate's results. It is written once all samples are read.
            multiprocessing_context: How processes start. Use "spawn" for datasets that do not survive a fork.

        Examples:
            >>> even = lk.Pipeline(range(10)).filter(lambda number: number % 2 == 0, cache="even.npz")
            >>> len(even), even[1]
            (5, 2)
        """
        fork = multiprocessing_context == "fork"
        kept = measure(
            self.dataset, _Verdicts(predicate), num_workers=num_workers, executor=executor, cache=cache, fork=fork
        )
        return self._then(SubsetDataset(self.dataset, np.flatnonzero(kept)), f"filter({function_name(predicate)})")

    def take(self, count: int) -> "Pipeline":
        """Keep the first samples, or all if there are fewer."""
        count = _count("take", count, 0)
        return self._then(SubsetDataset(self.dataset, _Stretch(0, min(count, len(self)))), f"take({count})")

    def skip(self, count: int) -> "Pipeline":
        """Leave out the first samples, or all if there are fewer."""
        count = _count("skip", count, 0)
        size = len(self)
        return self._then(SubsetDataset(self.dataset, _Stretch(min(count, size), size)), f"skip({count})")

    def shuffle(self, seed: int = 0) -> "Pipeline":
        """Put the samples in a random order, the same in each epoch, without a list.

        `shuffle().take(1000)` is a random sample of 1,000. For another order each epoch use `Loader(shuffle=True)`.
        """
        return self._then(SubsetDataset(self.dataset, Shuffled(len(self), seed=seed)), f"shuffle({seed})")

    def batch(self, size: int, *, drop_last: bool = False, collate_fn: Collate = stack) -> "Pipeline":
        """Make one sample out of several consecutive ones.

        Use it if later verbs work on batches, and then give the Loader `batch_size=None`. Otherwise leave batches to
        the Loader: it can change their size on a resume.

        Args:
            size: Samples of a batch.
            drop_last: Leave out the last batch if it is smaller.
            collate_fn: Makes a batch of a list of samples.

        Raises:
            ValueError: If the size is not at least 1, or packed rows are to be stacked.

        Examples:
            >>> pairs = lk.Pipeline(range(5)).batch(2).map(lambda batch: batch * 10)
            >>> [batch.tolist() for batch in lk.Loader(pairs, batch_size=None)]
            [[0, 10], [20, 30], [40]]
        """
        size = _count("batch", size, 1)
        if self._rows is not None and collate_fn is stack:
            raise self._rows.cannot_stack()
        batches = self._then(_Batches(self.dataset, size, collate_fn, drop_last=drop_last), f"batch({size})")
        batches._rows = None
        return batches

    def pack(
        self,
        row_length: int,
        *,
        tokens: str = "tokens",
        fields: Mapping[str, float] | None = None,
        too_long: TooLong = "split",
        window: int = 32_768,
        num_workers: int = 0,
        executor: Executor | None = None,
        cache: str | None = None,
        multiprocessing_context: Literal["fork", "spawn"] = "fork",
    ) -> "Pipeline":
        """Pack documents into rows of a fixed length. The call measures each document, unless the data has lengths.

        Each sample so far is a document: a dict with its tokens, or the tokens themselves. Each sample of the new
        pipeline is a row: a list of documents, as from a stream's `pack`. A Loader makes batches of rows with `PackCollate`,
        if it has no `collate_fn`. A later `map` gets a row and returns a row.

        Rows are packed by best fit decreasing. A row has the same documents in each epoch; `Loader(shuffle=True)`
        shuffles the rows. A `PackPlan` makes different rows in each epoch. A document without tokens is in no row.
        Every other token comes once an epoch.

        The number of tokens must not depend on random numbers. The lengths are cached under the conditions of `measure_lengths`.
        A document longer than a row is read once for each of its rows; of a `DocumentDataset` only the piece is read. If long
        documents are tokenized by a `map`, `stream().pack()` is faster. The rows take about 24 bytes of memory for each document.

        Args:
            row_length: Tokens of a row.
            tokens: The field with a document's tokens (T,).
            fields: Other fields with one value for each token, and the value that pads them: {"weights": 0}.
            too_long: What happens to a document longer than a row. "split" cuts it into pieces, "drop" leaves it out,
                "error" raises at the call.
            window: Consecutive documents that are packed together. With a smaller window, reads are more sequential,
                but rows have more padding.
            num_workers: Processes that measure; 0 measures in this one.
            executor: Measures instead of processes; see `measure_lengths`.
            cache: Path of a file that keeps the lengths. It is written once all are measured.
            multiprocessing_context: How processes start. Use "spawn" for datasets that do not survive a fork.

        Raises:
            ValueError: If a number is out of range, there are no documents, one is too long, or they are packed or batched already.
            RuntimeError: If a document cannot be read or has no tokens to count; the message names it.

        Examples:
            >>> rows = lk.Pipeline([[1, 2, 3], [4, 5, 6, 7, 8], [9]]).pack(4)
            >>> [[document.tolist() for document in row] for row in rows]
            [[[1, 2, 3], [8]], [[4, 5, 6, 7]], [[9]]]
            >>> next(iter(lk.Loader(rows, batch_size=2)))["tokens"].tolist()
            [[1, 2, 3, 8], [4, 5, 6, 7]]
        """
        if self._rows is not None:
            raise ValueError("pack: the samples are rows already. Pack once.")
        if isinstance(self.dataset, _Batches):
            raise batches_cannot_be_packed()
        check_integer("pack", "window", window, 1)
        rows = Rows(row_length=row_length, tokens=tokens, fields=fields or {}, too_long=too_long)
        if not len(self):
            raise ValueError("pack: there are no documents, wanted at least one.")
        fork = multiprocessing_context == "fork"
        lengths = _lengths(self.dataset, rows, num_workers=num_workers, executor=executor, cache=cache, fork=fork)
        packed = self._then(PackedRows(self.dataset, lengths, rows, window=int(window)), str(rows))
        packed._rows = rows
        return packed

    @classmethod
    def mix(
        cls, sources: Sequence[MapStyle], weights: Sequence[float], *, size: int | None = None, window: int = 1000
    ) -> "Pipeline":
        """Mix datasets by weights. In each window, a source's number of samples is exact to one.

        Each source comes in its own order, and starts again if it is used up. Each epoch has the same samples.
        `lk.Mixture`, as the Loader's `order=`, shuffles each source in every epoch, and goes on in a source where the
        last epoch stopped. For streams use `lk.interleave`.

        Args:
            sources: The datasets.
            weights: One for each source, above 0.
            size: Samples in the mixture; by default the sum of the sources' sizes.
            window: Samples over which the shares are exact.

        Examples:
            >>> "".join(lk.Pipeline.mix(["wwwwww", "bb"], [3, 1], window=4))
            'wwbwwwbw'
        """
        check_ordered("mix", "sources", sources)
        order = Mixture([Sequential(len(source)) for source in sources], weights, size=size, window=window)
        mixed = cls(SubsetDataset(ConcatDataset(sources), order))
        named = ", ".join(f"{type(source).__name__}: {len(source):,}" for source in sources)
        mixed._lines = (f"mix({named}; {', '.join(f'{weight:g}' for weight in weights)}): {len(mixed):,}",)
        rows = [source._rows if isinstance(source, Pipeline) else None for source in sources]
        mixed._rows = rows[0] if all(each == rows[0] for each in rows) else None
        return mixed

    def stream(self, *, lanes: int = 16, window: int = 1024, shuffle: bool = False, seed: int = 0) -> StreamDataset:
        """Return the samples as a stream, whose `filter` and `pack` run during reading, not at the call.

        A stream reads runs of consecutive samples, which suits compressed Parquet. It has no length, and resumes as
        streams do. The settings are those of `StreamDataset`.

        Examples:
            >>> rows = lk.Pipeline([[1, 2, 3], [4], [5, 6]]).stream(lanes=1).pack(4)
            >>> next(iter(lk.Loader(rows, batch_size=2)))["tokens"].tolist()
            [[1, 2, 3, 4], [5, 6, 0, 0]]
        """
        total = len(self)
        size = min(max(1, total // (16 * lanes)), _LARGEST)
        names = [f"{start}:{min(start + size, total)}" for start in range(0, total, size)]
        read = _ReadStretch(self.dataset, self._rows)
        return StreamDataset(names, read, lanes=lanes, window=window, shuffle=shuffle, seed=seed)

    @property
    def default_collate(self) -> Callable[[list[Any]], Any] | None:
        """The collate function of a Loader without `collate_fn`: `PackCollate` for packed rows; None stacks samples."""
        return None if self._rows is None else collate_of(self._rows)

    def fingerprint(self) -> str:
        """Return a string that a resume compares: the data and which samples the verbs chose, but not functions."""
        return fingerprint_of(self.dataset)

    def place(self, index: int) -> Place | None:
        """Return where a sample is stored, such as its file and row; None if the data does not say."""
        return place_of(self.dataset, index)

    def _parts(self) -> list[object]:
        return [self.dataset]

    def _then(self, dataset: MapStyle, verb: str) -> "Pipeline":
        pipeline = Pipeline(dataset)
        pipeline._lines = (*self._lines, f"  .{verb}: {len(dataset):,}")
        pipeline._rows = self._rows
        return pipeline

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        check_index(self, index)
        return self.dataset[index % len(self)]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        return read_many(self.dataset, indices)

    def __getattr__(self, name: str) -> Any:
        # Present only if the dataset has it.
        dataset: object = self.__dict__.get("dataset")
        has = {
            "read_batch": reads_batches,
            "read_columns": reads_columns,
            "read_pieces": reads_pieces,
            "lengths": knows_lengths,
        }
        if name in has and has[name](dataset):
            return getattr(dataset, name)
        if name == "shard_sizes" and (found := own_attribute(dataset, name)) is not None:
            return found
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __repr__(self) -> str:
        return "\n".join(self._lines)


def _lengths(dataset: MapStyle, rows: Rows, **how: Any) -> Int64Array:
    """Return the tokens of each document (N,), which are counted as in `measure` unless the data knows them."""
    if knows_lengths(dataset):
        return np.asarray(dataset.lengths(), dtype=np.int64)  # type: ignore[attr-defined]  # `knows_lengths` has asked
    return measure(dataset, TokenCounts(replace(rows, too_long="drop")), **how)


@dataclass(frozen=True)
class _Stretch(Order):
    """Consecutive indices of a dataset."""

    start: int
    stop: int

    def size(self, epoch: int) -> int:
        return self.stop - self.start

    def at(self, epoch: int, positions: Int64Array) -> Int64Array:
        return positions + self.start

    def key(self, epoch: int) -> str:
        return f"stretch-1({self.start}, {self.stop})"

    @property
    def reach(self) -> int:
        return self.stop


class _Batches(Declares):
    """Batches of consecutive samples as a dataset. All samples of a batch are read under the batch's seed."""

    def __init__(self, dataset: MapStyle, size: int, collate_fn: Collate, *, drop_last: bool) -> None:
        self._dataset, self._size, self._collate = dataset, size, collate_fn
        self._length = len(dataset) // size if drop_last else -(-len(dataset) // size)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> object:
        start = index * self._size
        rows = range(start, min(start + self._size, len(self._dataset)))
        return self._collate(_read_together(self._dataset, rows) or [self._dataset[row] for row in rows])

    def _parts(self) -> list[object]:
        return [self._dataset] if self._collate is stack else [self._dataset, self._collate]

    def fingerprint(self) -> str:
        return f"batches of {self._size} of {fingerprint_of(self._dataset)}"


@dataclass(frozen=True)
class _ReadStretch:
    """Reads the samples with indices "start:stop", which is the name of a stream's shard."""

    dataset: MapStyle = field(repr=False)
    rows: Rows | None = None  # if the samples are packed rows

    @property
    def fingerprint(self) -> str:
        return fingerprint_of(self.dataset)

    def __call__(self, shard: str, start: int) -> Iterator[object]:
        first, stop = map(int, shard.split(":"))
        for row in range(first + start, stop, _TOGETHER):
            yield from self._read(range(row, min(row + _TOGETHER, stop)))

    def _read(self, rows: range) -> Iterator[object]:
        try:
            samples = _read_together(self.dataset, rows)
        except Exception:  # one by one, to tell which sample fails
            samples = None
        yield from samples or (self.dataset[row] for row in rows)


def _read_together(dataset: MapStyle, rows: range) -> list[object] | None:
    """Read samples by one call. Return None if reading draws random numbers: then each sample needs its own seed."""
    if draws(dataset) is not Draws.NOTHING:
        return None
    with seeds_apart(NoSeeds(len(rows))):
        return read_many(dataset, rows)


@dataclass(frozen=True)
class _Verdicts:
    """A collate function that returns (B,) int64: 1 for each sample that a predicate keeps, 0 for the others."""

    what: ClassVar[str] = "verdicts"
    setting: ClassVar[str] = "predicate"

    predicate: Predicate

    def __call__(self, samples: list[object]) -> Int64Array:
        verdicts = []
        for row, sample in enumerate(samples):
            try:
                verdicts.append(bool(self.predicate(sample)))
            except Exception as error:
                raise CollateError(
                    f"filter: {function_name(self.predicate)} raised {type(error).__name__}: {error}", [row]
                ) from error
        return np.array(verdicts, dtype=np.int64)

    @property
    def name(self) -> str:
        inner = self.predicate
        while isinstance(inner, functools.partial):
            inner = inner.func
        code = getattr(inner, "__code__", None) or getattr(type(inner).__call__, "__code__", None)
        module = getattr(inner, "__module__", "")
        return f"{module}.{function_name(self.predicate)}, {_digest(code) if code else 'no code'}"


def _digest(code: CodeType) -> str:
    """Return a digest of a function's code, including the functions nested in it."""
    constants = [_digest(each) if isinstance(each, CodeType) else repr(each) for each in code.co_consts]
    return digest(code.co_code, "\x1f".join([*constants, *code.co_names]))


def _count(verb: str, count: object, least: int) -> int:
    count = plain_integer(count)
    if not isinstance(count, int) or isinstance(count, bool) or count < least:
        raise ValueError(f"{verb}: found {count!r}, wanted an integer of at least {least}.")
    return count
