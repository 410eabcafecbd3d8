"""The Loader: yields batches of any data, and counts them."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, Never, Self

import torch
import torch.utils.data as torch_data

from loaderkit.datasets.bad_samples import RAISE, BadSample, BadSamples
from loaderkit.device.cuda import HostBatches
from loaderkit.engine.description import Description
from loaderkit.loader.checks import check_cursor, check_names, check_skip, in_pieces
from loaderkit.loader.config import IN_THIS_PROCESS, LoaderConfig, Stop
from loaderkit.loader.downloads import Downloads
from loaderkit.loader.epoch import Epoch
from loaderkit.loader.indexed import IndexedPosition
from loaderkit.loader.position import Position
from loaderkit.loader.settings import Batch, FixedSettings
from loaderkit.loader.summary import describe_data, summary
from loaderkit.loader.trainer_epochs import RepeatingEpochs, TrainerEpochs
from loaderkit.sampling.cursor import Cursor
from loaderkit.sampling.plan import Plan, Tail
from loaderkit.seeding.private import PrivatePolicy
from loaderkit.seeding.watched import GlobalPolicy
from loaderkit.system.arrays import Int64Array
from loaderkit.system.checks import plain_integer
from loaderkit.system.html import table
from loaderkit.system.tables import by_position
from loaderkit.system.world import Ranks, World


class Loader(FixedSettings[Batch]):
    """Yields batches over ranks and workers, and resumes anywhere.

    Its data is a dataset or a stream. It takes the arguments of `torch.utils.data.DataLoader`, and more. Each `iter()`
    is one epoch. It starts at the position that `load_state_dict`, `seek` or `set_epoch` chose; otherwise it is the
    next epoch. The order of samples and their random numbers depend on the seed and the epoch alone, not on the workers
    or on `torch.manual_seed` (see `lk.torch_seed`).

    | setting | meaning (`LoaderConfig` documents all of them) |
    |---|---|
    | `batch_size` | samples in a batch of one rank; None yields single samples |
    | `shuffle`, `seed` | a new order in each epoch, the same on every rank |
    | `num_workers` | processes that read; "auto" counts the CPUs |
    | `collate_fn` | makes a batch from a list of samples; the default stacks them, or packs rows of `data.pack(...)` |
    | `tail` | "keep", "drop" or "pad" the samples that do not fill a step of all ranks |
    | `order` | a sampler, or an order such as `Weighted`, in place of `shuffle` |
    | `plan`, `batch_sampler` | batches by length, such as `LengthBuckets`, or lists of indices, in place of `batch_size` |
    | `steps`, `stop` | when an epoch of a stream ends |

    Settings do not change: make another Loader with `from_config`. A copy (`pickle`, `copy.deepcopy`) continues after the
    last batch that the original yielded. `StreamDataset` describes what differs for streams.

    Args:
        dataset: A dataset with `__len__` and `__getitem__` (or `__getitems__`, which reads a batch at once), a
            StreamDataset, or another IterableDataset. If its attribute `draws_nothing` is true, the Loader seeds no
            generator for its samples. If `draws_only_sample_rng` is true, it seeds only `lk.sample_rng()`. If one of them and
            `thread_safe` are true, threads read it where Python has no GIL. A dataset may change its length between
            epochs only.

    Raises:
        TypeError: If the data is neither indexed nor a stream, or an argument is not a setting.
        ValueError: If a setting is out of range, is not for this kind of data, or contradicts another.

    Examples:
        >>> data = lk.ArrayDataset({"x": torch.arange(10.0).reshape(10, 1), "y": np.arange(10)})
        >>> loader = lk.Loader(data, batch_size=4, shuffle=True, seed=1)
        >>> batches = iter(loader)
        >>> batch = next(batches)
        >>> len(loader), batch["x"].shape, batch["y"].dtype
        (3, torch.Size([4, 1]), torch.int64)

        Save the state after any batch, and continue from there in another process.

        >>> again = lk.Loader(data, batch_size=4, shuffle=True, seed=1)
        >>> again.load_state_dict(loader.state_dict())
        >>> [bool(torch.equal(a["x"], b["x"])) for a, b in zip(again, batches)]
        [True, True]
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        *,
        shuffle: bool = False,
        seed: int = 0,
        order: Any = None,
        batch_sampler: Any = None,
        plan: Plan | None = None,
        collate_fn: Callable[[list[Any]], Batch] | None = None,
        num_workers: int | Literal["auto"] = 0,
        drop_last: bool = False,
        tail: Tail = "keep",
        world: "Ranks | None" = None,
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
        private_generators: PrivatePolicy | None = None,
        seeders: Sequence[Callable[[int], object]] = (),
        global_generators: GlobalPolicy = "watch",
        **unknown: Never,
    ) -> None:
        given = locals()
        names = [each.name for each in dataclasses.fields(LoaderConfig)]
        check_names(unknown, names)
        settings = {name: given[name] for name in names}
        dataset = by_position(dataset)
        if isinstance(plan, Plan):  # anything else is refused with the settings
            dataset = in_pieces(dataset, plan, collate_fn)
        self.dataset = dataset
        self.config = LoaderConfig(**settings | {"device": None if device is None else str(device)})
        self._device = None if device is None else torch.device(device)
        self._position = _make_position(dataset, self.config)
        self._trainer_epochs = (RepeatingEpochs if self._position.repeats else TrainerEpochs)(self._position)
        self._copied = HostBatches()

    @classmethod
    def from_config(cls, dataset: Any, config: LoaderConfig, **changes: object) -> Self:
        """Make a loader from a config, with some settings changed."""
        settings = {f.name: getattr(config, f.name) for f in dataclasses.fields(config)} | changes
        return cls(dataset, **{**settings, "shuffle": bool(settings["shuffle"])})

    def in_this_process(self, **changes: object) -> "Loader[Batch]":
        """Make a loader of the same data that uses no workers, with some settings changed. It stands at the start."""
        return Loader.from_config(self.dataset, self.config, **IN_THIS_PROCESS, **changes)

    @property
    def position(self) -> Position:
        """The loader's position in its data, for integrations with trainers."""
        return self._position

    @property
    def num_workers(self) -> int:
        """The number of workers. For "auto" it is the number that was chosen."""
        return self.position.crew.num_workers

    @property
    def world(self) -> World:
        """The rank of this process and the number of ranks, as detected now."""
        return self.position.crew.world

    @property
    def cursor(self) -> Cursor:
        """The position after the last yielded batch. Its `samples` are 0 for a stream, which does not count them."""
        return self.position.cursor

    @property
    def bad_samples(self) -> list[BadSample]:
        """The last 1,000 samples that this loader skipped or replaced."""
        return list(self.position.bad.found)

    @property
    def downloads(self) -> Downloads | None:
        """What this rank has downloaded from remote shards since the data was made; None if nothing. Read it at any time.

        The Storage counts its downloads, so loaders whose data shares a Storage report the same numbers. A stream's
        downloads are counted if its reader has `storage=`. Downloads by worker processes are counted on Linux only.
        """
        return self.position.downloads()

    def __iter__(self) -> Iterator[Batch]:
        # Nothing starts before the first next(), because Trainers call iter() more often than they iterate.
        return Epoch(self.position, self._device, self._copied)

    def __len__(self) -> int:
        return self.position.length()

    def __repr__(self) -> str:
        world = self.world
        return f"{type(self).__name__}({describe_data(self.dataset)}, {self.config}, rank {world.rank} of {world.size})"

    def _repr_html_(self) -> str:
        return table(type(self).__name__, summary(self.dataset, self.config, self.world, self.cursor))

    def indices(self, epoch: int, batch: int) -> Int64Array:
        """Return the indices (B,) of the samples in a batch of this rank, or the keys of a user's sampler, without reading data.

        Raises:
            IndexError: If the epoch has no such batch.
            TypeError: If the data is a stream.
        """
        return self.position.indexed("indices()").plan.indices(plain_integer(epoch), plain_integer(batch))

    def seek(self, *, epoch: int, samples: int = 0) -> None:
        """Let the next `iter()` start in this epoch, after this many samples of all ranks together.

        Raises:
            ValueError: If the epoch is negative or has fewer samples.
            TypeError: If the data is a stream and samples is not 0.
        """
        self.position.seek(plain_integer(epoch), plain_integer(samples))

    def skip(self, *, epoch: int, steps: range | Sequence[range] = (), samples: range | Sequence[range] = ()) -> None:
        """Leave out ranges of an epoch from now on: the samples after a gap follow the samples before it.

        All ranks must leave out the same. The epoch has fewer batches, each as full as before, and `len()` counts them.
        Other epochs are whole. The ranges are part of the state, about 25 bytes each, and hold on any number of ranks and
        for any batch size. The samples that stay keep their random numbers. What was delivered already cannot be left out:
        that part of a range has no effect, so it does no harm to call this again. A running iterator is over; the next
        `iter()` continues the epoch.

        Args:
            epoch: The epoch that the ranges belong to.
            steps: Steps of all ranks, numbered from 0 as in an epoch without gaps, with this batch size on these ranks.
            samples: Positions in the epoch's order, which `cursor.samples` counts, over all ranks.

        Raises:
            TypeError: If the data is a stream, or a range is not a `range`.
            ValueError: If a range is out of the epoch, or nothing would be left of it. Also if the plan makes batches by
                length or by a batch sampler.

        Examples:
            >>> loader = lk.Loader(range(10), batch_size=2)
            >>> loader.skip(epoch=0, steps=range(1, 3))
            >>> len(loader), [batch.tolist() for batch in loader]
            (3, [[0, 1], [6, 7], [8, 9]])
        """
        epoch = plain_integer(epoch)
        self.position.indexed("skip()").skip(epoch, *check_skip(epoch, steps, samples))

    @property
    def skips(self) -> tuple[tuple[int, int, int], ...]:
        """What `skip` leaves out: for each range the epoch, and the positions of its first sample and of its end."""
        return self.position.skips.stretches

    def replay(self, cursor: Cursor, *, ahead: int = 0) -> Batch:
        """Return a batch of this rank again, bit for bit, without moving the loader.

        It is made in this process, with the same random numbers. `StepLog.replay` finds the cursor of a training step, and
        the settings that the step was trained with.

        Args:
            cursor: The position before the batch: `Cursor(epoch=3)` is the start of epoch 3.
            ahead: Batches to skip after the cursor.

        Raises:
            IndexError: If the epoch has no such batch.
            TypeError: If the data is a stream, or `cursor` is not a Cursor.

        Examples:
            >>> loader = lk.Loader(range(10), batch_size=4, shuffle=True)
            >>> batches = list(loader)
            >>> bool(torch.equal(loader.replay(lk.Cursor(epoch=0), ahead=2), batches[2]))
            True
        """
        check_cursor(cursor)
        batch: Batch = self.position.indexed("replay()").plan.replay(cursor, plain_integer(ahead))
        return batch if self._device is None else self._copied.copy(batch, self._device)

    def set_epoch(self, epoch: int) -> None:
        """Let the next `iter()` be a pass of this epoch; a position inside this epoch stays as it is.

        Trainers call it before each epoch, so a run that resumes inside an epoch continues there.

        Raises:
            ValueError: If the epoch is negative.
        """
        if self.position.cursor_at(self.position.upcoming()).epoch != epoch:
            self.position.seek(plain_integer(epoch), 0)

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last yielded batch, the same on every rank.

        It takes less than 1 KB with up to 20 skipped ranges; for a stream, about 30 bytes for each lane. Ranks that read a
        stream must call this at the same batch. The state names the ranks that did not answer in time; see `merge_states`.
        """
        self._trainer_epochs.warn_about_saving()
        return self.position.state()

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Go to a saved position; the next `iter()` continues from it.

        The number of ranks, the batch size and the number of workers may differ from those of the saved run. The next pass says
        where it starts in the log "loaderkit", at level INFO on rank 0.

        Raises:
            StateError: If the state has other data, another order or another seed, misses a rank, or is damaged.
        """
        self.position.resume(state)
        self._trainer_epochs.note_loaded(state)

    def describe(self) -> Description:
        """Describe what makes the batches and why, with how many workers, and whether they are pinned."""
        found, downloads = self.position.describe(), self.downloads
        return dataclasses.replace(found, downloads=None if downloads is None else str(downloads))

    def close(self) -> None:
        """Stop the workers. A later `iter()` starts them again."""
        self.position.discard_ahead()
        self.position.close()

    @property
    def sampler(self) -> TrainerEpochs:
        """The indices that this rank reads in the coming epoch, as a sampler; its `set_epoch` is for Trainers.

        It is a SequentialSampler if every epoch is the same. Otherwise Lightning refuses the Loader under `overfit_batches`,
        because it cannot turn off the shuffling. Give `shuffle=False` or an lk.DataModule there.
        """
        return self._trainer_epochs

    @property
    def batch_sampler(self) -> object:
        """The same as `sampler`: Lightning calls `loader.batch_sampler.sampler.set_epoch` to tell a loader its epoch."""
        return self._trainer_epochs


