"""The Loader: yields batches of any data and counts them."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, Never, Self

import torch
import torch.utils.data as torch_data

from loaderkit.datasets.bad_samples import RAISE, BadSample, BadSamples
from loaderkit.device.cuda import HostBatches
from loaderkit.engine.description import Description
from loaderkit.loader.brief import brief_data, brief_settings
from loaderkit.loader.checks import check_names
from loaderkit.loader.config import LoaderConfig, Stop
from loaderkit.loader.epoch import Epoch
from loaderkit.loader.indexed import IndexedPosition
from loaderkit.loader.position import Position
from loaderkit.loader.trainer_epochs import TrainerEpochs
from loaderkit.sampling.cursor import Cursor
from loaderkit.sampling.plan import Plan, Tail
from loaderkit.system.arrays import Int64Array
from loaderkit.system.world import World


class Loader:
    """Batches of a dataset or a stream, over ranks and workers, that resume anywhere.

    Takes what `torch.utils.data.DataLoader` takes. Each `iter()` is an epoch:
    the one that a loaded state or `seek` stands in, from there on; otherwise
    the next one. `len()` counts the whole epoch.

    A stream has the seed, and says whether to shuffle. A batch holds samples of one
    of its lanes; the rank's lanes take turns, and a lane's last batch may be
    smaller. An epoch reads the stream once; with `steps` it is so many batches, and the
    stream goes on from epoch to epoch, beginning anew at its end. Without `steps`
    there is no `len()`. Its state is exact on as many ranks; on another number, or with
    another batch size, each sample still comes once. `indices`, and `seek` to a
    sample, are for data with an index.

    An ordinary IterableDataset splits itself over ranks and workers, and is told
    the epoch by `set_epoch` where it has that. It resumes exactly on as many ranks and
    workers (others are refused), if it gives the same samples again: by reading
    again what was read, or from its own `state_dict()` where it has one. What it
    draws belongs to (seed, epoch, rank, worker, number of the sample).

    Args:
        dataset: Anything with `__len__` and `__getitem__` (`__getitems__` is used
            where there is one), a StreamDataset, or an IterableDataset. One whose attribute `draws_nothing` is true
            is read without seeding its samples; so is one whose `draws_only_sample_rng` is true, which draws from
            `lk.sample_rng()` alone. They may stand on a transform of an adapter, too.
        batch_size: Samples a batch and rank. None: each sample as it is.
        shuffle: A new order each epoch, a function of (seed, epoch) alone: Shuffled,
            or a ShardOrder with a block of one batch where the dataset has `shard_sizes`.
        seed: Of order and random augmentations; the same on every rank.
        order: Another order, or a sampler, in place of `shuffle`.
        plan: Another way to make batches, in place of order and batch size.
        collate_fn: From a list of samples to a batch; stacks by default. It is not seeded if it says that it draws nothing.
        num_workers: Worker processes, or threads; 0 reads in this one. "auto": this rank's share of the CPUs that the host's
            affinity and control groups allow, less one for the trainer; 1 to 16.
        drop_last: The same as tail="drop".
        tail: At an epoch's end: "keep" spreads what is left evenly over the
            ranks, "drop" leaves an incomplete step out, "pad" fills it up. Of a
            stream, "drop" leaves out a lane's last batch if it is smaller.
        world: This rank and the number of ranks; found out by default.
        device: Where batches go; None leaves them on the host.
        pin_memory: "auto" pins for CUDA and nowhere else.
        engine: "inline", "torch" (its worker processes), "ring" (workers that write
            into shared memory; on Linux), "threads" (see below), or "auto": with workers the ring (elsewhere
            torch's), until batches are found
            to be made here in less time than it takes to receive them; then here. `describe()` says which.
            Threads read one dataset at once, and neither copy it nor send batches: for reads that wait for a store or a
            service. They can't seed what is the trainer's, so that dataset and collate_fn have to say what they draw: see
            there.
        prefetch_factor: Batches that each worker makes ahead. By default 2 with torch's workers, and 8 with others,
            or as many as take 32 MB in all, but at least 2.
        persistent_workers: Keep the workers between epochs. They don't see
            what is changed in the dataset afterwards (threads do). Off by default; those of a
            stream always start anew.
        multiprocessing_context: "fork", "forkserver" or "spawn".
        worker_init_fn: Called with the worker's number when it starts.
        timeout: Seconds to wait for a worker's batch; 0 is for ever.
        steps: Of a stream: batches an epoch, on each rank.
        stop: Of a stream: when an epoch without `steps` ends on several ranks.
            "shortest": after the last step that all ranks have a batch for; the rest
            is left out. "repeat": when all ranks have read their part; those
            that have begin theirs anew until then. Both ask all ranks at each step.
            "each": each rank after its own part, so that numbers of batches
            differ: for work without collectives.
        store: Of a stream: where ranks meet; by default the store of
            torch.distributed's process group.
        meet_timeout_s: How long to wait for other ranks there.
        bad_samples: What is done where a sample can't be read; by default its error is raised.

    Raises:
        TypeError: If the data is neither indexed nor a stream, or a setting has another name here than in `DataLoader`.
        ValueError: If a setting is out of range, two contradict each other, or one
            is not for this kind of data, as threads are not for data that may draw from global generators.
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
        num_workers: int | Literal["auto"] = 0,
        drop_last: bool = False,
        tail: Tail = "keep",
        world: World | None = None,
        device: torch.device | str | None = None,
        pin_memory: bool | Literal["auto"] = "auto",
        engine: Literal["auto", "inline", "torch", "ring", "threads"] = "auto",
        prefetch_factor: int | None = None,
        persistent_workers: bool | None = None,
        multiprocessing_context: Any = None,
        worker_init_fn: Callable[[int], None] | None = None,
        timeout: float = 0,
        steps: int | None = None,
        stop: Stop | None = None,
        store: Any = None,
        meet_timeout_s: float = 60,
        bad_samples: BadSamples = RAISE,
        **unknown: Never,
    ) -> None:
        check_names(unknown)
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
            steps=steps,
            stop=stop,
            store=store,
            meet_timeout_s=meet_timeout_s,
            bad_samples=bad_samples,
        )
        self._device = None if device is None else torch.device(device)
        self._position = _make_position(dataset, self.config)
        self._trainer_epochs = TrainerEpochs(self._position)
        self._copied = HostBatches()

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
        return self._position.crew.world

    @property
    def cursor(self) -> Cursor:
        """Where the loader stands: behind the last batch that it yielded. Nobody counts the `samples` of a stream: 0."""
        return self._position.cursor

    @property
    def bad_samples(self) -> list[BadSample]:
        """The last 1,000 samples that were skipped or replaced in batches of this loader."""
        return list(self._position.bad.found)

    def __iter__(self) -> Iterator[Any]:
        # Nothing starts before the first next(): Trainers call iter() more often than they iterate.
        return Epoch(self._position, self._device, self._copied)

    def __len__(self) -> int:
        return self._position.length()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({brief_data(self.dataset)}, {brief_settings(self.config, self.world)})"

    def indices(self, epoch: int, batch: int) -> Int64Array:
        """Return which samples (B,) are in a batch of this rank, without reading data.

        Raises:
            IndexError: If the epoch has no such batch.
            TypeError: If the data is a stream.
        """
        return self._position.indices(epoch, batch)

    def seek(self, *, epoch: int, samples: int = 0) -> None:
        """Jump: the next `iter()` begins in this epoch, after so many samples of all ranks together.

        Raises:
            ValueError: If the epoch is negative or has fewer samples.
            TypeError: If the data is a stream and samples is not 0.
        """
        self._position.seek(epoch, samples)

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last yielded batch, the same on every rank.

        It has less than 1 KB, for a stream some 30 bytes a lane. Ranks that read a stream have to call this at the
        same batch; where one does not come in time, or there is no store to meet in, the state says which it misses.
        """
        self._trainer_epochs.warn_about_saving()
        return self._position.state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a saved position; the next `iter()` continues from it.

        The world, the batch size and the number of workers may have changed.

        Raises:
            ValueError: If the state is not one of this data, order and seed, or misses a rank.
        """
        self._position.load(state)
        self._trainer_epochs.note_loaded(state)

    def describe(self) -> Description:
        """Say who makes the batches and why, with how many workers, and whether they are pinned; `print` shows it in lines.

        With engine="auto" it is decided after some batches.
        """
        return self._position.describe()

    def close(self) -> None:
        """Stop the workers; a later `iter()` starts them again."""
        self._position.discard_ahead()
        self._position.close()

    @property
    def batch_sampler(self) -> Any:
        """An object that only takes `sampler.set_epoch(epoch)`: Lightning looks there to tell a loader its epoch.

        A Loader is not a DataLoader and has no batch sampler. This one stands in because Lightning has no other way to say
        which epoch it starts.
        """
        return self._trainer_epochs


def _make_position(dataset: Any, config: LoaderConfig) -> Position:
    if not isinstance(dataset, torch_data.IterableDataset):
        return IndexedPosition(dataset, config)
    from loaderkit.loader.streams import StreamPosition  # few need it, and its import takes time

    return StreamPosition(dataset, config)
