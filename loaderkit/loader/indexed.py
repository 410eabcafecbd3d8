"""The position in data with an index: a cursor on a plan, whose batches an engine makes."""

import dataclasses
import functools
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from loaderkit.datasets.bad_samples import JUDGED_FROM, Reported
from loaderkit.datasets.shards.finished import finished_shards
from loaderkit.datasets.shards.sharded import shards_within
from loaderkit.engine.description import Description
from loaderkit.engine.engine import Engine
from loaderkit.engine.threads import check_threads
from loaderkit.loader.checks import (
    check_indexed,
    check_order,
    check_plan,
    check_private,
    inexact,
    no_batches,
    nothing_tells,
    size_of,
)
from loaderkit.loader.config import LoaderConfig
from loaderkit.loader.downloads import shards_ahead
from loaderkit.loader.engines import describe, make_engine
from loaderkit.loader.position import Position
from loaderkit.loader.stages import Stages
from loaderkit.reading.batch_reader import BatchReader, StagedReader
from loaderkit.sampling.batch_sampler import MOST_BATCHES, BatchSamplerOrder, BatchSamplerPlan
from loaderkit.sampling.cursor import Cursor, Identity, Saved, check_resume, pack_state, unpack_state
from loaderkit.sampling.fingerprint import named_as_saved, nameless
from loaderkit.sampling.order import Order, Sequential
from loaderkit.sampling.plan import BatchKey, BatchPlan, Plan
from loaderkit.sampling.samplers import SamplerOrder, as_order
from loaderkit.sampling.shard_order import ShardOrder, shuffled_order
from loaderkit.sampling.skipping_plan import Remaining, SkippingPlan, leave_out_more
from loaderkit.sampling.skips import Skips
from loaderkit.seeding.global_seeds import workers_seed
from loaderkit.seeding.private import Found, PrivatePolicy
from loaderkit.system.arrays import Int64Array
from loaderkit.system.overrides import defines, own_attribute
from loaderkit.system.state import StateError

