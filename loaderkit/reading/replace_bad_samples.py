"""Apply the `BadSamples` policy to a batch whose read failed: try again, then skip or replace samples."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from loaderkit.datasets.bad_samples import (
    BadSample,
    BadSamples,
    BadSamplesError,
    Reported,
    describe,
    drop_traceback,
    portable,
)
from loaderkit.sampling.keys import like
from loaderkit.sampling.order import Order
from loaderkit.sampling.plan import BatchKey
from loaderkit.seeding.keys import hash_positions
from loaderkit.system.arrays import Int64Array
from loaderkit.system.threads import until_cancelled

_CANDIDATES = 32  # tried for a replacement
_LOOKED_AT = 1000  # positions drawn to find replacements that are short enough
_LEFT_OUT = object()

ReadOne = Callable[[int, int], object]  # from a row of the batch and an index to a sample
ReadMany = Callable[[list[int] | None, Int64Array], object]  # from rows of the batch (None: all) and their indices


class Repair:
    """Reads a batch again after a failure, and skips or replaces bad samples as the policy says.

    Replacements are drawn from the order. With `lengths` (N,) of all samples, a replacement is no longer than the bad
    sample, except to keep a batch from being empty.
    """

    def __init__(
        self, policy: BadSamples, key: BatchKey, seed: int, order: Order | None, lengths: Int64Array | None = None
    ) -> None:
        self._policy, self._key, self._seed, self._order, self._lengths = policy, key, seed, order, lengths
        self._planned: list[Any] = key.indices.tolist()
        self._chosen: list[Any] = list(self._planned)  # index for each row; None if the row is left out
        self._bad: list[BadSample] = []
        self._first: Exception | None = None

    @property
    def rows(self) -> list[int]:
        """The rows of the batch that are not left out."""
        return [row for row, index in enumerate(self._chosen) if index is not None]

    @property
    def indices(self) -> list[Any]:
        """The dataset indices of the rows that are not left out, with replacements."""
        return [index for index in self._chosen if index is not None]

    def each(self, read: ReadOne, samples: list[object], error: Exception | None = None) -> list[object]:
        """Read the batch's samples one by one, and return those that are not left out: at least one.

        `samples` are already read: those of the first rows. `error` is what reading the next row raised, if it was
        tried.

        Raises:
            Exception: The first error that the policy does not blame on the sample.
        """
        found = list(samples)
        for row in until_cancelled(list(range(len(samples), len(self._chosen)))):
            try:
                sample = self._one(row, read, error)
            except Exception as final:
                if not self._policy.blames(final):
                    raise
                sample = self._stand_in(row, read, final)
            error = None
            if sample is not _LEFT_OUT:
                found.append(sample)
        return found or [self._replace(0, read, alone=True)]

    def together(self, read: ReadMany, error: Exception) -> object:
        """Read the batch again by one call after `error`, without the samples that cannot be read."""
        indices = self._key.indices
        try:
            return self._policy.again(error, lambda: read(None, indices), f"samples {indices[0]}, ...")
        except Exception as final:
            if not self._policy.blames(final):
                raise
            drop_traceback(final)
        self.each(lambda row, index: read([row], like(indices, [index])), [])
        try:
            return self._policy.retry.call(lambda: read(self.rows, like(indices, self.indices)))
        except Exception as fault:
            fault.add_note("loaderkit: each of these samples can be read by itself.")
            raise

    def _one(self, row: int, read: ReadOne, error: Exception | None) -> object:
        """Read the sample of a row; retry transient errors. `error` is that of an earlier try."""
        index = self._planned[row]
        if error is None:
            try:
                return read(row, index)
            except Exception as first:
                error = first
        return self._policy.again(error, lambda: read(row, index), f"sample {index}")

    def _stand_in(self, row: int, read: ReadOne, error: Exception) -> object:
        """Record a bad sample; return its replacement, or `_LEFT_OUT`."""
        self._first = self._first or portable(error)
        index, position = self._planned[row], int(self._key.positions[row])
        self._bad.append(BadSample(self._key.epoch, position, index, describe(error), None))
        drop_traceback(error)
        if self._policy.policy == "replace":
            return self._replace(row, read, alone=False)
        self._chosen[row] = None
        return _LEFT_OUT

    def report(self, batch: object) -> object:
        """Return the batch, wrapped in `Reported` with its bad samples if there are any."""
        return batch if self._first is None else Reported(batch, self._bad, self._first)

    def _replace(self, row: int, read: ReadOne, *, alone: bool) -> object:
        """Return a replacement for a row's sample, or leave the row out if no candidate is short enough.

        If `alone`, the batch has no other sample left, so a longer replacement is taken rather than none.
        """
        number = next(n for n, bad in enumerate(self._bad) if bad.position == self._key.positions[row])
        last: Exception | None = None
        candidates = self._candidates(row, alone=alone)
        for index in candidates:
            try:
                sample = self._policy.retry.call(lambda index=index: read(row, index))  # type: ignore[misc]  # mypy cannot infer a lambda with a default
            except Exception as error:
                if not self._policy.blames(error):
                    raise
                last = error
                drop_traceback(error)
                continue
            self._chosen[row] = index
            self._bad[number] = replace(self._bad[number], replacement=index)
            return sample
        if not alone and self._lengths is not None and len(candidates) < _CANDIDATES:
            self._chosen[row] = None
            return _LEFT_OUT
        bad = self._bad[number]
        raise BadSamplesError(
            f"loader: no replacement for sample {bad.index} (epoch {bad.epoch}, position {bad.position}; {bad.error}): "
            f"{len(candidates)} other samples could not be read either, the last by {last!r}. Repair the data or its storage."
        ) from last

    def _candidates(self, row: int, *, alone: bool) -> list[Any]:
        """Return the dataset indices to try as a row's replacement, in this order."""
        lengths = self._lengths
        if lengths is None:
            return [self._candidate(row, attempt) for attempt in range(_CANDIDATES)]
        replaced = self._planned[row]
        drawn = dict.fromkeys(self._candidate(row, attempt) for attempt in range(_LOOKED_AT))
        found = [index for index in drawn if index != replaced and lengths[index] <= lengths[replaced]]
        if alone:  # longer samples too: the batch has no other
            found += sorted(set(drawn) - set(found), key=lambda index: (int(lengths[index]), index))
        return found[:_CANDIDATES]

    def _candidate(self, row: int, attempt: int) -> Any:
        if self._order is None:
            raise ValueError(
                "batch reader: a replacement is needed, but there is no order to choose it from. Pass order= to BatchReader."
            )
        key = self._key
        word = hash_positions(key.positions[row : row + 1], "replacement", self._seed, key.epoch, attempt)[0]
        place = np.array([int(word) % self._order.size(key.epoch)], dtype=np.int64)
        return self._order.at(key.epoch, place).tolist()[0]
