"""A Loader whose batches are copied to the device ahead of their use."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
from typing_extensions import override

from loaderkit.device.prefetch import Fetched, Prefetcher, Transform
from loaderkit.engine.description import Description
from loaderkit.loader.epoch import Epoch
from loaderkit.loader.loader import Loader
from loaderkit.seeding.keys import derive_seed


class DeviceLoader(Loader):
    """A loader's batches on a device, copied there while the trainer computes.

    On CUDA a side stream copies the next batches and transforms them; each is ready, without a wait of the host, when it
    is asked for. Elsewhere it is copied when it is asked for. What is yielded are ordinary tensors on the stream
    that is the current one then: keep them as long as you like.

    It stands behind the last batch that it has yielded, however far it has read ahead: length, cursor and state are those
    of the loader without it, and `loader` itself says the same.

    Args:
        loader: Whose batches.
        device: Where to.
        depth: How many batches are copied ahead. Each takes its memory on the device.
        transform: Called with each batch on the device; returns what is yielded. Random numbers that it draws there or on
            the host from torch, numpy, `random` or `lk.sample_rng()` belong to (seed, epoch, rank, batch), and
            the caller's generators stay as they are. If it has a method `on_host`, that is called with the batch before
            the copy. If its `draws_nothing` is true, nothing is seeded. What it makes has to be freed by the thread that
            iterates.

    Raises:
        TypeError: If it is another kind of loader.
        ValueError: If the depth is below 1, or the loader copies to a device by itself.
    """

    def __init__(
        self, loader: Loader, device: torch.device | str, *, depth: int = 2, transform: Transform | None = None
    ) -> None:
        if not isinstance(loader, Loader) or isinstance(loader, DeviceLoader):
            raise TypeError(
                f"DeviceLoader: the loader is a {type(loader).__name__}, wanted an lk.Loader, whose place in the data can be "
                "told from how far it was read. For batches of other kinds there is loaderkit.device.prefetch.prefetch(batches, device)."
            )
        if loader.config.device is not None:
            raise ValueError(
                f"DeviceLoader: the loader copies its batches to {loader.config.device!r} by itself, one after another. Leave "
                "out its device=."
            )
        self.loader, self.device = loader, torch.device(device)
        self.dataset, self.config = loader.dataset, loader.config
        self._position, self._trainer_epochs = loader._position, loader._trainer_epochs
        self._prefetcher = Prefetcher(device, depth=depth, transform=transform)

    @override
    def __iter__(self) -> Iterator[Any]:
        return AheadEpoch(iter(self.loader), self._prefetcher)

    @override
    def describe(self) -> Description:
        how = self._prefetcher.describe()
        return dataclasses.replace(super().describe(), device=str(self.device), device_why=how)


class AheadEpoch:
    """One pass of a position, whose batches are taken ahead and yielded on a device."""

    def __init__(self, epoch: Any, prefetcher: Prefetcher) -> None:
        self._epoch: Epoch = epoch
        self._position = self._epoch.position
        self._prefetcher = prefetcher
        self._batches: Iterator[Fetched] | None = None
        self._over = False
        self._turn = 0

    def __iter__(self) -> "AheadEpoch":
        return self

    def __next__(self) -> Any:
        if self._over:
            raise StopIteration
        if self._batches is None:
            self._begin()
        else:
            self._epoch.check_turn(self._turn)
        self._turn = -1  # for whoever goes on after an error
        try:
            fetched = next(self._batches)  # type: ignore[arg-type]  # begun
            self._point, self._over = fetched.place, fetched.is_last
        except StopIteration:
            self._over = True
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
        cursor = position.cursor_at(None)
        self._keys = position.config.seed, cursor.epoch, position.crew.world.rank
        self._number = cursor.batches
        self._batches = self._prefetcher.run(self._fetch)

    def _fetch(self) -> Fetched:
        seed = derive_seed("device", *self._keys, self._number)
        self._number += 1
        batch = next(self._epoch)
        return Fetched(batch, seed, self._position.point(), self._epoch.over)
