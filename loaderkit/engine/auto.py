"""The engine that measures where a batch costs this process less: made here, or received from a worker."""

import operator
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

import numpy as np

from loaderkit.datasets.memory.array import in_memory
from loaderkit.engine.batch_reader import BatchReader
from loaderkit.engine.inline import InlineEngine
from loaderkit.engine.timed import Timed
from loaderkit.sampling.plan import BatchKey
from loaderkit.system.nested import pin

MEASURED = 16  # batches, before it is decided
_AGAIN = 4096  # batches of workers, up to which it is decided anew each time that their number has doubled
WARM_UP = 2  # batches of each pass that are not counted
_PATIENCE_S = 0.2  # of making batches here, before workers are started, which takes as long
_HANDED = 5  # batches that are handed over for a trial

# Between these nothing changes: measured times vary, and a change costs something itself.
_CHEAP = 1.5  # making over receiving: below, workers are let go; they write batches too, and processes wake for each
_DEAR = 2.0  # making over writing and receiving: above, they are started

# Who waits for all workers waits for what they do beside making batches, too: writing, waking, sharing the cores. That counts
# when they run steadily, and unless a batch takes so long that a busy machine may be the reason.
_STEADY = 50  # batches
_SMALL_S = 0.0005

_END: Any = object()


class AutoEngine:
    """Gives batches from workers, or makes them here where that costs this process less; the batches are the same.

    Data in memory is read here at first, and workers are started only if a batch takes longer than handing it over would.
    Other data is not touched in this process before workers are started (it may open files, which a fork would share): its
    workers say how long each batch takes, and are let go where handing it over takes longer. As files that are mapped are slow
    at first, this is found out again after twice as many batches, and so on; there is no way back.

    Args:
        feed: What both run.
        here: The engine without workers.
        workers: The one with workers, over a `TimedFeed`.
        handing_over_s: Measures what handing such a batch over costs, before there are workers.
    """

    def __init__(
        self, feed: BatchReader, *, here: InlineEngine, workers: Any, handing_over_s: Callable[[Any, BatchKey], float]
    ) -> None:
        self.here, self.workers = here, workers
        self.choice: Literal["here", "workers"] | None = None
        self.why = ""
        self.making_us: float | None = None
        self.receiving_us: float | None = None
        self._in_memory = in_memory(feed.dataset) and feed.collate_fn is None
        self._handing_over_of = handing_over_s
        self._making: list[float] = []  # seconds, of the batches measured so far
        self._spent_s = 0.0  # on batches that were measured here
        self._receiving: list[float] = []
        self._waiting: list[float] = []
        self._received = 0  # batches of workers that were measured
        self._settled = False  # whether there is nothing more to measure

    @property
    def measured(self) -> int:
        """Batches measured so far."""
        return len(self._making)

    @property
    def now(self) -> Any:
        """The engine in use, or to be used next."""
        tried_here = self.choice is None and self._in_memory
        return self.here if self.choice == "here" or tried_here else self.workers

    def run(self, keys: Iterable[BatchKey]) -> Iterator[Any]:
        left = iter(keys)
        if self.choice is None and self._in_memory:
            yield from self._try_here(left)
        if self.choice != "here":
            yield from self._receive(left)
        if self.choice == "here":
            yield from self.here.run(left)

    def close(self) -> None:
        self.workers.close()

    def _try_here(self, keys: Iterator[BatchKey]) -> Iterator[Any]:
        """Make batches here until it is decided."""
        for number, key in enumerate(keys):  # making keys costs as much with workers
            start = time.perf_counter()
            batch = next(self.here.run([key]), _END)
            took = time.perf_counter() - start
            if batch is _END:
                return
            if number >= WARM_UP:
                self._making.append(took)
                self._spent_s += took
            if len(self._making) >= MEASURED:
                self._decide_here(batch, key)
            yield batch
            if self.choice:
                return

    def _decide_here(self, batch: Any, key: BatchKey) -> None:
        """Decide by the last batches; for workers only after some time, as memory that is touched for the first time is slow."""
        self._receiving = self._receiving or [self._handing_over_of(batch, key) for _ in range(_HANDED)]
        del self._making[:-MEASURED]
        making, receiving = float(np.median(self._making)), float(np.median(self._receiving))
        if self._spent_s >= _PATIENCE_S or choose("here", making, receiving) == "here":
            self._decide("here", making, receiving)
            self._settled = True

    def _receive(self, keys: Iterator[BatchKey]) -> Iterator[Any]:
        """Yield the batches of workers; if those are let go, up to the last one that is under way."""
        given = _Keys(keys)
        batches = self.workers.run(given)
        number = 0
        try:
            while not self._settled:
                start, busy = time.perf_counter(), time.thread_time()
                timed = next(batches, _END)
                busy, waited = time.thread_time() - busy, time.perf_counter() - start
                if timed is _END:
                    return
                if number >= WARM_UP * self.workers.num_workers:
                    self._note(timed, busy, waited)
                number += 1
                given.over = self.choice == "here"
                yield timed[0]
                del timed  # its slot is free for the next one
            yield from map(operator.itemgetter(0), batches)
        finally:
            if self.choice == "here":
                self.workers.close()  # those too that would persist

    def _note(self, timed: Timed, receiving: float, waiting: float) -> None:
        batch, making, asked = timed
        if self.here.pinned:
            start = time.perf_counter()
            pin(batch)
            making += time.perf_counter() - start
        self._making.append(making)
        self._receiving.append(receiving)
        self._waiting.append(waiting)
        self._received += 1
        if asked:
            self.choice, self.why = "workers", "the data asks get_worker_info() which worker reads it"
            self._settled = True
        elif len(self._making) >= max(MEASURED, self._received // 2):
            self._decide_workers()
            self._settled = self.choice == "here" or self._received >= _AGAIN

    def _decide_workers(self) -> None:
        """Decide by the batches since it was decided last."""
        # The mean: one slow read in eight is what workers are for. Less the largest: other processes interrupt.
        making = _usual(self._making)
        receiving = float(np.median(self._receiving))
        if self._received >= _STEADY and making < _SMALL_S:
            receiving = max(receiving, self.workers.num_workers * _usual(self._waiting) - making)
        self._decide("workers", making, receiving)
        for measured in (self._making, self._receiving, self._waiting):
            measured.clear()

    def _decide(self, now: Literal["here", "workers"], making: float, receiving: float) -> None:
        self.making_us, self.receiving_us = making * 1e6, receiving * 1e6
        self.choice = choose(now, making, receiving)
        way = "handing one over by a worker" if now == "here" else "receiving one from a worker"
        self.why = f"making a batch takes {self.making_us:,.0f} us, {way} {self.receiving_us:,.0f} us"


def choose(now: Literal["here", "workers"], making: float, receiving: float) -> Literal["here", "workers"]:
    """Say where batches are to be made, by what making one and receiving one take this process."""
    if now == "workers":
        return "here" if making < _CHEAP * receiving else "workers"
    return "workers" if making > _DEAR * receiving else "here"


def _usual(times: list[float]) -> float:
    """Return the mean of times without the longest."""
    return float(np.mean(sorted(times)[:-1] or times))


class _Keys:
    """Keys that end early when there is no more use for them."""

    def __init__(self, keys: Iterator[BatchKey]) -> None:
        self._keys = keys
        self.over = False

    def __iter__(self) -> Iterator[BatchKey]:
        return self

    def __next__(self) -> BatchKey:
        if self.over:
            raise StopIteration
        return next(self._keys)
