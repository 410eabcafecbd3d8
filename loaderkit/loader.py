"""The Loader: runs a plan over an engine and counts what it yields."""

import dataclasses
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, Self

import torch
import torch.utils.data as torch_data

from loaderkit.config import LoaderConfig
from loaderkit.cursor import Cursor, Identity, fingerprint, pack_state, saved_order, unpack_state
from loaderkit.engine import Engine, make_engine
from loaderkit.feed import Feed
from loaderkit.order import Sequential
from loaderkit.plan import BatchPlan, Plan, Tail
from loaderkit.sampling import SamplerOrder, as_order
from loaderkit.seeding import Int64Array
from loaderkit.shard_order import ShardOrder, shuffled_order
from loaderkit.transfer import to_device
from loaderkit.world import World


class Loader:
    """Batches of a dataset, over ranks and workers, that resume anywhere.

    Takes what `torch.utils.data.DataLoader` takes. Each `iter()` is an epoch:
    the one that a loaded state or `seek` stands in, from there on; otherwise
    the next one. `len()` counts the whole epoch.

    Args:
        dataset: Anything with `__len__` and `__getitem__`; `__getitems__` is
            used where there is one.
        batch_size: Samples a batch and rank. None: each sample as it is.
        shuffle: A new order each epoch, a function of (seed, epoch) alone: Shuffled,
            or a ShardOrder with a block of one batch where the dataset has `shard_sizes`.
        seed: Of order and random augmentations; the same on every rank.
        order: Another order, or a sampler, in place of `shuffle`.
        plan: Another way to make batches, in place of order and batch size.
        collate_fn: From a list of samples to a batch; stacks by default.
        num_workers: Worker processes; 0 reads in this one.
        drop_last: The same as tail="drop".
        tail: At an epoch's end: "keep" spreads what is left evenly over the
            ranks, "drop" leaves an incomplete step out, "pad" fills it up.
        world: This rank and the number of ranks; found out by default.
        device: Where batches go; None leaves them on the host.
        pin_memory: "auto" pins for CUDA and nowhere else.
        engine: "inline", "torch" (worker processes), or "auto".
        prefetch_factor: Batches that each worker makes ahead (2).
        persistent_workers: Keep the workers between epochs. They don't see
            what is changed in the dataset afterwards. Off by default.
        multiprocessing_context: "fork", "forkserver" or "spawn".
        worker_init_fn: Called with the worker's number when it starts.
        timeout: Seconds to wait for a worker's batch; 0 is for ever.

    Raises:
        TypeError: If the dataset has no length or index.
        ValueError: If a setting is out of range, or two contradict each other.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        *,
        shuffle: bool = False,
        seed: int = 0,
        order: Any = None,
        plan: Plan | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        num_workers: int = 0,
        drop_last: bool = False,
        tail: Tail = "keep",
        world: World | None = None,
        device: torch.device | str | None = None,
        pin_memory: bool | Literal["auto"] = "auto",
        engine: Literal["auto", "inline", "torch"] = "auto",
        prefetch_factor: int | None = None,
        persistent_workers: bool | None = None,
        multiprocessing_context: Any = None,
        worker_init_fn: Callable[[int], None] | None = None,
        timeout: float = 0,
    ) -> None:
        self.dataset = dataset
        self.config = LoaderConfig(
            batch_size=batch_size,
            shuffle=shuffle,
            seed=seed,
            order=order,
            plan=plan,
            collate_fn=collate_fn,
            num_workers=num_workers,
            drop_last=drop_last,
            tail=tail,
            world=world,
            device=None if device is None else str(device),
            pin_memory=pin_memory,
            engine=engine,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            multiprocessing_context=multiprocessing_context,
            worker_init_fn=worker_init_fn,
            timeout=timeout,
        )
        self._device = None if device is None else torch.device(device)
        self._size = _check_dataset(dataset)
        self._plan = self._make_plan()
        self._engine: Engine | None = None
        self._origin = Cursor()  # where the current epoch's iteration began, or will begin
        self._yielded = 0  # batches since then
        self._begun = False  # whether an iterator has started at the origin
        self._turn = 0  # an iterator of an earlier turn is over
        self._trained_by_epochs = False
        self._loaded_step: int | None = None  # of the run that wrote the loaded state
        self._said: set[str] = set()

    @classmethod
    def from_config(cls, dataset: Any, config: LoaderConfig, **changes: Any) -> Self:
        """Make a loader from settings, with some of them changed."""
        settings = {f.name: getattr(config, f.name) for f in dataclasses.fields(config)} | changes
        return cls(dataset, **{**settings, "shuffle": bool(settings["shuffle"])})

    @property
    def batch_size(self) -> int | None:
        """Samples a batch and rank."""
        return self.config.batch_size

    @property
    def world(self) -> World:
        """Who shares the data, as found out now."""
        return self.config.world or World.detect()

    @property
    def cursor(self) -> Cursor:
        """Where the loader stands: behind the last batch that it yielded."""
        plan = self._bound_plan()
        return plan.placed(plan.advance(self._origin, self._yielded))

    @property
    def upcoming(self) -> Cursor:
        """Where the next `iter()` begins."""
        cursor = self.cursor
        return cursor.next_epoch() if self._begun and cursor.samples else cursor

    def advance(self, cursor: Cursor, batches: int) -> Cursor:
        """Return the cursor that comes so many of this loader's batches after another."""
        plan = self._bound_plan()
        return plan.placed(plan.advance(cursor, batches))

    def __iter__(self) -> Iterator[Any]:
        # Nothing starts before the first next(): Trainers call iter() more often than they iterate.
        return _Epoch(self)

    def __len__(self) -> int:
        return self._bound_plan().batches(self.cursor.epoch)

    def indices(self, epoch: int, batch: int) -> Int64Array:
        """Return which samples (B,) are in a batch of this rank, without reading data.

        Raises:
            IndexError: If the epoch has no such batch.
        """
        return self._bound_plan().batch(Cursor(epoch=epoch), batch).indices

    def seek(self, *, epoch: int, samples: int = 0) -> None:
        """Jump: the next `iter()` begins in this epoch, after so many samples of all ranks together.

        Raises:
            ValueError: If the epoch has fewer samples.
        """
        cursor = Cursor(epoch=epoch, samples=samples)
        size = self._plan.order.size(epoch) if samples and isinstance(self._plan, BatchPlan) else samples
        if samples > size:
            raise ValueError(f"loader: seek to sample {samples:,}, wanted at most the epoch's {size:,}.")
        self._stand_at(cursor)

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last yielded batch: under 1 KB, and the same on every rank."""
        if self._trained_by_epochs:
            self._say(
                "A Trainer saves the state of a Loader that was handed to it directly. That resumes exactly after a "
                "kill, but a checkpoint saved by an exception, by a signal or within a gradient accumulation counts "
                "batches that were not learnt, and `trainer.estimated_stepping_batches` makes Lightning drop the "
                "state. Use loaderkit.DataModule, which is exact in all these cases."
            )
        return self.state_at(self.cursor)

    def state_at(self, cursor: Cursor) -> dict[str, Any]:
        """Return the state that stands for a cursor of this loader."""
        return pack_state(cursor, self._identity(cursor.epoch), self._bound_plan().step)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a saved position; the next `iter()` continues from it.

        The world, the batch size and the number of workers may have changed.

        Raises:
            ValueError: If the state is not one of this data, order and seed.
        """
        before = self._plan
        self._plan = self._plan_of(saved_order(state))
        try:
            self._stand_at(unpack_state(state, self._identity))
        except ValueError:
            self._plan = before
            raise
        self._loaded_step = state.get("step")

    def follow(self, other: "Loader") -> None:
        """Keep to the order of a loader in whose place this one stands, where it is another for the batch size alone."""
        if isinstance(getattr(other._plan, "order", None), ShardOrder):
            self._plan = self._plan_of(other._plan.key(0))

    def close(self) -> None:
        """Stop the workers; a later `iter()` starts them again."""
        if self._engine is not None:
            self._engine.close()
            self._turn += 1

    @property
    def batch_sampler(self) -> Any:
        """What a Trainer calls `sampler.set_epoch` on at the start of each of its epochs."""
        return _BatchSampler(self)

    def _set_epoch(self, epoch: int) -> None:
        # Lightning loads no loader state from a checkpoint at an epoch's end; this puts the loader there.
        self._trained_by_epochs = True
        step = self._bound_plan().step
        if self._loaded_step not in (None, step):
            raise RuntimeError(
                f"cannot resume under this Trainer: it counts batches, and the checkpoint's steps had "
                f"{self._loaded_step} samples over all ranks, now they have {step}. Hand the data over in a "
                "loaderkit.DataModule, which puts the Trainer's counts right, or keep the world and the batch size."
            )
        if self.cursor.epoch < epoch:
            self._stand_at(Cursor(epoch=epoch))

    def _stand_at(self, cursor: Cursor) -> None:
        self._origin, self._yielded, self._begun = cursor, 0, False
        self._turn += 1

    def _identity(self, epoch: int) -> Identity:
        dataset = fingerprint(self.dataset, self._size)
        return Identity(dataset=dataset, order=self._plan.key(epoch), seed=self.config.seed)

    def _make_plan(self) -> Plan:
        config = self.config
        if config.plan is not None:
            return config.plan
        if config.order is not None:
            order = as_order(config.order, seed=config.seed)
        elif config.shuffle:
            order = shuffled_order(self.dataset, self._size, seed=config.seed, batch_size=config.batch_size)
        else:
            order = Sequential(self._size)
        if order.reach > self._size:
            raise ValueError(
                f"loader: the order has indices up to {order.reach - 1:,}, the dataset {self._size:,} samples. "
                "Make the order for this dataset."
            )
        return BatchPlan(order=order, batch_size=config.batch_size, tail=config.tail_policy)

    def _plan_of(self, key: str) -> Plan:
        """Return the plan with which a run continues in the order that a state names, under another batch size too."""
        plan = self._plan
        if self.config.shuffle and isinstance(plan, BatchPlan) and isinstance(plan.order, ShardOrder):
            return dataclasses.replace(plan, order=plan.order.with_block_of(key))
        return plan

    def _bound_plan(self) -> Plan:
        world = self.world
        if self._plan.world != world:
            self._plan = self._plan.with_world(world)
        return self._plan

    def _begin(self, epoch: "_Epoch") -> Iterator[Any]:
        """Start an iteration: at the place that was set, or at the start of the next epoch."""
        cursor = self.upcoming
        self._stand_at(cursor)
        self._begun, epoch.turn = True, self._turn
        self._check_sampler(cursor.epoch)
        plan = self._bound_plan()
        epoch.left = plan.remaining(cursor)
        if epoch.left == 0:
            self._say(
                f"Loader: no batches in epoch {cursor.epoch}: {self._size:,} samples, batch size {self.batch_size}, "
                f"{self.world.size} ranks, tail={self.config.tail_policy!r}."
            )
            return iter(())
        if epoch.left < self.config.num_workers and not cursor.samples:
            self._say(
                f"Loader: {self.config.num_workers} workers for {epoch.left} batches an epoch: "
                f"{self.config.num_workers - epoch.left} of them will be idle."
            )
        if self._engine is None:
            feed = Feed(self.dataset, self.config.collate_fn, self.config.seed, batched=self.batch_size is not None)
            self._engine = make_engine(feed, self.config)
        return self._engine.run(plan.keys(cursor))

    def _check_sampler(self, epoch: int) -> None:
        order = getattr(self._plan, "order", None)
        if isinstance(order, SamplerOrder) and "sampler" not in self._said:
            self._said.add("sampler")
            if not order.is_repeatable(epoch):
                self._say(
                    "Loader: the sampler gives another order each time it is asked for the same epoch, so that "
                    "a resume in a new process cannot be exact (it will be refused). Let it draw from torch's, numpy's "
                    "or random's global generator, which are seeded here for each epoch."
                )

    def _say(self, message: str) -> None:
        if message not in self._said:
            self._said.add(message)
            warnings.warn(message, UserWarning, stacklevel=4)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_engine": None}


