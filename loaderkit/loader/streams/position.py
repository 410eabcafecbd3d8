"""A position along lanes: parts of the data that are read one after another, dealt to ranks and workers."""

import dataclasses
import hashlib
import json
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any

from loaderkit.datasets.bad_samples import JUDGED_FROM, Reported
from loaderkit.loader.config import LoaderConfig
from loaderkit.loader.position import Position
from loaderkit.loader.streams.rank_reader import RankReader
from loaderkit.loader.streams.rendezvous import Rendezvous
from loaderkit.loader.streams.stand import LaneStand
from loaderkit.loader.streams.state import RankCursor, StreamCursor, join_ranks, pack_cursor, unpack_cursor
from loaderkit.system.arrays import Int64Array


class LaneWalk(LaneStand):
    """Goes along this rank's lanes, which take turns, from epoch to epoch.

    Raises:
        ValueError: If the settings are not for a stream.
    """

    def __init__(self, dataset: Any, config: LoaderConfig) -> None:
        super().__init__(dataset, config)
        self._check_settings()
        self._rendezvous = Rendezvous(config.store, config.meet_timeout_s)
        self._passes = 0  # that were begun
        self._trained_by_epochs = False

    @property
    def step(self) -> None:
        return None

    def length(self) -> int:
        if self.config.steps is None:
            raise TypeError("a Loader of a stream has no length: nobody knows how long its data is. Give it steps=.")
        return self.config.steps

    def begin(self) -> Iterator[Any]:
        if self._begun and self._batches:  # left before its end
            self._roll_over()
        self._begun = True
        self._passes += 1
        self.turn += 1
        reader = self._bind()
        self._check_workers(len(reader.places))
        has_batch = self._has_batch(reader)
        if not has_batch:
            self._count_bad(None, reader)
            self.say(f"Loader: an epoch without more batches: {self._no_data()}.")
        if not (all(self._all_have("begin", has_batch)) if self.config.stop == "shortest" else has_batch):
            self._roll_over()
            return iter(())
        return self._rest(reader)

    def count(self, report: Reported | None) -> bool:
        before = self._now()
        try:
            over = self._count(report)
        except BaseException:
            self._return_to(before)  # the batch is not handed on
            raise
        if self._kept is not None:
            self._kept.append(self._now())
        return over

    def fail(self) -> None:
        self.close()

    def indices(self, epoch: int, batch: int) -> Int64Array:
        raise TypeError(
            "loader: indices() is for data with an index: nobody knows which samples of a stream are in a batch before "
            "it is read."
        )

    def seek(self, epoch: int, samples: int) -> None:
        if samples:
            raise TypeError(
                f"loader: seek(samples={samples}) is for data with an index: a stream has no place for a number of "
                "samples over all ranks. Seek to an epoch, or load a state."
            )
        if epoch < 0:
            raise ValueError(f"loader: seek to epoch {epoch}, wanted at least 0.")
        self._stand_at(StreamCursor(epoch=epoch))

    def state(self) -> dict[str, Any]:
        if self._trained_by_epochs:
            self.say(
                "A Trainer saves the state of a Loader of a stream that was handed to it directly. That resumes exactly "
                "where it saves between batches; a checkpoint saved by an exception, by a signal or within a gradient "
                "accumulation counts batches that were not learnt"
                + (
                    "."
                    if self.config.steps
                    else ", and without a length Lightning fetches one batch ahead and counts it."
                )
                + " Use loaderkit.DataModule, which is exact in all these cases."
            )
        return self._pack(self.seen() or self._now())

    def load(self, state: Mapping[str, Any]) -> None:
        position = unpack_cursor(state, self._identity(), self._place)
        if self.config.steps and position.batches >= self.config.steps:  # of a run with more steps an epoch
            position = dataclasses.replace(position, epoch=position.epoch + 1, batches=0, bad=())
        self._stand_at(position)
        self._loaded = self.turn

    def follow(self, before: Position) -> None:
        if not isinstance(before, LaneWalk):
            self.seek(before.cursor.epoch, 0)
        elif before._identity() == self._identity():
            self._return_to(before._upcoming())
        else:
            self.seek(before._upcoming().epoch, 0)

    def state_after(self, batches: int, *, over: bool) -> dict[str, Any]:
        standing = self._after(batches)
        return self._pack(self._ended(standing) if over else standing)

    def end_epoch(self, batches: int) -> None:
        self._return_to(self._ended(self._after(batches)))

    def _follow_epoch(self, epoch: int) -> None:
        # Lightning loads no loader state from a checkpoint at an epoch's end; this puts the loader there.
        first, self._trained_by_epochs = not self._trained_by_epochs, True
        # In a run that goes on, a Trainer's epoch may have ended in the middle of the loader's, by a limit of batches.
        if self._epoch >= epoch or (not first and self._upcoming().epoch >= epoch):
            return
        if self.config.steps or self._begun:
            raise RuntimeError(
                f"cannot resume under this Trainer: it begins epoch {epoch}, the stream stands in epoch {self._epoch}, and "
                "Lightning restored no loader state (it does not at an epoch's end). Hand the stream over in a "
                "loaderkit.DataModule, which keeps it."
            )
        self.seek(epoch, 0)

    @abstractmethod
    def _check_settings(self) -> None:
        """Refuse settings that are not for this data.

        Raises:
            ValueError: If there are such.
        """

    def _check_workers(self, lanes: int) -> None:
        """Say that there are more workers than this rank's lanes can feed, if so."""

    @abstractmethod
    def _identity(self) -> dict[str, Any]:
        """Return what a place counts in: it means nothing elsewhere."""

    @abstractmethod
    def _no_data(self) -> str:
        """Say that this rank found no samples."""

    def _roll_over(self) -> None:
        self._return_to(self._ended(self._now()._replace(batches=1)))

    def _rest(self, reader: RankReader) -> Iterator[Any]:
        while self._has_batch(reader):
            yield reader.batch

    def _count(self, report: Reported | None) -> bool:
        reader, config = self._bind(), self.config
        reader.go_on()
        self._batches += 1
        self._since += 1
        # A rank that repeats its data is in a later cycle.
        over = reader.end_if_over(self._run) or (config.steps is None and reader.cycle > self._epoch)
        self._count_bad(report, reader)
        if config.steps:
            over = self._batches >= config.steps
        elif config.stop == "shortest":
            over = not all(self._all_have("go on", not over))
        elif config.stop == "repeat":
            over = not any(self._all_have("go on", not over))
        if over:
            self._roll_over()
        return over

    def _count_bad(self, report: Reported | None, reader: RankReader) -> None:
        """Count the bad samples of a batch, and those that belong to none and were passed since the last one."""
        reports = [*reader.unyielded(), *([] if report is None else [report])]
        if not reports:
            return
        bad = [dataclasses.replace(each, epoch=self._epoch) for one in reports for each in one.bad]
        # Nobody knows how many samples were read: those of full batches, and the bad ones.
        origin = self._origin
        before = origin.batches if origin.epoch == self._epoch else 0  # of as many ranks as there were
        batches = self._batches - before + before * len(origin.turns) / self.world.size
        seen = batches * (self.config.batch_size or 1) + self._bad_now() + len(bad)
        self.bad.add(
            Reported(None, bad, reports[0].first),
            epoch=self._epoch,
            batches=self._batches,
            seen=max(seen, JUDGED_FROM),
        )

    def _has_batch(self, reader: RankReader) -> bool:
        again = self.config.steps is not None or self.config.stop == "repeat"
        if not again and reader.cycle > self._epoch:  # of a run that repeated its data
            return False
        has_batch = reader.look_ahead(self._run, again=again)
        if again and not has_batch:
            self._count_bad(None, reader)
            raise RuntimeError(
                f"loader: {self._no_data()}, wanted {self.config.steps or 'one or more'} batches an epoch."
            )
        return has_batch

    def _all_have(self, when: str, has_batch: bool) -> list[bool]:
        """Return which ranks have another batch."""
        return self._rendezvous.ask(self._name(), f"{when}/{self._passes}", self._now(), self.world, has_batch)

    def _pack(self, standing: RankCursor) -> dict[str, Any]:
        """Make a state of where this rank and, if they can be asked, the others stand there."""
        world = self.world
        values: list[str | None] = [None] * world.size
        values[world.rank] = standing.value
        if world.size > 1 and self.config.stop != "each":  # else they are never at one point
            values = self._rendezvous.gather(self._name(), standing, world, self._kept or ())
        return pack_cursor(join_ranks(standing, values, self._lanes(), self._place), self._identity())

    def _name(self) -> str:
        """Tell this data and its epochs from others, for the ranks to meet."""
        run = json.dumps([self._identity(), self.config.steps, self.config.stop])
        return hashlib.blake2b(run.encode(), digest_size=8).hexdigest()
