"""The monitor's share is the share of waiting, whatever happens between the steps."""

import pickle
import time
import warnings
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from slow_data import HandClock, Slow
from tier import examples

import loaderkit as lk
from loaderkit.monitor.remedy import remedy, workers_needed
from loaderkit.monitor.waits import Sums, WaitSummary

MS = 1_000_000


def monitor_by_hand(**given: Any) -> tuple[lk.DataWaitMonitor, HandClock]:
    monitor, hand = lk.DataWaitMonitor(**{"warmup": 0, "warn_above": None, **given}), HandClock()
    monitor.clock.now_ns = hand
    return monitor, hand


class Batches:
    """A loader that waits for each batch as long as it is told (ms)."""

    def __init__(self, hand: HandClock, waits: list[int]) -> None:
        self.hand, self.waits = hand, waits

    def __len__(self) -> int:
        return len(self.waits)

    def __iter__(self) -> Iterator[int]:
        for row, wait in enumerate(self.waits):
            self.hand.sleep(wait / 1000)
            yield row
        self.hand.sleep(1.0)  # asking for a batch after the last one is no step


TIMES = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=30)


@settings(max_examples=examples(80))
@given(epochs=st.lists(TIMES, min_size=1, max_size=3), window=st.integers(1, 12), warmup=st.integers(0, 5))
def test_the_share_is_that_of_waiting_in_the_last_steps(
    epochs: list[list[tuple[int, int, int]]], window: int, warmup: int
) -> None:
    """Neither the time between epochs, nor pauses, nor the warm-up counts."""
    monitor, hand = monitor_by_hand(window=window, warmup=warmup)
    for epoch in epochs:
        watched = monitor.watch(Batches(hand, [wait for wait, _, _ in epoch]))
        assert len(watched) == len(epoch)
        for row in watched:
            _, compute, pause = epoch[row]
            hand.sleep(compute / 1000)
            with monitor.pause():
                hand.sleep(pause / 1000)
        hand.sleep(0.5)
    steps = [(wait, wait + compute) for epoch in epochs for wait, compute, _ in epoch][warmup:]
    for found, wanted in ((monitor.share, steps[-window:]), (monitor.summary().share, steps)):
        wait, whole = (sum(column) for column in zip(*wanted, strict=True)) if wanted else (0, 0)
        assert found == pytest.approx(wait / whole if whole else np.nan, nan_ok=True)
    assert monitor.summary().steps == len(steps)


@pytest.mark.parametrize("kind", [lk.Loader, torch.utils.data.DataLoader])
@pytest.mark.parametrize(("wait", "compute"), [(0.0, 0.01), (0.008, 0.008), (0.012, 0.0), (0.003, 0.009)])
def test_the_share_is_that_of_fetching(kind: Any, wait: float, compute: float) -> None:
    monitor, hand = monitor_by_hand()
    with monitor:
        for _ in monitor.watch(kind(Slow(40, wait, hand.sleep))):
            hand.sleep(compute)
    assert monitor.summary().steps == 40
    assert monitor.share == pytest.approx(wait / (wait + compute))


def test_workers_that_are_waited_for_are_counted() -> None:
    """2 workers that need 40 ms a batch, and steps of 10 ms: half is waiting, and 4 workers would keep up."""
    loader = lk.Loader(Slow(80, 0.04), num_workers=2, engine="ring")
    with lk.DataWaitMonitor(warmup=10, warn_above=0.2) as monitor:
        for _ in monitor.watch(loader):
            time.sleep(0.01)
    loader.close()
    assert 0.25 < monitor.share < 0.75  # on a busy machine sleeps take longer
    assert "num_workers is 2; " in monitor.summary().remedy
    assert 3 <= workers_needed(2, monitor.summary()) <= 6


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("batch_s", [0.001, 0.011, 0.3])
@pytest.mark.parametrize("compute_s", [0.001, 0.01])
def test_the_suggested_workers_keep_up_and_one_fewer_would_not(workers: int, batch_s: float, compute_s: float) -> None:
    step_s = max(batch_s / workers, compute_s) if workers else batch_s + compute_s
    wait_s = step_s - compute_s
    if not wait_s:
        return
    needed = workers_needed(workers, WaitSummary(steps=1, step_s=step_s, wait_s=wait_s, host_wait_s=wait_s))
    assert batch_s / needed <= compute_s * (1 + 1e-6)
    assert needed == 1 or batch_s / (needed - 1) > compute_s * (1 - 1e-6)


def steps_of(
    monitor: lk.DataWaitMonitor, hand: HandClock, wait: int, compute: int, steps: int, loader: Any = None
) -> None:
    monitor.loader = loader
    for _ in range(steps):
        monitor.clock.begin_wait()
        hand.sleep(wait / 1000)
        monitor.clock.end_wait()
        hand.sleep(compute / 1000)
    monitor.clock.end_step()


