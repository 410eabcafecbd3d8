"""The position in data with an index: a cursor on a plan, whose batches workers make."""

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from loaderkit.datasets.bad_samples import Reported
from loaderkit.engine.description import Description
from loaderkit.engine.threads import check_threads
from loaderkit.loader.checks import check_indexed, check_private, nothing_tells, size_of
from loaderkit.loader.config import LoaderConfig
from loaderkit.loader.downloads import shards_ahead
from loaderkit.loader.indexed_plan import IndexedPlan, Point
from loaderkit.loader.passes import Passes
from loaderkit.loader.position import Position
from loaderkit.loader.workers import Workers
from loaderkit.sampling.cursor import Cursor, Identity, Saved, check_resume, pack_state, unpack_state
from loaderkit.sampling.fingerprint import named_as_saved, nameless
from loaderkit.sampling.skipping_plan import leave_out_more
from loaderkit.sampling.skips import Skips
from loaderkit.seeding.worker_seeds import workers_seed
from loaderkit.system.state import StateError


class IndexedPosition(Position[Point]):
    """A cursor on a plan. The plan computes every other position from it, so nothing is stored or replayed.

    A point is the cursor where a pass started, and the number of batches counted since.

    Attributes:
        plan: The plan for the ranks of this run, without what the run leaves out.

    Raises:
        TypeError: If the dataset has no length or index.
        ValueError: If a setting is for streams.
    """

    passes: Passes

    def __init__(self, dataset: Any, config: LoaderConfig) -> None:
        super().__init__(dataset, config)
        check_indexed(dataset, has_order=config.order is not None or config.batch_sampler is not None)
        for name in ("steps", "stop", "store"):
            if (value := getattr(config, name)) is not None:
                raise ValueError(
                    f"loader: {name}={value!r} is for streams, and {type(dataset).__name__} has an index: each epoch has "
                    "the length of the data, the same on every rank. Leave it out. To shorten epochs, give the Trainer "
                    "limit_train_batches."
                )
        self.plan = IndexedPlan(dataset, config, self.crew)
        if config.engine == "threads":
            check_threads(self.plan.reader())
        self._workers = Workers(dataset, config, self.crew, self.plan)
        self.passes = Passes(self.plan)

    # Passes

    def begin(self) -> Iterator[Any]:
        self._look_at_size(self.upcoming())
        cursor = self.cursor_at(self.upcoming())
        self.check_ranks(functools.partial(self.plan.told, cursor))
        self._stand_at(cursor)
        self.begun = True
        for remark in self.plan.remarks(cursor):
            self.say(remark)
        plan = self.plan.kept
        self.passes.left = left = plan.remaining(cursor)
        if not left:
            return iter(())
        engine = self._workers.start()
        if left < engine.num_workers and not cursor.samples:
            self.say(
                f"Loader: {engine.num_workers} workers for {left} batches an epoch: {engine.num_workers - left} workers are "
                "idle."
            )
        return engine.run(plan.keys(cursor), workers_seed(self.config.seed, self.crew.world.rank, cursor.epoch))

    def count(self, report: Reported | None) -> bool:
        if report is not None:
            cursor, seen = self.plan.judged(self.point(), self.bad)
            self.bad.add(report, epoch=cursor.epoch, batches=cursor.batches + 1, seen=seen)
        if self.passes.left == 1:
            self.plan.check_size()
        return self.passes.count()

    def fail(self, error: BaseException) -> None:
        super().fail(error)
        if isinstance(error, Exception):
            self.plan.check_size()

    def check_end(self) -> None:
        if left := self.passes.left:  # the epoch would end without an error
            raise RuntimeError(f"loader: the data raised StopIteration {left} batches before the epoch's end.")

    def why_over(self) -> str | None:
        return self.plan.kept.why_over(self.cursor_at(self.upcoming()))

    def close(self) -> None:
        if self._workers.close():
            self.turn += 1

    def describe(self) -> Description:
        return self._workers.describe()

    def _shards_ahead(self) -> int | None:
        return shards_ahead(self.dataset, self.plan.kept, self.cursor)

    # Points

    def point(self) -> Point:
        return self.passes.point

    def epoch_after(self, point: Point) -> Point:
        cursor = self.cursor_at(point)
        return self.plan.kept.next_epoch(cursor) if cursor.samples else cursor, 0

    def go_to(self, point: Point, *, left: bool = False) -> None:
        self._stand_at(self.cursor_at(point))
        self.begun = left

    def cursor_at(self, point: Point | None) -> Cursor:
        return self.plan.cursor_at(self.point() if point is None else point)

    def state_at(self, point: Point, nearby: Iterable[Point] = ()) -> dict[str, Any]:
        cursor = self.cursor_at(point)
        bad, judged = self.bad.saved(cursor, alone=self.crew.world.size == 1)
        skips = Skips(self.plan.skips.since(cursor.epoch))
        private = self.plan.policy if self.plan.generators else None
        return pack_state(Saved(cursor, self.plan.identity(cursor), self.step, bad, judged, skips, private))

    # State

    def load(self, state: Mapping[str, Any]) -> None:
        self._look_at_size((Cursor(), 0))
        saved, mine = unpack_state(state), self.plan
        cursor = saved.cursor
        plan = mine.with_block(saved.identity.block)
        with nameless() as unknown:
            named = named_as_saved(lambda: asdict(mine.identity(cursor, plan)), asdict(saved.identity))
        check_resume(cursor, saved.identity, Identity(**named), mine.samples(cursor), plan.explain)
        check_private(saved.private, mine.generators, mine.policy, cursor)
        if unknown and cursor != Cursor():
            self.say(nothing_tells(unknown))
        plan.check_cursor(cursor)
        try:
            skips = leave_out_more(mine.whole, saved.skips, mine.skips, cursor, counted=saved.step == self.step)
        except ValueError as error:
            raise StateError(f"cannot resume: {error}") from error
        mine.use(plan)
        mine.leave_out(skips)
        self._stand_at(cursor)
        self.bad.start(cursor.epoch, saved.bad, judged=saved.judged, since=cursor.samples)

    def seek(self, epoch: int, samples: int) -> None:
        cursor = Cursor(epoch=epoch, samples=samples)
        if samples > (size := self.plan.samples(cursor)):
            raise ValueError(f"loader: seek to sample {samples:,}, wanted at most the epoch's {size:,}.")
        self._stand_at(cursor)
        self.bad.start(epoch, since=samples)

    def follow(self, before: Position) -> None:
        if not isinstance(before, IndexedPosition):
            self.seek(before.cursor.epoch, 0)
            return
        mine, other = self.plan, before.plan
        start = before.cursor_at(before.upcoming())
        mine.leave_out(leave_out_more(mine.whole, other.skips, mine.skips, start))
        self.seek(start.epoch, start.samples)
        if start.plan and mine.identity(start) == other.identity(start):
            self._stand_at(start)  # what a plan adds to a cursor has no meaning in another order
        if other.block is not None:
            plan = mine.with_block(other.block)
            if plan.key(0) == other.whole.key(0):  # only the batch size differs
                mine.use(plan)

    # Data

    def length(self) -> int:
        if not self.passes.left:
            self._look_at_size(self.upcoming())
        order = self.plan.order
        if order is not None and order.is_endless(self.cursor.epoch):
            raise TypeError(
                f"loader: the sampler {getattr(order, 'name', type(order).__name__)} is endless, so an epoch has no number of batches. "
                "Stop by steps: give a Trainer max_steps, or use itertools.islice(loader, steps)."
            )
        cursor = self.cursor  # from here on a plan may need more steps than in a whole epoch
        return cursor.batches + self.plan.kept.remaining(cursor)

    @property
    def repeats(self) -> bool:
        return self.plan.repeats

    @property
    def step(self) -> int:
        return self.plan.kept.step

    @property
    def skips(self) -> Skips:
        return self.plan.skips

    def indexed(self, asked: str) -> "IndexedPosition":
        return self

    def skip(self, epoch: int, steps: Sequence[range], samples: Sequence[range]) -> None:
        cursor, plan = self.cursor_at(self.yielded()), self.plan
        plan.leave_out(leave_out_more(plan.whole, plan.skips, plan.stretches(epoch, steps, samples), cursor))
        self._stand_at(cursor)

    def _stand_at(self, cursor: Cursor) -> None:
        last = self.yielded() or self.point()
        self.bad.go_back(cursor.epoch, cursor.batches)
        self.passes.end(last, cursor)
        self.begun = False
        self.turn += 1

    def _look_at_size(self, start: Point) -> None:
        """Adapt to the dataset's length at the start of an epoch; inside an epoch it must be the same."""
        size = size_of(self.dataset)
        if size == self.plan.size:
            return
        if start[0].samples or start[1]:
            self.plan.check_size()
        self.close()
        self.plan.resize(size)
