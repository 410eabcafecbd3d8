"""The lanes of a StreamDataset: lists of shards, which any rank can continue."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from typing_extensions import override

from loaderkit.datasets.bad_samples import Reported
from loaderkit.datasets.streams.bad_samples import SkippingLane
from loaderkit.datasets.streams.dataset import StreamDataset
from loaderkit.datasets.streams.lane import Lane, Place
from loaderkit.datasets.streams.samples import transform_samples
from loaderkit.loader.config import LoaderConfig
from loaderkit.loader.position import Crew
from loaderkit.loader.streams.lanes import Item, LaneTask, check_no_index, run_task
from loaderkit.loader.streams.state import LanePlace
from loaderkit.reading.packed_rows import default_collate
from loaderkit.seeding.private import Found, PrivateGenerators
from loaderkit.seeding.worker_seeds import workers_seed


class ShardLanes:
    """The lanes of a StreamDataset."""

    def __init__(self, stream: StreamDataset, config: LoaderConfig, crew: Crew) -> None:
        self._stream, self._config, self._crew = stream, config, crew
        self.place: Callable[..., LanePlace] = Place
        check_no_index(stream, config, "it has that setting itself: StreamDataset(shuffle=True)")
        if config.bad_samples.policy == "replace":
            raise ValueError(
                "loader: bad_samples='replace' is for data with an index: a stream has no other samples to choose from. "
                "Use 'skip': it takes the lane's next sample in place of a bad one."
            )
        if config.seed not in (0, stream.seed):
            raise ValueError(
                f"loader: seed={config.seed}, and the stream has seed={stream.seed}, which decides its order and draws. "
                "Give StreamDataset that seed, or leave out the loader's."
            )

    def count(self) -> int:
        return self._stream.lanes

    def identity(self) -> dict[str, str | int]:
        stream = self._stream
        return {
            "shards": stream.fingerprint(),
            "order": stream.order(),
            "seed": stream.seed,
            "epochs": "of steps" if self._config.steps else "of the stream",
        }

    def told(self) -> dict[str, str]:
        stream = self._stream
        shuffled = f", seed={stream.seed}" if stream.shuffled else ""
        return {"shards": stream.fingerprint(), "order": stream.order() + shuffled}

    def flaw(self, lane: int, place: Sequence[object]) -> str | None:
        return self._stream.flaw(lane, place)

    def read(self, lanes: range, places: Sequence[LanePlace], cycle: int, turn: int) -> Iterator[Item]:
        stream, config = self._stream, self._config
        if config.collate_fn is None:
            config = replace(config, collate_fn=default_collate(stream))
        task = ShardTask(
            stream=stream,
            config=config,
            lanes=lanes,
            places=places,
            cycle=cycle,
            turn=turn,
            private=self.private(),
        )
        return run_task(task, workers_seed(stream.seed, self._crew.world.rank, cycle), self._crew.num_workers)

    def next_cycle(self, places: Sequence[LanePlace], cycle: int) -> tuple[LanePlace, ...]:
        return tuple(Place(cycle=cycle) for _ in places)

    def batches(self) -> None:
        return None

    def no_samples(self) -> str:
        world, shards = self._crew.world, len(self._stream.shards)
        return f"rank {world.rank} of {world.size} found no samples in its part of {shards} shards"

    def idle_workers(self, lanes: int) -> str | None:
        workers, shards = self._crew.num_workers, len(self._stream.shards)
        if workers <= min(lanes, self._stream.shares):
            return None
        return (
            f"Loader: {workers} workers for {shards} shards in {lanes} lanes of this rank: some workers are idle. "
            "If the reader can skip, StreamDataset(share=...) lets several lanes read one shard."
        )

    def private(self) -> PrivateGenerators:
        config, data = self._config, {"stream": self._stream, "collate_fn": self._config.collate_fn}
        return PrivateGenerators(data, config.private_generators or "seed", config.seeders)

    def left(self) -> list[Found]:
        private = self.private()
        return [each for each in private.find() if private.policy == "leave" or each.seeded is None]

    def close(self) -> None:
        pass


@dataclass(frozen=True, kw_only=True)
class ShardTask(LaneTask):
    """Reads the lanes of a StreamDataset."""

    stream: StreamDataset
    lanes: Sequence[int]  # the numbers of the rank's lanes

    @property
    @override
    def data(self) -> StreamDataset:
        return self.stream

    @override
    def items(self, worker: int, workers: int) -> Iterator[Item | None]:
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
        pending = reader.take(size)
        drops = self.config.tail_policy == "drop"
        if not pending or (drops and len(pending) < size):
            return Item(row, Place(cycle=self.cycle + 1), 0, _with_report(None, reader, over=True))
        # The last batch carries the lane's end, so its receiver knows that no other follows.
        more = reader.fill(size if drops else 1)
        batch = transform_samples(pending, self.make_batch)
        place = reader.place if more else Place(cycle=self.cycle + 1)
        return Item(row, place, len(pending), _with_report(batch, reader, over=not more))


def _with_report(batch: object, reader: Lane, *, over: bool) -> object:
    if not isinstance(reader, SkippingLane):
        return batch
    bad, first = reader.report(over=over)
    return batch if first is None or not bad else Reported(batch, bad, first)
