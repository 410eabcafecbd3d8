"""The position in data with an index: a cursor on a plan, whose batches an engine makes."""

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from loaderkit.datasets.bad_samples import JUDGED_FROM, Reported
from loaderkit.datasets.shards.sharded import shards_within
from loaderkit.engine.description import Description
from loaderkit.engine.engine import Engine
from loaderkit.engine.threads import check_threads
from loaderkit.loader.checks import (
    check_indexed,
    check_private,
    inexact,
    no_batches,
    nothing_tells,
    size_of,
)
from loaderkit.loader.config import LoaderConfig
from loaderkit.loader.downloads import cache_remark, shards_ahead
from loaderkit.loader.engines import describe, make_engine
from loaderkit.loader.indexed_plan import block_of, make_plan
from loaderkit.loader.indexed_reader import make_reader, replacements
from loaderkit.loader.passes import Mark, Passes
from loaderkit.loader.position import Position
from loaderkit.reading.batch_reader import BatchReader
from loaderkit.sampling.cursor import Cursor, Identity, Saved, check_resume, pack_state, unpack_state
from loaderkit.sampling.fingerprint import named_as_saved, nameless
from loaderkit.sampling.plan import BatchKey, Plan
from loaderkit.sampling.skipping_plan import leave_out_more
from loaderkit.sampling.skips import Skips
from loaderkit.seeding.global_seeds import workers_seed
from loaderkit.seeding.private import Found, PrivatePolicy
from loaderkit.system.arrays import Int64Array
from loaderkit.system.overrides import defines
from loaderkit.system.state import StateError