class _Epoch:
    """One pass over a loader."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._batches: Iterator[Any] | None = None
        self.left = math.inf
        self.turn = 0

    def __iter__(self) -> "_Epoch":
        return self

    def __next__(self) -> Any:
        loader = self._loader
        if self._batches is None:
            self._batches = loader._begin(self)
        if self.left == 0:
            raise StopIteration
        if loader._turn != self.turn:
            raise RuntimeError(
                "loader: this iterator is over: the loader was moved, iterated anew, or failed since. Call iter(loader)."
            )
        try:
            batch = next(self._batches)
            if loader._device is not None:
                batch = to_device(batch, loader._device)
        except BaseException as error:
            loader._turn += 1  # an engine may be beyond the batch that failed
            if isinstance(error, StopIteration):  # it would end the epoch without a word
                raise RuntimeError(
                    f"loader: the data ended {self.left} batches too early, by StopIteration."
                ) from error
            raise
        self.left -= 1
        if self.left == 0:
            self._batches = iter(())  # lets workers go that don't persist
        # Counted before the batch is handed on: a consumer may never come back.
        loader._yielded += 1
        return batch


class _BatchSampler:
    """Stands in for a DataLoader's batch sampler, for those who set epochs through it."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    @property
    def sampler(self) -> "_BatchSampler":
        return self

    def set_epoch(self, epoch: int) -> None:
        self._loader._set_epoch(epoch)


def _check_dataset(dataset: Any) -> int:
    if isinstance(dataset, torch_data.IterableDataset):
        raise TypeError(
            f"loader: {type(dataset).__name__} is an IterableDataset, wanted data with __len__ and __getitem__: "
            "a stream has no positions to resume at. Use lk.StreamLoader(lk.StreamDataset(shards, read), batch_size), "
            "or torch's DataLoader, which resumes nowhere."
        )
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise TypeError(
            f"loader: {type(dataset).__name__} has no __len__ or no __getitem__, wanted a dataset with both."
        )
    return len(dataset)
