"""Page-locked slots: registered once, unregistered before their memory is freed, never while a batch uses them."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from forked import in_fork
from leftovers import nothing_left

import loaderkit as lk
from loaderkit.engine.ring.engine import RingEngine
from loaderkit.engine.ring.pins import cuda_runtime
from loaderkit.reading.batch_reader import BatchReader
from loaderkit.sampling.batch_plan import BatchPlan


class Cudart:
    """A fake of CUDA's runtime that checks each call against the mapped memory."""

    def __init__(self, refuse_from: int = 1 << 60) -> None:
        self.registered: dict[int, int] = {}
        self.calls: list[str] = []
        self.refuse_from = refuse_from

    def register(self, address: int, size: int) -> int:
        assert all(address + size <= start or start + length <= address for start, length in self.registered.items())
        assert is_mapped(address, size)
        if len(self.calls) >= self.refuse_from:
            return 2  # no memory
        self.calls.append("register")
        self.registered[address] = size
        return 0

    def unregister(self, address: int) -> int:
        assert is_mapped(address, self.registered.pop(address))
        self.calls.append("unregister")
        return 0

    def covers(self, tensor: torch.Tensor) -> bool:
        first = tensor.data_ptr()
        return any(start <= first and first + tensor.nbytes <= start + size for start, size in self.registered.items())


def is_mapped(address: int, size: int) -> bool:
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, end = (int(part, 16) for part in line.split()[0].split("-"))
        if start <= address and address + size <= end:
            return "memfd:loaderkit" in line
    return False


class Rows:
    """Samples of a growing tensor and an array."""

    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": torch.full((10 + 100 * index,), index), "array": np.full(5, index)}


@pytest.fixture(autouse=True)
def _nothing_is_left_behind() -> Iterator[None]:
    list(lk.Loader([1, 2], 1, num_workers=1, engine="ring", multiprocessing_context="fork"))
    with nothing_left():
        yield


def make_engine(cudart: Any) -> tuple[RingEngine, list[Any]]:
    reader = BatchReader(Rows(), None, 0, batched=False)
    engine = RingEngine(
        reader,
        num_workers=2,
        pin_memory=True,
        persistent_workers=True,
        multiprocessing_context="fork",
        pin_in_place=torch.device("cuda"),
        find_cuda=lambda device: cudart,
        copy_pinned=copied,
    )
    return engine, list(BatchPlan(order=lk.Sequential(60), batch_size=None, tail="keep").keys(lk.Cursor()))


def copied(batch: Any) -> Any:
    return batch | {"copied": True}


def test_slots_are_registered_once_each_time_they_grow() -> None:
    cudart = Cudart()
    engine, keys = make_engine(cudart)
    for epoch in range(3):
        for number, batch in enumerate(engine.run(iter(keys))):
            assert "copied" not in batch
            assert cudart.covers(batch["x"])
            assert (batch["x"] == number).all()
        if epoch == 1:
            settled = len(cudart.calls)
    assert number == 59
    assert len(cudart.calls) - settled <= 4  # few slots still meet the largest batch
    assert 1 < len(cudart.registered) <= 2 * 8 + 4  # slots
    assert engine.pinned_why == ""
    engine.close()
    del batch
    gc.collect()
    assert cudart.registered == {}
    assert cudart.calls.count("register") == cudart.calls.count("unregister")


@pytest.mark.parametrize("how", ["close", "drop"])
def test_a_batch_in_use_stays_registered_after_its_workers(how: str) -> None:
    cudart = Cudart()
    engine, keys = make_engine(cudart)
    run = engine.run(iter(keys))
    held = [next(run)["x"] for _ in range(3)]
    if how == "close":
        engine.close()
    del run, engine
    gc.collect()
    assert len(cudart.registered) == 3
    while held:
        assert all(map(cudart.covers, held))
        held.pop()
    assert cudart.registered == {}


def test_arrays_that_stay_on_the_host_are_not_in_registered_memory() -> None:
    """Else the next batch could overwrite memory that a queued copy still reads."""
    cudart = Cudart()
    engine, keys = make_engine(cudart)
    arrays = [batch["array"] for batch in engine.run(iter(keys))]
    assert [int(array[0]) for array in arrays] == list(range(60))
    assert all(cudart.covers(torch.from_numpy(array)) is False for array in arrays)
    engine.close()


