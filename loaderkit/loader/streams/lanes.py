"""Read the lanes of a rank: what a kind of stream provides, and how worker processes run it.

A lane is a part of the stream that one worker reads in sequence. The lanes of a rank take turns to give a batch. A round
visits each lane once, from the lane whose turn it is. Worker w of W serves the slots w, w + W, ... of each round. A slot
whose lane has ended gives None. torch takes items from its workers in turn, so items arrive in the order of the slots for
any W.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, NamedTuple, Protocol

import torch
import torch.utils.data as torch_data

from loaderkit.engine.torch import Batches, Crew, Sealed, StartWorker, seal
from loaderkit.loader.config import LoaderConfig
from loaderkit.loader.streams.state import LanePlace
from loaderkit.seeding.keys import derive_seed
from loaderkit.seeding.private import Found, PrivateGenerators
from loaderkit.seeding.sample_seeds import SampleSeeds
from loaderkit.system.batch_memory import BatchMemory, BufferPool
from loaderkit.system.host import on_host
from loaderkit.system.nested import pin, should_pin
from loaderkit.system.open_before_fork import warn_of_open_files
from loaderkit.system.pickling import sendable_errors
from loaderkit.system.process import check_children
from loaderkit.system.stack import stack
from loaderkit.system.start import choose_start


class Item(NamedTuple):
    """What a slot gives: a batch, if there is one, and where its lane is afterwards."""

    row: int  # the lane's number among the rank's lanes
    place: LanePlace
    samples: int  # 0 without a batch
    batch: object  # in a Reported if samples were bad

    def pin_memory(self) -> "Item":
        """Pin the batch alone."""
        return self._replace(batch=pin(self.batch))


class Lanes(Protocol):
    """What each kind of stream provides: how it is cut into lanes, and how a rank reads them.

    A place is where one lane is: a tuple of plain values with an attribute `cycle`, which counts how often the lane has been
    read to its end.
    """

    @property
    def place(self) -> Callable[..., LanePlace]:
        """Makes a place from its values."""

    def count(self) -> int:
        """Return the number of lanes of all ranks."""

    def identity(self) -> dict[str, str | int]:
        """Return everything that a place depends on: a state is valid only for the same values."""

    def told(self) -> dict[str, str]:
        """Return what all ranks must have in common to share the data."""

    def flaw(self, lane: int, place: Sequence[object]) -> str | None:
        """Return what a place in a state should be, or None if it is valid. It may have any number of values."""

    def read(self, lanes: range, places: Sequence[LanePlace], cycle: int, turn: int) -> Iterator[Item]:
        """Read a cycle of these lanes from these places."""

    def next_cycle(self, places: Sequence[LanePlace], cycle: int) -> tuple[LanePlace, ...]:
        """Return the places at the start of a cycle, given the present places."""

    def batches(self) -> int | None:
        """Return how many batches this rank has in a cycle, if the data says how many samples it has."""

    def no_samples(self) -> str:
        """Say that this rank found no samples."""

    def idle_workers(self, lanes: int) -> str | None:
        """Return a warning if there are more workers than these lanes can keep busy."""

    def private(self) -> PrivateGenerators:
        """Return what seeds the random generators that the data keeps, except those that decide the data's order."""

    def left(self) -> list[Found]:
        """Return the generators that are not seeded although they may decide what a sample is."""

    def close(self) -> None:
        """Restore the data to what it was before reading."""


@dataclass(frozen=True, kw_only=True)
class LaneTask(torch_data.IterableDataset[object]):
    """Reads one worker's share of a rank's lanes; without workers, all of them."""

    config: LoaderConfig
    places: Sequence[Any]  # of the rank's lanes; those in a later cycle have ended
    cycle: int  # the cycle to read
    turn: int  # the row of the lane that comes next
    private: PrivateGenerators
    buffers: BufferPool = field(default_factory=BufferPool)

    def __iter__(self) -> Iterator[Sealed]:
        info = torch_data.get_worker_info()
        with sendable_errors():
            yield from map(seal, self.seeded_items(info.id, info.num_workers) if info else self.seeded_items(0, 1))

    def seeded_items(self, worker: int, workers: int) -> Iterator[Item | None]:
        """Yield the items; their samples' seeds seed the generators that the data keeps."""
        return self.private.each(self.items(worker, workers))

    @property
    def data(self) -> object:
        """The user's dataset."""
        raise NotImplementedError

    def items(self, worker: int, workers: int) -> Iterator[Item | None]:
        """Yield what the worker's slots give; None from a slot without a lane, or whose lane has ended."""
        raise NotImplementedError

    def make_batch(self, samples: list[Any], seeds: SampleSeeds) -> object:
        """Collate samples under their seeds."""
        collate = self.config.collate_fn
        with BatchMemory(self.buffers):
            if self.config.batch_size is None:
                if collate is None:
                    return samples[0]
                if seeds.row is None:  # no step has just drawn for the sample: there is none, or it ran at the read
                    seeds.enter_batch()
                return collate(samples[0])
            if collate is None:
                return stack(samples)
            seeds.enter_batch()  # stacking draws nothing
            return collate(samples)


def run_task(task: LaneTask, seed: int, num_workers: int) -> Iterator[Item]:
    """Yield the items of a task, in the same order for any number of workers.

    The workers are seeded by `seed` and their number.
    """
    config = task.config
    pinned = should_pin(config.pin_memory, None if config.device is None else torch.device(config.device))
    items: Iterator[Item | None]
    if num_workers:
        items = _from_workers(task, seed, num_workers, pinned)
    else:
        items = on_host(task.seeded_items(0, 1))
        items = map(pin, items) if pinned else items
    return (item for item in items if item is not None)


def check_no_index(dataset: object, config: LoaderConfig, order: str) -> None:
    """Raise a ValueError for settings of data with an index. `order` says what decides the order of this data."""
    for name in ("shuffle", "order", "plan"):
        if value := getattr(config, name):
            raise ValueError(
                f"loader: {name}={value!r} is for data with an index, and {type(dataset).__name__} is a stream: "
                f"{order}. Leave it out."
            )
    if config.engine == "threads":
        raise ValueError(
            f"loader: engine='threads' is for data with an index, and {type(dataset).__name__} is a stream, which processes "
            "read. Leave it out."
        )
    if config.tail == "pad":
        raise ValueError(
            "loader: tail='pad' is for data with an index: nobody knows how many samples a stream lacks. Give steps=, or "
            "stop='repeat': all ranks then have as many batches."
        )


def _from_workers(task: LaneTask, seed: int, num_workers: int, pinned: bool) -> Iterator[Item | None]:
    config = task.config
    check_children(num_workers)
    task = replace(task, config=replace(config, store=None))  # workers ask no other rank, and a store may not pickle
    start = choose_start(config.multiprocessing_context, task)
    warn_of_open_files(task.data, start.method)
    # With its own generator the DataLoader does not draw from the global one.
    generator = torch.Generator().manual_seed(derive_seed("torch", seed))
    crew = Crew(start, task)
    loader = torch_data.DataLoader(
        task,
        batch_size=None,
        collate_fn=_as_it_is,
        generator=generator,
        num_workers=num_workers,
        pin_memory=pinned,
        prefetch_factor=config.prefetch_factor,
        multiprocessing_context=crew.context,
        worker_init_fn=StartWorker(config.worker_init_fn, attrgetter("data")),
        timeout=config.timeout,
    )
    with crew.starting():
        return Batches(iter(loader), crew, config.timeout)


def _as_it_is(item: object) -> object:
    return item
