"""Threads make the same batches and leave the trainer's generators alone."""

import gc
import itertools
import os
import pickle
import random
import signal
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scripts
import torch
from drawing import Drawing, drawing_collate, equal
from forked import in_fork
from leftovers import nothing_left
from torch import Tensor
from torch.utils.data import TensorDataset

import loaderkit as lk
from loaderkit.seeding.sample_seeds import per_sample
from loaderkit.system.threads import threads_run_together

pytestmark = pytest.mark.filterwarnings("ignore:Loader. . workers for")  # small data leaves some idle

SIZES = (1, 7, 40)
ALONE_AND_THREADS: tuple[dict[str, Any], ...] = ({}, {"num_workers": 3, "engine": "threads"})


class Silent:
    """Samples that draw nothing."""

    draws_nothing = True

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[int, Tensor]:
        return index, torch.full((3,), float(index))


class Own(Silent):
    """Samples that draw from `lk.sample_rng()` alone."""

    draws_nothing = False
    draws_only_sample_rng = True

    def __getitem__(self, index: int) -> tuple[int, Tensor]:
        return index, torch.from_numpy(lk.sample_rng().random(3))


class Many(Own):
    """The same, many at once."""

    draws_only_sample_rng = True  # who reads in a way of its own has to say so itself

    def __getitems__(self, indices: list[int]) -> list[tuple[int, Tensor]]:
        return per_sample(self.__getitem__, indices)


class Collate:
    """Stacks, and draws for the batch."""

    draws_only_sample_rng = True

    def __call__(self, samples: Any) -> Any:
        many = isinstance(samples, list)
        return (len(samples) if many else samples), torch.from_numpy(lk.sample_rng().random(2))


class Undeclared:
    """Another object's samples or batches, without a declaration of what it draws."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        if hasattr(inner, "__getitems__"):
            self.__getitems__ = inner.__getitems__

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int) -> Any:
        return self.inner[index]

    def __call__(self, samples: Any) -> Any:
        return self.inner(samples)


KINDS = {"nothing": Silent, "sample_rng": Own, "many": Many}
COLLATES = {"stacked": None, "drawing": Collate()}


_made: weakref.WeakSet[lk.Loader] = weakref.WeakSet()


def new_loader(*args: Any, **settings: Any) -> lk.Loader:
    """Make a Loader that the test's teardown closes; nothing here keeps it alive."""
    loader = lk.Loader(*args, **settings)
    _made.add(loader)
    return loader


def make_loader(
    kind: str, size: int, batch_size: int | None, workers: int, collate: str = "stacked", **more: Any
) -> lk.Loader:
    engine: Any = "threads" if workers else "inline"
    settings = {"shuffle": True, "seed": 4, "collate_fn": COLLATES[collate], "engine": engine} | more
    return new_loader(KINDS[kind](size), batch_size, num_workers=workers, **settings)


def epochs(loader: lk.Loader, count: int = 2) -> list[list[Any]]:
    return [list(loader) for _ in range(count)]


def workers_alive() -> list[threading.Thread]:
    """Return the workers of this test: none that an earlier one left, none that has ended."""
    found = [thread for thread in threading.enumerate() if thread.name.startswith("loaderkit worker")]
    return [thread for thread in found if thread.is_alive() and thread not in _left_behind]


def wait_until(count: int) -> None:
    """Wait until this many workers are alive: those that are told to end need a moment."""
    deadline = time.monotonic() + 5
    while len(workers_alive()) != count and time.monotonic() < deadline:
        time.sleep(0.001)
    assert len(workers_alive()) == count


