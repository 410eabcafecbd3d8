"""Batches copied to the device ahead of their use, beside the computation.

A side stream copies batch k + depth while the device computes on batch k. Three rules keep that right, none of which lets
the host wait:

- The consumer's stream waits for the event behind a batch's copy before the batch is handed on.
- Memory on the device is allocated and freed as the side stream's, by torch's allocator. Before anything is written there
  the side stream waits for what the consumer's stream had queued by then: memory that the allocator gives again was freed
  before, and whatever still reads it was queued before. So a batch may be kept for any time, like any tensor.
- The batch on the host is held until its copy is done.
"""

import functools
import inspect
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from loaderkit.device.cuda import BACKENDS, HostBatches, make_backend
from loaderkit.seeding.draws import draws_nothing
from loaderkit.seeding.keys import derive_seed
from loaderkit.seeding.samples import SampleSeeds
from loaderkit.system.nested import map_leaves, to_device

Transform = Callable[[Any], Any]


def prefetch(
    batches: Iterable[Any],
    device: torch.device | str,
    *,
    depth: int = 2,
    transform: Transform | None = None,
    seed: int = 0,
) -> Iterator[Any]:
    """Yield batches on a device, copied there while the trainer computes.

    For batches of any kind; of a Loader's batches a `DeviceLoader` also knows which were yielded.

    Args:
        batches: On the host; from page-locked memory the copy costs the host nothing, other memory is copied there first.
        device: Where to. Elsewhere than on CUDA each batch is copied when it is asked for.
        depth: How many batches are copied ahead.
        transform: Applied to each batch on the device; see `DeviceLoader`.
        seed: Of what it draws, with the batch's number.
    """
    source = iter(batches)
    numbers = iter(range(2**63))

    def fetch() -> Fetched:
        return Fetched(next(source), derive_seed("prefetch", seed, next(numbers)))

    for fetched in Prefetcher(device, depth=depth, transform=transform).run(fetch):
        yield fetched.batch


class Fetched(NamedTuple):
    """A batch on its way to the trainer."""

    batch: Any
    seed: int  # of what its transform draws
    place: Any = None  # where its walk stands behind it
    is_last: bool = False  # of its pass