@pytest.mark.parametrize("refuse_from", [0, 5])
def test_where_registering_fails_batches_are_pinned_by_copying(refuse_from: int) -> None:
    cudart = Cudart(refuse_from)
    engine, keys = make_engine(cudart)
    ways = set()
    for number, batch in enumerate(engine.run(iter(keys))):
        assert (batch["x"] == number).all()
        assert ("copied" in batch) is not cudart.covers(batch["x"])
        ways.add("copied" in batch)
    assert ways == ({True} if refuse_from == 0 else {True, False})
    assert "cudaHostRegister of" in engine.pinned_why
    assert "failed with code 2 (ulimit -l is " in engine.pinned_why
    engine.close()
    del batch
    assert cudart.registered == {}


def test_without_cuda_batches_are_pinned_by_copying() -> None:
    engine, keys = make_engine(None)
    assert all("copied" in batch for batch in engine.run(iter(keys)))
    assert "CUDA is not available" in engine.pinned_why
    engine.close()


def test_kept_batches_are_pinned_by_copying() -> None:
    cudart = Cudart()
    engine, keys = make_engine(cudart)
    held = list(engine.run(iter(keys)))
    assert [("copied" in batch) for batch in held].count(False) == 4
    assert all(int(batch["x"][-1]) == number for number, batch in enumerate(held))
    engine.close()
    del held
    assert cudart.registered == {}


def test_a_forked_process_leaves_the_registrations_alone() -> None:
    cudart = Cudart()
    engine, keys = make_engine(cudart)
    run = engine.run(iter(keys))
    held = next(run)["x"]

    def leaves_them_alone() -> bool:
        nonlocal held, run
        before = len(cudart.calls)
        del held, run
        engine.close()
        return len(cudart.calls) == before

    assert in_fork(leaves_them_alone)
    assert cudart.covers(held)
    engine.close()
    del held, run
    assert cudart.registered == {}


def test_memory_is_page_locked_for_the_device_that_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """The current device does not matter, and CUDA does not raise a failure again."""
    calls: list[Any] = []

    @contextmanager
    def on(device: torch.device) -> Iterator[None]:
        calls.append(device)
        yield
        calls.append("left")

    class Raw:
        def cudaHostRegister(self, address: int, size: int, flags: int) -> int:  # noqa: N802
            calls.append((address, size, flags))
            return 2 if size > 8192 else 0

        def cudaHostUnregister(self, address: int) -> int:  # noqa: N802
            calls.append(address)
            return 0

    def zeros(*_: Any, device: str) -> None:
        calls.append(device)
        raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr(torch.cuda, "device", on)
    monkeypatch.setattr(torch.cuda, "cudart", Raw)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch, "zeros", zeros)
    second = torch.device("cuda:1")
    runtime = cuda_runtime(second)
    assert runtime is not None
    assert (runtime.register(4096, 8192), runtime.unregister(4096), runtime.register(0, 16384)) == (0, 0, 2)
    assert calls[:6] == [second, (4096, 8192, 0), "left", second, 4096, "left"]
    assert calls[6:] == [second, (0, 16384, 0), "cuda", "left"]


class Watched:
    """CUDA's own runtime, which records what it answers."""

    def __init__(self) -> None:
        self._cudart: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        self.registered: list[int] = []
        self.unregistered: list[int] = []

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:  # noqa: N802
        self.registered.append(int(self._cudart.cudaHostRegister(address, size, flags)))
        return self.registered[-1]

    def cudaHostUnregister(self, address: int) -> int:  # noqa: N802
        self.unregistered.append(int(self._cudart.cudaHostUnregister(address)))
        return self.unregistered[-1]


@pytest.mark.gpu
def test_batches_in_slots_are_page_locked_and_copies_from_them_arrive_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device is busy: copies are still queued when their batch is dropped."""
    watched = Watched()
    monkeypatch.setattr(torch.cuda, "cudart", lambda: watched)
    data = [torch.full((1 << 20,), n) for n in range(64)]
    loader = lk.Loader(data, None, num_workers=2, engine="ring", device="cuda")
    arrived = []
    busy = torch.randn(4096, 4096, device="cuda")
    for batch in loader:
        for _ in range(4):
            busy = busy @ busy * 1e-3
        arrived.append(batch)
    assert len(arrived) == 64
    assert all((batch == n).all() for n, batch in enumerate(arrived))
    assert loader.describe().pinned_why == "for CUDA"
    del loader
    gc.collect()
    assert len(watched.registered) == len(watched.unregistered) > 0
    assert not any(watched.registered + watched.unregistered)
