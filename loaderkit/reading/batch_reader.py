"""What runs in a worker: from a batch key to a batch, under the samples' own seeds."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from loaderkit.datasets.bad_samples import RAISE, BadSamples
from loaderkit.datasets.base import reads_batches, reads_columns, reads_many
from loaderkit.datasets.shards.finished import FinishedShards
from loaderkit.datasets.typed import typed
from loaderkit.reading.repair import (  # not when it is needed: an error may leave no file to import it from
    ReadMany,
    Repair,
)
from loaderkit.sampling.order import Order
from loaderkit.sampling.plan import BatchKey
from loaderkit.seeding.draws import Draws, NoSeeds, SampleRngSeeds, draws
from loaderkit.seeding.keys import hash_positions
from loaderkit.seeding.private import Found, PrivateGenerators, PrivatePolicy
from loaderkit.seeding.samples import SampleSeeds
from loaderkit.seeding.watched import GlobalPolicy, Used, watched_seeds
from loaderkit.system.arrays import Int64Array
from loaderkit.system.batch_memory import BufferPool, lends
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
        collate_fn: From a list of samples to a batch; None stacks them. If it has `collate_batch(batch)`, which makes the
            same batch from what `read_batch` returns and draws nothing, that is called instead; see `takes_batches`.
        seed: The loader's.
        batched: False returns single samples, not collated.
        bad_samples: What to do if a read fails.
        order: Replacements are chosen from it; the policy "raise" needs none.
        lengths: (N,) int64, of all samples, if the plan makes batches by length.
        finished: Closes the shards that the batch and those after it do not want.
        private_generators: Whether generators that the data keeps for itself are seeded with the samples.
        seeders: Functions that seed generators which nobody can find; see `PrivateGenerators`.
        global_generators: Whether numpy and `random` are seeded from the first sample on, or only for data that uses them.
    """

    dataset: Any
    collate_fn: Callable[[list[Any]], Any] | None
    seed: int
    batched: bool = True
    bad_samples: BadSamples = RAISE
    order: Order | None = None
    lengths: Int64Array | None = None
    finished: FinishedShards | None = None
    private_generators: PrivatePolicy = "seed"
    seeders: Sequence[Callable[[int], Any]] = ()
    global_generators: GlobalPolicy = "watch"
    private: PrivateGenerators = field(init=False, compare=False, repr=False)
    _whole: bool = field(init=False, default=False)  # whether the dataset reads whole batches
    _columns: bool = field(init=False, default=False)  # whether to read columns instead of samples
    _many: bool = field(init=False, default=False)  # whether the dataset reads several samples at a time
    _drawn: Draws = field(init=False, default=Draws.ANYTHING)  # by the dataset
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

    def __getitems__(self, key: BatchKey) -> Any:  # torch calls it with an item of the batch sampler
        with sendable_errors():
            return self.read(key)

    def read(self, key: BatchKey) -> Any:
        """Return the batch of a key; as a `Reported` batch if samples were bad.

        Raises:
            Exception: Whatever the dataset or the collate raises, with a note
                that names the sample.
        """
        if self.finished is not None and len(key.positions):
            self.finished.close(key.epoch, int(key.positions.min()))
        with lends(self._buffers):
            if self._whole and key.indices.dtype != object:
                return self._make_whole(key)
            return self.private.use(lambda: self._make_seeded(key))

    def found_generators(self) -> list[Found]:
        """Return the private generators of the data, as they are now."""
        return self.private.find()

    def draws_from(self) -> Draws:
        """Return what making a batch draws from."""
        return Draws.NOTHING if self._whole else max(self._drawn, self._collate_drawn)

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

    def _make_whole(self, key: BatchKey) -> Any:
        """Make a batch that the dataset reads already collated."""
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

    def _make_seeded(self, key: BatchKey) -> Any:
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

    def _make(self, key: BatchKey, seeds: SampleSeeds) -> Any:
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
        """Read all samples by one call; if that fails, those that can be read."""
        try:
            return read(None, key.indices), None
        except Exception as error:
            repair = self._repair(key)
            return repair.together(read, error), repair

    def _read_each(self, key: BatchKey, seeds: SampleSeeds) -> tuple[list[Any], Repair | None]:
        """Read the samples one by one; after a failure, continue under the policy."""
        dataset, enter, indices = self.dataset, seeds.enter, key.indices.tolist()
        stacks = self.collate_fn is None and self.batched and key.rows is None
        samples: list[Any] = []
        add = samples.append

        def read_one(row: int, index: int) -> Any:
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
        """Return what reads the samples of some rows by `__getitems__`, under their seeds."""

        def read(rows: list[int] | None, indices: Int64Array) -> list[Any]:
            with seeds.part(None, rows):
                seeds.enter_batch()
                return list(self.dataset.__getitems__(indices.tolist()))

        return read

    def _repair(self, key: BatchKey) -> Repair:
        return Repair(self.bad_samples, key, self.seed, self.order, self.lengths)

    def _collate_seeded(
        self, samples: list[Any], indices: list[int], bounds: Int64Array | None, seeds: SampleSeeds
    ) -> Any:
        if not self.batched:
            return self.collate_fn(samples[0])  # type: ignore[misc]  # called only with a collate_fn
        seeds.enter_batch()
        return self._collate(samples, indices, bounds)

    def _collate(self, samples: Any, indices: list[int], bounds: Int64Array | None) -> Any:
        if isinstance(samples, dict | tuple):
            return self._named(stack_columns, indices, samples)
        if bounds is not None:  # each row has several samples; a row without any left is dropped
            samples = [samples[first:last] for first, last in pairwise(bounds.tolist()) if first < last]
        return self._named(stack if self.collate_fn is None else self.collate_fn, indices, samples)

    @staticmethod
    def _named(collate: Callable[..., Any], indices: list[int], *content: Any) -> Any:
        """Collate; errors name the samples."""
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
    """Reads the batches of each stage of a training by a reader of its own.

    Args:
        stages: The reader of each stage.
        ends: For each stage the position after its last.
    """

    stages: Sequence[BatchReader] = ()
    ends: Sequence[int] = ()

    def read(self, key: BatchKey) -> Any:
        return self.stages[bisect_right(self.ends, int(key.positions[0]))].read(key)

    def found_generators(self) -> list[Found]:
        return [each for stage in self.stages for each in stage.found_generators()]

    def draws_from(self) -> Draws:
        return max(stage.draws_from() for stage in self.stages)


