"""A Loader whose batches are copied to a device before they are needed."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
from typing_extensions import override

from loaderkit.device.prefetch import Fetched, Prefetcher, Transform
from loaderkit.engine.description import Description
from loaderkit.loader.epoch import Epoch
from loaderkit.loader.loader import Loader, LoaderView
from loaderkit.sampling.cursor import Cursor
from loaderkit.seeding.keys import derive_seed


class DeviceLoader(LoaderView[Any]):
    """Yields batches on a device, copied there while the model computes.

    On CUDA it copies and transforms the next batches on a side stream. A batch is then ready when it is asked for, and
    the host does not wait. On other devices it copies a batch when it is asked for. The tensors belong to the CUDA
    stream that is current when the batch is asked for; keep them as long as you like.

    Its length, cursor and state are those after the last batch that it yielded, however far it has read ahead. `loader`
    reports the same.

    Args:
        loader: The loader.
        device: The device.
        depth: How many batches to copy ahead. Each takes memory on the device.
        transform: Called with each batch on the device; returns what is yielded. Its random numbers on the device, and those
            of torch, numpy, `random` and `lk.sample_rng()` on the host, depend on (seed, epoch, rank, batch); the
            user's generators do not change. If it has a method `on_host`, that gets the batch before the copy.
            If its `draws_nothing` is true, nothing is seeded. Memory that it allocates must be freed by the thread that
            iterates.

    Raises:
        TypeError: If `loader` is not a Loader, or is a DeviceLoader.
        ValueError: If the depth is below 1, or the loader has `device=`.

    Examples:
        >>> loader = lk.Loader(lk.ArrayDataset({"x": torch.ones(5, 2)}), batch_size=2)
        >>> ahead = lk.DeviceLoader(loader, "cpu", transform=lambda batch: {"x": batch["x"] / 2})
        >>> [tuple(batch["x"].shape) for batch in ahead]
        [(2, 2), (2, 2), (1, 2)]
        >>> loader.cursor.epoch
        1
    """

    def __init__(
        self, loader: Loader, device: torch.device | str, *, depth: int = 2, transform: Transform | None = None
    ) -> None:
        if not isinstance(loader, Loader) or isinstance(loader, DeviceLoader):
            raise TypeError(
                f"DeviceLoader: the loader is a {type(loader).__name__}, wanted an lk.Loader, which counts the "
                "batches that it yields. For other iterables of batches use loaderkit.prefetch(batches, device)."
            )
        if loader.config.device is not None:
            raise ValueError(
                f"DeviceLoader: the loader already copies its batches to {loader.config.device!r}, one after another. "
                "Leave out its device=."
            )
        self.device = torch.device(device)
        super().__init__(loader)
        self._prefetcher = Prefetcher(device, depth=depth, transform=transform)

    @override
    def __iter__(self) -> Iterator[Any]:
        return AheadEpoch(iter(self.loader), self._prefetcher)

    @override
    def in_this_process(self, **changes: object) -> "DeviceLoader":
        return DeviceLoader(self.loader.in_this_process(**changes), self.device, transform=self._prefetcher.transform)

    @override
    def replay(self, cursor: Cursor, *, ahead: int = 0) -> object:
        position, batch = self.position, self.loader.replay(cursor, ahead=ahead)
        found = position.cursor_at((cursor, ahead))
        seed = derive_seed("device", self.config.seed, found.epoch, position.crew.world.rank, found.batches)
        once = iter([Fetched(batch, seed)])
        return next(self._prefetcher.run(lambda: next(once))).batch

    @override
    def describe(self) -> Description:
        how = self._prefetcher.describe()
        return dataclasses.replace(super().describe(), device=str(self.device), device_why=how)


class AheadEpoch:
    """The iterator of a DeviceLoader over one epoch: takes batches ahead, and yields them on the device."""

    def __init__(self, epoch: Any, prefetcher: Prefetcher) -> None:
        self._epoch: Epoch = epoch
        self._position = self._epoch.position
        self._prefetcher = prefetcher
        self._batches: Iterator[Fetched] | None = None
        self.over = False
        self._turn = 0

    def __iter__(self) -> "AheadEpoch":
        return self

    def __next__(self) -> Any:
        if self.over:
            raise StopIteration
        if self._batches is None:
            self._begin()
        else:
            self._epoch.check_turn(self._turn)
        self._turn = -1  # stays if an error is raised: the pass is then over
        try:
            fetched = next(self._batches)  # type: ignore[arg-type]  # the epoch has begun
            self._point, self.over = fetched.place, fetched.is_last
        except StopIteration:
            self.over = True
            raise
        finally:
            self._position.note_yielded(self._point)
        self._turn = self._position.turn
        return fetched.batch

    def _begin(self) -> None:
        position = self._position
        self._batches, self._turn = iter(()), -1
        self._epoch.begin()
        self._point = position.point()
        self._batches = self._prefetcher.run(_Fetch(self._epoch))


class _Fetch:
    """Takes the next batch of an epoch that has begun, with its seed and the point after it.

    It does not refer to the `AheadEpoch`. In a reference cycle, the workers of an iterator that the user drops would
    run until the garbage collector finds it.
    """

    def __init__(self, epoch: Epoch) -> None:
        position = epoch.position
        cursor = position.cursor_at(None)
        self._epoch, self._position = epoch, position
        self._keys = position.config.seed, cursor.epoch, position.crew.world.rank
        self._number = cursor.batches

    def __call__(self) -> Fetched:
        seed = derive_seed("device", *self._keys, self._number)
        self._number += 1
        batch = next(self._epoch)
        return Fetched(batch, seed, self._position.point(), self._epoch.over)
