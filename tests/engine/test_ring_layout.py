"""A batch in a slot is what was written, leaf by leaf."""

import gc
import io
import mmap
import os
import weakref
from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.utils.data as torch_data
from torch import Tensor

import loaderkit as lk
from loaderkit.engine.ring.slot_batches import read_batch, write_batch
from loaderkit.engine.ring.slots import Slots


@pytest.fixture
def slots() -> Any:
    slots = Slots(1, 0)
    yield slots
    slots.close()


def through(slots: Slots, batch: Any) -> Any:
    return read_batch(write_batch(batch, slots, 0).structure, slots.lease(0, int))


@pytest.mark.parametrize("pickled", [False, True])
def test_each_leaf_begins_at_a_cache_line(slots: Slots, pickled: bool) -> None:
    sizes = (1, 3, 17, 33, 63, 65, 100)
    batch: list[Any] = [torch.arange(size).to(torch.uint8) for size in sizes]
    more = [np.arange(5, dtype=np.int16), {1, 2}] if pickled else []
    found = through(slots, batch + more)
    assert [len(leaf) for leaf in found[: len(sizes)]] == list(sizes)
    starts = [leaf.data_ptr() for leaf in found[: len(sizes)]] + [leaf.ctypes.data for leaf in found[len(sizes) : -1]]
    assert {start % 64 for start in starts} == {0}


def test_saving_one_tensor_of_a_batch_does_not_save_the_others(slots: Slots) -> None:
    found = through(slots, {"small": torch.arange(4), "large": torch.zeros(1_000_000)})
    file = io.BytesIO()
    torch.save(found["small"], file)
    assert file.tell() < 10_000


class Pair(NamedTuple):
    first: Any
    second: Any


class Marked(Pair):
    mark = "none"


class Sum(NamedTuple):
    parts: Any

    def __reduce__(self) -> Any:  # type: ignore[override]
        return Sum, (sum(self.parts),)


def usual() -> dict[str, Any]:
    """Return batches of containers, tensors and plain values."""
    return {
        "tensor": torch.arange(6.0).reshape(2, 3),
        "nested": {"x": (torch.arange(3), [torch.ones(2, 2), {"y": torch.zeros(1)}]), "empty": [], "none": ()},
        "values": [1, True, 1.0, -0.0, 2**80, "a", "\udc80", b"a", None, (torch.arange(2), "b")],
        "no elements": {"a": torch.zeros(0, 3), "b": torch.arange(4)},
        "no tensors": ["a", {"b": 2}],
        "namedtuple": lk.Ragged(torch.arange(5), torch.tensor([0, 2, 5])),
        "nested namedtuples": {
            "a": Pair([torch.zeros(2)], Pair(None, "b")),
            "c": (Pair(torch.ones(1), torch.ones(2)), 1),
        },
        "scalars": (torch.tensor(3), torch.tensor(True)),
    }


def unusual() -> dict[str, Any]:
    """Return batches with classes, arrays, shared memory and unusual tensors."""
    tensor, row = torch.arange(8), [1]
    circle: list[Any] = [torch.arange(2)]
    circle.append(circle)
    named = torch.arange(3)
    named.source = "here"  # type: ignore[attr-defined]
    marked = Marked(torch.arange(2), 1)
    marked.mark = "here"
    return {
        "namedtuple with attributes": marked,
        "namedtuple with its own way": Sum([torch.arange(2), torch.arange(2)]),
        "keys": {1: torch.arange(2)},
        "class": OrderedDict(a=torch.arange(2)),
        "array": {"a": np.arange(3), "b": torch.arange(2)},
        "same tensor": [tensor, tensor],
        "same memory": [tensor, tensor.view(2, 4)],
        "same list": [row, row],
        "circle": circle,
        "attribute": {"a": named},
    }


@pytest.mark.parametrize("name", [*usual(), *unusual()])
def test_a_batch_arrives_as_it_is(slots: Slots, name: str) -> None:
    """It arrives bit for bit, with all types."""
    for _ in range(3):
        batch = (usual() | unusual())[name]
        found = through(slots, batch)
        if name == "circle":
            assert found[1] is found
            batch, found = batch[:1], found[:1]
        if name.endswith("own way"):
            batch = Sum(sum(batch.parts))
        assert shown(found) == shown(batch)
        assert getattr(found, "mark", None) == getattr(batch, "mark", None)
        if name.startswith("same"):
            first, second = found
            where = Tensor.data_ptr if isinstance(first, Tensor) else id
            assert where(first) == where(second)


def shown(batch: Any) -> Any:
    """Return a value that distinguishes equal objects: 1, True and 1.0, dicts of another order."""
    if isinstance(batch, dict):
        return type(batch), [(key, shown(value)) for key, value in batch.items()]
    if isinstance(batch, list | tuple):
        return type(batch), [shown(value) for value in batch]
    if isinstance(batch, Tensor):
        return batch.dtype, batch.shape, batch.layout, batch.requires_grad, vars(batch), batch.to_dense().tolist()
    return type(batch), repr(batch)


@pytest.mark.parametrize("name", ["nested", "array"])
def test_a_batch_is_gone_when_it_is_written(slots: Slots, name: str) -> None:
    """Its memory does not wait for the garbage collector."""
    batch = (usual() | unusual())[name]
    tensor = weakref.ref(batch["x"][0] if name == "nested" else batch["b"])
    gc.disable()
    try:
        write_batch(batch, slots, 0)
        del batch
        assert tensor() is None
    finally:
        gc.enable()


class Asking:
    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Any:
        info: Any = torch_data.get_worker_info()
        return torch.tensor([info.id, info.num_workers, len(info.dataset), info.seed])


def test_the_data_is_told_which_worker_reads_it() -> None:
    found = torch.cat(list(lk.Loader(Asking(), 4, num_workers=2, engine="ring")))
    assert len(found) == 40
    assert set(found[:, 0].tolist()) <= {0, 1}
    assert set(found[:, 1].tolist()) == {2}
    assert set(found[:, 2].tolist()) == {40}
    assert len(set(found[:, 3].tolist())) == len(set(found[:, 0].tolist()))


def test_a_slot_has_what_its_batches_need_and_room_where_they_differ(slots: Slots) -> None:
    """Batches of several sizes get a quarter more; batches of one size do not."""
    size, page = 1 << 22, mmap.PAGESIZE
    slots.put_key(0, bytes(2000))
    for _ in range(3):
        write_batch(torch.zeros(size, dtype=torch.uint8), slots, 0)
        assert slots.reserved[0] == size
    assert os.fstat(slots._fd).st_blocks * 512 <= size + 2 * page
    write_batch(torch.zeros(size + page, dtype=torch.uint8), slots, 0)
    room = slots.reserved[0]
    assert size * 5 // 4 <= room <= size * 5 // 4 + 2 * page
    write_batch(torch.zeros(size * 9 // 8, dtype=torch.uint8), slots, 0)
    assert slots.reserved[0] == room
