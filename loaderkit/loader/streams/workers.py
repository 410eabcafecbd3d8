"""A rank's lanes read once to their end, by worker processes or without: batches in an order that they don't shape.

A round goes over the rank's lanes, from the one whose turn it is; each gives a
batch. Worker w of W takes the slots w, w + W, ... of a round, and a slot that
has nothing to give (a lane at its end, or none at all) says so: torch takes
items from the workers in turn, so they arrive in the order of the slots whatever
W is, and a worker that has ended has only empty slots left.
"""

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch
import torch.utils.data as torch_data

from loaderkit.collate import stack
from loaderkit.datasets.bad_samples import Reported
from loaderkit.datasets.streams.dataset import StreamDataset
from loaderkit.datasets.streams.lane import Lane, Place
from loaderkit.datasets.streams.samples import prepared
from loaderkit.datasets.streams.skipping import SkippingLane
from loaderkit.engine.torch import Batches, Hidden, StartWorker
from loaderkit.loader.config import LoaderConfig
from loaderkit.seeding.keys import derive_seed
from loaderkit.seeding.samples import SampleSeeds
from loaderkit.system.batch_memory import BufferPool, lends
from loaderkit.system.nested import pin, should_pin
from loaderkit.system.pickling import explained
from loaderkit.system.process import check_children


class Item(NamedTuple):
    """What a slot gives: where its lane stands afterwards, and a batch if there is one."""

    row: int  # of the lane, among the rank's
    place: Any
    samples: int  # 0 where there is no batch
    batch: Any  # in a Reported where samples were bad

    def pin_memory(self) -> "Item":
        """Pin the batch alone: where a lane stands is no part of it."""
        return self._replace(batch=pin(self.batch))


@dataclass(frozen=True, kw_only=True)
class LaneRun(torch_data.IterableDataset[Any]):
    """What runs in a worker.

    Args:
        stream: The data.
        config: Batch size, collate and drop_last.
        lanes: The rank's, by number.
        places: Where they stand; those of a later cycle are over.
        cycle: The cycle to be read.
        turn: The row of the lane whose turn it is.
        buffers: What large batches are made in.
    """

    stream: StreamDataset
    config: LoaderConfig
    lanes: Sequence[int]
    places: Sequence[Place]
    cycle: int
    turn: int
    buffers: BufferPool = field(default_factory=BufferPool)

    def __iter__(self) -> Iterator[Hidden]:
        info = torch_data.get_worker_info()
        return map(Hidden, self.items(info.id, info.num_workers) if info else self.items(0, 1))

    def items(self, worker: int, workers: int) -> Iterator[Item | None]:
        """Yield what a worker's slots give, in turn; None from those with nothing to say."""
        count = len(self.lanes)
        slots = -(-count // workers) * workers
        rows = [(self.turn + slot) % count if slot < count else None for slot in range(worker, slots, workers)]
        open_rows = {row for row in rows if row is not None and self.places[row].cycle == self.cycle}
        readers: dict[int, Lane] = {}
        while open_rows:
            for row in rows:
                if row is None or row not in open_rows:
                    yield None
                    continue
                if row not in readers:
                    readers[row] = self._open(row)
                item = self._item(row, readers[row])
                if item.place.cycle != self.cycle:
                    open_rows.discard(row)
                    del readers[row]
                yield item
                if not open_rows:
                    return

    def _open(self, row: int) -> Lane:
        policy = self.config.bad_samples
        lane = self.stream.open(self.lanes[row], self.places[row], policy=policy)
        return lane if policy.policy == "raise" else SkippingLane(lane, policy)

    def _item(self, row: int, reader: Lane) -> Item:
        size = self.config.batch_size or 1
        taken = reader.take(size)
        drops = self.config.tail_policy == "drop"
        if not taken or (drops and len(taken) < size):
            return Item(row, Place(cycle=self.cycle + 1), 0, _reported(None, reader, over=True))
        # The end is found out with the last batch: whoever holds that one knows that it is.
        more = reader.fill(size if drops else 1)
        batch = prepared(taken, functools.partial(collated, self.config, self.buffers))
        place = reader.place if more else Place(cycle=self.cycle + 1)
        return Item(row, place, len(taken), _reported(batch, reader, over=not more))


def _reported(batch: Any, reader: Lane, *, over: bool) -> Any:
    """Put the bad samples beside a batch, if there are any."""
    if not isinstance(reader, SkippingLane):
        return batch
    bad, first = reader.report(over=over)
    return batch if first is None or not bad else Reported(batch, bad, first)


def collated(config: LoaderConfig, buffers: BufferPool, samples: list[Any], seeds: SampleSeeds) -> Any:
    """Make a batch of samples, within their seeds."""
    collate = config.collate_fn
    with lends(buffers):
        if config.batch_size is None:
            return samples[0] if collate is None else collate(samples[0])
        if collate is None:
            return stack(samples)
        seeds.enter_batch()  # stacking draws nothing
        return collate(samples)


class Run(Protocol):
    """What workers run, or this process."""

    def items(self, worker: int, workers: int) -> Iterator[Item | None]:
        """Yield what a worker has in each of its turns; None where it has nothing to say."""
        ...


def run_lanes(run: Run, config: LoaderConfig, seed: int, num_workers: int) -> Iterator[Item]:
    """Yield a run's items, made by so many workers."""
    device = None if config.device is None else torch.device(config.device)
    pinned = should_pin(config.pin_memory, device)
    items: Iterator[Item | None]
    if num_workers:
        items = _from_workers(run, config, seed, num_workers, pinned)
    else:
        items = run.items(0, 1)
        items = map(pin, items) if pinned else items
    return (item for item in items if item is not None)


def _from_workers(run: Any, config: LoaderConfig, seed: int, num_workers: int, pinned: bool) -> Iterator[Item | None]:
    check_children(num_workers)
    # With a generator of its own the DataLoader leaves the global one alone.
    generator = torch.Generator().manual_seed(derive_seed("torch", seed))
    loader = torch_data.DataLoader(
        run,
        batch_size=None,
        collate_fn=_as_it_is,
        generator=generator,
        num_workers=num_workers,
        pin_memory=pinned,
        prefetch_factor=config.prefetch_factor,
        multiprocessing_context=config.multiprocessing_context,
        worker_init_fn=StartWorker(config.worker_init_fn),
        timeout=config.timeout,
    )
    with explained(config.multiprocessing_context, run):
        return Batches(iter(loader))


def _as_it_is(item: Any) -> Any:
    return item
