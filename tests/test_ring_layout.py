"""A batch in a slot is what was written, leaf by leaf."""

import io
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data as torch_data

import loaderkit as lk
from loaderkit.engine.ring.layout import pack_key, read, unpack_key, write
from loaderkit.engine.ring.slots import Slots
from loaderkit.plan import BatchKey

KINDS = [torch.bool, torch.uint8, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.complex64]


@pytest.fixture
def slots() -> Any:
    slots = Slots(1, 0)
    yield slots
    slots.close()


def through(slots: Slots, batch: Any) -> Any:
    return read(write(batch, slots, 0).structure, slots.lease(0, int))


def test_leaves_of_all_kinds_arrive(slots: Slots) -> None:
    for shape in ((), (0, 3), (5,), (2, 3, 4)):
        batch = [torch.ones(shape).to(kind) for kind in KINDS]
        for _ in range(2):  # the second time it is known
            for old, new in zip(batch, through(slots, batch), strict=True):
                assert torch.equal(old, new)
                assert (old.dtype, old.shape) == (new.dtype, new.shape)
    image = torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last)
    found = through(slots, image)
    assert torch.equal(found, image)
    assert found.stride() == image.stride()


def test_a_leaf_that_is_saved_takes_its_own_room_only(slots: Slots) -> None:
    found = through(slots, {"small": torch.arange(4), "large": torch.zeros(1_000_000)})
    file = io.BytesIO()
    torch.save(found["small"], file)
    assert file.tell() < 10_000


def test_what_is_in_a_batch_twice_is_one_leaf(slots: Slots) -> None:
    tensor = torch.arange(1000)
    written = write([tensor, tensor], slots, 0)
    first, second = read(written.structure, slots.lease(0, int))
    assert first is second
    assert written.size < 2 * tensor.nbytes


@pytest.mark.parametrize("rows", [None, [0, 2, 3]])
def test_a_key_comes_back(rows: Any) -> None:
    bounds = None if rows is None else np.array(rows)
    key = BatchKey(epoch=3, positions=np.arange(10, 4, -2), indices=np.array([5, 0, 2]), rows=bounds)
    found = unpack_key(pack_key(key))
    assert found.epoch == 3
    assert np.array_equal(found.positions, [10, 8, 6])
    assert np.array_equal(found.indices, [5, 0, 2])
    assert found.rows is None if rows is None else np.array_equal(found.rows, rows)


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
