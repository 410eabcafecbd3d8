"""Make the batch of a batch key, under each sample's own seed. This runs in a worker."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from loaderkit.datasets.bad_samples import RAISE, BadSamples
from loaderkit.datasets.base import Collate, reads_batches, reads_columns, reads_many
from loaderkit.datasets.shards.epoch_shards import EpochShards
from loaderkit.datasets.typed import typed
from loaderkit.reading.replace_bad_samples import (  # not when it is needed: an error may leave no file to import it from
    ReadMany,
    Repair,
)
from loaderkit.sampling.order import Order
from loaderkit.sampling.plan import BatchKey
from loaderkit.seeding.draws import Draws, NoSeeds, SampleRngSeeds, draws, thread_safe
from loaderkit.seeding.keys import hash_positions
from loaderkit.seeding.private import Found, PrivateGenerators, PrivatePolicy
from loaderkit.seeding.sample_seeds import SampleSeeds
from loaderkit.seeding.watched import GlobalPolicy, Used, watched_seeds
from loaderkit.system.arrays import Int64Array
from loaderkit.system.batch_memory import BatchMemory, BufferPool
from loaderkit.system.overrides import own_attribute
from loaderkit.system.pickling import sendable_errors
from loaderkit.system.stack import CollateError, stack, stack_columns
from loaderkit.system.stack_rows import keep_rows
from loaderkit.system.threads import until_cancelled
from loaderkit.system.worker_info import in_worker_process


@dataclass(frozen=True)
class BatchReader:
    """Reads and collates batches: a pure function from a batch key to a batch.

    Args:
        dataset: Anything with `__getitem__`, or better `__getitems__` or `read_batch`.
        collate_fn: From a list of samples to a batch; None stacks them. If it has `collate_batch(batch)`, that is
            called instead on what `read_batch` returns. It must make the same batch and draw no random numbers; see
            `takes_batches`.
        seed: The loader's seed.
        batched: False makes no batches: `collate_fn` gets a single sample; without it, the sample is returned.
        bad_samples: What to do if a read fails.
        order: The order from which replacements are drawn; needed only for replacements.
        lengths: Lengths of all samples (N,) int64, if the plan makes batches by length.
        shards: Downloads the shards that the next batches read, and closes those that they do not.
        private_generators: Whether random generators stored in the dataset and `collate_fn` are seeded for each sample.
        seeders: Functions that seed generators which a search cannot find; see `PrivateGenerators`.
        global_generators: Whether numpy and `random` are seeded from the first sample on, or only for data that uses them.
    """

    dataset: Any
    collate_fn: Collate | None
    seed: int
    batched: bool = True
    bad_samples: BadSamples = RAISE
    order: Order | None = None
    lengths: Int64Array | None = None
    shards: EpochShards | None = None
    private_generators: PrivatePolicy = "seed"
    seeders: Sequence[Callable[[int], object]] = ()
    global_generators: GlobalPolicy = "watch"
    private: PrivateGenerators = field(init=False, compare=False, repr=False)
    _whole: bool = field(init=False, default=False)  # whether the dataset reads whole batches
    _columns: bool = field(init=False, default=False)  # whether to read columns instead of samples
    _many: bool = field(init=False, default=False)  # whether the dataset reads several samples at a time
    _drawn: Draws = field(init=False, default=Draws.ANYTHING)  # random numbers that the dataset draws
    _collate_drawn: Draws = field(init=False, default=Draws.ANYTHING)
    _used: Used = field(init=False, default_factory=Used, compare=False, repr=False)
    _buffers: BufferPool = field(init=False, default_factory=BufferPool, compare=False, repr=False)

    def __post_init__(self) -> None:
        dataset, stacks = typed(self.dataset), self.collate_fn is None
        drawn, collate_drawn = draws(dataset), Draws.NOTHING if stacks else draws(self.collate_fn)
        whole = self.batched and (stacks or takes_batches(self.collate_fn)) and reads_batches(dataset)
        kept = {"dataset": (drawn, dataset), "collate_fn": (collate_drawn, self.collate_fn)}
        vars(self).update(
            dataset=dataset,
            private=PrivateGenerators(
                {name: part for name, (drawn, part) in kept.items() if drawn is Draws.ANYTHING and not whole},
                self.private_generators,
                self.seeders,
            ),
            _whole=whole,
            _columns=stacks and self.batched and drawn is Draws.NOTHING and reads_columns(dataset),
            _many=reads_many(dataset),
            _drawn=drawn,
            _collate_drawn=collate_drawn,
        )

    def __getitems__(self, key: BatchKey) -> object:  # torch calls it with an item of the batch sampler
        with sendable_errors():
            return self.read(key)

    def read(self, key: BatchKey) -> Any:
        """Return the batch of a key, as a `Reported` if it had bad samples.

        Raises:
            Exception: Whatever the dataset or the collate raises, with a note
                that names the sample.
        """
        if self.shards is None or not len(key.positions):
            return self._read(key)
        position = int(key.positions.min())
        self.shards.close_finished(key.epoch, position)
        batch = self._read(key)
        self.shards.fetch_next(key.epoch, position)  # after the read, as the first batch has all connections
        return batch

    def _read(self, key: BatchKey) -> Any:
        with BatchMemory(self._buffers):
            if self._whole and key.indices.dtype != object:
                return self._make_whole(key)
            return self.private.use(lambda: self._make_seeded(key))

    def found_generators(self) -> list[Found]:
        """Return the random generators stored in the dataset and `collate_fn`, found again at each call."""
        return self.private.find()

    def draws_from(self) -> Draws:
        """Return which random generators may be drawn from while a batch is made."""
        return Draws.NOTHING if self._whole else max(self._drawn, self._collate_drawn)

    def keep_memory(self, batches: int) -> None:
        """Keep the memory of this many large batches for the next ones; by default, of one."""
        self._buffers.batches = batches

    def thread_safe(self) -> bool:
        """Return whether the data says that threads may make batches at the same time."""
        return thread_safe(self.dataset) and (self.collate_fn is None or thread_safe(self.collate_fn))

    def _seeds(self, drawn: Draws, key: BatchKey, rows: slice = slice(None)) -> SampleSeeds:
        if drawn is Draws.NOTHING:
            return NoSeeds(len(key.indices[rows]))
        words = hash_positions(key.positions[rows], "sample", self.seed, key.epoch)
        if drawn is Draws.SAMPLE_RNG:
            return SampleRngSeeds(words)
        restore = not in_worker_process()
        # What a generator that is left carries from sample to sample, a second read would carry on.
        if self.global_generators == "watch" and self.private_generators == "seed":
            return watched_seeds(words, self._used, restore=restore)
        return SampleSeeds(words, restore=restore)

    def _make_whole(self, key: BatchKey) -> object:
        """Make a batch with the dataset's `read_batch`, which returns it collated."""
        try:
            batch, repair = self._read_together(key, lambda _, indices: self.dataset.read_batch(indices))
        except Exception as error:
            _note(error, key, None)
            raise
        if self.collate_fn is not None:
            collate: Any = self.collate_fn
            indices, bounds = _what_is_left(key, repair)
            batch = self._named(collate.collate_batch, indices, batch, *([] if bounds is None else [np.unique(bounds)]))
        return batch if repair is None else repair.report(batch)

    def _make_seeded(self, key: BatchKey) -> object:
        """Make a batch from samples; make it again if it used a global generator that was not seeded."""
        while True:
            seeds = self._seeds(self._drawn, key)
            try:
                with seeds:
                    made = self._make(key, seeds)
            except Exception:
                if not seeds.missed:
                    raise
            else:
                if not seeds.missed:
                    return made

    def _make(self, key: BatchKey, seeds: SampleSeeds) -> object:
        samples: Any
        columns = self._columns and key.rows is None and key.indices.dtype != object
        try:
            if columns:
                samples, repair = self._read_together(key, lambda _, some: self.dataset.read_columns(some))
            elif self._many:
                samples, repair = self._read_together(key, self._many_under(seeds))
            else:
                samples, repair = self._read_each(key, seeds)
        except Exception as error:
            _note(error, key, seeds.row)
            raise
        indices, bounds = _what_is_left(key, repair)
        if not columns and len(samples) != len(indices):
            raise ValueError(
                f"{type(self.dataset).__name__}.__getitems__ returned {len(samples)} samples for {len(indices)} "
                "indices, wanted one for each."
            )
        if self.collate_fn is None:  # stacking draws nothing
            batch = self._collate(samples, indices, bounds) if self.batched else samples[0]
        elif self._collate_drawn <= self._drawn:
            batch = self._collate_seeded(samples, indices, bounds, seeds)
        else:
            with self._seeds(self._collate_drawn, key, slice(1)) as own:
                if not self.batched:
                    own.continue_from(seeds)
                batch = self._collate_seeded(samples, indices, bounds, own)
        return batch if repair is None else repair.report(batch)

    def _read_together(self, key: BatchKey, read: ReadMany) -> tuple[Any, Repair | None]:
        """Read all samples by one call. If that fails, retry, leave out or replace samples, as the policy says."""
        try:
            return read(None, key.indices), None
        except Exception as error:
            repair = self._repair(key)
            return repair.together(read, error), repair

    def _read_each(self, key: BatchKey, seeds: SampleSeeds) -> tuple[list[object], Repair | None]:
        """Read the samples one by one. After a failure, retry, leave out or replace, as the policy says."""
        dataset, enter, indices = self.dataset, seeds.enter, key.indices.tolist()
        stacks = self.collate_fn is None and self.batched and key.rows is None
        samples: list[object] = []
        add = samples.append

        def read_one(row: int, index: int) -> object:
            enter(row)
            return dataset[index]

        try:
            for row, index in enumerate(until_cancelled(indices)):
                enter(row)
                add(dataset[index])
                if stacks and row == 0:
                    add = keep_rows(samples, len(indices))
        except Exception as error:
            repair = self._repair(key)
            return repair.each(read_one, samples, error), repair
        return samples, None

    def _many_under(self, seeds: SampleSeeds) -> ReadMany:
        """Return a function that reads the samples of some rows by `__getitems__`, under their seeds."""

        def read(rows: list[int] | None, indices: Int64Array) -> list[object]:
            with seeds.part(None, rows):
                seeds.enter_batch()
                return list(self.dataset.__getitems__(indices.tolist()))

        return read

    def _repair(self, key: BatchKey) -> Repair:
        return Repair(self.bad_samples, key, self.seed, self.order, self.lengths)

    def _collate_seeded(
        self, samples: Any, indices: list[int], bounds: Int64Array | None, seeds: SampleSeeds
    ) -> object:
        if not self.batched:
            return self.collate_fn(samples[0])  # type: ignore[misc]  # called only with a collate_fn
        seeds.enter_batch()
        return self._collate(samples, indices, bounds)

    def _collate(self, samples: Any, indices: list[int], bounds: Int64Array | None) -> object:
        if isinstance(samples, dict | tuple):
            return self._named(stack_columns, indices, samples)
        if bounds is not None:  # each row has several samples; a row without any left is dropped
            samples = [samples[first:last] for first, last in pairwise(bounds.tolist()) if first < last]
        return self._named(stack if self.collate_fn is None else self.collate_fn, indices, samples)

    @staticmethod
    def _named(collate: Callable[..., object], indices: list[int], *content: object) -> object:
        """Call `collate` on the content. Errors name the samples (`indices`)."""
        try:
            return collate(*content)
        except CollateError as error:
            rows = [indices[row] for row in error.rows]
            where = f" (samples {', '.join(map(str, rows))})" if rows else ""
            raise CollateError(f"{error}{where}.", error.rows) from error
        except Exception as error:
            error.add_note(f"loaderkit: raised while collating samples {_shorten(indices)}.")
            raise


