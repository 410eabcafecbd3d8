"""Forked workers that cannot begin, because they wait for what only their parent has, end in an error."""

import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.utils.data as torch_data

import loaderkit as lk
import loaderkit.engine.ring.team as ring
import loaderkit.system.forks as forks
from loaderkit.system.forks import find_stuck, has_not_begun, watched_fork

_held = threading.Lock()
_holding = False


def _wait_in_child() -> None:
    if _holding:
        _held.acquire()


os.register_at_fork(after_in_child=_wait_in_child)


@pytest.fixture
def stuck_forks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let a forked process wait for a lock that its parent holds, and be found after half a second."""
    global _holding
    monkeypatch.setattr(ring, "LONG_S", 0.5)
    monkeypatch.setattr(ring, "_LOOK_S", 0.1)
    monkeypatch.setattr(forks, "LONG_S", 0.5)
    _holding = True
    with _held:
        yield
    _holding = False


class Stream(torch_data.IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(8))


@pytest.mark.parametrize(
    ("data", "engine"), [(torch.arange(8), "ring"), (torch.arange(8), "torch"), (Stream(), "auto")]
)
def test_workers_that_do_not_begin_are_an_error(stuck_forks: None, data: Any, engine: Any) -> None:
    loader = lk.Loader(data, 2, num_workers=2, engine=engine, multiprocessing_context="fork")
    with pytest.raises(RuntimeError, match=r"was forked .* has not begun to run.*multiprocessing_context='forkserver'"):
        list(loader)


@pytest.mark.parametrize("engine", ["ring", "torch"])
def test_workers_that_are_slow_to_make_their_first_batch_have_begun(
    monkeypatch: pytest.MonkeyPatch, engine: Any
) -> None:
    monkeypatch.setattr(ring, "LONG_S", 0.1)
    monkeypatch.setattr(ring, "_LOOK_S", 0.1)
    monkeypatch.setattr(forks, "LONG_S", 0.1)
    slow = lk.Loader([0, 1], 1, num_workers=2, engine=engine, collate_fn=_slowly, multiprocessing_context="fork")
    assert list(slow) == [[0], [1]]


def _slowly(samples: list[int]) -> list[int]:
    threading.Event().wait(0.5)
    return samples


def test_a_process_that_has_begun_is_not_stuck(stuck_forks: None) -> None:
    stuck = watched_fork().Process(target=int, daemon=True)
    stuck.start()
    try:
        deadline = time.monotonic() + 30
        while find_stuck([stuck]) is None:  # it has not come to the lock yet
            assert time.monotonic() < deadline
        assert has_not_begun(stuck)
    finally:
        stuck.kill()
        stuck.join()
    assert find_stuck([stuck]) is None  # it has ended


def _fork_again() -> None:
    again = watched_fork().Process(target=int)
    again.start()
    again.join(60)


class Freed:
    """Writes a byte when it is freed."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe

    def __del__(self) -> None:
        os.write(self._pipe, b"x")


@pytest.mark.skipif(sys.platform == "win32", reason="there are no forks")
@pytest.mark.parametrize("in_main", [False, True])
def test_a_forked_process_does_not_free_what_pyav_keeps_for_other_threads(in_main: bool) -> None:
    frames = pytest.importorskip("av.video.frame")
    if not hasattr(frames, "_thread_local"):
        pytest.skip("this PyAV keeps nothing for a thread")
    reading, writing = os.pipe()
    kept, forked = threading.Event(), threading.Event()

    def keep() -> None:
        frames._thread_local.reformatter = Freed(writing)
        kept.set()
        forked.wait(60)
        frames._thread_local.__dict__.pop("reformatter", None)

    def fork() -> None:
        kept.wait(60)
        process = watched_fork().Process(target=_fork_again)
        process.start()
        process.join(60)
        assert process.exitcode == 0
        forked.set()

    other = threading.Thread(target=fork if in_main else keep)
    other.start()
    (keep if in_main else fork)()
    other.join(60)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        assert pipe.read() == b"x"  # once, in the process that made it