_PASSES = 64  # that a training step may span


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
        self._plan = self._make_plan()
        self._skips = Skips()
        self._replacements()
        if config.engine == "threads":
            check_threads(self._make_reader())
        self._engine: Engine | None = None
        self._origin = Cursor()  # where the current pass started, or will start
        self._counted = 0  # batches since then
        self._left = 0  # batches of the pass
        self._passes: deque[tuple[Cursor, int]] = deque(maxlen=_PASSES)  # that ended: their last points, for logs
        self._ended = 0  # number of passes that ended

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
            self.say(no_batches(self.config, plan, cursor.epoch, self._size))
            return iter(())
        if (remark := plan.remark()) is not None:
            self.say(remark)
        if (remark := inexact(self._left_alone())) is not None:
            self.say(remark)
        if (remark := self._cache_remark()) is not None:
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
        plan = self._bound_plan()
        if not isinstance(plan, Stages) or plan.remaining(cursor := self.cursor_at(self.upcoming())):
            return None
        return no_batches(self.config, plan, cursor.epoch, self._size)

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()
            self.turn += 1

    def describe(self) -> Description:
        engine = self._engine or self._make_engine()
        found = describe(engine, self._make_reader(), self.config, self.crew.num_workers, self.crew.why)
        order, world = _order_of(self._plan), self.crew.world
        data = shards_within(self.dataset)
        return dataclasses.replace(
            found,
            order=order and order.cost(world, self.config.batch_size or 1),
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
        if (block := _block_of(before._plan)) is not None:
            plan = self._with_block(block)
            if plan.key(0) == before._plan.key(0):  # only the batch size differs
                self._plan, self._engine = plan, None

    def length(self) -> int:
        if not self._left:
            self._look_at_size(self.upcoming())
        order = _order_of(self._plan)
        if isinstance(order, SamplerOrder) and order.is_endless(self.cursor.epoch):
            raise TypeError(
                f"loader: the sampler {order.name} is endless, so an epoch has no number of batches. Stop by steps: give a "
                "Trainer max_steps, or use itertools.islice(loader, steps)."
            )
        cursor = self.cursor  # from here on a plan may need more steps than in a whole epoch
        return cursor.batches + self._bound_plan().remaining(cursor)

    @property
    def repeats(self) -> bool:
        return isinstance(self._plan, BatchPlan) and isinstance(self._plan.order, Sequential)

    @property
    def step(self) -> int:
        return self._bound_plan().step

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

    def mark(self, point: tuple[Cursor, int]) -> tuple[int, tuple[Cursor, int]]:
        return self._ended, point

    def batches_since(
        self, mark: tuple[int, tuple[Cursor, int]] | None, now: tuple[Cursor, int]
    ) -> tuple[list[tuple[Cursor, int]], bool]:
        passes, first, follows = [*self._passes, now], 0, False
        found: list[tuple[Cursor, int]] = []
        if mark is not None and self._ended - mark[0] < len(passes):
            passes, first, follows = passes[-1 - (self._ended - mark[0]) :], mark[1][1], True
        for number, (origin, counted) in enumerate(passes):
            if number:
                first, at = 0, self.cursor_at(passes[number - 1])
                if origin != at and not (origin.epoch > at.epoch and not origin.samples):  # something moved the loader
                    found, follows = [], False
                follows = follows and not origin.plan  # then its number does not tell where this epoch began
            found += [(origin, batch) for batch in range(first, counted)]
        return found, follows

    def start_of_log(self, point: tuple[Cursor, int]) -> dict[str, Any]:
        return self.state_at(point)

    def size_of(self, epoch: int) -> int:
        order = _order_of(self._plan)
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
            self._passes.append(last)
            self._ended += 1
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
        self._plan = self._make_plan()

    def _check_size(self) -> None:
        if (size := size_of(self.dataset)) != self._size:
            raise RuntimeError(
                f"loader: the dataset has {size:,} samples, and had {self._size:,} when the epoch began. An epoch reads one "
                "order of its samples, so change the dataset between epochs only."
            )

    def _samples(self, cursor: Cursor) -> int:
        """Return the number of samples in an epoch; if the plan does not know it, the number that is done."""
        order = _order_of(self._plan)
        return order.size(cursor.epoch) if cursor.samples and order is not None else cursor.samples

    def _identity(self, cursor: Cursor, plan: Plan) -> Identity:
        dataset, order = plan.identity(cursor, self.dataset, self._size)
        return Identity(dataset=dataset, order=order, seed=self.config.seed, block=_block_of(plan))

    def _make_plan(self) -> Plan:
        config = self.config
        order: Any
        if config.plan is not None:
            check_plan(config, self._size)
            order = _order_of(config.plan)
        elif config.batch_sampler is not None:
            if config.batch_size != 1:
                raise ValueError(
                    f"loader: batch_sampler= makes the batches alone. Leave out batch_size={config.batch_size!r}."
                )
            most = max(MOST_BATCHES, 4 * self._size)
            order = BatchSamplerOrder(config.batch_sampler, seed=config.seed, most=most)
        elif config.order is not None:
            order = as_order(config.order, seed=config.seed, size=self._size)
        elif config.shuffle:
            order = shuffled_order(self.dataset, self._size, seed=config.seed, batch_size=config.batch_size)
        else:
            order = Sequential(self._size)
        if order is not None:
            check_order(order, self._size if hasattr(type(self.dataset), "__len__") else order.reach)
        if config.plan is not None:
            return config.plan
        if isinstance(order, BatchSamplerOrder):
            return BatchSamplerPlan(order=order, tail=config.tail_policy)
        return BatchPlan(order=order, batch_size=config.batch_size, tail=config.tail_policy)

    def _make_engine(self) -> Engine:
        # Workers take the batches of a shard order in turn, so that each keeps to its own shards.
        in_turn = isinstance(_order_of(self._plan), ShardOrder)
        if self.crew.num_workers and (data := shards_within(self.dataset)) is not None and data.remote_bytes:
            data.close()  # workers open their own: the cache may evict what nobody has open
        return make_engine(self._make_reader(), self.config, self.crew.num_workers, in_turn=in_turn)

    def _make_reader(self) -> BatchReader:
        config, plan = self.config, self._plan
        collate = config.collate_fn
        if collate is None:  # one that is falsy counts
            collate = own_attribute(self.dataset, "default_collate")  # of a Pipeline
        make = functools.partial(
            BatchReader,
            self.dataset,
            seed=config.seed,
            batched=config.batch_size is not None,
            bad_samples=config.bad_samples,
            lengths=None if config.bad_samples.policy == "raise" else getattr(plan, "lengths", None),
            finished=finished_shards(self.dataset, plan.order, self.step) if isinstance(plan, BatchPlan) else None,
            private_generators=self._policy,
            seeders=config.seeders,
        )
        if not isinstance(plan, Stages):
            return make(collate_fn=collate, order=self._replacements())
        replaces = self._replacements() is not None
        stages = [
            make(
                collate_fn=collate if stage.collate_fn is None else stage.collate_fn, order=order if replaces else None
            )
            for stage, order in zip(plan.stages, plan.stage_orders(), strict=True)
        ]
        # The most demanding one decides which engine can be used.
        shown = max(stages, key=lambda one: (one.draws_from(), one.collate_fn is not None))
        return StagedReader(self.dataset, shown.collate_fn, config.seed, stages=stages, ends=plan.ends)

    def _replacements(self) -> Order | None:
        """Return the order that replacements of bad samples come from; None if none are needed.

        Raises:
            ValueError: If they are needed and the plan has no order.
        """
        if self.config.bad_samples.policy == "raise":
            return None
        order = _order_of(self._plan)
        if not isinstance(order, Order):
            raise ValueError(
                f"loader: bad_samples={self.config.bad_samples.policy!r} takes replacements from the plan's order, and "
                f"{type(self._plan).__name__} has no attribute `order`. Give it one, or use the policy 'raise'."
            )
        # An endless order would have to be drawn up to a replacement's position.
        if isinstance(order, SamplerOrder) and order.is_endless(0):
            return Sequential(self._size)
        return Remaining(order, self._skips) if self._skips else order

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
        plan = self._plan
        if block is None or not (self.config.shuffle and isinstance(plan, BatchPlan)):
            return plan
        order = plan.order
        return dataclasses.replace(plan, order=order.with_block(block)) if isinstance(order, ShardOrder) else plan

    def _bound_plan(self) -> Plan:
        plan = self._whole_plan()
        return SkippingPlan(plan, self._skips) if self._skips and isinstance(plan, BatchPlan) else plan

    def _whole_plan(self) -> Plan:
        """Return the plan of the whole order, in this world."""
        world = self.crew.world
        if self._plan.world != world:
            self._plan = self._plan.with_world(world)
        return self._plan

    def _cache_remark(self) -> str | None:
        """Return a warning if shards of a ShardOrder will be downloaded more than once an epoch, or None."""
        data, order = shards_within(self.dataset), _order_of(self._plan)
        if data is None or not data.remote_bytes or not isinstance(order, ShardOrder) or data.storage.cache_dir is None:
            return None
        used = -(-order.shards_in_use // (self.crew.world.nodes or 1))
        wanted = used * data.remote_bytes // len(data.shards)
        if wanted <= data.storage.cache_bytes:
            return None
        fewer = (
            f", or shuffle with fewer lanes (order=lk.ShardOrder(dataset.shard_sizes, lanes=...), now {order.lanes})"
        )
        costs = (
            "shards will be downloaded again and again"
            if data.maps
            else "samples of the others will be requested by ranges"
        )
        return (
            f"Loader: about {used:,} shards are in use at a time on this node, {wanted:,} bytes; the cache holds "
            f"{data.storage.cache_bytes:,}, so {costs}. Give Storage cache_bytes={wanted}{fewer if order.lanes > 1 else ''}."
        )

    def _check_sampler(self, epoch: int) -> None:
        order = _order_of(self._plan)
        if isinstance(order, SamplerOrder) and "sampler" not in self._said:
            self._said.add("sampler")
            if not order.is_repeatable(epoch):
                self.say(
                    "Loader: the sampler gives another order each time that it is asked for the same epoch. A resume in a "
                    "new process cannot be exact and is refused. Let the sampler draw from torch's, numpy's or random's "
                    "global generator: the Loader seeds them for each epoch."
                )

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_engine": None, "_left": 0}


def _order_of(plan: Plan) -> Any:
    return getattr(plan, "order", None)


def _block_of(plan: Plan) -> int | None:
    order = _order_of(plan)
    return order.block if isinstance(order, ShardOrder) else None
