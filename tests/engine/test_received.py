"""What workers that are not forked receive: the same data as after a fork, with the memory of arrays and tensors in one file."""

import contextlib
import hashlib
import multiprocessing
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from torch import Tensor

import loaderkit as lk

FEW_FILES = 256  # fewer than there are tensors


@contextlib.contextmanager
def few_files() -> Iterator[None]:
    """Let this process open few files."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (psutil.Process().num_fds() + FEW_FILES, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def tensors() -> dict[str, Tensor]:
    line = torch.arange(5_000, dtype=torch.float32)
    return {
        "small": torch.arange(7),
        "scalar": torch.tensor(1.5),
        "empty": torch.empty(0, 3),
        "half": line.to(torch.bfloat16),
        "bool": line > 40,
        "complex": torch.complex(line, -line),
        "conjugate": torch.complex(line, -line).conj(),
        "transposed": line.reshape(50, 100).T,
        "window": line[300:1_300],
        "gradient": line.clone().requires_grad_(),
        "parameter": torch.nn.Parameter(line.clone()),
        "sparse": torch.eye(40).to_sparse(),
        "large": torch.arange(400_000, dtype=torch.float32),
        "large window": torch.arange(400_000, dtype=torch.float32)[100:2_000],
    }


def arrays() -> dict[str, Any]:
    line = np.arange(3_000, dtype=np.int32)
    fixed = line.copy()
    fixed.flags.writeable = False
    return {
        "array": line,
        "fixed": fixed,
        "fortran": np.asfortranarray(line.reshape(30, 100)),
        "texts": np.array(["a", "bc"] * 400),
        "objects": np.array([{"a": 1}, None], dtype=object),
        "records": np.zeros(300, dtype=[("a", "i4"), ("b", "f8", (3,))]),
        "bytes": bytes(range(256)) * 40,
        "bytearray": bytearray(range(256)) * 40,
    }


def described(value: Any) -> str:
    """Say all that can be told of a value."""
    if isinstance(value, Tensor):
        whole = value.detach().to_dense().resolve_conj()
        content = whole.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        about: Any = (type(value), value.dtype, value.shape, value.layout, value.requires_grad, value.is_conj())
        about += () if value.is_sparse else (value.stride(), value.storage_offset())
    elif isinstance(value, np.ndarray):
        content = repr(value.tolist()).encode()
        about = value.dtype, value.shape, value.flags.writeable, value.flags.f_contiguous
    else:
        content, about = repr(value).encode(), type(value)
    return f"{about} {hashlib.sha256(content).hexdigest()}"


class Described:
    """Its samples describe the values that it holds."""

    def __init__(self, values: list[Any]) -> None:
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: int) -> str:
        return described(self.values[index])


def read(values: list[Any], **settings: Any) -> list[str]:
    loader = lk.Loader(Described(values), 50, num_workers=1, **settings)
    return [text for batch in loader for text in batch]


METHODS = [("ring", "forkserver"), ("torch", "forkserver"), ("ring", "spawn"), ("torch", "spawn")]
QUICK = pytest.param(
    {"engine": "ring", "multiprocessing_context": multiprocessing.get_context("forkserver")}, id="quick"
)
SLOW = [
    pytest.param({"engine": engine, "multiprocessing_context": method}, id=f"{engine}-{method}", marks=pytest.mark.slow)
    for engine, method in METHODS[1:]
]


@pytest.mark.parametrize("settings", [QUICK, *SLOW])
def test_workers_receive_what_a_fork_would_give_them(settings: dict[str, Any]) -> None:
    """Each kind of tensor and array, and more tensors than a process may have open files or the fork server passes on."""
    many = [torch.full((number % 200,), number) for number in range(600)] + [torch.ones(300_000)] * 3
    many += [torch.full((300_000,), float(number)) for number in range(60)]
    values = [*tensors().values(), *arrays().values(), *many]
    wanted = [described(value) for value in values]
    assert len(set(wanted)) > 600
    with few_files():
        assert read(values, **settings) == wanted


class Changes:
    """Each sample changes its own row and counts what was changed before; tensors and arrays share memory."""

    def __init__(self, shared: bool = False) -> None:
        self.rows = np.zeros((8, 1_000))
        self.tensor = torch.zeros(
            8, 50_000
        )  # torch would move a storage to shared memory, and leave views by numpy behind
        self.same, self.seen = self.tensor[2:], self.tensor.numpy()
        self.common = torch.zeros(8)
        if shared:
            self.common.share_memory_()

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Tensor:
        self.rows[index] = self.tensor[index] = 1
        self.common[index] = 1
        views = [self.same.sum() - self.tensor[2:].sum(), float(self.seen.sum()) - self.tensor.sum()]
        return torch.tensor([self.rows.sum(), self.tensor.sum(), *views])


@pytest.mark.parametrize("settings", [QUICK, *SLOW])
def test_what_a_worker_changes_is_its_own_as_after_a_fork(settings: dict[str, Any]) -> None:
    """And views of one memory stay views of one memory, here and there; memory that the user shares stays shared."""
    data = Changes(shared=True)
    for _ in range(2):  # the second pass begins with what the trainer has
        found = torch.cat(list(lk.Loader(data, 4, num_workers=1, **settings)))
        assert found.tolist() == [[1_000.0 * number, 50_000.0 * number, 0, 0] for number in range(1, 9)]
    assert data.rows.sum() == data.tensor.sum() == 0
    assert data.seen.ctypes.data == data.tensor.data_ptr()
    assert data.common.tolist() == [1] * 8


class Memory:
    """Its samples tell how much memory the worker has that is no file's, in MB."""

    def __init__(self) -> None:
        self.held: list[Any] = [np.ones(4_000_000), torch.ones(100, 10_000), [torch.ones(100_000)] * 2]

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> float:
        read = sum(float(part.sum()) for part in (self.held[0], self.held[1], *self.held[2]))
        own = Path("/proc/self/smaps_rollup").read_text().partition("Anonymous:")[2].split()[0]
        return int(own) / 1e3 + 0 * read


def test_workers_share_the_memory_of_arrays_and_tensors() -> None:
    """32 MB of it: less than half as much may be a worker's own."""
    server = multiprocessing.get_context("forkserver")
    small, large = (
        max(float(batch.max()) for batch in lk.Loader(data, 1, num_workers=2, multiprocessing_context=server))
        for data in (Nothing(), Memory())
    )
    assert large - small < 16


class Nothing(Memory):
    def __init__(self) -> None:
        self.held = [np.ones(4), torch.ones(4), []]


def conjugated(samples: list[Tensor]) -> Tensor:
    return torch.stack(samples).conj()


def negated(samples: list[Tensor]) -> Tensor:
    return torch.stack(samples).conj().imag


@pytest.mark.parametrize("engine", ["ring", "torch"])
@pytest.mark.parametrize("collate", [conjugated, negated])
def test_batches_keep_what_torch_has_yet_to_conjugate_or_negate(collate: Any, engine: Any) -> None:
    for size in (4, 30_000):  # in the message, and in a file
        data = [torch.complex(torch.arange(size) * 1.0, torch.ones(size) * number) for number in range(4)]
        wanted = list(lk.Loader(data, 2, collate_fn=collate))
        found = list(lk.Loader(data, 2, collate_fn=collate, num_workers=1, engine=engine))
        assert len(wanted) == len(found) == 2
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(found, wanted, strict=True))
