"""What runs in a worker: from a key to a batch, under the samples' own seeds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch.utils.data as torch_data

from loaderkit.collate import CollateError, keep_rows, stack, stack_columns
from loaderkit.datasets.bad_samples import RAISE, BadSamples
from loaderkit.datasets.base import reads_batches, reads_columns, reads_many
from loaderkit.sampling.order import Order
from loaderkit.sampling.plan import BatchKey
from loaderkit.seeding.draws import Draws, NoSeeds, SampleRngSeeds, draws
from loaderkit.seeding.keys import hash_positions
from loaderkit.seeding.samples import SampleSeeds
from loaderkit.system.arrays import Int64Array
from loaderkit.system.batch_memory import BufferPool, lends
from loaderkit.system.overrides import overridden_below
from loaderkit.system.threads import until_cancelled

if TYPE_CHECKING:
    from loaderkit.engine.repair import Repair


@dataclass(frozen=True)
class BatchReader:
    """Reads and collates batches; a pure function of the key.

    Args:
        dataset: Anything with `__getitem__`, or better `__getitems__` or `read_batch`.
        collate_fn: From a list of samples to a batch; None stacks them. One that has `collate_batch(batch)`, which makes the
            same of what `read_batch` returns and draws nothing, is given that; see `takes_batches`.
        seed: The loader's.
        batched: False hands on single samples, not collated.
        bad_samples: What is done where a read fails.
        order: Where replacements are chosen from; the policy "raise" needs none.
        lengths: Of the samples, where batches are made by them.
    """

    dataset: Any
    collate_fn: Callable[[list[Any]], Any] | None
    seed: int
    batched: bool = True
    bad_samples: BadSamples = RAISE
    order: Order | None = None
    lengths: Int64Array | None = None
    # The dataset's own, if it is of use.
    _read_batch: Callable[[Int64Array], Any] | None = field(init=False, default=None)
    _columns: bool = field(init=False, default=False)  # whether its samples come as columns, while it draws nothing
    _many: bool = field(init=False, default=False)  # whether it reads several samples at a time
    _drawn: Draws = field(init=False, default=Draws.ANYTHING)  # by the dataset
    _collate_drawn: Draws = field(init=False, default=Draws.ANYTHING)
    _buffers: BufferPool = field(init=False, default_factory=BufferPool, compare=False, repr=False)

    def __post_init__(self) -> None:
        takes_whole = self.collate_fn is None or takes_batches(self.collate_fn)
        whole = takes_whole and self.batched and reads_batches(self.dataset)
        object.__setattr__(self, "_read_batch", self.dataset.read_batch if whole else None)
        object.__setattr__(self, "_columns", reads_columns(self.dataset))
        object.__setattr__(self, "_many", reads_many(self.dataset))
        object.__setattr__(self, "_drawn", draws(self.dataset))
        object.__setattr__(self, "_collate_drawn", Draws.NOTHING if self.collate_fn is None else draws(self.collate_fn))

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_read_batch": None}  # it may be a function that does not pickle

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.__post_init__()

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, key: BatchKey) -> Any:
        return self.read(key)

    def __getitems__(self, key: BatchKey) -> Any:
        # torch's workers call this with what the batch sampler gave.
        return self.read(key)

    def read(self, key: BatchKey) -> Any:
        """Return the key's batch, as a `Reported` one where samples were bad.

        Raises:
            Exception: Whatever the dataset or the collate raises, with a note
                that names the sample.
        """
        with lends(self._buffers):
            if self._read_batch is not None:
                return self._read_whole(key, self._read_batch)
            with self._seeds(self._drawn, key) as seeds:
                quiet = self._drawn is Draws.NOTHING
                if quiet and self._columns and self.collate_fn is None and self.batched and key.rows is None:
                    return self._make_of_columns(key, seeds)
                return self._make(key, seeds)

    def draws_from(self) -> Draws:
        """Say what making a batch draws from."""
        if self._read_batch is not None:
            return Draws.NOTHING
        return max(self._drawn, self._collate_drawn)

    def _seeds(self, drawn: Draws, key: BatchKey, rows: slice = slice(None)) -> SampleSeeds:
        if drawn is Draws.NOTHING:
            return NoSeeds(len(key.indices[rows]))
        words = hash_positions(key.positions[rows], "sample", self.seed, key.epoch)
        if drawn is Draws.SAMPLE_RNG:
            return SampleRngSeeds(words)
        return SampleSeeds(words, restore=torch_data.get_worker_info() is None)

    def _read_whole(self, key: BatchKey, read_batch: Callable[[Int64Array], Any]) -> Any:
        try:
            batch = read_batch(key.indices)
        except Exception as error:
            return self._mend_whole(key, error)
        return batch if self.collate_fn is None else self._collate_whole(batch, key.indices.tolist(), key.rows)

    def _make_of_columns(self, key: BatchKey, seeds: SampleSeeds) -> Any:
        indices = key.indices.tolist()
        try:
            found = self.dataset.read_columns(indices)
        except Exception as error:
            return self._make(key, seeds, error)
        return self._named(stack_columns if isinstance(found, dict) else stack, indices, found)

    def _make(self, key: BatchKey, seeds: SampleSeeds, failed: Exception | None = None) -> Any:
        """Make a batch of samples, also where reading it as columns failed."""
        samples: list[Any]
        repair: Repair | None
        try:
            if failed is not None:
                samples, repair = self._mend_many(key, seeds, failed)
            elif self._many:
                samples, repair = self._read_many(key, seeds)
            else:
                samples, repair = self._read_each(key, seeds)
        except Exception as error:
            _note(error, key, seeds.row)
            raise
        indices = key.indices.tolist() if repair is None else repair.indices
        if len(samples) != len(indices):
            raise ValueError(
                f"{type(self.dataset).__name__}.__getitems__ returned {len(samples)} samples for {len(indices)} "
                "indices, wanted one for each."
            )
        bounds = key.rows if key.rows is None or repair is None else np.searchsorted(repair.rows, key.rows)
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

    def _mend_whole(self, key: BatchKey, error: Exception) -> Any:
        repair = self._repair(key)
        try:
            batch = repair.together(error, lambda _, some: self.dataset.read_batch(np.array(some, dtype=np.int64)))
        except Exception as final:
            _note(final, key, None)
            raise
        if self.collate_fn is not None:
            bounds = None if key.rows is None else np.searchsorted(repair.rows, key.rows)
            batch = self._collate_whole(batch, repair.indices, bounds)
        return repair.report(batch)

    def _read_many(self, key: BatchKey, seeds: SampleSeeds) -> "tuple[list[Any], Repair | None]":
        try:
            seeds.enter_batch()
            return list(self.dataset.__getitems__(key.indices.tolist())), None
        except Exception as error:
            return self._mend_many(key, seeds, error)

    def _mend_many(self, key: BatchKey, seeds: SampleSeeds, error: Exception) -> "tuple[list[Any], Repair]":
        repair = self._repair(key)
        return repair.together(error, partial(self._read_rows, seeds)), repair

    def _read_each(self, key: BatchKey, seeds: SampleSeeds) -> "tuple[list[Any], Repair | None]":
        indices = key.indices.tolist()
        samples: list[Any] = []
        repair: Repair | None = None
        dataset, enter, left, keep = self.dataset, seeds.enter, enumerate(until_cancelled(indices)), samples.append
        stacks = self.collate_fn is None and self.batched and key.rows is None
        while len(samples) < len(indices):
            try:
                for row, index in left:
                    enter(row)
                    keep(dataset[index])
                    if stacks:
                        break
            except Exception as error:
                repair = repair or self._repair(key)
                samples.append(repair.one(len(samples), error, partial(self._read_row, seeds)))
            if stacks:  # behind the first sample
                stacks, keep = False, keep_rows(samples, len(indices))
        if repair is not None:
            samples = repair.left(samples, partial(self._read_row, seeds))
        return samples, repair

    def _read_row(self, seeds: SampleSeeds, row: int, index: int) -> Any:
        seeds.enter(row)
        return self.dataset[index]

    def _read_rows(self, seeds: SampleSeeds, rows: Sequence[int], indices: Sequence[int]) -> list[Any]:
        with seeds.part(None, rows):
            seeds.enter_batch()
            return list(self.dataset.__getitems__(list(indices)))

    def _repair(self, key: BatchKey) -> "Repair":
        from loaderkit.engine.repair import Repair  # few need it, and its import takes time

        return Repair(self.bad_samples, key, self.seed, self.order, self.lengths)

    def _collate_seeded(
        self, samples: list[Any], indices: list[int], bounds: Int64Array | None, seeds: SampleSeeds
    ) -> Any:
        if not self.batched:
            return self.collate_fn(samples[0])  # type: ignore[misc]  # only where there is one
        seeds.enter_batch()
        return self._collate(samples, indices, bounds)

    def _collate(self, samples: list[Any], indices: list[int], bounds: Int64Array | None) -> Any:
        if bounds is not None:  # rows of several samples each; a row of which nothing is left goes, too
            samples = [samples[first:last] for first, last in pairwise(bounds.tolist()) if first < last]
        return self._named(stack if self.collate_fn is None else self.collate_fn, indices, samples)

    def _collate_whole(self, batch: Any, indices: list[int], bounds: Int64Array | None) -> Any:
        collate: Any = self.collate_fn
        return self._named(collate.collate_batch, indices, batch, *([] if bounds is None else [np.unique(bounds)]))

    @staticmethod
    def _named(collate: Callable[..., Any], indices: list[int], *content: Any) -> Any:
        """Collate, and name the samples in errors."""
        try:
            return collate(*content)
        except CollateError as error:
            rows = [indices[row] for row in error.rows]
            where = f" (samples {', '.join(map(str, rows))})" if rows else ""
            raise CollateError(f"{error}{where}.", error.rows) from error
        except Exception as error:
            error.add_note(f"loaderkit: raised while collating samples {_shorten(indices)}.")
            raise


def takes_batches(collate_fn: Any) -> bool:
    """Say whether `collate_fn.collate_batch(batch)` makes of what a dataset's `read_batch` returns what it makes of the samples.

    A class that collates in a way of its own, by `__call__`, inherits none.
    """
    hidden = overridden_below(collate_fn, "collate_batch", frozenset({"__call__"}))
    return not hidden and callable(getattr(collate_fn, "collate_batch", None))


def _note(error: Exception, key: BatchKey, row: int | None) -> None:
    """Say in an error which sample of a batch it is about; None means all of them."""
    which = f"samples {_shorten(key.indices.tolist())}" if row is None else f"sample {key.indices[row]}"
    error.add_note(f"loaderkit: raised while reading {which} (epoch {key.epoch}, position {key.positions[row or 0]}).")


def _shorten(indices: list[int]) -> str:
    shown = ", ".join(map(str, indices[:8]))
    return f"{shown}, ... ({len(indices)} in all)" if len(indices) > 8 else shown