@dataclass(frozen=True)
class StagedReader(BatchReader):
    """Reads the batches of a training in stages: each stage has its own reader.

    Args:
        stages: The reader of each stage.
        ends: The position after the last one of each stage.
    """

    stages: Sequence[BatchReader] = ()
    ends: Sequence[int] = ()

    def read(self, key: BatchKey) -> Any:
        return self.stages[bisect_right(self.ends, int(key.positions[0]))].read(key)

    def found_generators(self) -> list[Found]:
        return [each for stage in self.stages for each in stage.found_generators()]

    def draws_from(self) -> Draws:
        return max(stage.draws_from() for stage in self.stages)

    def keep_memory(self, batches: int) -> None:
        for stage in self.stages:
            stage.keep_memory(batches)

    def thread_safe(self) -> bool:
        return all(stage.thread_safe() for stage in self.stages)


def takes_batches(collate_fn: object) -> bool:
    """Return whether `collate_fn.collate_batch(batch)` can replace `collate_fn(samples)`.

    `collate_batch` takes what a dataset's `read_batch` returns. If a subclass overrides `__call__` alone, an inherited
    `collate_batch` does not count. Nor does one that a wrapper forwards.
    """
    return callable(own_attribute(collate_fn, "collate_batch", frozenset({"__call__"})))


def _what_is_left(key: BatchKey, repair: Repair | None) -> tuple[list[int], Int64Array | None]:
    """Return the indices in a batch, and the bounds (R + 1,) of its rows, or None if a row is one sample."""
    if repair is None:
        return key.indices.tolist(), key.rows
    return repair.indices, None if key.rows is None else np.searchsorted(repair.rows, key.rows)


def _note(error: Exception, key: BatchKey, row: int | None) -> None:
    """Add a note to an error that names the batch's sample in `row`, or all its samples if that is None."""
    which = f"samples {_shorten(key.indices.tolist())}" if row is None else f"sample {key.indices[row]}"
    error.add_note(f"loaderkit: raised while reading {which} (epoch {key.epoch}, position {key.positions[row or 0]}).")


def _shorten(indices: list[int]) -> str:
    shown = ", ".join(map(str, indices[:8]))
    return f"{shown}, ... ({len(indices)} in all)" if len(indices) > 8 else shown