def test_the_remedy_is_said_once() -> None:
    monitor, hand = monitor_by_hand(window=10, warn_above=0.25)
    steps_of(monitor, hand, 2, 8, 50)
    with pytest.warns(UserWarning, match=r"25\.9% of each step .*: 2\.8 of 10\.8 ms") as said:
        steps_of(monitor, hand, 4, 8, 30, lk.Loader([1, 2], 1))
    text = str(said[0].message)
    assert "num_workers is 0; 1 would keep up (num_workers=1)" in text
    assert "loaderkit bench" in text
    assert len(said) == 1
    steps_of(monitor, hand, 90, 1, 30)


class Described:
    """A loader that says who makes its batches."""

    def __init__(self, engine: str, num_workers: int) -> None:
        self.engine, self.num_workers, self.why = engine, num_workers, "it is cheaper"
        self.config = lk.LoaderConfig(num_workers=3)

    def describe(self) -> "Described":
        return self


@pytest.mark.parametrize(
    ("loader", "wait", "text"),
    [
        ([], 9, "More worker processes would help"),
        (lk.Loader([1], num_workers=2, engine="torch"), 5, "num_workers is 2; 4 would keep up (num_workers=4)"),
        (
            lk.Loader([1], num_workers=2, engine="torch"),
            9,
            "20 would be needed to keep up, and this process may use 4 CPUs: use num_workers=4, and make",
        ),
        (lk.Loader([1], num_workers=4, engine="torch"), 9, "may use 4 CPUs: more workers would not help."),
        (lk.Loader([1], num_workers=6, engine="torch"), 9, "may use 4 CPUs: more workers would not help."),
        (lk.Loader([1], num_workers=2, engine="torch"), 9, "engine='ring'"),
        (torch.utils.data.DataLoader([1], num_workers=1), 9, "prefetch_factor"),
        (lk.Loader([1]), 10, "no number of workers keeps up"),
        (Described("ring", 3), 5, "num_workers is 3; 6 would be needed"),
        (Described("torch", 3), 5, "engine='ring'"),
        (Described("inline", 0), 5, "This process makes the batches, despite num_workers=3 (it is cheaper)"),
    ],
)
def test_the_remedy_fits_the_loader(loader: Any, wait: int, text: str) -> None:
    mean = WaitSummary(steps=20, step_s=0.01, wait_s=wait / 1000, host_wait_s=wait / 1000)
    assert text in remedy(mean, loader, cpus=4)


def test_no_other_engine_is_advised_for_a_stream() -> None:
    stream = lk.StreamDataset(["a"], lk.from_start(list))
    mean = WaitSummary(steps=20, step_s=0.01, wait_s=0.005, host_wait_s=0.005)
    text = remedy(mean, lk.Loader(stream, num_workers=2), cpus=4)
    assert "num_workers=4" in text
    assert "engine=" not in text


def test_other_ranks_do_not_warn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monitor, hand = monitor_by_hand(window=10, warn_above=0.1)
    steps_of(monitor, hand, 9, 1, 30)  # a warning would be an error
    assert monitor.share == pytest.approx(0.9)


@pytest.mark.parametrize("how", ["break", "exception"])
def test_a_step_without_an_end_does_not_count(how: str) -> None:
    monitor, hand = monitor_by_hand()
    batches = Batches(hand, [1] * 5)
    try:
        for row in monitor.watch(batches):
            hand.sleep(0.001)
            if row == 2 and how == "break":
                break
            if row == 2:
                raise KeyError
    except KeyError:
        pass
    hand.sleep(10.0)
    assert monitor.summary().steps == 2
    for _ in monitor.watch(batches):
        hand.sleep(0.001)
    assert monitor.summary().steps == 7
    assert monitor.share == 0.5


def test_a_batch_is_freed_when_the_loop_drops_it() -> None:
    """Otherwise the monitor would hold shared memory longer."""
    refs: list[Any] = []

    def batches() -> Iterator[torch.Tensor]:
        for _ in range(3):
            assert not any(ref() is not None for ref in refs)
            yield torch.zeros(1)

    for batch in lk.DataWaitMonitor(warn_above=None).watch(batches()):
        refs.append(weakref.ref(batch))
        del batch
    assert len(refs) == 3


@pytest.mark.parametrize("steps", [1, 1024, 1025, 3000])
def test_the_history_of_waits_is_bounded_and_counts_each_step(steps: int) -> None:
    monitor, hand = monitor_by_hand(window=3)
    for step in range(steps):
        steps_of(monitor, hand, 1, step, 1)
    course = monitor.course
    assert len(course) <= 1024
    assert sum(part.steps for part in course) == steps
    assert len({part.steps for part in course[:-1]}) <= 1
    assert sum(part.step_ns for part in course) == sum(range(1, steps + 1)) * MS