class IndexedPosition(Position):
    """A cursor on a plan. The plan computes every other position from it, so nothing is stored or replayed.

    A point is the cursor where a pass started, and the number of batches counted since.

    Raises:
        TypeError: If the dataset has no length or index.
        ValueError: If a setting is for streams.
    """

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
        self._policy: PrivatePolicy = config.private_generators or "seed"
        self._size = size_of(dataset)
        self._plan = make_plan(dataset, config, self._size)
        self._skips = Skips()
        replacements(self._plan, config, self._size, self._skips)
        if config.engine == "threads":
            check_threads(self._make_reader())
        self._engine: Engine | None = None
        self._origin = Cursor()  # where the current pass started, or will start
        self._counted = 0  # batches since then
        self._left = 0  # batches of the pass
        self._passes = Passes()

    def begin(self) -> Iterator[Any]:
        self.check_ranks()
        self._look_at_size(self.upcoming())
        cursor = self.cursor_at(self.upcoming())
        self._stand_at(cursor)
        self.begun = True
        self._check_sampler(cursor.epoch)
        if defines(self.dataset, "load_state_dict"):
            self.say(
                f"Loader: {type(self.dataset).__name__} has its own state_dict, which a Loader's state does not include: "
                "each worker reads a copy of the dataset. Let samples depend on their index and on the sample's random "
                "numbers alone, or save the dataset's state yourself."
            )
        plan = self._bound_plan()
        self._left = plan.remaining(cursor)
        if self._left == 0:
            self.say(no_batches(self.config, plan, cursor, self._size))
            return iter(())
        if (remark := plan.remark()) is not None:
            self.say(remark)
        if (remark := inexact(self._left_alone())) is not None:
            self.say(remark)
        if (remark := cache_remark(self.dataset, plan.order, self.crew.world.nodes or 1)) is not None:
            self.say(remark)
        self._engine = self._engine or self._make_engine()
        workers = self._engine.num_workers
        if self._left < workers and not cursor.samples:
            self.say(
                f"Loader: {workers} workers for {self._left} batches an epoch: {workers - self._left} workers are idle."
            )
        seed = workers_seed(self.config.seed, self.crew.world.rank, cursor.epoch)
        return self._engine.run(plan.keys(cursor), seed)

    def count(self, report: Reported | None) -> bool:
        if report is not None:
            self._count_bad(report)
        if self._left == 1:
            self._check_size()
        self._counted += 1
        self._left -= 1
        return self._left == 0

    def fail(self, error: BaseException) -> None:
        super().fail(error)
        if isinstance(error, Exception):
            self._check_size()

    def check_end(self) -> None:
        if self._left:  # the epoch would end without an error
            raise RuntimeError(f"loader: the data raised StopIteration {self._left} batches before the epoch's end.")

    def why_over(self) -> str | None:
        return self._bound_plan().why_over(self.cursor_at(self.upcoming()))

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()
            self.turn += 1

    def describe(self) -> Description:
        engine = self._engine or self._make_engine()
        found = describe(engine, self._make_reader(), self.config, self.crew.num_workers, self.crew.why)
        order, world = self._plan.order, self.crew.world
        data = shards_within(self.dataset)
        return dataclasses.replace(
            found,
            order=None if order is None else order.cost(world, self.config.batch_size or 1),
            cache=None if data is None else data.cache_cost(),
        )

    def _shards_ahead(self) -> int | None:
        return shards_ahead(self.dataset, self._bound_plan(), self.cursor)

    def point(self) -> tuple[Cursor, int]:
        return self._origin, self._counted

    def epoch_after(self, point: tuple[Cursor, int]) -> tuple[Cursor, int]:
        cursor = self.cursor_at(point)
        return self._bound_plan().next_epoch(cursor) if cursor.samples else cursor, 0

    def go_to(self, point: tuple[Cursor, int], *, left: bool = False) -> None:
        self._stand_at(self.cursor_at(point))
        self.begun = left

    def cursor_at(self, point: tuple[Cursor, int] | None) -> Cursor:
        cursor, batches = self.point() if point is None else point
        plan = self._bound_plan()
        return plan.placed(plan.advance(cursor, batches))

    def state_at(self, point: tuple[Cursor, int], nearby: Iterable[Any] = ()) -> dict[str, Any]:
        cursor = self.cursor_at(point)
        bad, judged = self.bad.saved(cursor, alone=self.crew.world.size == 1)
        skips = Skips(self._skips.since(cursor.epoch))
        private = self._policy if self._kept else None
        return pack_state(Saved(cursor, self._identity(cursor, self._plan), self.step, bad, judged, skips, private))

    def load(self, state: Mapping[str, Any]) -> None:
        self._look_at_size((Cursor(), 0))
        saved = unpack_state(state)
        cursor = saved.cursor
        plan = self._with_block(saved.identity.block)
        with nameless() as unknown:
            named = named_as_saved(lambda: asdict(self._identity(cursor, plan)), asdict(saved.identity))
        check_resume(cursor, saved.identity, Identity(**named), self._samples(cursor), plan.explain)
        check_private(saved.private, self._kept, self._policy, cursor)
        if unknown and cursor != Cursor():
            self.say(nothing_tells(unknown))
        plan.check_cursor(cursor)
        try:
            skips = leave_out_more(
                self._whole_plan(), saved.skips, self._skips, cursor, counted=saved.step == self.step
            )
        except ValueError as error:
            raise StateError(f"cannot resume: {error}") from error
        if plan is not self._plan:
            self._plan, self._engine = plan, None  # an engine replaces bad samples by the plan's order
        self._leave_out(skips)
        self._stand_at(cursor)
        self.bad.start(cursor.epoch, saved.bad, judged=saved.judged, since=cursor.samples)

    def seek(self, epoch: int, samples: int) -> None:
        cursor = Cursor(epoch=epoch, samples=samples)
        if samples > (size := self._samples(cursor)):
            raise ValueError(f"loader: seek to sample {samples:,}, wanted at most the epoch's {size:,}.")
        self._stand_at(cursor)
        self.bad.start(epoch, since=samples)

    def follow(self, before: Position) -> None:
        if not isinstance(before, IndexedPosition):
            self.seek(before.cursor.epoch, 0)
            return
        start = before.cursor_at(before.upcoming())
        self._leave_out(leave_out_more(self._whole_plan(), before._skips, self._skips, start))
        self.seek(start.epoch, start.samples)
        if start.plan and self._identity(start, self._plan) == before._identity(start, before._plan):
            self._stand_at(start)  # what a plan adds to a cursor has no meaning in another order
        if (block := block_of(before._plan)) is not None:
            plan = self._with_block(block)
            if plan.key(0) == before._plan.key(0):  # only the batch size differs
                self._plan, self._engine = plan, None

    def length(self) -> int:
        if not self._left:
            self._look_at_size(self.upcoming())
        order = self._plan.order
        if order is not None and order.is_endless(self.cursor.epoch):
            raise TypeError(
                f"loader: the sampler {getattr(order, 'name', type(order).__name__)} is endless, so an epoch has no number of batches. Stop by steps: give a "
                "Trainer max_steps, or use itertools.islice(loader, steps)."
            )
        cursor = self.cursor  # from here on a plan may need more steps than in a whole epoch
        return cursor.batches + self._bound_plan().remaining(cursor)

    @property
    def repeats(self) -> bool:
        return self._plan.is_same_each_epoch()

    @property
    def step(self) -> int:
        return self._bound_plan().step

    def indexed(self, asked: str) -> "IndexedPosition":
        return self

    def indices(self, epoch: int, batch: int) -> Int64Array:
        return self.key(Cursor(epoch=epoch), batch).indices

    def skip(self, epoch: int, steps: Sequence[range], samples: Sequence[range]) -> None:
        cursor = self.cursor_at(self.yielded())
        stretches = [(epoch, part.start, part.stop) for part in samples]
        if steps:
            plan = self._whole_plan()
            batches, end = plan.batches(epoch), self.size_of(epoch)
            for part in steps:
                if part.stop > batches:
                    raise ValueError(f"loader: skip of {part}, wanted steps of the {batches:,} of epoch {epoch}.")
                start, stop = (plan.advance(Cursor(epoch=epoch), step).samples for step in (part.start, part.stop))
                stretches.append((epoch, start, stop if part.stop < batches else end))
        for part in samples:
            if part.stop > (size := self.size_of(epoch)):
                raise ValueError(f"loader: skip of {part}, wanted samples of the {size:,} of epoch {epoch}.")
        self._leave_out(leave_out_more(self._whole_plan(), self._skips, Skips.of(stretches), cursor))
        self._stand_at(cursor)

    @property
    def skips(self) -> Skips:
        return self._skips

    def mark(self, point: tuple[Cursor, int]) -> Mark:
        return self._passes.mark(point)

    def batches_since(self, mark: Mark | None, now: tuple[Cursor, int]) -> tuple[list[tuple[Cursor, int]], bool]:
        return self._passes.since(mark, now, self.cursor_at)

    def start_of_log(self, point: tuple[Cursor, int]) -> dict[str, Any]:
        return self.state_at(point)

    def size_of(self, epoch: int) -> int:
        order = self._plan.order
        return self._size if order is None else int(order.size(epoch))

    def key(self, cursor: Cursor, ahead: int) -> BatchKey:
        return self._bound_plan().batch(cursor, ahead)

    def replay(self, cursor: Cursor, ahead: int) -> Any:
        batch = self._make_reader().read(self.key(cursor, ahead))
        return batch.batch if type(batch) is Reported else batch

    @functools.cached_property
    def _kept(self) -> list[Found]:
        """The random generators that the data keeps."""
        return self._make_reader().found_generators()

    def _left_alone(self) -> list[Found]:
        return [each for each in self._kept if self._policy == "leave" or each.seeded is None]

    def _leave_out(self, skips: Skips) -> None:
        changed, self._skips = skips != self._skips, skips
        if changed and self.config.bad_samples.policy != "raise":  # the engine chooses replacements from what stays
            self.close()
            self._engine = None

    def _stand_at(self, cursor: Cursor) -> None:
        last = self.yielded() or self.point()
        if last[1]:
            self._passes.end(last)
        self.bad.go_back(cursor.epoch, cursor.batches)
        self._origin, self._counted, self.begun = cursor, 0, False
        self.turn += 1

    def _look_at_size(self, start: tuple[Cursor, int]) -> None:
        """Adapt to the dataset's length at the start of an epoch; inside an epoch it must be the same."""
        size = size_of(self.dataset)
        if size == self._size:
            return
        if start[0].samples or start[1]:
            self._check_size()
        self.close()
        self._size, self._engine = size, None  # workers hold the shorter dataset
        self._plan = make_plan(self.dataset, self.config, size)

    def _check_size(self) -> None:
        if (size := size_of(self.dataset)) != self._size:
            raise RuntimeError(
                f"loader: the dataset has {size:,} samples, and had {self._size:,} when the epoch began. An epoch reads one "
                "order of its samples, so change the dataset between epochs only."
            )

    def _samples(self, cursor: Cursor) -> int:
        """Return the number of samples in an epoch; if the plan does not know it, the number that is done."""
        order = self._plan.order
        return order.size(cursor.epoch) if cursor.samples and order is not None else cursor.samples

    def _identity(self, cursor: Cursor, plan: Plan) -> Identity:
        dataset, order = plan.identity(cursor, self.dataset, self._size)
        return Identity(dataset=dataset, order=order, seed=self.config.seed, block=block_of(plan))

    def _make_reader(self) -> BatchReader:
        return make_reader(self.dataset, self.config, self._plan, self._size, self._skips, step=self.step)

    def _make_engine(self) -> Engine:
        # Workers take the batches of a shard order in turn, so that each keeps to its own shards.
        in_turn = block_of(self._plan) is not None
        if self.crew.num_workers and (data := shards_within(self.dataset)) is not None and data.remote_bytes:
            data.close()  # workers open their own: the cache may evict what nobody has open
        return make_engine(self._make_reader(), self.config, self.crew.num_workers, in_turn=in_turn)

    def _count_bad(self, report: Reported) -> None:
        plan, world = self._bound_plan(), self.crew.world
        before = plan.advance(self._origin, self._counted)
        seen = self.bad.judged(before.epoch, before.samples + plan.step, world.size)
        self.bad.add(
            report,
            epoch=before.epoch,
            batches=plan.placed(before).batches + 1,
            seen=max(seen, min(max(self._size, self.size_of(before.epoch)), JUDGED_FROM)),
        )

    def _with_block(self, block: int | None) -> Plan:
        """Return the plan with the block of a saved order, if the Loader itself chose the block."""
        if block is None or not self.config.shuffle or block == block_of(self._plan):
            return self._plan
        return make_plan(self.dataset, self.config, self._size, block)

    def _bound_plan(self) -> Plan:
        plan = self._whole_plan()
        return plan.without(self._skips) if self._skips else plan

    def _whole_plan(self) -> Plan:
        """Return the plan of the whole order, in this world."""
        world = self.crew.world
        if self._plan.world != world:
            self._plan = self._plan.with_world(world)
        return self._plan

    def _check_sampler(self, epoch: int) -> None:
        order = self._plan.order
        if order is not None and "sampler" not in self._said:
            self._said.add("sampler")
            if not order.is_repeatable(epoch):
                self.say(
                    "Loader: the sampler gives another order each time that it is asked for the same epoch. A resume in a "
                    "new process cannot be exact and is refused. Let the sampler draw from torch's, numpy's or random's "
                    "global generator: the Loader seeds them for each epoch."
                )

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_engine": None, "_left": 0}
