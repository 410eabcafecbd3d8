"""The engine on workers of our own, which write batches into leased slots of shared memory."""

import pickle
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from loaderkit.engine.ring.layout import read
from loaderkit.engine.ring.team import Answer, Team
from loaderkit.engine.ring.worker import FAILED
from loaderkit.feed import Feed
from loaderkit.plan import BatchKey
from loaderkit.transfer import pin

_AHEAD = 4  # tasks for each worker, by default: a slow sample then holds nobody up
_HELD = 4  # batches that a user may keep without their being copied


class RingEngine:
    """Worker processes that take tasks from one queue and write batches into shared memory that is used again.

    A batch is a view of that memory, which is free for another when the batch's last tensor is gone. Who keeps more than
    a few batches gets copies. Batches come in the order of their keys, whoever makes them.
    """

    def __init__(
        self,
        feed: Feed,
        *,
        num_workers: int,
        pin_memory: bool = False,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        multiprocessing_context: Any = None,
        worker_init_fn: Callable[[int], None] | None = None,
        timeout: float = 0,
    ) -> None:
        self._feed, self._workers, self._pinned = feed, num_workers, pin_memory
        self._window = num_workers * (prefetch_factor or _AHEAD)
        self._persistent, self._context = persistent_workers, multiprocessing_context
        self._init, self._timeout_s = worker_init_fn, timeout or None
        self._team: Team | None = None
        self._numbers = 0  # tasks so far, over all runs

    def run(self, keys: Iterable[BatchKey]) -> Iterator[Any]:
        if not self._persistent:
            self.close()
        if self._team is None:
            self._team = Team(
                self._feed,
                workers=self._workers,
                slots=self._window + _HELD,
                context=self._context,
                init=self._init,
            )
        return _Run(self, self._team, iter(keys))

    def close(self) -> None:
        """Stop the workers."""
        if self._team is not None:
            self._team.close()
            self._team = None


class _Run:
    """A run's batches, in order."""

    def __init__(self, engine: RingEngine, team: Team, keys: Iterator[BatchKey]) -> None:
        self._engine, self._team, self._keys = engine, team, keys
        self._first = self._next = self._submitted = engine._numbers
        self._answers: dict[int, Answer] = {}
        self._over = False
        self._all_out = False  # no key is left
        self._waiting: dict[int, BatchKey] = {}  # under way, for errors

    def __iter__(self) -> "_Run":
        return self

    def __next__(self) -> Any:
        if self._over:
            raise StopIteration
        try:
            self._submit()
            if self._next == self._submitted and self._all_out:
                self._end()
                raise StopIteration
            batch = self._take(self._await())
            self._submit()
        except StopIteration:
            raise
        except BaseException:
            self._end(failed=True)
            raise
        return batch

    def _submit(self) -> None:
        """Have as many tasks under way as there are places for."""
        engine, team = self._engine, self._team
        while self._submitted - self._next < engine._window and team.free:
            key = next(self._keys, None)
            if key is None:
                self._all_out = True
                return
            team.submit(self._submitted, pickle.dumps(key, pickle.HIGHEST_PROTOCOL))
            self._waiting[self._submitted] = key
            self._submitted += 1
            engine._numbers = self._submitted

    def _await(self) -> Answer:
        """Return the answer to the next task.

        Raises:
            RuntimeError: If it does not come in time.
        """
        timeout_s = self._engine._timeout_s
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while self._next not in self._answers:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            answers = self._team.receive(left)
            if not answers:
                key = self._waiting.get(self._next)
                samples = "those of an earlier pass" if key is None else f"samples {key.indices[:8].tolist()}"
                raise RuntimeError(
                    f"loader: no batch in {timeout_s:g} s (timeout): a worker hangs, or {samples} take longer. See what they "
                    "do, or give more time."
                )
            for answer in answers:
                if answer.number < self._first:  # of a run that was left
                    self._team.free.append(answer.slot)
                    self._submit()
                else:
                    self._answers[answer.number] = answer
        self._waiting.pop(self._next)
        return self._answers.pop(self._next)

    def _take(self, answer: Answer) -> Any:
        """Make the batch of an answer, and see to its slot."""
        team, self._next = self._team, self._next + 1
        if answer.used <= 0:
            team.free.append(answer.slot)
            content = pickle.loads(answer.structure) if answer.used else read(answer.structure, None)
            if answer.used == FAILED:
                content.reraise()
            return pin(content) if self._engine._pinned else content
        slot = team.slots[answer.slot]
        under_way = self._submitted - self._next
        held = len(team.slots) - len(team.free) - under_way - 1
        if held >= _HELD:
            private = bytearray(memoryview(slot.mapping(answer.used))[: answer.used])
            team.free.append(answer.slot)
            batch = read(answer.structure, private)
        else:
            batch = read(answer.structure, slot.lease(answer.used, team.free.append))
        return pin(batch) if self._engine._pinned else batch

    def _end(self, *, failed: bool = False) -> None:
        """Give back what is under way; let workers go that don't persist, and those of a run that failed."""
        self._over = True
        for answer in self._answers.values():
            self._team.free.append(answer.slot)
        self._answers.clear()
        if failed or not self._engine._persistent:
            self._team.close()
            if self._engine._team is self._team:
                self._engine._team = None

    def __del__(self) -> None:
        if not self._over:
            self._end()