_left_behind: weakref.WeakSet[threading.Thread] = weakref.WeakSet()  # by a test that failed


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    """Fail a test that leaves a thread, and only that test."""
    yield
    try:
        for loader in list(_made):
            loader.close()
        wait_until(0)
    finally:
        _left_behind.update(workers_alive())


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("collate", COLLATES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch_size", [1, 3, None])
def test_threads_do_not_change_a_batch(kind: str, collate: str, batch_size: int | None, persistent: bool) -> None:
    for size, workers in itertools.product(SIZES, (1, 3)):
        alone = epochs(make_loader(kind, size, batch_size, 0, collate))
        assert [len(epoch) for epoch in alone] == [-(-size // (batch_size or 1))] * 2
        assert equal(
            epochs(make_loader(kind, size, batch_size, workers, collate, persistent_workers=persistent)), alone
        )


@pytest.mark.each_value
@pytest.mark.parametrize("workers", [{}, {"num_workers": 2, "engine": "ring"}, {"num_workers": 1, "engine": "torch"}])
@pytest.mark.parametrize("batch_size", [3, None])
@pytest.mark.parametrize("kind", KINDS)
def test_a_declaration_of_draws_changes_no_batch(kind: str, batch_size: int | None, workers: dict[str, Any]) -> None:
    """The dataset, the collate, both or none declare what they draw."""
    found = []
    for dataset, collate in itertools.product(
        (KINDS[kind](12), Undeclared(KINDS[kind](12))), (Collate(), Undeclared(Collate()))
    ):
        loader = new_loader(dataset, batch_size, shuffle=True, seed=1, collate_fn=collate, **workers)
        found.append(epochs(loader))
    assert len(found[0][0]) == (4 if batch_size else 12)
    assert all(equal(other, found[0]) for other in found[1:])
    draws = torch.cat([batch[1] for epoch in found[0] for batch in epoch])
    assert len(draws.unique()) == len(draws)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch_size", [1, 3])
def test_a_resume_after_any_batch_goes_on(kind: str, batch_size: int) -> None:
    """Batches that were made ahead are made again."""
    lk.testing.assert_resumable(lambda: make_loader(kind, 7, batch_size, 2))


@pytest.mark.parametrize("size", [12, 13, 40])
def test_ranks_and_batch_sizes_may_change_in_the_middle(size: int) -> None:
    def make(batch_size: int = 2, **settings: Any) -> lk.Loader:
        return make_loader("sample_rng", size, batch_size, 2, **settings)

    changes = [{"world_size": 1}, {"world_size": 2, "batch_size": 3}, {"world_size": 3}]
    lk.testing.assert_elastic(make, changes, samples=size, stops=[1, 2], ids=lambda batch: batch[0].tolist())


@pytest.mark.parametrize("kind", KINDS)
def test_the_trainers_generators_are_left_alone_while_threads_read(kind: str) -> None:
    torch.manual_seed(3), np.random.seed(4), random.seed(5)
    expected = [(torch.rand(2), np.random.rand(), random.random()) for _ in range(10)]
    torch.manual_seed(3), np.random.seed(4), random.seed(5)
    found = [(torch.rand(2), np.random.rand(), random.random()) for _ in make_loader(kind, 40, 4, 4, "drawing")]
    assert equal(found, expected)


def test_threads_do_not_mix_up_their_seeds() -> None:
    """Four threads switch as often as they can."""
    before = sys.getswitchinterval()
    expected = epochs(make_loader("many", 400, 5, 0, "drawing"))
    sys.setswitchinterval(1e-6)
    try:
        assert equal(epochs(make_loader("many", 400, 5, 4, "drawing")), expected)
    finally:
        sys.setswitchinterval(before)


class Rendezvous(Silent):
    """Samples that wait until `parties` of them are read at the same time."""

    draws_nothing = True

    def __init__(self, size: int, parties: int) -> None:
        super().__init__(size)
        self.barrier = threading.Barrier(parties)

    def __getitem__(self, index: int) -> tuple[int, Tensor]:
        self.barrier.wait(60)
        return super().__getitem__(index)


def test_threads_read_at_once() -> None:
    loader = new_loader(Rendezvous(12, 3), 1, num_workers=3, engine="threads")
    assert [int(index) for index, _ in loader] == list(range(12))


class Gated(Silent):
    """Sample 0 waits for the gate; `read` counts the samples."""

    draws_nothing = True

    def __init__(self, size: int, length: int = 3) -> None:
        super().__init__(size)
        self.gate, self.read, self.length = threading.Event(), 0, length

    def __getitem__(self, index: int) -> tuple[int, Tensor]:
        if index == 0:
            assert self.gate.wait(60)
        self.read += 1
        return index, torch.full((self.length,), float(index))


@pytest.mark.parametrize(("factor", "ahead"), [(None, 16), (1, 2), (3, 6)])
def test_a_slow_sample_delays_no_other_and_the_order_is_kept(factor: int | None, ahead: int) -> None:
    """The others are read exactly as far ahead as the settings say."""
    data = Gated(40)
    loader = new_loader(data, 1, num_workers=2, engine="threads", prefetch_factor=factor)
    found: list[Any] = []
    reader = threading.Thread(target=lambda: found.extend(int(index) for index, _ in loader))
    reader.start()
    deadline = time.monotonic() + 10
    while data.read < ahead - 1 and time.monotonic() < deadline:
        time.sleep(0.005)
    time.sleep(0.1)
    assert (data.read, found) == (ahead - 1, [])
    data.gate.set()
    reader.join(60)
    assert found == list(range(40))
    assert loader.describe().prefetch == ahead


def test_large_batches_are_made_ahead_less_far() -> None:
    loader = new_loader(Gated(40, length=2 << 20), 1, num_workers=2, engine="threads")  # 8 MB
    loader.dataset.gate.set()
    batches = iter(loader)
    next(batches)
    assert loader.describe().prefetch == 4
    loader.close()


def test_a_yielded_batch_is_not_held() -> None:
    """A thread that waits for work does not hold it either. Without the GIL, Python frees what a thread made when that thread runs again."""
    batches = iter(make_loader("nothing", 40, 2, 4, prefetch_factor=1))
    kept = []
    for _ in range(16):
        kept.append(weakref.ref(next(batches)[1]))
        time.sleep(0.02)  # the others are made meanwhile
        assert sum(batch() is not None for batch in kept) <= (4 if threads_run_together() else 0)


class Failing(Silent):
    """Sample 5 raises."""

    draws_nothing = True

    def __init__(self, error: BaseException) -> None:
        super().__init__(12)
        self.error = error

    def __getitem__(self, index: int) -> tuple[int, Tensor]:
        if index == 5:
            raise self.error
        return super().__getitem__(index)


def test_an_error_comes_in_its_place_and_names_the_sample() -> None:
    loader = new_loader(Failing(KeyError("lost")), 2, num_workers=4, engine="threads")
    with nothing_left():
        batches = iter(loader)
        assert [next(batches)[0].tolist() for _ in range(2)] == [[0, 1], [2, 3]]
        with pytest.raises(KeyError, match="lost") as caught:
            next(batches)
        assert any("sample 5 (epoch 0, position 5)" in note for note in caught.value.__notes__)
        assert any(entry.name == "__getitem__" for entry in caught.traceback)  # the thread's own frames
        assert loader.cursor.samples == 4
        loader.dataset.error = IndexError("again")
        with pytest.raises(IndexError, match="again"):
            list(loader)


@pytest.mark.parametrize("error", [StopIteration("s"), SystemExit(3), KeyboardInterrupt("k"), StopAsyncIteration("a")])
def test_exceptions_that_end_loops_become_runtime_errors(error: BaseException) -> None:
    loader = new_loader(Failing(error), 2, num_workers=2, engine="threads")
    with pytest.raises(RuntimeError, match=type(error).__name__):
        list(loader)


def test_bad_samples_are_skipped_and_replaced_as_without_threads() -> None:
    for policy in ("skip", "replace"):
        found = []
        for workers in ALONE_AND_THREADS:
            loader = new_loader(
                Failing(ValueError("bad")), 3, shuffle=True, bad_samples=lk.BadSamples(policy, max_rate=1.0), **workers
            )
            found.append((epochs(loader), [(bad.index, bad.epoch) for bad in loader.bad_samples]))
        assert equal(found[1], found[0])
        assert len(found[0][1]) == 2


class Hanging(Silent):
    """Sample 5 waits until it may go on."""

    draws_nothing = True

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.may_go_on = threading.Event()

    def __getitem__(self, index: int) -> tuple[int, Tensor]:
        if index == 5:
            self.may_go_on.wait(60)
        return super().__getitem__(index)


def test_a_sample_that_hangs_is_named_in_time() -> None:
    data = Hanging(12)
    loader = new_loader(data, 2, num_workers=2, engine="threads", timeout=3.3)
    batches = iter(loader)
    assert next(batches)[0].tolist() == [0, 1]
    next(batches)
    with pytest.raises(RuntimeError, match=r"no batch in 3.3 s \(timeout\): samples \[4, 5\] take longer"):
        next(batches)
    data.may_go_on.set()


@pytest.mark.parametrize("persistent", [False, True])
def test_a_thread_that_hangs_does_not_block_the_next_pass(persistent: bool) -> None:
    data = Gated(12)
    loader = new_loader(data, 2, num_workers=1, engine="threads", timeout=3.3, persistent_workers=persistent)
    try:
        with pytest.raises(RuntimeError, match=r"samples \[0, 1\] take longer"):
            next(iter(loader))
        loader.seek(epoch=0, samples=2)
        assert [int(index) for indices, _ in loader for index in indices] == list(range(2, 12))
    finally:
        data.gate.set()
        loader.close()


@pytest.mark.parametrize("persistent", [False, True])
def test_an_abandoned_loader_ends_its_threads(persistent: bool) -> None:
    with nothing_left():
        for _ in range(5):
            batches = iter(make_loader("nothing", 40, 2, 4, persistent_workers=persistent))
            next(batches)
            assert len(workers_alive()) >= 4
            del batches
            gc.collect()


def test_persistent_threads_persist() -> None:
    """They also persist over abandoned passes."""
    for persistent in (False, True):
        loader = make_loader("nothing", 40, 2, 3, persistent_workers=persistent)
        found = set()
        for _ in range(4):
            batches = iter(loader)
            assert next(batches)[0].shape == (2,)
            wait_until(3)  # a thread of the pass before may still be ending
            found.add(frozenset(workers_alive()))
            del batches
            loader.load_state_dict(loader.state_dict())
            wait_until(3 * persistent)
        assert len(found) == (1 if persistent else 4)
        loader.close()
        assert not workers_alive()
        assert len(list(loader)) == 20 - 4
        loader.close()


@pytest.mark.parametrize("persistent", [False, True])
def test_a_new_pass_ends_the_one_before(persistent: bool) -> None:
    loader = make_loader("nothing", 40, 2, 2, persistent_workers=persistent)
    first = iter(loader)
    next(first)
    second = iter(loader)
    next(second)
    wait_until(2)
    with pytest.raises(RuntimeError, match="this iterator is over"):
        next(first)
    loader.close()
    assert not workers_alive()


def test_nothing_grows_over_epochs() -> None:
    loader = make_loader("sample_rng", 24, 4, 4)
    list(loader)
    with nothing_left():
        for _ in range(200):
            assert sum(1 for _ in loader) == 6
    wait_until(0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_a_fork_reads_for_itself() -> None:
    """The child of a fork has no threads and cannot use its parent's iterator."""
    loader = make_loader("sample_rng", 40, 4, 2)
    expected = epochs(make_loader("sample_rng", 40, 4, 0))
    batches = iter(loader)
    taken = [next(batches)]

    def reads_for_itself() -> bool:
        with pytest.raises(RuntimeError, match="belongs to process"):
            next(batches)
        return equal(epochs(make_loader("sample_rng", 40, 4, 2)), expected)

    assert in_fork(reads_for_itself)
    assert equal([*taken, *batches], expected[0])


SCRIPT = """
import atexit, sys, threading, time, torch

@atexit.register  # before ours, and so called after it
def tell():
    print(sum("loaderkit" in thread.name for thread in threading.enumerate()), "threads", flush=True)

import loaderkit as lk

class Slow:
    draws_nothing = True
    def __len__(self): return 10**6  # reading all would take hours
    def __getitem__(self, index):
        time.sleep({sleep})
        return torch.ones(200, 200) @ torch.ones(200, 200)

batches = iter(lk.Loader(Slow(), {batch}, num_workers=4, engine="threads"))
next(batches)
print("ready", flush=True)
{then}
"""


def script(then: str, sleep: float | str = 0.01, batch: int = 4) -> str:
    return SCRIPT.format(then=then, sleep=sleep, batch=batch)


@pytest.mark.parametrize(
    ("then", "ends"),
    [("", (0, "ready")), ("sys.exit(0)", (0, "ready")), ("raise ValueError('mine')", (1, "ValueError: mine"))],
)
def test_a_process_ends_cleanly_with_threads_at_work(then: str, ends: tuple[int, str], tmp_path: Path) -> None:
    code, last = ends
    said = scripts.run_code(tmp_path, script(then, sleep=0.2), code=code, preload=scripts.TORCH)
    assert said.splitlines()[-2:] == [last, "0 threads"]


def test_a_process_ends_after_the_current_samples(tmp_path: Path) -> None:
    """It does not wait for their batches, which take longer."""
    said = scripts.run_code(tmp_path, script("", sleep="0.5 * (index >= 40)", batch=40), preload=scripts.TORCH)
    assert said == "ready\n0 threads\n"


class Noted:
    draws_nothing = True

    def __init__(self) -> None:
        self.read: list[int] = []

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> int:
        self.read.append(index)
        time.sleep(0.02)
        return index


@pytest.mark.parametrize("persistent", [False, True])
def test_an_abandoned_batch_is_not_read_to_its_end(persistent: bool) -> None:
    data = Noted()
    loader = new_loader(data, 100, num_workers=2, engine="threads", persistent_workers=persistent)
    batches = iter(loader)
    next(batches)
    del batches
    gc.collect()
    before = len(data.read)
    time.sleep(0.3)
    assert 0 < len(data.read) <= before + 2
    loader.seek(epoch=0, samples=990)
    assert [batch.tolist() for batch in loader] == [list(range(990, 1000))]
    loader.close()


def test_a_batch_that_is_waited_for_is_made_when_the_loader_is_closed() -> None:
    data = Noted()
    loader = new_loader(data, 50, num_workers=2, engine="threads")
    batches = iter(loader)
    threading.Timer(0.3, loader.close).start()
    assert next(batches).tolist() == list(range(50))
    with pytest.raises(RuntimeError, match=r"this iterator is over|StopIteration 19 batches before"):
        next(batches)
    assert len(data.read) < 200


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, -signal.SIGINT), (signal.SIGTERM, -signal.SIGTERM)])
def test_signals_end_the_process(number: signal.Signals, code: int, tmp_path: Path) -> None:
    with scripts.start(tmp_path, scripts.saved(tmp_path, script("for batch in batches: pass", sleep=0.05))) as process:
        assert process.first_line() == "ready"
        time.sleep(0.3)
        os.kill(process.pid, number)
        assert process.wait() in (code, 130)


def drawing_function(samples: Any) -> Any:
    return samples


@pytest.mark.parametrize(
    ("dataset", "settings", "message"),
    [
        (Drawing(8), {}, "dataset Drawing may draw from .* draws_nothing = True"),
        (Silent(8), {"collate_fn": drawing_collate}, "collate_fn drawing_collate may draw from"),
        (Silent(8), {"collate_fn": drawing_function}, "collate_fn drawing_function may draw from"),
        (Silent(8), {"num_workers": 0}, "engine='threads' needs threads, and num_workers is 0"),
        (Silent(8), {"worker_init_fn": print}, "worker_init_fn is for worker processes, and engine is 'threads'"),
        (Silent(8), {"multiprocessing_context": "fork"}, "multiprocessing_context is for worker processes"),
        (
            lk.StreamDataset(["a"], lambda shard, start: iter(range(8))),
            {},
            "'threads' is for data with an index, and StreamDataset",
        ),
    ],
)
def test_what_threads_cannot_do_is_refused_at_once(dataset: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        new_loader(dataset, 2, **{"num_workers": 2, "engine": "threads"} | settings)


def test_a_subclass_that_overrides_reading_declares_its_draws_again() -> None:
    class Reads(Silent):
        def __getitem__(self, index: int) -> Any:
            return torch.rand(2)

    with pytest.raises(ValueError, match=r"dataset .*Reads may draw"):
        new_loader(Reads(8), 2, num_workers=2, engine="threads")


@pytest.mark.parametrize(
    "collate",
    [
        lk.PadCollate(),
        lk.RaggedCollate(nested=False),
        lk.PackCollate(),
        lk.MultimodalCollate({0: lk.Pad(), 1: list}),
        None,
    ],
    ids=lambda collate: type(collate).__name__,
)
def test_our_own_collates_work_in_threads(collate: Any) -> None:
    data = [torch.arange(1 + index % 5) for index in range(12)]
    if isinstance(collate, lk.MultimodalCollate):
        samples: Any = [(row, index) for index, row in enumerate(data)]
    else:
        samples = data if collate is not None else TensorDataset(torch.arange(12))
    found = [list(new_loader(samples, 4, collate_fn=collate, **more)) for more in ALONE_AND_THREADS]
    assert len(found[0]) == 3
    assert repr(found[1]) == repr(found[0])
    mixed: Any = lk.MultimodalCollate({0: lk.Pad(), 1: drawing_function})
    with pytest.raises(ValueError, match="may draw from"):
        new_loader(samples, 4, collate_fn=mixed, num_workers=2, engine="threads")


def test_it_says_what_it_is_and_pickles() -> None:
    loader = make_loader("nothing", 40, 4, 3)
    found = loader.describe()
    assert (found.engine, found.num_workers, found.start_method, found.prefetch) == ("threads", 3, None, 24)
    assert "workers: 3 (num_workers), threads, up to 24 batches ahead" in str(found)
    batches = iter(loader)
    assert len(next(batches)) == 2
    copy = pickle.loads(pickle.dumps(loader))
    assert equal(list(copy), list(batches))


@pytest.mark.filterwarnings("ignore:Sparse CS")
@pytest.mark.parametrize("layout", ["coo", "csr", "csc"])
def test_sparse_batches_arrive(layout: str) -> None:
    def collate(samples: list[Any]) -> torch.Tensor:
        dense = torch.eye(len(samples))
        return dense.to_sparse() if layout == "coo" else dense.to_sparse(layout=getattr(torch, f"sparse_{layout}"))

    collate.draws_nothing = True  # type: ignore[attr-defined]
    batches = list(lk.Loader(range(12), 4, num_workers=2, engine="threads", collate_fn=collate))
    assert [batch.to_dense().tolist() for batch in batches] == [torch.eye(4).tolist()] * 3
