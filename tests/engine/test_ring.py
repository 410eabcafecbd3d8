"""The ring: batches are views of reused memory, and nothing is left on the system."""

import contextlib
import gc
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
import torch.utils.data as torch_data
from drawing import equal
from leftovers import found, more, nothing_left
from torchvision import tv_tensors

import loaderkit as lk
from loaderkit.engine.ring.engine import RingEngine
from loaderkit.engine.ring.slot_batches import read_batch, write_batch
from loaderkit.engine.ring.slots import Slots
from loaderkit.reading.batch_reader import BatchReader
from loaderkit.sampling.batch_plan import BatchPlan

RING: dict[str, Any] = {"engine": "ring", "num_workers": 2, "timeout": 60}


@pytest.fixture(scope="module", autouse=True)
def _warm() -> None:
    """Open what a process opens only once."""
    for method in ("fork", "forkserver"):
        list(lk.Loader([1, 2], 1, **RING | {"multiprocessing_context": method}))


@pytest.fixture(autouse=True)
def _nothing_is_left_behind(_warm: None) -> Iterator[None]:
    with nothing_left():
        yield


class Sub(torch.Tensor):
    pass


def labelled() -> torch.Tensor:
    tensor: Any = torch.ones(2)
    tensor.label = "mine"
    return tensor  # type: ignore[no-any-return]


LARGE = torch.arange(100_000)
LEAVES: dict[str, Any] = {
    "bool": torch.tensor([True, False]),
    "complex": torch.tensor([1 + 2j]),
    "conjugate": torch.tensor([1 + 2j]).conj(),
    "negative": torch.tensor([1 + 2j]).conj().imag,
    "bfloat16": torch.ones(3, dtype=torch.bfloat16),
    "float8": torch.ones(3).to(torch.float8_e4m3fn),
    "uint16": torch.ones(4).to(torch.uint16)[::2],
    "number": torch.tensor(5),
    "empty": torch.empty(0, 3),
    "transposed": torch.arange(6).reshape(2, 3).t(),
    "channels last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "steps": torch.arange(12).reshape(3, 4)[:, ::2],
    "expanded": torch.ones(1).expand(5),
    "a part": LARGE[7:9],
    "sub-class": torch.ones(3).as_subclass(Sub),
    "part of a sub-class": LARGE[3:5].as_subclass(Sub),
    "tv tensor": tv_tensors.Image(torch.ones(3, 2, 2)),
    "parameter": torch.nn.Parameter(torch.ones(2)),
    "leaf": torch.ones(2, requires_grad=True),
    "labelled": labelled(),
    "sparse": torch.eye(3).to_sparse(),
    "shared": torch.ones(4).share_memory_(),
    "packed": torch.nn.utils.rnn.pack_sequence([torch.ones(3), torch.ones(2)]),
    "array": np.arange(6).reshape(2, 3),
    "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "backwards": np.arange(5)[::-1],
    "read only": np.frombuffer(b"abcd", np.uint8),
    "structured": np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")]),
    "objects": np.array([1, "a", None], dtype=object),
    "texts": np.array(["aa", "b"]),
    "dates": np.array(["2020-01-01"], dtype="M8[D]"),
    "big endian": np.arange(3, dtype=">i4"),
    "no axes": np.array(3.0),
    "no rows": np.empty((0, 2)),
    "masked": np.ma.array([1, 2], mask=[0, 1]),
    "scalar": np.float32(3),
    "bytes": b"abc" * 100,
    "bytearray": bytearray(b"xy"),
    "set": {1, 2},
    "nothing": None,
}


# torch 2.11 warns of it even where the checks are declined by name.
@pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled")
def test_every_kind_of_leaf_arrives_as_it_was_and_by_its_own_size() -> None:
    slots = Slots(2, 1)
    for name, leaf in LEAVES.items():
        written = write_batch(leaf, slots, 0)
        assert written.image is None
        assert max(written.size, len(written.structure)) < 4000, name
        there = read_batch(written.structure, slots.lease(0, lambda _: None))
        assert type(there) is type(leaf), name
        if isinstance(leaf, torch.Tensor):
            assert (there.dtype, there.shape, there.layout) == (leaf.dtype, leaf.shape, leaf.layout), name
            assert there.requires_grad == leaf.requires_grad, name
            assert vars(there) == vars(leaf), name
            one, other = (x.to_dense().to(torch.complex64) for x in (there, leaf))
            assert torch.equal(one, other), name
        elif isinstance(leaf, np.ndarray):
            assert there.dtype == leaf.dtype, name
            assert np.array_equal(there, leaf), name
            assert there.flags.writeable == leaf.flags.writeable, name
        else:
            assert str(there) == str(leaf), name
        del there
    assert {"channels last", "transposed"} <= LEAVES.keys()
    for name in ("channels last", "transposed"):
        assert (
            read_batch(write_batch(LEAVES[name], slots, 0).structure, slots.memory[slots.start(0) :]).stride()
            == LEAVES[name].stride()
        )
    assert not list(Path("/dev/shm").glob(f"torch_{os.getpid()}_*"))
    slots.close()


