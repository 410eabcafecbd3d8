"""CUDA's streams, events and memory on the CPU, as unkind as they may be.

What is queued runs late, or early, and memory that is freed is given to the next who asks. A wait that is missing then
shows as a wrong batch.
"""

import ctypes
import random
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

GARBAGE = 0xAB


class Stream:
    def __init__(self, name: str) -> None:
        self.name = name
        self.queue: deque[Callable[[], object]] = deque()  # each returns False if it could not run yet
        self.free: dict[int, list[Any]] = {}  # memory of this stream, by size


class Event:
    is_done = False

    def happen(self) -> None:
        self.is_done = True


class FakeCuda:
    """Stands in for `Cuda`. What is queued runs when it has to, and as `policy` says whenever the host calls.

    Args:
        policy: "all": as much as can; "none"; "side": of the side stream as much as can; "consumer": the same of the
            consumer's; "random".
        seed: Of the random policy.
        broken: A rule that is not kept: "consumer waits", "side waits".
        pinned: Whether all host memory counts as page-locked.
    """

    def __init__(self, policy: str = "all", *, seed: int = 0, broken: str = "", pinned: bool = False) -> None:
        self.policy, self.broken, self.all_pinned = policy, broken, pinned
        self.draw = random.Random(seed)
        self.consumer = Stream("consumer")
        self.streams = [self.consumer]
        self.current = self.consumer
        self.kept: list[Tensor] = []  # pinned copies: torch holds them until they are read
        self.slots: list[Any] = []  # memory that counts as page-locked
        self.waits_of_host = 0
        self.targets: set[int] = set()  # addresses that were copied to
        self.blocks = 0
        self.own = torch.Generator().manual_seed(1)

    def __call__(self, device: torch.device) -> "FakeCuda":
        return self

    def new_stream(self) -> Stream:
        self.streams.append(Stream("side"))
        return self.streams[-1]

    def current_stream(self) -> Stream:
        return self.current

    @contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    def record(self, stream: Stream) -> Event:
        event = Event()
        self._queue(stream, event.happen)
        return event

    def wait(self, stream: Stream, event: Event) -> None:
        if self.broken != f"{stream.name} waits":
            self._queue(stream, lambda: event.is_done)

    def is_done(self, event: Event) -> bool:
        self._run_some()
        return event.is_done

    def synchronize(self, event: Event) -> None:
        self.waits_of_host += not event.is_done
        self._run_until(lambda: event.is_done)

    def pinned(self, tensor: Tensor) -> Tensor:
        low = tensor.data_ptr()
        if self.all_pinned or any(start <= low < start + size for start, size in self.slots):
            return tensor
        self.kept.append(tensor.clone())
        return self.kept[-1]

    def empty_like(self, tensor: Tensor) -> Tensor:
        size = tensor.nbytes
        if not size:
            return torch.empty_like(tensor)
        blocks = self.current.free.setdefault(size, [])
        if blocks:
            block = blocks.pop()
        else:
            block = bytearray([GARBAGE]) * size
            self.blocks += 1
        lease = (ctypes.c_char * size).from_buffer(block)
        weakref.finalize(lease, blocks.append, block).atexit = False
        return torch.from_numpy(np.frombuffer(lease, np.uint8)).view(tensor.dtype).view(tensor.shape)

    def copy(self, target: Tensor, source: Tensor) -> None:
        assert source.is_contiguous()
        to, of, size = target.data_ptr(), source.data_ptr(), source.nbytes
        self.targets.add(to)
        self._queue(self.current, lambda: ctypes.memmove(to, of, size))

    def generator(self) -> torch.Generator:
        return self.own

    def read(self, tensor: Tensor) -> list[bytes]:
        """Queue a kernel of the consumer's that reads a tensor; it knows the address alone."""
        found: list[bytes] = []
        of, size = tensor.data_ptr(), tensor.nbytes
        self._queue(self.consumer, lambda: found.append(ctypes.string_at(of, size) if size else b""))
        return found

    def run_all(self) -> None:
        self._run_until(lambda: not any(stream.queue for stream in self.streams))

    def _queue(self, stream: Stream, work: Callable[[], object]) -> None:
        stream.queue.append(work)
        self._run_some()

    def _run_some(self) -> None:
        if self.policy == "random":
            for _ in range(self.draw.randrange(6)):
                self._run_one(self.draw.choice(self.streams))
        elif self.policy != "none":
            chosen = [stream for stream in self.streams if self.policy in ("all", stream.name)]
            while any(self._run_one(stream) for stream in chosen):
                pass

    def _run_until(self, is_over: Callable[[], bool]) -> None:
        while not is_over():
            assert sum(self._run_one(stream) for stream in self.streams), "the streams wait for each other"

    def _run_one(self, stream: Stream) -> bool:
        if stream.queue and stream.queue[0]() is not False:
            stream.queue.popleft()
            return True
        return False


class SlotBatches:
    """Batches in memory that is used again as soon as their last tensor is gone, as a ring of workers does.

    Args:
        fake: Takes the memory for page-locked.
        count: Of batches; batch k holds the number k in each place.
        size: Of each of the two tensors.
    """

    def __init__(self, fake: FakeCuda, count: int, size: int = 64) -> None:
        self.fake, self.count, self.size = fake, count, size
        self.free: list[Any] = []
        self.made = 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for number in range(self.count):
            yield self._make(number)

    def _make(self, number: int) -> dict[str, Any]:
        if self.free:
            slot = self.free.pop()
        else:
            slot = bytearray(self.size * 12)
            self.made += 1
            start = ctypes.addressof(ctypes.c_char.from_buffer(slot))
            self.fake.slots.append((start, len(slot)))
        slot[:] = wanted(number, self.size)
        lease = (ctypes.c_char * len(slot)).from_buffer(slot)

        def release() -> None:
            slot[:] = bytes([GARBAGE]) * len(slot)
            self.free.append(slot)

        weakref.finalize(lease, release).atexit = False
        raw = torch.from_numpy(np.frombuffer(lease, np.uint8))
        return {"x": raw[: self.size * 4].view(torch.float32), "y": [raw[self.size * 4 :].view(torch.int64), number]}


def wanted(number: int, size: int) -> bytes:
    """Return the bytes of a batch of SlotBatches."""
    return np.full(size, number, np.float32).tobytes() + np.full(size, number, np.int64).tobytes()
