"""CUDA streams and events for copies that run during the computation, and the host batches that they read."""

from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TypeVar

import torch
from torch import Tensor

from loaderkit.system.nested import pin_tensor, to_device

T = TypeVar("T")
# Most host batches with unfinished copies; with more, the host waits. That is enough work for the device. Without a
# limit, a host that runs ahead would fill its memory with batches.
_MOST_HELD = 8


class Cuda:
    """A CUDA device's streams, events and memory. Tests replace this class."""

    def __init__(self, device: torch.device) -> None:
        index = torch.cuda.current_device() if device.index is None else device.index
        self.device = torch.device("cuda", index)

    def new_stream(self) -> torch.cuda.Stream:
        return torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]  # torch has no types for it

    def current_stream(self) -> torch.cuda.Stream:
        return torch.cuda.current_stream(self.device)

    def on(self, stream: torch.cuda.Stream) -> AbstractContextManager[object]:
        """Return a context in which work is queued on a stream, and memory is allocated for it."""
        return torch.cuda.stream(stream)

    def record(self, stream: torch.cuda.Stream) -> torch.Event:
        """Return an event that happens when all work queued on a stream so far is done."""
        event: torch.Event = stream.record_event()
        return event

    def wait(self, stream: torch.cuda.Stream, event: torch.Event) -> None:
        """Make a stream wait for an event; the host does not wait."""
        stream.wait_event(event)

    def is_done(self, event: torch.Event) -> bool:
        return bool(event.query())

    def synchronize(self, event: torch.Event) -> None:
        """Make the host wait for an event."""
        event.synchronize()

    def pinned(self, tensor: Tensor) -> Tensor:
        """Return the tensor in page-locked memory, which torch reuses only after queued copies from it are done."""
        return pin_tensor(tensor)

    def empty_like(self, tensor: Tensor) -> Tensor:
        return torch.empty_like(tensor, device=self.device)

    def copy(self, target: Tensor, source: Tensor) -> None:
        """Queue a copy on the current stream."""
        target.copy_(source, non_blocking=True)

    def generator(self) -> torch.Generator:
        """Return the device's global generator."""
        torch.cuda.init()  # type: ignore[no-untyped-call]  # torch has no types for it
        return torch.cuda.default_generators[self.device.index]


BACKENDS: dict[str, Callable[[torch.device], Cuda]] = {"cuda": Cuda}


def make_backend(device: torch.device) -> Cuda | None:
    """Return a device's `Cuda`; None if batches cannot be copied to the device during the computation."""
    kind = BACKENDS.get(device.type)
    return None if kind is None else kind(device)


class HostBatches:
    """Keeps references to host batches until their copies to the device are done.

    A worker may reuse a batch's memory as soon as the last tensor that views it is freed. A copy that is still queued
    would then read another batch.
    """

    def __init__(self) -> None:
        self._held: deque[tuple[Cuda, torch.Event, object]] = deque()  # backend, event, batch
        self._backends: dict[torch.device, Cuda | None] = {}

    def copy(self, batch: T, device: torch.device) -> T:
        """Copy a batch to a device on the current stream, and hold it."""
        if device not in self._backends:
            self._backends[device] = make_backend(device)
        backend = self._backends[device]
        moved = to_device(batch, device)
        if backend is not None:
            self.hold(batch, backend, backend.record(backend.current_stream()))
        return moved

    def hold(self, batch: object, backend: Cuda, event: torch.Event) -> None:
        """Hold a batch until an event happens; release the batches whose events have happened."""
        held = self._held
        held.append((backend, event, batch))
        while held and held[0][0].is_done(held[0][1]):
            held.popleft()
        if len(held) > _MOST_HELD:
            self._wait(len(held) - _MOST_HELD)

    def _wait(self, count: int) -> None:
        for _ in range(count):
            backend, event, _batch = self._held[0]
            backend.synchronize(event)
            self._held.popleft()

    def __del__(self) -> None:
        self._wait(len(self._held))

    def __reduce__(self) -> tuple[object, ...]:
        return HostBatches, ()