def takes_batches(collate_fn: Any) -> bool:
    """Return whether `collate_fn.collate_batch(batch)` can replace `collate_fn(samples)`.

    It takes what a dataset's `read_batch` returns. A subclass that overrides `__call__` does not inherit it, and a wrapper does
    not forward it.
    """
    return callable(own_attribute(collate_fn, "collate_batch", frozenset({"__call__"})))


def _what_is_left(key: BatchKey, repair: Repair | None) -> tuple[list[int], Int64Array | None]:
    """Return the indices that a batch holds, and the bounds of its rows if it has rows of several samples."""
    if repair is None:
        return key.indices.tolist(), key.rows
    return repair.indices, None if key.rows is None else np.searchsorted(repair.rows, key.rows)


def _note(error: Exception, key: BatchKey, row: int | None) -> None:
    """Name a sample of the batch in an error, or all of them if `row` is None."""
    which = f"samples {_shorten(key.indices.tolist())}" if row is None else f"sample {key.indices[row]}"
    error.add_note(f"loaderkit: raised while reading {which} (epoch {key.epoch}, position {key.positions[row or 0]}).")


def _shorten(indices: list[int]) -> str:
    shown = ", ".join(map(str, indices[:8]))
    return f"{shown}, ... ({len(indices)} in all)" if len(indices) > 8 else shown