class LoaderView(Loader[Batch]):
    """Wraps another Loader and shares its position; the base of DeviceLoader.

    Args:
        loader: The Loader that is read.
    """

    def __init__(self, loader: Loader[Any]) -> None:
        self.loader = loader
        self.dataset, self.config = loader.dataset, loader.config

    @property
    def position(self) -> Position:
        return self.loader.position

    def __iter__(self) -> Iterator[Batch]:
        return iter(self.loader)

    def replay(self, cursor: Cursor, *, ahead: int = 0) -> Batch:
        batch: Batch = self.loader.replay(cursor, ahead=ahead)
        return batch

    def state_dict(self) -> dict[str, Any]:
        return self.loader.state_dict()

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        self.loader.load_state_dict(state)

    def describe(self) -> Description:
        return self.loader.describe()

    @property
    def sampler(self) -> TrainerEpochs:
        return self.loader.sampler

    @property
    def batch_sampler(self) -> object:
        return self.loader.batch_sampler


def _make_position(dataset: object, config: LoaderConfig) -> Position:
    if not isinstance(dataset, torch_data.IterableDataset):
        return IndexedPosition(dataset, config)
    from loaderkit.loader.streams.position import StreamPosition  # few need it, and its import takes time

    return StreamPosition(dataset, config)
