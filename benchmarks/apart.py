"""Contenders in processes of their own: none stops or slows the others, and each has a time limit."""

import contextlib
import gc
import importlib
import os
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from multiprocessing import Pipe
from typing import Any, NoReturn

import torch
from harness import LeftOutError, descendants, end, interleave, leave

# Torch imports it when a worker's thread sends its first tensor, which fails while the main thread imports it too: a DataLoader
# would wait for that batch for ever.
importlib.import_module("torch.nested._internal.nested_tensor")

SETTLE_S = 0.03  # what a loader makes ahead is not to fall into the time of the next one
THREADS = torch.get_num_threads()
torch.set_num_threads(1)  # a fork of a process that has used several hangs when it does
Make = Callable[[ExitStack], Callable[[], Any]]


class Apart:
    """A contender in a fork of this process, which makes it at its first turn and keeps it.

    It has as many threads as torch takes by itself; this process has one.

    Args:
        make: Returns what to call at each turn; what it puts on the stack is closed at the end.
        limit_s: Seconds for a turn.
    """

    def __init__(self, make: Make, *, limit_s: float = 60) -> None:
        self._limit_s = limit_s
        self._orders, theirs = Pipe()
        self._child = os.fork()
        if self._child == 0:
            self._orders.close()
            _serve(make, theirs)
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


def once(function: Callable[[], Any], *, limit_s: float = 60) -> Any:
    """Return what a function returns in a process of its own."""
    process = Apart(lambda _: function, limit_s=limit_s)
    try:
        return process()
    finally:
        process.close()


def interleave_apart(makes: Mapping[str, Make], *, turn_s: float = 60, **settings: Any) -> dict[str, dict[int, float]]:
    """Time contenders as `interleave` does, each in a process of its own; who takes longer than `turn_s` is left out."""
    with ExitStack() as stack:
        turns = {name: Apart(make, limit_s=turn_s) for name, make in makes.items()}
        for turn in turns.values():
            stack.callback(turn.close)
        return interleave(turns, **settings)


def _serve(make: Make, orders: Any) -> NoReturn:
    with contextlib.suppress(BaseException):  # the other end has closed, or Ctrl-C
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
