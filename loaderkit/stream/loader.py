"""The StreamLoader: batches of a stream, counted where they are yielded."""

import dataclasses
import hashlib
import json
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import torch

from loaderkit.config import LoaderConfig
from loaderkit.stream.dataset import StreamDataset
from loaderkit.stream.lane import Place
from loaderkit.stream.meeting import Meeting
from loaderkit.stream.rank import RankReader
from loaderkit.stream.state import Position, pack_position, start_of, unpack_position
from loaderkit.transfer import to_device
from loaderkit.world import World

Stop = Literal["shortest", "each"]


class StreamLoader:
    """Batches of a stream, over ranks and workers, that resume exactly.

    A batch holds samples of one lane; the rank's lanes take turns. A lane's last
    batch may be smaller. Batches don't depend on the number of workers. A resume on
    as many ranks gives the batches that were left, bit for bit; on another
    number of ranks, or with another batch size, each sample still comes once.

    Each `iter()` is an epoch: the one that a loaded state or `seek` stands in,
    from there on; otherwise the next one. An epoch reads the stream once; with
    `steps` it is so many batches, and the stream goes on from epoch to epoch,
    beginning anew at its end. Without `steps` there is no `len()`.

    Args:
        stream: A StreamDataset. It has the seed, and says whether to shuffle.
        batch_size: Samples a batch and rank. None: each sample as it is.
        steps: Batches an epoch, on each rank.
        stop: When an epoch without `steps` ends on several ranks. "shortest":
            after the last step that all ranks have a batch for; the rest is left
            out. It asks all ranks at each step. "each": each rank after its own
            data, so that numbers of batches differ: for work without collectives.
        collate_fn: From a list of samples to a batch; stacks by default.
        num_workers: Worker processes; 0 reads in this one.
        drop_last: Leave a lane's last batch out if it is smaller.
        world: This rank and the number of ranks; found out by default.
        device: Where batches go; None leaves them on the host.
        pin_memory: "auto" pins for CUDA and nowhere else.
        prefetch_factor: Batches that each worker makes ahead (2).
        multiprocessing_context: "fork", "forkserver" or "spawn".
        worker_init_fn: Called with the worker's number when it starts.
        timeout: Seconds to wait for a worker's batch; 0 is for ever.
        store: Where ranks meet; by default the store of torch.distributed's process group.
        meet_timeout_s: How long to wait for other ranks there.

    Raises:
        TypeError: If the stream is not a StreamDataset.
        ValueError: If a setting is out of range, or two contradict each other.
    """

    def __init__(
        self,
        stream: StreamDataset,
        batch_size: int | None = 1,
        *,
        steps: int | None = None,
        stop: Stop | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        num_workers: int = 0,
        drop_last: bool = False,
        world: World | None = None,
        device: torch.device | str | None = None,
        pin_memory: bool | Literal["auto"] = "auto",
        prefetch_factor: int | None = None,
        multiprocessing_context: Any = None,
        worker_init_fn: Callable[[int], None] | None = None,
        timeout: float = 0,
        store: Any = None,
        meet_timeout_s: float = 60,
    ) -> None:
        if not isinstance(stream, StreamDataset):
            raise TypeError(
                f"stream loader: {type(stream).__name__} is not a StreamDataset: it has no place to resume at. Wrap what "
                "it reads: lk.StreamDataset(names, read), where read(name, start) yields samples from number start on "
                "(lk.from_start makes one of a plain generator function). Data with an index goes to lk.Loader."
            )
        if steps is not None and (not isinstance(steps, int) or isinstance(steps, bool) or steps < 1):
            raise ValueError(f"stream loader: steps is {steps!r}, wanted an integer of at least 1.")
        if stop not in (None, "shortest", "each"):
            raise ValueError(f"stream loader: stop is {stop!r}, wanted 'shortest', 'each' or None.")
        if steps is not None and stop is not None:
            raise ValueError(f"stream loader: steps={steps} and stop={stop!r} contradict each other. Give one of them.")
        self.dataset = stream
        self.config = LoaderConfig(
            batch_size=batch_size,
            seed=stream.seed,
            collate_fn=collate_fn,
            num_workers=num_workers,
            drop_last=drop_last,
            world=world,
            device=None if device is None else str(device),
            pin_memory=pin_memory,
            prefetch_factor=prefetch_factor,
            multiprocessing_context=multiprocessing_context,
            worker_init_fn=worker_init_fn,
            timeout=timeout,
        )
        self.steps, self.stop = steps, stop
        self._meeting = Meeting(store, meet_timeout_s)
        self._said: set[str] = set()
        self._trained_by_epochs = False
        self._reader: RankReader | None = None  # the rank's lanes, once it is known which those are
        self._turn = 0  # an iterator of an earlier turn is over
        self._stand_at(start_of(0, 1, stream.lanes))

    @property
    def batch_size(self) -> int | None:
        """Samples a batch and rank."""
        return self.config.batch_size

    @property
    def world(self) -> World:
        """Who shares the data, as found out now."""
        return self.config.world or World.detect()

    @property
    def epoch(self) -> int:
        """The epoch of the next batch."""
        return self._epoch

    @property
    def batches(self) -> int:
        """Batches yielded in that epoch."""
        return self._batches

    def __iter__(self) -> Iterator[Any]:
        # Nothing starts before the first next(): Trainers call iter() more often than they iterate.
        return _Epoch(self)

    def __len__(self) -> int:
        if self.steps is None:
            raise TypeError("a StreamLoader has no length: nobody knows how long its data is. Give it steps=.")
        return self.steps

    def seek(self, *, epoch: int) -> None:
        """Jump: the next `iter()` is this epoch, from its start; the stream begins anew there.

        Raises:
            ValueError: If the epoch is negative.
        """
        if epoch < 0:
            raise ValueError(f"stream loader: seek to epoch {epoch}, wanted at least 0.")
        self._stand_at(start_of(epoch, 1, self.dataset.lanes))

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last yielded batch: some 30 bytes a lane, and the same on every rank.

        All ranks have to call it at the same batch. Where one does not come in
        time, or there is no store to meet in, the state says which it misses.
        """
        if self._trained_by_epochs:
            self._say(
                "A Trainer saves the state of a StreamLoader. That resumes exactly where it saves between batches; a "
                "checkpoint saved by an exception, by a signal or within a gradient accumulation counts batches that were "
                "not learnt."
                + (
                    ""
                    if self.steps
                    else " Without a length Lightning fetches one batch ahead, and counts it. Give steps=."
                )
            )
        world, own = self.world, self._own_state()
        if world.size == 1:
            return pack_position(self._position([own]), self._identity())
        if self.stop == "each" or not self._meeting.is_possible:
            parts: list[Any] = [None] * world.size
            parts[world.rank] = own
            return pack_position(self._position(parts), self._identity())
        values = self._exchange("state", json.dumps(own))
        position = self._position([None if value is None else json.loads(value) for value in values])
        if position.missing:
            warnings.warn(
                f"StreamLoader: rank {', '.join(map(str, position.missing))} did not give its state at batch "
                f"{self._batches} of epoch {self._epoch} in time: no run can resume from this state. Call state_dict() on "
                "all ranks.",
                UserWarning,
                stacklevel=2,
            )
        return pack_position(position, self._identity())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a saved position; the next `iter()` continues from it.

        The world, the batch size and the number of workers may have changed.

        Raises:
            ValueError: If the state is not one of this stream, order and seed, or misses a rank.
        """
        position = unpack_position(state, self._identity())
        if self.steps and position.batches >= self.steps:  # of a run with more steps an epoch
            position = dataclasses.replace(position, epoch=position.epoch + 1, batches=0)
        self._stand_at(position)

    def close(self) -> None:
        """Stop the workers; a later `iter()` starts them again."""
        if self._reader is not None:
            self._reader.close()
        self._turn += 1

    @property
    def batch_sampler(self) -> Any:
        """What a Trainer calls `sampler.set_epoch` on at the start of each of its epochs."""
        return _BatchSampler(self)

    def _set_epoch(self, epoch: int) -> None:
        # Lightning loads no loader state from a checkpoint at an epoch's end; this puts the loader there.
        self._trained_by_epochs = True
        if self._epoch >= epoch:
            return
        if self.steps or self._begun:
            raise RuntimeError(
                f"cannot resume under this Trainer: it begins epoch {epoch}, the stream stands in epoch {self._epoch}, and "
                "Lightning restored no loader state (it does not at an epoch's end). Keep loader.state_dict() in your "
                "LightningDataModule's state_dict, and load it in train_dataloader()."
            )
        self.seek(epoch=epoch)

    def _identity(self) -> dict[str, Any]:
        stream = self.dataset
        return {
            "shards": stream.fingerprint(),
            "order": stream.order(),
            "seed": stream.seed,
            "epochs": "of steps" if self.steps else "of the stream",
        }

    def _stand_at(self, position: Position) -> None:
        self.close()
        self._origin = position
        self._epoch, self._batches = position.epoch, position.batches
        self._since = 0  # batches since the origin
        self._reader = None
        self._begun = False  # whether an iterator has started
        self._over = False  # whether the epoch's last batch is yielded

    def _bind(self) -> RankReader:
        """Take this rank's lanes, where they stand."""
        if self._reader is not None:
            return self._reader
        world, lanes, origin = self.world, self.dataset.lanes, self._origin
        if world.size > lanes:
            raise ValueError(
                f"stream loader: {lanes} lanes for {world.size} ranks, wanted at least one for each. "
                f"Give StreamDataset lanes={world.size} or a multiple of it."
            )
        if world.size > 1 and self.steps is None and self.stop is None:
            raise ValueError(
                f"stream loader: {world.size} ranks read data of unknown length, and would have unequal numbers of "
                "batches. Say when an epoch ends: steps=..., stop='shortest', or stop='each'."
            )
        own = range(world.rank, lanes, world.size)
        places = [origin.lanes[lane] or Place() for lane in own]
        turn = origin.turns[world.rank] if len(origin.turns) == world.size else 0
        self._reader = RankReader(self.dataset, self.config, own, places, turn or 0)
        return self._reader

    def _own_state(self) -> dict[str, Any]:
        reader = self._bind()
        return {"turn": reader.turn, "lanes": [list(place) for place in reader.places]}

    def _position(self, parts: list[Any]) -> Position:
        lanes: list[Place | None] = [None] * self.dataset.lanes
        for rank, part in enumerate(parts):
            if part is not None:
                lanes[rank :: len(parts)] = [Place(*place) for place in part["lanes"]]
        turns = [None if part is None else part["turn"] for part in parts]
        return Position(epoch=self._epoch, batches=self._batches, turns=turns, lanes=lanes)

    def _exchange(self, what: str, value: str) -> list[str | None]:
        """Ask all ranks for what they have at this point of the run."""
        run = json.dumps([self._identity(), self.steps, self.stop])
        name = hashlib.blake2b(run.encode(), digest_size=8).hexdigest()
        origin = json.dumps(pack_position(self._origin, {}))
        digest = hashlib.blake2b(origin.encode(), digest_size=12).hexdigest()
        point = f"{what}/{digest}/{self._since}/{self._epoch}/{self._batches}"
        return self._meeting.exchange(name, point, self.world, value)

    def _begin(self, epoch: "_Epoch") -> None:
        """Start an iteration: at the place that was set, or at the start of the next epoch."""
        if self._begun and self._batches:  # left before its end
            self._roll_over()
        reader, shards = self._bind(), len(self.dataset.shards)
        self._turn += 1
        self._begun, self._over, epoch.turn = True, False, self._turn
        lanes = len(reader.places)
        if self.config.num_workers > min(lanes, shards):
            self._say(
                f"StreamLoader: {self.config.num_workers} workers for {shards} shards in {lanes} lanes of this rank: "
                "some of the workers will be idle."
            )
        has_batch = self._has_batch(reader)
        if not has_batch:
            self._say(f"StreamLoader: an epoch without more batches: {self._no_data()}.")
        if not (self._all_go_on("begin", has_batch) if self.stop == "shortest" else has_batch):
            self._roll_over()

    def _next(self) -> Any:
        """Return the epoch's next batch and count it.

        Raises:
            StopIteration: If there is none.
        """
        reader = self._bind()
        if self._over or not self._has_batch(reader):
            raise StopIteration
        batch = reader.take()
        if self.config.device is not None:
            batch = to_device(batch, self.config.device)
        self._batches += 1
        self._since += 1
        over = reader.end_if_over()
        if self.steps:
            over = self._batches >= self.steps
        if self.stop == "shortest":
            over = not self._all_go_on("go on", not over)
        if over:
            # Rolls over on the last yield: Lightning stops at len() and never asks for more.
            self._roll_over()
        return batch

    def _has_batch(self, reader: RankReader) -> bool:
        has_batch = reader.look_ahead(again=self.steps is not None)
        if self.steps and not has_batch:
            raise RuntimeError(f"stream loader: {self._no_data()}, wanted {self.steps} batches an epoch.")
        return has_batch

    def _no_data(self) -> str:
        return f"rank {self.world.rank} of {self.world.size} found no samples in its part of {len(self.dataset.shards)} shards"

    def _all_go_on(self, when: str, going_on: bool) -> bool:
        """Ask all ranks whether they have another batch.

        Raises:
            RuntimeError: If a rank does not answer.
        """
        world = self.world
        if world.size == 1:
            return going_on
        if not self._meeting.is_possible:
            raise RuntimeError(
                f"stream loader: stop='shortest' on {world.size} ranks needs torch.distributed or store=, where they meet. "
                "Initialise the process group, or use steps=."
            )
        answers = self._exchange(when, str(int(going_on)))
        silent = [rank for rank, answer in enumerate(answers) if answer is None]
        if silent:
            raise RuntimeError(
                f"stream loader: rank {', '.join(map(str, silent))} did not say in time whether it has another batch after "
                f"{self._batches} of epoch {self._epoch}. It has failed or is slow: see its log, or raise meet_timeout_s."
            )
        return "0" not in answers

    def _roll_over(self) -> None:
        """Go to the next epoch's start: with `steps` the data goes on from here."""
        if self.steps:
            self._epoch, self._batches = self._epoch + 1, 0
        else:
            turn = self._turn
            self.seek(epoch=self._epoch + 1)
            self._turn = turn  # an iterator at its end is not a stale one
        self._over = True

    def _say(self, message: str) -> None:
        if message not in self._said:
            self._said.add(message)
            warnings.warn(message, UserWarning, stacklevel=4)


class _Epoch:
    """One pass over a loader."""

    def __init__(self, loader: StreamLoader) -> None:
        self._loader = loader
        self._over = False
        self.turn: int | None = None

    def __iter__(self) -> "_Epoch":
        return self

    def __next__(self) -> Any:
        loader = self._loader
        if self._over:
            raise StopIteration
        if self.turn not in (None, loader._turn):
            raise RuntimeError(
                "stream loader: this iterator is over: the loader was moved, iterated anew, or failed since. "
                "Call iter(loader)."
            )
        try:
            if self.turn is None:
                loader._begin(self)
            batch = loader._next()
        except StopIteration:
            self._over = True
            raise
        except BaseException:
            loader.close()  # its workers may be beyond the batch that failed
            raise
        self._over = loader._over
        return batch


class _BatchSampler:
    """Stands in for a DataLoader's batch sampler, for those who set epochs through it."""

    def __init__(self, loader: StreamLoader) -> None:
        self._loader = loader

    @property
    def sampler(self) -> "_BatchSampler":
        return self

    def set_epoch(self, epoch: int) -> None:
        self._loader._set_epoch(epoch)