def test_the_same_memory_arrives_as_the_same_memory() -> None:
    slots = Slots(1, 1)
    x, a = torch.arange(1000), np.arange(1000)
    batch = {"x": x, "again": x, "view": x.view(10, 100), "array": a, "once more": a, "other": torch.from_numpy(a)}
    written = write_batch(batch, slots, 0)
    assert written.size == 2 * 8000
    there = read_batch(written.structure, slots.lease(0, lambda _: None))
    assert there["x"] is there["again"]
    assert there["array"] is there["once more"]
    there["x"][0] = 7
    there["array"][1] = 8
    assert there["view"][0, 0] == 7
    assert there["other"][1] == 8
    del there
    slots.close()


class Numbers:
    """Rows of one number each: an overwritten row is visible."""

    def __init__(self, size: int, width: int = 1000) -> None:
        self.size, self.width = size, width

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((self.width,), index)


@pytest.mark.parametrize("kept", [0, 1, 3, 10, 1000])
def test_a_batch_that_is_kept_stays_as_it_was(kept: int) -> None:
    held: list[tuple[int, torch.Tensor]] = []
    for number, batch in enumerate(lk.Loader(Numbers(400), 4, **RING)):
        batch_view = batch[1:, 5:]  # a part of it holds the whole
        del batch
        held.append((number, batch_view))
        held = held[-kept:] if kept else []
        for old, view in held:
            assert torch.equal(view[:, 0], torch.arange(4 * old + 1, 4 * old + 4))
            assert (view == view[:, :1]).all()
    assert number == 99


def test_memory_is_used_again_and_grows_with_the_batches() -> None:
    places = {batch.data_ptr() for batch in lk.Loader(Numbers(400), 2, **RING)}
    assert len(places) <= 2 * 8 + 4  # slots
    growing = [Numbers(1, 10**n)[0] for n in range(6)] * 3
    assert equal(list(lk.Loader(growing, None, **RING)), growing)


def test_a_batch_may_be_written_to() -> None:
    for number, batch in enumerate(lk.Loader(Numbers(100), 4, **RING)):
        assert (batch[:, 0] == torch.arange(4 * number, 4 * number + 4)).all()
        batch += 1


class Readers:
    """Samples that name the worker that read them."""

    def __init__(self, size: int, sleep_s: float = 0) -> None:
        self.size, self.sleep_s = size, sleep_s

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        time.sleep(self.sleep_s)
        info: Any = torch_data.get_worker_info()
        return int(info.id)


@pytest.mark.each_value
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_workers_get_a_shard_orders_batches_in_turn(workers: int, persistent: bool) -> None:
    """Each pass starts with the first worker, so that each lane belongs to one worker."""
    settings: dict[str, Any] = RING | {"num_workers": workers, "persistent_workers": persistent}
    for prefetch in (None, 1):
        loader = lk.Loader(Readers(47), 2, order=lk.ShardOrder([47], block=2), prefetch_factor=prefetch, **settings)
        for left_at in (24, 5, 24):
            loader.seek(epoch=0)
            found = [batch.tolist() for batch in islice(loader, left_at)]
            assert [set(batch) for batch in found] == [{n % workers} for n in range(left_at)]
        assert "in turn" in str(loader.describe())
        loader.close()


def test_workers_get_other_batches_as_they_become_free() -> None:
    """A slow sample delays no other batch."""
    loader = lk.Loader(Readers(60, 0.002), 1, **RING)
    assert "to whoever is free" in str(loader.describe())
    assert torch.cat(list(loader)).tolist() != [0, 1] * 30
    data = [time.sleep if n == 0 else None for n in range(20)]
    slow = lk.Loader(data, 1, collate_fn=sleep_in_the_first, **RING)
    found = torch.cat(list(slow))
    assert (found != found[0]).sum() > 10  # as many as are made ahead


def test_workers_are_forked_before_a_second_batch_is_asked_for() -> None:
    """A thread may then prepare the next epochs, and a later fork would copy its memory."""
    plan = BatchPlan(order=lk.Sequential(60), batch_size=4)
    engine = RingEngine(BatchReader(np.arange(60), None, 0), num_workers=3)
    before, started = len(psutil.Process().children()), []

    def asked() -> Iterator[Any]:
        for key in plan.keys(lk.Cursor()):
            started.append(len(psutil.Process().children()) - before)
            yield key

    assert len(list(engine.run(asked()))) == 15
    engine.close()
    assert started == [0] + [3] * 14


