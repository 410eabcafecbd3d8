"""A thread looks ahead: it saves time, and changes nothing."""

import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from functools import partial
from unittest.mock import Mock

import numpy as np
import pytest

import loaderkit.sampling.ahead
import loaderkit.sampling.permutation
import loaderkit.sampling.plan
from loaderkit import Cursor, Shuffled, Subset, World
from loaderkit.sampling.ahead import Ahead
from loaderkit.sampling.permutation import SMALL, _drawn_permutation
from loaderkit.sampling.plan import BatchPlan
from loaderkit.system.cpus import Cpus

HERE = threading.current_thread().name


@pytest.fixture(autouse=True)
def two_cpus(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(Cpus, "detect", lambda: Cpus(2))
    loaderkit.sampling.ahead._has_second_cpu.cache_clear()
    yield
    loaderkit.sampling.ahead._has_second_cpu.cache_clear()


def who() -> str:
    return threading.current_thread().name


def fail() -> None:
    raise ValueError("no")


def test_a_thread_computes_it_meanwhile() -> None:
    began = threading.Event()
    job = Ahead(lambda: (began.set(), who())[1])
    assert began.wait(60)
    assert job.result() == job.result() != HERE


def test_errors_come_where_it_is_asked_for() -> None:
    job = Ahead(fail)
    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            job.result()


def test_where_no_thread_starts_it_is_computed_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError("can't start new thread")))
    assert Ahead(who).result() == HERE


def test_one_cpu_has_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cpus, "detect", lambda: Cpus(8, quota=1.5))
    loaderkit.sampling.ahead._has_second_cpu.cache_clear()
    before = threading.active_count()
    assert Ahead(who).result() == HERE
    assert threading.active_count() == before


@pytest.mark.skipif(Cpus.detect().usable < 2, reason="one CPU")
def test_the_thread_is_kept_off_this_cpu() -> None:
    allowed = os.sched_getaffinity(0)
    begin = threading.Event()

    def where() -> set[int]:
        assert begin.wait(60)
        return os.sched_getaffinity(0)

    job = Ahead(where)
    begin.set()
    assert job.result() < allowed == os.sched_getaffinity(0)
    assert len(job.result()) == len(allowed) - 1


@pytest.mark.parametrize("forbidden", [OSError("Operation not permitted"), None])
def test_a_thread_that_can_not_be_moved_stays(forbidden: OSError | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if forbidden is None:
        monkeypatch.setattr(loaderkit.sampling.ahead, "_current_cpu", None)
    monkeypatch.setattr(os, "sched_setaffinity", Mock(side_effect=forbidden or AssertionError("asked for")))
    assert Ahead(who).result() != HERE


def test_a_fork_computes_what_its_parent_began() -> None:
    end = threading.Event()

    def wait() -> str:
        if who() != HERE:
            assert end.wait(60)
        return who()

    job = Ahead(wait)
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        os._exit((job.result(), Ahead(partial(int, "8")).result()) != (HERE, 8))
    assert os.waitpid(child, 0)[1] == 0
    end.set()
    assert job.result() != HERE


@pytest.mark.parametrize("when", ["", "import atexit; atexit.register(lambda: print(Ahead(lambda: 3).result()))"])
def test_a_process_ends_with_one_under_way(when: str) -> None:
    script = f"import numpy as np\nfrom loaderkit.sampling.ahead import Ahead\n{when}\nAhead(lambda: np.arange(10**6).sort())"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == ("3\n" if when else "")


@pytest.mark.parametrize("tail", ["keep", "drop", "pad"])
@pytest.mark.parametrize("size", [1000, 70_001, SMALL - 1, SMALL, SMALL + 12_345])
def test_plans_find_the_same_with_a_thread(size: int, tail: str, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[Ahead] = []
    monkeypatch.setattr(loaderkit.sampling.plan, "Ahead", lambda look_up: begun.append(Ahead(look_up)) or begun[-1])
    chosen = np.random.default_rng(0).permutation(2 * size)[:size]
    for order in (Shuffled(size, seed=3), Subset(chosen, shuffle=True, seed=3)):
        wanted = [type(order).at(order, epoch, np.arange(size)) for epoch in range(3)]
        for world, batch, start in ((1, 1000, 0), (1, 4096, 777), (3, 999, size // 2), (2, None, 0)):
            if batch is None and (size > 70_001 or tail == "keep"):
                continue
            for rank in range(world):
                plan = BatchPlan(order=order, batch_size=batch, tail=tail, world=World(rank, world))  # type: ignore[arg-type]
                for epoch in (1, 2):
                    keys = list(plan.keys(Cursor(epoch=epoch, samples=start)))
                    assert len(keys) == plan.remaining(Cursor(epoch=epoch, samples=start))
                    for key in keys:
                        assert np.array_equal(key.indices, wanted[epoch][key.positions])
                    assert all(key.epoch == epoch for key in keys)
    assert bool(begun) == (size >= SMALL)


def test_a_single_batch_is_looked_up_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (loaderkit.sampling.plan, loaderkit.sampling.permutation):
        monkeypatch.setattr(module, "Ahead", lambda function: pytest.fail("something was begun ahead"))
    for size in (100_000, SMALL):
        plan = BatchPlan(order=Shuffled(size), batch_size=1000)
        assert len(plan.batch(Cursor(epoch=2), 57).indices) == 1000


def test_the_next_epoch_is_drawn_while_this_one_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[tuple[int, str]] = []

    def draw(size: int, seed: int, epoch: int) -> np.ndarray:
        drawn.append((epoch, who()))
        return _drawn_permutation(size, seed, epoch)

    monkeypatch.setattr("loaderkit.sampling.permutation._drawn_permutation", draw)
    order = Shuffled(100_000)
    plan = BatchPlan(order=order, batch_size=1000)
    for epoch in range(4):
        for key in plan.keys(Cursor(epoch=epoch)):
            assert key.epoch == epoch
        order._epochs[epoch + 1].result()
        assert len(order._epochs) == 2
    assert [epoch for epoch, _ in drawn] == [0, 1, 2, 3, 4]
    assert [name == HERE for _, name in drawn] == [True, False, False, False, False]
    again = pickle.loads(pickle.dumps(order))
    assert np.array_equal(again.indices(4, 0, 100_000), order.indices(4, 0, 100_000))


def test_a_loader_that_is_left_or_forked_in_an_epoch_goes_on() -> None:
    script = """
        import os
        import signal
        import numpy as np
        import loaderkit as lk

        size = (1 << 20) + 5
        loader = lk.Loader(lk.ArrayDataset(np.arange(size)), 1000, shuffle=True)
        wanted = lk.Shuffled(size).indices(0, 0, size)
        batches = iter(loader)
        found = [next(batches) for _ in range(40)]
        child = os.fork()
        signal.alarm(60)
        rest = [batch for batch in batches]
        right = np.array_equal(np.concatenate(found + rest), wanted)
        if child == 0:
            os._exit(not right)
        assert right and os.waitpid(child, 0)[1] == 0
        next(iter(loader))
    """
    # From 3.12 on Python warns of any fork beside a thread.
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", textwrap.dedent(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