class Device:
    """A device that the host runs ahead of: `busy_until` on the same clock."""

    def __init__(self, hand: HandClock) -> None:
        self.hand, self.busy_until, self.waited = hand, 0, 0

    def work(self, ms: float) -> None:
        self.busy_until = max(self.busy_until, self.hand.ns) + round(ms * MS)

    def mark(self) -> "Mark":
        return Mark(self, max(self.busy_until, self.hand.ns))

    def wait(self) -> None:
        self.waited += 1
        self.hand.ns = max(self.hand.ns, self.busy_until)


class Mark:
    def __init__(self, device: Device, ns: int) -> None:
        self.device, self.ns = device, ns

    def query(self) -> bool:
        return self.ns <= self.device.hand.ns

    def elapsed_time(self, other: "Mark") -> float:
        return (other.ns - self.ns) / MS


@pytest.mark.parametrize(
    ("wait", "launch", "work", "share"),
    [
        (8, 1, 20, 0.0),  # the host waits for data while the device has work: nothing is lost
        (8, 2, 2, 0.8),  # the device is done when the host asks for the next batch
        (8, 2, 6, 0.4),  # it is done in the middle of the wait
        (0, 5, 5, 0.0),
    ],
)
def test_on_a_device_behind_the_host_only_its_idle_time_counts(
    wait: float, launch: float, work: float, share: float
) -> None:
    monitor, hand = monitor_by_hand(warmup=5, window=1000)
    device: Any = Device(hand)
    monitor.clock.stream = device
    for _ in range(100):
        monitor.clock.begin_wait()
        hand.sleep(wait / 1000)
        monitor.clock.end_wait()
        device.work(work)
        hand.sleep(launch / 1000)
        if device.busy_until - hand.ns > 50 * MS:  # the queue is full: the host waits in the step
            hand.ns = device.busy_until - 50 * MS
    monitor.clock.end_step()
    assert not device.waited  # nothing was synchronised
    assert monitor.share == pytest.approx(share, abs=0.01)
    assert monitor.summary().steps == 95
    assert monitor.summary().host_wait_s == pytest.approx(wait / 1e3)


@pytest.mark.gpu
def test_on_cuda_waiting_counts_when_the_device_is_idle() -> None:
    """The host waits 4 ms for each batch; the device has work for 20 ms, or for next to nothing."""
    large, small = (torch.zeros(size, size, device="cuda") for size in (2048, 8))
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    torch.mm(large, large)
    begin.record()
    for _ in range(20):
        torch.mm(large, large)
    end.record()
    end.synchronize()
    much = 1 + round(20 * 20 / begin.elapsed_time(end))
    for data, products, low, high in ((large, much, 0.0, 0.2), (small, 1, 0.6, 1.0)):
        with lk.DataWaitMonitor(warn_above=None) as monitor:
            for _ in monitor.watch(lk.Loader(Slow(60, 0.004))):
                for _ in range(products):
                    torch.mm(data, data)
        assert low <= monitor.share <= high


def test_it_draws_a_picture(tmp_path: Path) -> None:
    monitor, hand = monitor_by_hand()
    with pytest.raises(ValueError, match="no steps to plot"):
        monitor.plot(tmp_path / "wait.png")
    steps_of(monitor, hand, 1, 3, 40)
    monitor.plot(tmp_path / "wait.png")
    assert (tmp_path / "wait.png").read_bytes().startswith(b"\x89PNG")


def test_without_steps_nothing_is_claimed() -> None:
    monitor = lk.DataWaitMonitor(warmup=3)
    assert np.isnan(monitor.share)
    assert str(monitor.summary()) == "no steps were measured"
    with warnings.catch_warnings():
        list(monitor.watch([1, 2, 3]))
    assert monitor.summary().steps == 0


def test_a_pickled_monitor_goes_on() -> None:
    monitor, hand = monitor_by_hand()
    steps_of(monitor, hand, 1, 3, 4)
    copy = pickle.loads(pickle.dumps(monitor))
    list(copy.watch([1, 2]))
    assert copy.summary().steps == 6
    assert monitor.summary().steps == 4
    assert isinstance(copy.course[0], Sums)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"window": 0}, "window is 0, wanted at least 1 step"),
        ({"warmup": -1}, "warmup is -1"),
        ({"warn_above": 10}, "wanted a share from 0 to 1"),
    ],
)
def test_settings_out_of_range_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        lk.DataWaitMonitor(**given)
