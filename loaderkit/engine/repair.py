"""A batch in which a read failed: what may pass is tried again, then the policy decides on each bad sample."""

from collections.abc import Callable, Sequence
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
from loaderkit.sampling.order import Order
from loaderkit.sampling.plan import BatchKey
from loaderkit.seeding.keys import hash_positions
from loaderkit.system.arrays import Int64Array

_CANDIDATES = 32  # tried for a replacement
_LOOKED_AT = 1000  # for one that is short enough
_LEFT_OUT = object()

ReadOne = Callable[[int, int], Any]  # from a row of the batch and an index to a sample
ReadMany = Callable[[Sequence[int], Sequence[int]], Any]  # from rows and indices to what the dataset makes of them


class Repair:
    """Reads what is left of a batch.

    Args:
        policy: What is done with bad samples.
        key: The batch's.
        seed: The loader's.
        order: Where replacements are chosen from.
        lengths: Of the dataset's samples, where batches are made by them: no replacement is longer than what it replaces.
    """

    def __init__(
        self, policy: BadSamples, key: BatchKey, seed: int, order: Order | None, lengths: Int64Array | None = None
    ) -> None:
        self._policy, self._key, self._seed, self._order, self._lengths = policy, key, seed, order, lengths
        self._chosen: list[int | None] = key.indices.tolist()  # for each row; None where it is left out
        self._bad: list[BadSample] = []
        self._first: Exception | None = None

    @property
    def rows(self) -> list[int]:
        """The rows of the batch that are not left out."""
        return [row for row, index in enumerate(self._chosen) if index is not None]

    @property
    def indices(self) -> list[int]:
        """What is read at these rows."""
        return [index for index in self._chosen if index is not None]

    def one(self, row: int, error: Exception, read: ReadOne) -> Any:
        """Return a sample for a row where reading failed, or what `left` takes out.

        Raises:
            Exception: The error, if it does not pass and the policy does not take it for the sample's fault.
        """
        index = int(self._key.indices[row])
        try:
            return self._policy.again(error, lambda: read(row, index), f"sample {index}")
        except Exception as final:
            if not self._policy.blames(final):
                raise
            self._first = self._first or portable(final)
            position = int(self._key.positions[row])
            self._bad.append(BadSample(self._key.epoch, position, index, describe(final), None))
            drop_traceback(final)
        if self._policy.policy == "replace":
            return self._replace(row, read, alone=False)
        self._chosen[row] = None
        return _LEFT_OUT

    def left(self, samples: list[Any], read: ReadOne) -> list[Any]:
        """Return the samples without those that are left out: at least one."""
        kept = [sample for sample in samples if sample is not _LEFT_OUT]
        return kept or [self._replace(0, read, alone=True)]

    def together(self, error: Exception, read: ReadMany) -> Any:
        """Return what a dataset that reads many samples at once makes of those that can be read.

        Raises:
            Exception: As `one` does.
        """
        wanted = self.indices
        try:
            return self._policy.again(error, lambda: read(range(len(wanted)), wanted), f"samples {wanted[0]}, ...")
        except Exception as final:
            if not self._policy.blames(final):
                raise
            drop_traceback(final)

        def read_one(row: int, index: int) -> Any:
            return read([row], [index])

        # One of them is bad, or several: each is read by itself, then all that can be are read as before.
        for row, index in enumerate(wanted):
            try:
                read_one(row, index)
            except Exception as fault:
                self.one(row, fault, read_one)
        if not self.rows:
            self._replace(0, read_one, alone=True)
        try:
            return self._policy.retry.call(lambda: read(self.rows, self.indices))
        except Exception as fault:
            fault.add_note("loaderkit: each of these samples can be read by itself.")
            raise

    def report(self, batch: Any) -> Any:
        """Put the bad samples beside the batch, if there are any."""
        return batch if self._first is None else Reported(batch, self._bad, self._first)

    def _replace(self, row: int, read: ReadOne, *, alone: bool) -> Any:
        """Return another sample of the order in the place of this row's, or leave it out where none is short enough.

        Args:
            row: Of the batch.
            read: Reads one.
            alone: Whether nothing else is left of the batch, which must not be empty.
        """
        number = next(n for n, bad in enumerate(self._bad) if bad.position == self._key.positions[row])
        last: Exception | None = None
        candidates = self._candidates(row, alone=alone)
        for index in candidates:
            try:
                sample = self._policy.retry.call(lambda index=index: read(row, index))  # type: ignore[misc]
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
            f"{len(candidates)} other samples could not be read either, the last by {last!r}. Mend the data, or what it is read from."
        ) from last

    def _candidates(self, row: int, *, alone: bool) -> list[int]:
        """Return what may come in the place of a row's sample, in the order in which it is tried."""
        lengths = self._lengths
        if lengths is None:
            return [self._candidate(row, attempt) for attempt in range(_CANDIDATES)]
        replaced = int(self._key.indices[row])
        drawn = dict.fromkeys(self._candidate(row, attempt) for attempt in range(_LOOKED_AT))
        found = [index for index in drawn if index != replaced and lengths[index] <= lengths[replaced]]
        if alone:  # whatever is in a batch elsewhere fits
            found += sorted(set(drawn) - set(found), key=lambda index: (int(lengths[index]), index))
        return found[:_CANDIDATES]

    def _candidate(self, row: int, attempt: int) -> int:
        if self._order is None:
            raise ValueError(
                "batch reader: a replacement is wanted, and there is no order to choose it from. Give BatchReader order=."
            )
        key = self._key
        word = hash_positions(key.positions[row : row + 1], "replacement", self._seed, key.epoch, attempt)[0]
        place = np.array([int(word) % self._order.size(key.epoch)], dtype=np.int64)
        return int(self._order.at(key.epoch, place)[0])
