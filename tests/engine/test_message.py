"""A batch of the torch engine arrives as it was sent."""

import multiprocessing
import pickle
import sys
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from drawing import equal

import loaderkit as lk
from loaderkit.engine.torch import seal

SMALL = 1 << 17  # bytes: larger tensors travel in shared memory


class Pair(NamedTuple):
    a: Any
    b: Any


def leaves() -> list[Any]:
    """Return tensors of all kinds, sizes around the limit, and other values."""
    kinds = [torch.bool, torch.uint8, torch.int16, torch.uint16, torch.bfloat16, torch.float64, torch.complex64]
    found: list[Any] = [torch.arange(6).reshape(2, 3).to(kind) for kind in kinds]
    found += [torch.tensor(3), torch.empty(0), torch.empty(2, 0, 3, dtype=torch.int8), torch.ones(4, 6).t()]
    found += [torch.arange(size, dtype=torch.uint8) for size in (SMALL - 1, SMALL, SMALL + 1)]
    found += [torch.zeros(2, 3, 4, 4).contiguous(memory_format=torch.channels_last)]
    found += [torch.ones(3, dtype=torch.complex64).conj(), torch.ones(3, dtype=torch.complex64).conj().imag]
    return [*found, np.arange(3), "text", None, {"deep": [Pair(torch.ones(2), (torch.zeros(1), 5))]}]


class Leaves(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return len(leaves())

    def __getitem__(self, index: int) -> Any:
        return leaves()[index]


def first(samples: list[Any]) -> Any:
    return samples[0]


def has_imported(worker: int) -> None:
    """Check that the modules for sending a large tensor are imported: two threads must not import them at once."""
    if "torch.nested._internal.nested_tensor" not in sys.modules:
        raise RuntimeError(f"worker {worker} has not imported what it needs to send tensors.")


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_worker_hands_over_what_was_made(method: str) -> None:
    loader = lk.Loader(
        Leaves(),
        1,
        num_workers=1,
        collate_fn=first,
        multiprocessing_context=method,
        engine="torch",
        worker_init_fn=has_imported,
    )
    found, wanted = list(loader), leaves()
    assert equal(found, wanted)
    for one, other in zip(found, wanted, strict=True):
        assert type(one) is type(other)
        if isinstance(one, torch.Tensor):
            assert (one.dtype, one.shape, one.stride()) == (other.dtype, other.shape, other.stride())
            if one.numel():
                one.clone().zero_()
                one[...] = 0  # writable


def test_small_tensors_need_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tensor that is in the batch twice arrives as one."""
    opened: list[Any] = []
    monkeypatch.setattr(multiprocessing.reduction, "DupFd", opened.append)
    one = torch.ones(5)
    again = pickle.loads(ForkingPickler.dumps(seal([one, one, torch.zeros(SMALL // 4)]))).content
    assert again[0] is again[1]
    assert not opened
    ForkingPickler.dumps(seal(torch.zeros(SMALL // 4 + 1)))
    assert len(opened) == 1


def test_subclasses_of_tensor_are_pickled_by_their_own_method() -> None:
    parameter = torch.nn.Parameter(torch.ones(2))
    assert isinstance(pickle.loads(ForkingPickler.dumps(seal(parameter))).content, torch.nn.Parameter)
