"""Run each contender in its own process: none stops or slows the others, and each has a time limit."""

import contextlib
import gc
import importlib
import math
import os
import random
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from multiprocessing import Pipe, get_context
from typing import Any, NoReturn

import torch

from lib.harness import LeftOutError, descendants, end, interleave, leave

# Torch imports it when a worker's thread sends its first tensor, which fails while the main thread imports it too: a DataLoader
# would wait for that batch for ever.
importlib.import_module("torch.nested._internal.nested_tensor")

SETTLE_S = 0.03  # what a loader makes ahead is not to fall into the time of the next one
THREADS = torch.get_num_threads()
torch.set_num_threads(1)  # a fork of a process that has used several hangs when it does
Make = Callable[[ExitStack], Callable[[], Any]]


class Apart:
    """A contender in one forked process, which makes it at its first turn and keeps it.

    The contender has as many threads as torch takes by default; this process has one.

    Args:
        make: Returns the function to call at each turn. Its exit stack closes at the end.
        limit_s: Seconds for a turn.
        heap: Another number gives the process another heap layout; 0 leaves the heap as it is.
    """

    def __init__(self, make: Make, *, limit_s: float = 60, heap: int = 0) -> None:
        self._limit_s = limit_s
        self._orders, theirs = Pipe()
        self._child = os.fork()
        if self._child == 0:
            self._orders.close()
            _serve(make, theirs, heap)
        theirs.close()

    def __call__(self) -> Any:
        """Return what a call returns in the contender's process, or the seconds that it takes if that is nothing."""
        with contextlib.suppress(BrokenPipeError):  # its answer says why
            self._orders.send(True)
        if not self._orders.poll(self._limit_s):
            raise LeftOutError(f"gave nothing for {self._limit_s:g} seconds")
        try:
            found, error = self._orders.recv()
        except EOFError:
            raise LeftOutError("its process died") from None
        if error:
            raise LeftOutError(error)
        time.sleep(SETTLE_S)
        return found

    def close(self) -> None:
        """End the process and all that it has started."""
        self._orders.close()
        end([*descendants(self._child), self._child])
        os.waitpid(self._child, 0)


class FreshProcess:
    """A contender in a new process at each turn, with its own heap; the first call there does not count.

    Where the C library finds memory depends on all earlier allocations. PIL takes up to 1.4 times as long to
    decode the same picture in one heap as in another.
    """

    def __init__(self, make: Make, *, limit_s: float = 60) -> None:
        self._make, self._limit_s, self._turns = make, limit_s, 0

    def __call__(self) -> Any:
        """Return what a second call returns in a new process, or the seconds that it takes if that is nothing."""
        self._turns += 1
        process = Apart(self._make, limit_s=self._limit_s, heap=self._turns)
        try:
            process()
            return process()
        finally:
            process.close()

    def close(self) -> None:
        """Nothing is left running."""


def once(function: Callable[[], Any], *, limit_s: float = 60) -> Any:
    """Return what a function returns in a process of its own."""
    process = Apart(lambda _: function, limit_s=limit_s)
    try:
        return process()
    finally:
        process.close()


def interleave_apart(
    makes: Mapping[str, Make],
    *,
    rounds: int,
    limit_s: float = math.inf,
    turn_s: float = 60,
    fresh: bool = False,
    programs: int = 1,
    prepare: Callable[[], object] = gc.collect,
    **settings: Any,
) -> dict[str, dict[int, float]]:
    """Time contenders as `interleave` does, each in its own process.

    Args:
        makes: What makes each contender, by name.
        rounds: Passed to `interleave`, like `limit_s` and the other settings.
        limit_s: Seconds for all rounds.
        turn_s: A contender that takes longer for a turn is left out.
        fresh: Start a process for each turn; see `FreshProcess`.
        programs: Number of programs that share the rounds, one after another. Forks of one program have
            equal addresses, so several give a fairer mean. Contenders must pickle if there is more than one.
        prepare: Called by each program before it forks.
        settings: See `interleave`.
    """
    each = -(-rounds // programs)
    settings |= {"turn_s": turn_s, "fresh": fresh, "prepare": prepare, "rounds": each, "limit_s": limit_s / programs}
    if programs == 1:
        return _interleave(makes, first=0, **settings)
    found: dict[str, dict[int, float]] = {name: {} for name in makes}
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as pool:
        for number in range(programs):
            part = pool.submit(_interleave, makes, first=number * each, **settings).result()
            found = {name: found[name] | taken for name, taken in part.items() if name in found}
    return found


def _interleave(
    makes: Mapping[str, Make], *, turn_s: float, fresh: bool, prepare: Callable[[], object], **settings: Any
) -> dict[str, dict[int, float]]:
    prepare()
    kind = FreshProcess if fresh else Apart
    with ExitStack() as stack:
        turns = {name: kind(make, limit_s=turn_s) for name, make in makes.items()}
        for turn in turns.values():
            stack.callback(turn.close)
        return interleave(turns, **settings)


def _disturb(heap: int) -> list[bytearray]:
    """Allocate pieces of 16 B to 4 MB, and return the half of them that is to be kept."""
    draw = random.Random(heap)
    pieces = [bytearray(int(2 ** draw.uniform(4, 22))) for _ in range(draw.randrange(20, 200))]
    draw.shuffle(pieces)
    return pieces[: len(pieces) // 2]


def _serve(make: Make, orders: Any, heap: int) -> NoReturn:
    with contextlib.suppress(BaseException):  # the other end has closed, or Ctrl-C
        kept = _disturb(heap) if heap else []  # noqa: F841 - as long as the process
        torch.set_num_threads(THREADS)
        gc.freeze()
        orders.recv()
        with ExitStack() as stack:
            try:
                call = make(stack)
                while True:
                    gc.collect()
                    start = time.perf_counter()
                    own = call()
                    orders.send((time.perf_counter() - start if own is None else own, None))
                    orders.recv()
            except Exception as error:
                orders.send((None, f"{type(error).__name__}: {str(error).strip()[:200]}"))
    leave()
