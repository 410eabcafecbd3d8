"""The engine whose worker processes write batches into slots of shared memory."""

import os
import sys
import time
import weakref
from collections.abc import Callable, Iterable, Iterator

import torch

from loaderkit.engine.description import AHEAD, batches_ahead
from loaderkit.engine.ring.messages import Answer, pack_key
from loaderkit.engine.ring.pins import cuda_runtime
from loaderkit.engine.ring.processes import Workers
from loaderkit.engine.ring.slots import LARGEST
from loaderkit.engine.ring.team import Team, WorkerDied
from loaderkit.reading.batch_reader import BatchReader
from loaderkit.sampling.plan import BatchKey
from loaderkit.system.nested import pin
from loaderkit.system.process import refuse_in_fork
from loaderkit.system.start import Start, choose_start

_HELD = 4  # batches that a user may keep; if more are kept, the next ones are copies


class RingEngine:
    """Makes batches in worker processes, which write them into shared memory that is reused.

    A batch is a view of its slot. The slot is free again when the batch's last tensor is gone. If the user keeps more than
    a few batches, the next ones are copies. Batches come in the order of their keys, whichever worker makes them.

    Args:
        num_workers: The number of processes. Arguments that are not listed here are those of torch's DataLoader.
        in_turn: Deal the keys to the workers in turn, so that each keeps to the shards of its own lanes. Else all workers
            take keys from one queue, so that a slow sample delays no other batch.
        pin_in_place: The device for which slots are page-locked in place; `Pins` says what the code that copies batches
            must do then. With None, batches are copied to page-locked memory.
        largest: Bytes of the largest batch that goes through a slot. Larger batches go through a pipe.
        find_cuda: Returns CUDA's runtime for a device, or None.
        copy_pinned: Copies a batch to page-locked memory.
    """

    name: str = "ring"
    pinned_why: str = ""
    started: Start | None = None

    def __init__(
        self,
        reader: BatchReader,
        *,
        num_workers: int,
        pin_memory: bool = False,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        multiprocessing_context: object = None,
        worker_init_fn: Callable[[int], None] | None = None,
        timeout: float = 0,
        in_turn: bool = False,
        pin_in_place: torch.device | None = None,
        largest: int = LARGEST,
        find_cuda: Callable[[torch.device], object] = cuda_runtime,
        copy_pinned: Callable[[object], object] = pin,
    ) -> None:
        self._reader, self.num_workers, self.pinned = reader, num_workers, pin_memory
        self._in_place = pin_in_place if pin_memory else None
        self._in_turn, self._largest = in_turn, largest
        self._find_cuda, self.copy_pinned = find_cuda, copy_pinned
        self.dealing: str | None = "in turn, so that each keeps to its shards" if in_turn else "to whoever is free"
        self.prefetch = num_workers * (prefetch_factor or AHEAD)
        self._factor, self._most = prefetch_factor, self.prefetch
        self._size = -1  # bytes of the last batch
        self.fit(0)
        self._persistent, self._context = persistent_workers, multiprocessing_context
        self._init, self._timeout_s = worker_init_fn, timeout or None
        self._team: Team | None = None
        self._run: Callable[[], _Run | None] = lambda: None  # the latest, if it is in use
        self._numbers = 0  # tasks so far, over all runs

    def run(self, keys: Iterable[BatchKey], seed: int = 0) -> Iterator[object]:
        if self._team is not None and self._team.owner != os.getpid():
            self._team = None  # it belongs to the parent of this fork
        elif (before := self._run()) is not None:
            before.end()
        if not self._persistent:
            self.close()
        if self._team is not None:
            try:
                self._team.check_workers()
            except WorkerDied:
                self.close()
                raise
        else:
            cudart = None if self._in_place is None else self._find_cuda(self._in_place)
            if self._in_place is not None and cudart is None:
                self.pinned_why = "CUDA is not available"
            self.started = choose_start(self._context, self._reader)
            workers = Workers(
                reader=self._reader,
                count=self.num_workers,
                seed=seed,
                in_turn=self._in_turn,
                how=self.started,
                init=self._init,
            )
            self._team = Team(workers, slots=self._most + _HELD, largest=self._largest, cudart=cudart)
        self._team.slots.wanted[0] = self._numbers  # workers skip the tasks of earlier runs
        run = _Run(self, self._team, iter(keys))
        self._run = weakref.ref(run)
        run.start()
        return run

    def fit(self, size: int) -> None:
        """Set how many batches of `size` bytes are made ahead."""
        self._size = size
        self.prefetch = batches_ahead(size, self.num_workers, self._factor)
        # Tasks go out several at a time, because waking a worker can take longer than a task. But each worker always
        # needs a next task.
        several = min(max(2, self.prefetch // 4), self.prefetch - 2 * self.num_workers)
        self.low = self.prefetch - max(1, several)

    def close(self) -> None:
        """Stop the workers."""
        if self._team is not None:
            self._team.close()
            self._team = None


class _Run:
    """A run's batches, in order."""

    _is_finalizing = staticmethod(sys.is_finalizing)  # when the interpreter ends, this module's `sys` may be gone

    def __init__(self, engine: RingEngine, team: Team, keys: Iterator[BatchKey]) -> None:
        self._engine, self._team, self._keys = engine, team, keys
        self._first = self._next = self._submitted = engine._numbers
        self._answers: dict[int, Answer] = {}
        self._over = False
        self._all_out = False  # no key is left
        self._pending: BatchKey | None = None  # the key that waits for a free slot
        self._waiting: dict[int, BatchKey] = {}  # keys of the tasks under way, for errors

    def start(self) -> None:
        """Hand out one task, then start the workers: the first works while the others start.

        Only one task: the second key may start a thread that prepares the next epochs, and a fork would copy its memory.
        """
        try:
            self._submit(1)
            self._team.start()
        except BaseException:
            self.end(failed=True)
            raise

    def __iter__(self) -> "_Run":
        return self

    def __next__(self) -> object:
        if self._over:
            raise StopIteration
        try:
            if os.getpid() != self._team.owner:
                refuse_in_fork(self._team.owner)
            answer = self._answers.pop(self._next, None)
            if answer is None:
                self._submit()
                if self._next == self._submitted and self._all_out:
                    self.end()
                    raise StopIteration
                answer = self._await()
            batch = self._take(answer)
            self._submit()
        except StopIteration:
            raise
        except BaseException:
            self.end(failed=True)
            raise
        return batch

    def _submit(self, most: int | None = None) -> None:
        """Hand out tasks until `most` are under way; by default as many as the engine makes ahead."""
        engine, team = self._engine, self._team
        if self._submitted - self._next > engine.low:
            return
        most = engine.prefetch if most is None else most
        while self._submitted - self._next < most and not self._all_out:
            key = self._pending = self._pending or next(self._keys, None)
            if key is None:
                self._all_out = True
                return
            if not team.submit(self._submitted, pack_key(key), self._submitted - self._first):
                return
            self._pending = None
            self._waiting[self._submitted] = key
            self._submitted += 1
            engine._numbers = self._submitted

    def _await(self) -> Answer:
        """Return the answer to the next task.

        Raises:
            RuntimeError: If it takes longer than the timeout.
        """
        timeout_s = self._engine._timeout_s
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                answers = self._team.receive(left)
            except WorkerDied as died:
                died.add_note(f"loaderkit: it worked on {self._samples(died.number)}.")
                raise
            if not answers:
                raise RuntimeError(
                    f"loader: no batch in {timeout_s:g} s (timeout): {self._team.worker_of(self._next)} hangs, or "
                    f"{self._samples(self._next)} take longer. Check them, or raise the timeout."
                )
            for answer in answers:
                if answer.number < self._first:  # from a run that was left before its end
                    self._team.free.append(answer.slot)
                    self._submit()
                else:
                    self._answers[answer.number] = answer
            if self._next in self._answers:
                return self._answers.pop(self._next)

    def _samples(self, number: int) -> str:
        if number < 0:
            return "nothing"
        key = self._waiting.get(number)
        return "samples of an earlier pass" if key is None else f"samples {key.indices[:8].tolist()}"

    def _take(self, answer: Answer) -> object:
        engine, team = self._engine, self._team
        del self._waiting[self._next]
        self._next += 1
        if answer.size != engine._size:
            engine.fit(answer.size)
        under_way = self._submitted - self._next
        held = team.slots.count - len(team.free) - under_way - 1
        batch, pinned = team.open(answer, copied=held >= _HELD)
        if pinned or not self._engine.pinned:
            return batch
        if team.pins is not None:
            self._engine.pinned_why = team.pins.why
        return engine.copy_pinned(batch)

    def end(self, *, failed: bool = False) -> None:
        """Drop the batches under way. Stop the workers, unless they persist and the run did not fail."""
        self._over = True
        while self._answers:
            self._team.free.append(self._answers.popitem()[1].slot)
        if failed or not self._engine._persistent:
            self._team.close()
            if self._engine._team is self._team:
                self._engine._team = None

    def __del__(self) -> None:
        if not self._over and not self._is_finalizing():  # by then the workers are gone
            self.end()
