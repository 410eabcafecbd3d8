"""Copy batches to the device before they are used, while the device computes.

A side stream copies batch k + depth while the device computes on batch k. The host does not wait for a copy, unless
very many are unfinished (see `HostBatches`). Three rules make that safe:

- Before the consumer uses a batch, its stream waits for the event recorded after the batch's copy.
- torch's allocator allocates device memory for the side stream. Before the side stream writes there, it waits for the work
  that the consumer's streams have queued so far: any use of a batch that was freed earlier is part of that work. So a
  batch may be kept for any time, like any tensor.
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

from loaderkit.device.cuda import BACKENDS, Cuda, HostBatches, make_backend
from loaderkit.seeding.draws import draws_nothing
from loaderkit.seeding.keys import derive_seed
from loaderkit.seeding.private import PrivateGenerators
from loaderkit.seeding.sample_seeds import SampleSeeds
from loaderkit.system.checks import check_integer
from loaderkit.system.nested import is_plain, map_leaves, movable, to_device
from loaderkit.system.overrides import own_attribute

Transform = Callable[[Any], object]


def prefetch(
    batches: Iterable[object],
    device: torch.device | str,
    *,
    depth: int = 2,
    transform: Transform | None = None,
    seed: int = 0,
) -> Iterator[Any]:
    """Yield batches on a device, copied there while the trainer computes.

    The batches may come from any iterable. `lk.DeviceLoader` does the same for a Loader, and also keeps its state.

    Args:
        batches: Batches on the host. From page-locked memory a copy costs the host nothing; other memory is first copied
            to page-locked memory.
        device: The target. Only on CUDA are batches copied ahead; elsewhere each is copied when it is asked for.
        depth: Number of batches that are copied ahead.
        transform: Called with each batch on the device; see `lk.DeviceLoader`.
        seed: Seeds the transform's random numbers, together with the batch's number.

    Yields:
        The batches in the same structure, on the device.

    Examples:
        >>> batches = [{"x": torch.zeros(2)}, {"x": torch.ones(2)}]
        >>> for batch in lk.prefetch(batches, "cpu", transform=lambda batch: {"x": batch["x"] + 1}):
        ...     print(batch["x"].tolist())
        [1.0, 1.0]
        [2.0, 2.0]
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
    seed: int  # seeds the transform's random numbers
    place: object = None  # the loader's state after this batch
    is_last: bool = False  # whether it is the last batch of the pass