def sleep_in_the_first(samples: list[Any]) -> torch.Tensor:
    if samples[0] is not None:
        samples[0](0.5)
    return torch.tensor([os.getpid()])


def resident_shared(pid: int) -> int:
    """Return the bytes of shared memory that a process uses."""
    status = Path(f"/proc/{pid}/status").read_text()
    return 1024 * int(next(line for line in status.splitlines() if line.startswith("RssShmem")).split()[1])


class Sizes(Numbers):
    """Rows of changing sizes, up to a limit, in another order each epoch."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((int(torch.randint(1, 20_000, ())),), index)


@pytest.mark.parametrize("factor", [None, 1, 2, 3, 4, 16])
def test_workers_have_another_task_when_more_are_handed_out(factor: int | None) -> None:
    reader = BatchReader([1, 2], None, 0)
    for workers in (1, 2, 3, 8):
        engine = RingEngine(reader, num_workers=workers, prefetch_factor=factor)
        assert engine.prefetch == workers * (factor or 8)
        for size in (0, 1 << 10, 1 << 22, 1 << 30):
            engine.fit(size)
            assert min(2 * workers, engine.prefetch - 1) <= engine.low < engine.prefetch <= workers * (factor or 8)


@pytest.mark.parametrize("persistent", [True, False])
def test_nothing_grows_over_epochs_of_changing_sizes(persistent: bool) -> None:
    loader = lk.Loader(Sizes(8), None, persistent_workers=persistent, **RING | {"num_workers": 1})
    process = psutil.Process()
    for epoch in range(200 if persistent else 60):
        assert len(list(loader)) == 8
        if epoch == 20:  # by then each slot was in use
            before, shared, private = found({os.getpid()}), resident_shared(process.pid), process.memory_info().rss
    now = found({os.getpid()}) | ({} if persistent else {"processes": before["processes"]})
    assert not more(before, now)
    assert resident_shared(process.pid) <= shared + (1 << 20)
    assert process.memory_info().rss <= private + (8 << 20)
    loader.close()


def test_a_giant_batch_does_not_make_slots_giant_for_ever() -> None:
    """Each slot carries one; it gives the memory back after many smaller batches."""
    rows = [torch.full((1 << 21 if 0 < n <= 30 else 10,), n) for n in range(400)]
    before, most = held_by_batches(), 0
    loader = lk.Loader(rows, None, persistent_workers=True, **RING)
    for number, row in enumerate(loader):
        assert torch.equal(row, rows[number])
        del row
        most = max(most, held_by_batches() - before)
    assert most > 6 * (16 << 20)
    assert held_by_batches() - before < 1 << 20
    assert resident_shared(os.getpid()) < 8 << 20
    assert all(torch.equal(row, rows[number]) for number, row in enumerate(loader))  # they grow again
    loader.close()


def held_by_batches() -> int:
    """Return the bytes of memory that all rings of this process hold."""
    sizes = {}
    for fd in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # that of the listing itself
            if "memfd:loaderkit" in str(fd.readlink()):
                about = fd.stat()
                sizes[about.st_ino] = about.st_blocks * 512
    return sum(sizes.values())


@pytest.mark.parametrize("kept", [1, 3])
def test_batches_that_outlive_their_workers_hold_their_own_memory_alone(kept: int) -> None:
    """A user keeps some batches; the memory of the others, made ahead, is freed."""
    gc.collect()
    before = held_by_batches()
    loader = lk.Loader(Numbers(64, 1 << 18), 1, **RING)  # 2 MiB each
    batches = iter(loader)
    for _ in range(8):  # their slots are used again
        next(batches)
    held = [next(batches) for _ in range(kept)]
    wait_until(lambda: held_by_batches() - before >= 8 << 21)
    del batches
    wait_until(lambda: held_by_batches() - before <= (kept << 21) + (1 << 20))
    assert [int(batch[0, 0]) for batch in held] == list(range(8, 8 + kept))
    assert all(bool((batch == batch[0, 0]).all()) for batch in held)
    del held, loader
    assert held_by_batches() == before


def wait_until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_batches_may_die_in_another_thread() -> None:
    """Their slots become free while the loader hands out tasks and trims idle slots."""
    held: queue.SimpleQueue[torch.Tensor | None] = queue.SimpleQueue()

    def drop() -> None:
        while held.get() is not None:
            pass

    thread = threading.Thread(target=drop)
    thread.start()
    for number, batch in enumerate(lk.Loader(Numbers(2000), 1, **RING)):
        assert (batch == number).all()
        held.put(batch)
        del batch
    held.put(None)
    thread.join(60)
    assert number == 1999
