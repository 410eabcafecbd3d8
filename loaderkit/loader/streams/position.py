"""The position in a stream: where each lane of this rank is. It is known only from reading, and cannot be computed."""

import dataclasses
import functools
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Never

from loaderkit.datasets.bad_samples import JUDGED_FROM, Reported
from loaderkit.datasets.streams.dataset import StreamDataset
from loaderkit.engine.description import Description
from loaderkit.loader.checks import inexact
from loaderkit.loader.config import LoaderConfig
from loaderkit.loader.engines import describe_stream
from loaderkit.loader.position import Position
from loaderkit.loader.streams.iterable import WorkerLanes
from loaderkit.loader.streams.lanes import Item, Lanes
from loaderkit.loader.streams.passes import RankPasses
from loaderkit.loader.streams.rank_reader import RankReader
from loaderkit.loader.streams.rendezvous import Rendezvous
from loaderkit.loader.streams.shards import ShardLanes
from loaderkit.loader.streams.state import (
    LanePlace,
    RankCursor,
    StreamCursor,
    join_ranks,
    open_stream_state,
    pack_cursor,
    unpack_cursor,
)
from loaderkit.sampling.cursor import Cursor
from loaderkit.sampling.fingerprint import named_as_saved
from loaderkit.seeding.private import PrivateGenerators
from loaderkit.system.digests import digest
from loaderkit.system.state import EPOCH

_PRIVATE = "private_generators"
_NO_INDEX = {  # why a stream cannot do what it is asked
    "indices()": "nobody knows which samples of a stream are in a batch before they are read.",
    "skip()": "nobody knows which samples of a stream are in a step before they are read, and other ranks would leave out "
    "others. Leave them out by their content: stream.filter(keep), or in the reader.",
    "replay()": "a cursor does not say where the lanes of a stream are. Load the last state before that batch into another "
    "Loader, and read on from there.",
}