class Prefetcher:
    """Copies batches to a device ahead of their use; may be used for one pass after another.

    Args:
        device: Where to.
        depth: How many batches are copied ahead.
        transform: Applied to each batch there.

    Raises:
        ValueError: If the depth is below 1.
    """

    def __init__(self, device: torch.device | str, *, depth: int = 2, transform: Transform | None = None) -> None:
        if not isinstance(depth, int) or isinstance(depth, bool) or depth < 1:
            raise ValueError(f"DeviceLoader: depth is {depth!r}, wanted an integer of at least 1.")
        self.device = torch.device(device)
        self.depth, self.transform = depth, transform
        self._backend: Any = None
        self._side: Any = None
        self._consumers: list[Any] = []  # streams on which batches were used
        self._copied = HostBatches()

    def describe(self) -> str:
        """Say how batches are copied."""
        if self.device.type not in BACKENDS:
            return "copied when they are asked for: copies beside the computation are for CUDA"
        return f"copied up to {self.depth} ahead, on a side stream"

    def run(self, fetch: Callable[[], Fetched]) -> Iterator[Fetched]:
        """Yield what `fetch` returns, with the batch on the device, until it raises StopIteration.

        Another error is raised where its batch would have come.
        """
        if self._backend is None:
            self._backend = make_backend(self.device)
        return self._beside(fetch) if self._backend is not None else self._in_turn(fetch)

    def _in_turn(self, fetch: Callable[[], Fetched]) -> Iterator[Fetched]:
        while True:
            try:
                fetched = fetch()
            except StopIteration:
                return
            moved = to_device(self._on_host(fetched.batch), self.device)
            yield fetched._replace(batch=self._transformed(moved, fetched.seed))

    def _beside(self, fetch: Callable[[], Fetched]) -> Iterator[Fetched]:
        ahead: deque[tuple[Fetched, Any]] = deque()
        failed: Exception | None = None
        is_open, given = True, 0
        while True:
            # One more at each of the first batches: a training need not wait for all of them to begin.
            while is_open and len(ahead) <= min(self.depth, given + 1):
                try:
                    ahead.append(self._send(fetch()))
                except StopIteration:
                    is_open = False
                except Exception as error:
                    failed, is_open = error, False
            if not ahead:
                if failed is not None:
                    raise failed
                return
            given += 1
            yield self._receive(*ahead.popleft())

    def _send(self, fetched: Fetched) -> tuple[Fetched, Any]:
        """Queue a batch's copy; return it with the event behind that."""
        backend = self._backend
        if self._side is None:
            self._side = backend.new_stream()
        side, consumer = self._side, backend.current_stream()
        if consumer not in self._consumers:
            self._consumers.append(consumer)
        places: dict[int, Tensor] = {}

        def stage(leaf: Any) -> Any:
            if isinstance(leaf, Tensor) and _is_plain(leaf):
                leaf = backend.pinned(leaf)
                places[id(leaf)] = backend.empty_like(leaf)
            elif not isinstance(leaf, Tensor) and callable(getattr(leaf, "pin_memory", None)):
                leaf = leaf.pin_memory()
            return leaf

        def move(leaf: Any) -> Any:
            if id(leaf) not in places:
                beside = isinstance(leaf, Tensor) or _takes_non_blocking(type(leaf))  # type: ignore[arg-type]
                return leaf.to(self.device, non_blocking=True) if beside else leaf.to(self.device)
            backend.copy(places[id(leaf)], leaf)
            return places[id(leaf)]

        with backend.on(side):
            host = map_leaves(self._on_host(fetched.batch), stage)
        # Only now: what is recorded has to be behind the last use of the memory that was allocated.
        for stream in self._consumers:
            backend.wait(side, backend.record(stream))
        try:
            with backend.on(side):
                moved = self._transformed(map_leaves(host, move), fetched.seed)
        finally:
            done = backend.record(side)
            self._copied.hold((fetched.batch, host), backend, done)
        return fetched._replace(batch=moved), done

    def _receive(self, fetched: Fetched, done: Any) -> Fetched:
        """Let the consumer's stream wait for a batch."""
        consumer = self._backend.current_stream()
        if consumer not in self._consumers:
            self._consumers.append(consumer)
        self._backend.wait(consumer, done)
        return fetched

    def _on_host(self, batch: Any) -> Any:
        prepare = getattr(self.transform, "on_host", None)
        return batch if prepare is None else prepare(batch)

    def _transformed(self, batch: Any, seed: int) -> Any:
        if self.transform is None:
            return batch
        if draws_nothing(self.transform):
            return self.transform(batch)
        with seeded(seed, self.device, self._backend):
            return self.transform(batch)

    def __reduce__(self) -> Any:
        return functools.partial(Prefetcher, depth=self.depth, transform=self.transform), (self.device,)


@contextmanager
def seeded(seed: int, device: torch.device, backend: Any = None) -> Iterator[None]:
    """Seed all global generators, also the device's; on leaving, the caller's stand where they stood."""
    generator = None if backend is None else backend.generator()
    module = torch.get_device_module(device) if generator is None and device.type not in ("cpu", "meta") else None
    with SampleSeeds(np.array([seed], dtype=np.uint64)) as seeds:
        before = module.get_rng_state() if module else generator.get_state() if generator else None
        try:
            seeds.enter_batch()
            if module:
                module.manual_seed(seed)
            elif generator:
                generator.manual_seed(seed)
            yield
        finally:
            if module:
                module.set_rng_state(before)
            elif generator:
                generator.set_state(before)


def _is_plain(tensor: Tensor) -> bool:
    """Say whether memory of a tensor's size and a copy make the same tensor elsewhere."""
    return (
        type(tensor) is Tensor
        and tensor.layout == torch.strided
        and tensor.device.type == "cpu"
        and not tensor.requires_grad
        and not tensor.is_quantized
        and not tensor.is_conj()
        and not tensor.is_neg()
    )


@functools.lru_cache(maxsize=64)
def _takes_non_blocking(kind: Hashable) -> bool:
    try:
        to: Any = getattr(kind, "to")  # noqa: B009 - any type has it here
        parameters = inspect.signature(to).parameters.values()
    except (TypeError, ValueError):
        return False
    return any(each.name == "non_blocking" or each.kind == each.VAR_KEYWORD for each in parameters)