class Prefetcher:
    """Copies batches to a device before they are used. It serves one pass after another.

    Args:
        device: The target.
        depth: Number of batches that are copied ahead.
        transform: Called with each batch on the device.

    Raises:
        ValueError: If the depth is below 1.
    """

    def __init__(self, device: torch.device | str, *, depth: int = 2, transform: Transform | None = None) -> None:
        check_integer("DeviceLoader", "depth", depth, 1)
        self.device = torch.device(device)
        self.depth, self.transform = depth, transform
        self._private = PrivateGenerators({"transform": transform})
        self._backend: Cuda | None = None
        self._side: torch.cuda.Stream | None = None
        self._consumers: list[torch.cuda.Stream] = []  # streams on which batches were used
        self._copied = HostBatches()

    def describe(self) -> str:
        """Return in words how batches are copied."""
        if self.device.type not in BACKENDS:
            return "copied when they are asked for: only CUDA copies during the computation"
        return f"copied up to {self.depth} ahead, on a side stream"

    def run(self, fetch: Callable[[], Fetched]) -> Iterator[Fetched]:
        """Yield what `fetch` returns, with the batch on the device, until `fetch` raises StopIteration.

        Any other error is raised in place of its batch.
        """
        if self._backend is None:
            self._backend = make_backend(self.device)
        return self._one_by_one(fetch) if self._backend is None else self._ahead(fetch, self._backend)

    def _one_by_one(self, fetch: Callable[[], Fetched]) -> Iterator[Fetched]:
        while True:
            try:
                fetched = fetch()
            except StopIteration:
                return
            moved = to_device(self._on_host(fetched.batch), self.device)
            yield fetched._replace(batch=self._transformed(moved, fetched.seed))

    def _ahead(self, fetch: Callable[[], Fetched], backend: Cuda) -> Iterator[Fetched]:
        ahead: deque[tuple[Fetched, torch.Event]] = deque()
        failed: Exception | None = None
        is_open, yielded = True, 0
        while True:
            # The queue grows by one with each of the first batches, so that training starts after the first two.
            while is_open and len(ahead) <= min(self.depth, yielded + 1):
                try:
                    ahead.append(self._send(fetch(), backend))
                except StopIteration:
                    is_open = False
                except Exception as error:
                    failed, is_open = error, False
            if not ahead:
                if failed is not None:
                    raise failed
                return
            yielded += 1
            yield self._receive(*ahead.popleft(), backend)

    def _send(self, fetched: Fetched, backend: Cuda) -> tuple[Fetched, torch.Event]:
        """Queue a batch's copy; return the batch with the event after the copy."""
        if self._side is None:
            self._side = backend.new_stream()
        side, consumer = self._side, backend.current_stream()
        if consumer not in self._consumers:
            self._consumers.append(consumer)
        targets: dict[int, Tensor] = {}

        def stage(leaf: Any) -> object:
            if isinstance(leaf, Tensor) and is_plain(leaf):
                leaf = backend.pinned(leaf)
                targets[id(leaf)] = backend.empty_like(leaf)
            elif not isinstance(leaf, Tensor) and callable(getattr(leaf, "pin_memory", None)):
                leaf = leaf.pin_memory()
            return leaf

        def move(leaf: Any) -> object:
            if id(leaf) not in targets:
                leaf = movable(leaf)
                is_async = isinstance(leaf, Tensor) or _takes_non_blocking(type(leaf))  # type: ignore[arg-type]  # `movable` gives any kind of leaf
                return leaf.to(self.device, non_blocking=True) if is_async else leaf.to(self.device)
            backend.copy(targets[id(leaf)], leaf)
            return targets[id(leaf)]

        with backend.on(side):
            host = map_leaves(self._on_host(fetched.batch), stage)
        # After the allocation: the event must come after the last use of the memory that was allocated.
        for stream in self._consumers:
            backend.wait(side, backend.record(stream))
        try:
            with backend.on(side):
                moved = self._transformed(map_leaves(host, move), fetched.seed)
        finally:
            done = backend.record(side)
            self._copied.hold((fetched.batch, host), backend, done)
        return fetched._replace(batch=moved), done

    def _receive(self, fetched: Fetched, done: torch.Event, backend: Cuda) -> Fetched:
        """Make the consumer's stream wait for a batch."""
        consumer = backend.current_stream()
        if consumer not in self._consumers:
            self._consumers.append(consumer)
        backend.wait(consumer, done)
        return fetched

    def _on_host(self, batch: object) -> object:
        prepare = own_attribute(self.transform, "on_host")
        return batch if prepare is None else prepare(batch)

    def _transformed(self, batch: object, seed: int) -> object:
        if self.transform is None:
            return batch
        if draws_nothing(self.transform):
            return self.transform(batch)
        return self._private.use_once(lambda: self._transformed_seeded(batch, seed))

    def _transformed_seeded(self, batch: object, seed: int) -> object:
        with seeded(seed, self.device, self._backend):
            return self.transform(batch)  # type: ignore[misc]  # there is a transform

    def __reduce__(self) -> tuple[object, ...]:
        return functools.partial(Prefetcher, depth=self.depth, transform=self.transform), (self.device,)


@contextmanager
def seeded(seed: int, device: torch.device, backend: Cuda | None = None) -> Iterator[None]:
    """Seed all global random generators, including the device's; restore their states at the end of the context."""
    generator = None if backend is None else backend.generator()
    module = torch.get_device_module(device) if generator is None and device.type not in ("cpu", "meta") else None
    with SampleSeeds(np.array([seed], dtype=np.uint64)) as seeds:
        before: Any = module.get_rng_state() if module else generator.get_state() if generator else None
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


@functools.lru_cache(maxsize=64)
def _takes_non_blocking(kind: Hashable) -> bool:
    try:
        to: Any = getattr(kind, "to")  # noqa: B009 - any type has it here
        parameters = inspect.signature(to).parameters.values()
    except (TypeError, ValueError):
        return False
    return any(each.name == "non_blocking" or each.kind == each.VAR_KEYWORD for each in parameters)