class StreamPosition(Position[RankCursor]):
    """Where each lane of this rank is. A lane is a part of the stream that one worker reads in sequence.

    Rank r of R reads the lanes r, r + R, ..., which take turns to give a batch. A point is a `RankCursor`. When a state
    is made, the ranks exchange where their lanes are. The lanes of a StreamDataset are lists of shards; another
    IterableDataset has a lane for each worker.
    """

    def __init__(self, dataset: Any, config: LoaderConfig) -> None:
        super().__init__(dataset, config)
        kind = ShardLanes if isinstance(dataset, StreamDataset) else WorkerLanes
        self._lanes: Lanes = kind(dataset, config, self.crew)
        self._rendezvous = Rendezvous(config.store, config.meet_timeout_s)
        self._started = 0  # passes so far
        self.passes = RankPasses()
        self._told_length = False  # whether `length` has returned a number that comes from the dataset's `__len__`
        self._reader: RankReader | None = None  # of this rank's lanes, once the world is known
        self._stand_at(StreamCursor())

    def begin(self) -> Iterator[object]:
        if self.begun and self._batches:  # the last pass was left before its end
            if self._told_length and self._batches == self._lanes.batches():
                self._say_length("and there are more")
            self._go_to_next_epoch()
        self.check_ranks(self._lanes.told)
        self.begun = True
        self._started += 1
        self.turn += 1
        reader = self._bind()
        if self._started == 1 and (remark := inexact(self._lanes.left())) is not None:
            self.say(remark)
        if (remark := self._lanes.idle_workers(len(reader.places))) is not None:
            self.say(remark)
        has_batch = self._has_batch(reader)
        if not has_batch:
            self._count_bad(None, reader)
            self.say(f"Loader: an epoch without more batches: {self._lanes.no_samples()}.")
        if not (all(self._all_have("begin", has_batch)) if self.config.stop == "shortest" else has_batch):
            self._go_to_next_epoch()
            return iter(())
        return self._rest(reader)

    def count(self, report: Reported | None) -> bool:
        before = self.point()
        try:
            return self._count(report)
        except BaseException:
            self.go_to(before)  # the Loader does not yield the batch
            raise

    def fail(self, error: BaseException) -> None:
        self.close()

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
        self._lanes.close()
        self.turn += 1

    def describe(self) -> Description:
        return describe_stream(self.dataset, self.config, self.crew.num_workers, self.crew.why)

    def point(self) -> RankCursor:
        reader = self._bind()
        places, bad = tuple(reader.places), self.bad.at(self._epoch, self._batches)
        return RankCursor(self._origin, self._since, self._epoch, self._batches, reader.turn, places, bad)

    def epoch_after(self, point: RankCursor) -> RankCursor:
        if not point.batches:
            return point
        epoch = point.epoch + 1
        if self.config.steps:  # the next epoch goes on from here in the data
            return point._replace(epoch=epoch, batches=0, bad=0)
        return RankCursor(StreamCursor(epoch=epoch), 0, epoch, 0, 0, self._lanes.next_cycle(point.places, epoch))

    def go_to(self, point: RankCursor, *, left: bool = False) -> None:
        reader = self._reader
        self._origin, self._since, self._epoch, self._batches, turn, places, bad = point
        self.bad.start(self._epoch, bad)
        self.begun = left
        self.turn += 1
        if reader is None or not reader.is_at(turn, places):
            self.close()
            self._reader = RankReader(self._own(), places, turn)

    def cursor_at(self, point: RankCursor | None) -> Cursor:
        epoch, batches = (self._epoch, self._batches) if point is None else (point.epoch, point.batches)
        return Cursor(epoch=epoch, batches=batches)

    def state_at(self, point: RankCursor, nearby: Iterable[RankCursor] = ()) -> dict[str, object]:
        world = self.crew.world
        values: list[str | None] = [None] * world.size
        values[world.rank] = point.value
        if world.size > 1 and self.config.stop != "each":  # with "each" ranks never stand at the same batch
            values = self._rendezvous.gather(self._run_name(), point, world, nearby)
        return pack_cursor(join_ranks(point, values, self._lanes.count(), self._lanes.place), self._identity())

    def load(self, state: Mapping[str, object]) -> None:
        lanes = self._lanes
        saved = open_stream_state(state)["stream"]
        identity = named_as_saved(self._identity, saved)
        if _PRIVATE not in identity and _PRIVATE in saved:  # the data no longer keeps generators
            identity |= {_PRIVATE: saved[_PRIVATE]}
        elif identity.get(_PRIVATE) == "leave" and _PRIVATE not in saved:  # as every earlier loaderkit did
            del identity[_PRIVATE]
        cursor = unpack_cursor(state, identity, lanes.count(), lanes.flaw, lanes.place)
        if self.config.steps and cursor.batches >= self.config.steps:  # the saved run had more steps an epoch
            cursor = dataclasses.replace(cursor, epoch=cursor.epoch + 1, batches=0, bad=())
        self._stand_at(cursor)

    def seek(self, epoch: int, samples: int) -> None:
        if samples:
            raise TypeError(
                f"loader: seek(samples={samples}) is for data with an index: nobody knows where a stream has that many "
                "samples over all ranks. Seek to an epoch, or load a state."
            )
        if not EPOCH.holds(epoch):
            raise ValueError(f"loader: seek to epoch {epoch}, wanted {EPOCH.wanted}.")
        self._stand_at(StreamCursor(epoch=epoch))

    def follow(self, before: Position) -> None:
        if not isinstance(before, StreamPosition):
            self.seek(before.cursor.epoch, 0)
        elif before._lanes.identity() == self._lanes.identity():
            self.go_to(before.upcoming())
        else:
            self.seek(before.upcoming().epoch, 0)

    def _identity(self) -> dict[str, str | int]:
        return self._lanes.identity() | ({_PRIVATE: self._kept.policy} if self._kept.find() else {})

    @functools.cached_property
    def _kept(self) -> PrivateGenerators:
        """The random generators that the data keeps, found once: reading may make others, on some ranks only."""
        private = self._lanes.private()
        private.find()
        return private

    def length(self) -> int:
        found = self._lanes.batches() if self.config.steps is None else self.config.steps
        if found is None:
            raise TypeError(
                "a Loader of a stream has no length: nobody knows how many samples the data has. Give the Loader steps=."
            )
        self._told_length = self.config.steps is None
        return found

    @property
    def repeats(self) -> bool:
        return self.config.steps is None and not getattr(self.dataset, "shuffled", False)

    @property
    def step(self) -> None:
        return None

    def indexed(self, asked: str) -> Never:
        raise TypeError(f"loader: {asked} is for data with an index: {_NO_INDEX[asked]}")

    def _stand_at(self, cursor: StreamCursor) -> None:
        self.close()
        self._origin, self._since = cursor, 0
        self._epoch, self._batches = cursor.epoch, cursor.batches
        self.bad.start(cursor.epoch)
        self._reader, self.begun = None, False

    def _own(self) -> range:
        world = self.crew.world
        return range(world.rank, self._lanes.count(), world.size)

    def _bind(self) -> RankReader:
        """Return the reader of this rank's lanes; make it at first use, when the world is known."""
        if self._reader is not None:
            return self._reader
        world, origin, config, lanes = self.crew.world, self._origin, self.config, self._lanes.count()
        if world.size > lanes:
            raise ValueError(
                f"loader: {lanes} lanes for {world.size} ranks, wanted at least one for each. "
                f"Give StreamDataset lanes={world.size} or a multiple of it."
            )
        if world.size > 1 and config.steps is None and config.stop is None:
            raise ValueError(
                f"loader: {world.size} ranks read data of unknown length, and would have unequal numbers of "
                "batches. Say when an epoch ends: steps=..., stop='shortest', stop='repeat', or stop='each'."
            )
        fresh = self._lanes.place(cycle=origin.epoch)
        places = [origin.lanes[lane] if origin.lanes else fresh for lane in self._own()]
        turn = origin.turns[world.rank] if len(origin.turns) == world.size else 0
        self._reader = RankReader(self._own(), places, turn or 0)
        # With another number of ranks each takes an equal part of the bad samples that all have left out.
        bad = origin.bad
        self.bad.start(origin.epoch, bad[world.rank] if len(bad) == world.size else math.ceil(sum(bad) / world.size))
        return self._reader

    def _say_length(self, found: str) -> None:
        """Warn that the data has another number of samples than its `__len__` says. Trainers stop at `len()`."""
        workers = self.crew.num_workers
        shared = f", shared evenly by {workers} workers," if workers > 1 else ""
        self.say(
            f"Loader: len(loader) is {self._lanes.batches()} batches, because {type(self.dataset).__name__}.__len__ gives "
            f"{len(self.dataset)} samples for this rank{shared} {found}. Correct __len__, remove it, or give steps=."
        )

    def _go_to_next_epoch(self) -> None:
        self.go_to(self.epoch_after(self.point()._replace(batches=1)))

    def _rest(self, reader: RankReader) -> Iterator[object]:
        while self._has_batch(reader) and reader.ahead is not None:
            yield reader.ahead.batch

    def _read(self, places: Sequence[LanePlace], cycle: int, turn: int) -> Iterator[Item]:
        return self._lanes.read(self._own(), places, cycle, turn)

    def _count(self, report: Reported | None) -> bool:
        reader, config = self._bind(), self.config
        reader.advance()
        self._batches += 1
        self._since += 1
        # A rank that repeats its data is in a later cycle.
        over = reader.end_if_over(self._read) or (config.steps is None and reader.cycle > self._epoch)
        self._count_bad(report, reader)
        if config.steps:
            over = self._batches >= config.steps
        elif config.stop == "shortest":
            over = not all(self._all_have("go on", not over))
        elif config.stop == "repeat":
            over = not any(self._all_have("go on", not over))
        if over:
            if self._told_length and self._batches != self._lanes.batches():
                self._say_length(f"and there were {self._batches}")
            self._go_to_next_epoch()
        return over

    def _count_bad(self, report: Reported | None, reader: RankReader) -> None:
        """Count the bad samples of a batch, and those since the batch before that belong to no batch."""
        reports = [*reader.take_reports(), *([] if report is None else [report])]
        if not reports:
            return
        bad = [dataclasses.replace(each, epoch=self._epoch) for one in reports for each in one.bad]
        # An estimate of the samples that were read: those of full batches, and the bad ones.
        origin = self._origin
        before = origin.batches if origin.epoch == self._epoch else 0  # counted by another number of ranks
        batches = self._batches - before + before * len(origin.turns) / self.crew.world.size
        seen = batches * (self.config.batch_size or 1) + self.bad.at(self._epoch, self._batches) + len(bad)
        self.bad.add(
            Reported(None, bad, reports[0].first),
            epoch=self._epoch,
            batches=self._batches,
            seen=max(seen, JUDGED_FROM),
        )

    def _has_batch(self, reader: RankReader) -> bool:
        again = self.config.steps is not None or self.config.stop == "repeat"
        if not again and reader.cycle > self._epoch:  # the state is of a run that repeated its data
            return False
        has_batch = reader.look_ahead(self._read, again=again)
        if again and not has_batch:
            self._count_bad(None, reader)
            raise RuntimeError(
                f"loader: {self._lanes.no_samples()}, wanted {self.config.steps or 'one or more'} batches an epoch."
            )
        return has_batch

    def _all_have(self, when: str, has_batch: bool) -> list[bool]:
        name = self._run_name()
        return self._rendezvous.ask(name, f"{when}/{self._started}", self.point(), self.crew.world, has_batch)

    def _run_name(self) -> str:
        """Return a name for this data and its epochs, under which its ranks meet."""
        return digest(json.dumps([self._lanes.identity(), self.config.steps, self.config.stop]))
