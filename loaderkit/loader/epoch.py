"""The iterator of a Loader over one epoch: counts each batch before it yields the batch."""

import logging
from collections.abc import Iterator
from typing import Any

import torch

from loaderkit.datasets.bad_samples import Reported
from loaderkit.device.cuda import HostBatches
from loaderkit.loader.checks import unprepared
from loaderkit.loader.position import Position


class Epoch:
    """Yields the batches from a position to the end of its epoch. With a device, they are copied there."""

    def __init__(self, position: Position, device: torch.device | None, copied: HostBatches) -> None:
        self.position = position
        self._device, self._copied = device, copied
        self._batches: Iterator[Any] | None = None
        self.over = False
        self._turn = 0

    def __iter__(self) -> "Epoch":
        return self

    def begin(self) -> None:
        """Start the pass; otherwise the first `next()` does."""
        position = self.position
        position.discard_ahead()
        position.meter.start()
        if not position.prepared and (remark := unprepared()) is not None:
            position.say(remark)
        try:
            self._batches = position.begin()
        except BaseException as error:
            self._fail(error)
            raise
        self._turn = position.turn
        self._say_where()

    def check_turn(self, turn: int) -> None:
        """Raise a RuntimeError if something else has moved the position since its attribute `turn` had this value."""
        if self.position.turn != turn:
            raise RuntimeError(
                "loader: this iterator is over: the loader was moved, iterated again, or failed since. Call iter(loader)."
            )

    def __next__(self) -> Any:
        position = self.position
        if self.over:
            raise StopIteration
        if self._batches is None:
            self.begin()
        else:
            self.check_turn(self._turn)
        try:
            batch = next(self._batches, _END)  # type: ignore[arg-type]  # the epoch has begun
            if batch is _END:
                position.check_end()
                self.over = True
            else:
                report = None
                if type(batch) is Reported:
                    report, batch = batch, batch.batch
                if self._device is not None:
                    batch = self._copied.copy(batch, self._device)
                # Counted before the batch is yielded: the caller may never ask for another.
                self.over = position.count(report)
        except BaseException as error:
            self._fail(error)
            raise
        if self.over:
            self._batches = iter(())  # releases workers that do not persist
        if batch is _END:
            raise StopIteration
        return batch

    def _say_where(self) -> None:
        """Log where the first pass after a loaded state starts: a Trainer may load it twice, and then choose another epoch."""
        position = self.position
        if position.resumed and not position.crew.world.rank:
            where = position.cursor_at(position.point())
            samples = f" and {where.samples:,} samples of all ranks" if where.samples else ""
            _logger.info("resumed in epoch %d, after %d batches%s", where.epoch, where.batches, samples)
        position.resumed = False

    def _fail(self, error: BaseException) -> None:
        self.position.fail(error)
        self._batches = iter(())  # else its workers would wait for the garbage collector


_END = object()
_logger = logging.getLogger("loaderkit")
