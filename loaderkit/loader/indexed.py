"""A position through data with an index: a plan run over an engine."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from loaderkit.datasets.bad_samples import JUDGED_FROM, Reported
from loaderkit.engine import Engine
from loaderkit.engine.batch_reader import BatchReader
from loaderkit.engine.description import Description
from loaderkit.engine.threads import check_threads
from loaderkit.loader.checks import check_indexed, check_order, check_plan, no_batches
from loaderkit.loader.config import LoaderConfig
from loaderkit.loader.engines import describe, make_engine
from loaderkit.loader.position import Position
from loaderkit.sampling.cursor import Cursor, Identity, check_resume, fingerprint, pack_state, unpack_state
from loaderkit.sampling.order import Order, Sequential
from loaderkit.sampling.plan import BatchPlan, Plan
from loaderkit.sampling.samplers import SamplerOrder, as_order
from loaderkit.sampling.shard_order import ShardOrder, shuffled_order
from loaderkit.system.arrays import Int64Array


class IndexedPosition(Position):
    """Goes along a plan: its place is a cursor, and any other place can be computed.

    Raises:
        TypeError: If the dataset has no length or index.
        ValueError: If the settings are not for such data.
    """

    def __init__(self, dataset: Any, config: LoaderConfig) -> None:
        super().__init__(dataset, config)
        check_indexed(dataset)
        for name in ("steps", "stop", "store"):
            if (value := getattr(config, name)) is not None:
                raise ValueError(
                    f"loader: {name}={value!r} is for streams, and {type(dataset).__name__} has an index: its epochs have "
                    "the length of the data, the same on every rank. Leave it out; a Trainer shortens them by "
                    "limit_train_batches."
                )
        self._size = len(dataset)
        self._plan = self._make_plan()
        if config.bad_samples.policy != "raise":
            self._order()
        if config.engine == "threads":
            check_threads(self._make_reader())
        self._engine: Engine | None = None
        self._origin = Cursor()  # where the current pass began, or will begin
        self._yielded = 0  # batches since then
        self._left = 0  # batches of the pass
        self._mark = Cursor()
        self._trained_by_epochs = False
        self._loaded_step: int | None = None  # of the run that wrote the loaded state

    def place(self) -> tuple[Cursor, int]:
        return self._origin, self._yielded

    def cursor_at(self, place: tuple[Cursor, int] | None) -> Cursor:
        return self._after(*(self.place() if place is None else place))

    def return_to(self, place: tuple[Cursor, int]) -> None:
        self._stand_at(self.cursor_at(place))
        self._begun = True

    @property
    def step(self) -> int:
        return self._bound_plan().step

    def describe(self) -> Description:
        workers, why = self._workers()
        engine = self._engine or self._make_engine(workers)
        return describe(engine, self._make_reader(), self.config, workers, why)

    def length(self) -> int:
        cursor = self.cursor  # a plan may need more steps for what is left than for the whole: it counts from here
        return cursor.batches + self._bound_plan().remaining(cursor)

    def begin(self) -> Iterator[Any]:
        cursor = self._upcoming()
        self._stand_at(cursor)
        self._begun = True
        self._check_sampler(cursor.epoch)
        plan = self._bound_plan()
        self._left = plan.remaining(cursor)
        if self._left == 0:
            self.say(no_batches(self.config, plan, cursor.epoch, self._size))
            return iter(())
        if (remark := plan.remark()) is not None:
            self.say(remark)
        if self._engine is None:
            self._engine = self._make_engine(self.num_workers)
        workers = self._engine.num_workers
        if self._left < workers and not cursor.samples:
            self.say(
                f"Loader: {workers} workers for {self._left} batches an epoch: {workers - self._left} of them will be idle."
            )
        return self._engine.run(plan.keys(cursor))

    def count(self, report: Reported | None) -> bool:
        if report is not None:
            self._count_bad(report)
        self._yielded += 1
        self._left -= 1
        return self._left == 0

    def check_end(self) -> None:
        if self._left:  # it would end the epoch without a word
            raise RuntimeError(f"loader: the data ended {self._left} batches too early, by StopIteration.")

    def indices(self, epoch: int, batch: int) -> Int64Array:
        return self._bound_plan().batch(Cursor(epoch=epoch), batch).indices

    def seek(self, epoch: int, samples: int) -> None:
        cursor = Cursor(epoch=epoch, samples=samples)
        if samples > (size := self._samples(cursor)):
            raise ValueError(f"loader: seek to sample {samples:,}, wanted at most the epoch's {size:,}.")
        self._stand_at(cursor)
        self.bad.start(epoch, since=samples)

    def state(self) -> dict[str, Any]:
        if self._trained_by_epochs:
            self.say(
                "A Trainer saves the state of a Loader that was handed to it directly, or by a `train_dataloader` of one's "
                "own. That resumes exactly after a kill, but a checkpoint saved by an exception, by a signal or within a "
                "gradient accumulation counts batches that were not learnt, one that is saved when `max_steps` has ended "
                "the fit counts the whole epoch, one at an epoch's end has no state for loaders that are cycled beside a "
                "longer one, and `trainer.estimated_stepping_batches` makes Lightning drop the state. Use "
                "loaderkit.DataModule and the loaders it makes, which are exact in all these cases."
            )
        return self._pack(self.cursor)

    def load(self, state: Mapping[str, Any]) -> None:
        cursor, saved = unpack_state(state)
        plan = self._with_block(saved.block)
        check_resume(cursor, saved, self._identity(cursor.epoch, plan), self._samples(cursor))
        if plan is not self._plan:
            self._plan, self._engine = plan, None  # replacements come from the order
        self._stand_at(cursor)
        self.bad.load(state, cursor)
        self._loaded, self._loaded_step = self.turn, state.get("step")

    def follow(self, before: Position) -> None:
        start = before._upcoming() if isinstance(before, IndexedPosition) else Cursor(epoch=before.cursor.epoch)
        self.seek(start.epoch, start.samples)
        if isinstance(before, IndexedPosition) and (block := _block_of(before._plan)) is not None:
            plan = self._with_block(block)
            if plan.key(0) == before._plan.key(0):  # only the batch size differs
                self._plan, self._engine = plan, None

    def mark(self) -> int:
        self._mark = self._upcoming()
        return self._mark.epoch

    def rewind(self) -> None:
        self._stand_at(self._mark)

    def state_after(self, batches: int, *, over: bool) -> dict[str, Any]:
        cursor = self._after(self._mark, batches)
        return self._pack(cursor.next_epoch() if over and cursor.samples else cursor)

    def end_epoch(self, batches: int) -> None:
        now, used = self.cursor_at(None), self._after(self._mark, batches)
        if (now.epoch, now.samples) >= (used.epoch, used.samples):  # else it came to its end before
            self._stand_at(used.next_epoch() if used.samples else used)

    def _follow_epoch(self, epoch: int) -> None:
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

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()
            self.turn += 1

    def _upcoming(self) -> Cursor:
        """Return where the next pass begins."""
        cursor = self.cursor_at(None)
        return cursor.next_epoch() if self._begun and cursor.samples else cursor

    def _after(self, cursor: Cursor, batches: int) -> Cursor:
        plan = self._bound_plan()
        return plan.placed(plan.advance(cursor, batches))

    def _stand_at(self, cursor: Cursor) -> None:
        self.bad.go_back(cursor.epoch, cursor.batches)
        self._origin, self._yielded, self._begun = cursor, 0, False
        self.turn += 1

    def _samples(self, cursor: Cursor) -> int:
        """Return how many samples an epoch has, as far as the plan tells: else those that are done."""
        order = getattr(self._plan, "order", None)
        return order.size(cursor.epoch) if cursor.samples and order is not None else cursor.samples

    def _pack(self, cursor: Cursor) -> dict[str, Any]:
        state = pack_state(cursor, self._identity(cursor.epoch, self._plan), self.step)
        return state | self.bad.state(cursor, alone=self.world.size == 1)

    def _identity(self, epoch: int, plan: Plan) -> Identity:
        dataset = fingerprint(self.dataset, self._size)
        return Identity(dataset=dataset, order=plan.key(epoch), seed=self.config.seed, block=_block_of(plan))

    def _make_plan(self) -> Plan:
        config = self.config
        order: Any
        if config.plan is not None:
            check_plan(config, self._size)
            order = getattr(config.plan, "order", None)
        elif config.order is not None:
            order = as_order(config.order, seed=config.seed)
        elif config.shuffle:
            order = shuffled_order(self.dataset, self._size, seed=config.seed, batch_size=config.batch_size)
        else:
            order = Sequential(self._size)
        if order is not None:
            check_order(order, self._size)
        if config.plan is not None:
            return config.plan
        return BatchPlan(order=order, batch_size=config.batch_size, tail=config.tail_policy)

    def _make_engine(self, workers: int) -> Engine:
        return make_engine(self._make_reader(), self.config, workers, in_turn=keeps_shards(self._plan))

    def _make_reader(self) -> BatchReader:
        config = self.config
        raises = config.bad_samples.policy == "raise"
        return BatchReader(
            self.dataset,
            config.collate_fn,
            config.seed,
            batched=config.batch_size is not None,
            bad_samples=config.bad_samples,
            order=None if raises else self._order(),
            lengths=None if raises else getattr(self._plan, "lengths", None),
        )

    def _order(self) -> Order:
        """Return the order from which replacements are chosen.

        Raises:
            ValueError: If the plan has none.
        """
        order = getattr(self._plan, "order", None)
        if not isinstance(order, Order):
            raise ValueError(
                f"loader: bad_samples={self.config.bad_samples.policy!r} needs an order to choose replacements from, and "
                f"{type(self._plan).__name__} has no `order`. Give the plan that attribute, or leave the policy 'raise'."
            )
        return order

    def _count_bad(self, report: Reported) -> None:
        plan, world = self._bound_plan(), self.world
        before = plan.advance(self._origin, self._yielded)
        seen = self.bad.judged(before.epoch, before.samples + plan.step, world.size)
        self.bad.add(
            report,
            epoch=before.epoch,
            batches=plan.batches(before.epoch) - self._left + 1,
            seen=max(seen, min(self._size, JUDGED_FROM)),
        )

    def _with_block(self, block: int | None) -> Plan:
        """Return the plan with the block of a saved order, if the Loader itself chose the block."""
        plan = self._plan
        if (
            block is not None
            and self.config.shuffle
            and isinstance(plan, BatchPlan)
            and isinstance(plan.order, ShardOrder)
        ):
            return dataclasses.replace(plan, order=plan.order.with_block(block))
        return plan

    def _bound_plan(self) -> Plan:
        world = self.world
        if self._plan.world != world:
            self._plan = self._plan.with_world(world)
        return self._plan

    def _check_sampler(self, epoch: int) -> None:
        order = getattr(self._plan, "order", None)
        if isinstance(order, SamplerOrder) and "sampler" not in self._said:
            self._said.add("sampler")
            if not order.is_repeatable(epoch):
                self.say(
                    "Loader: the sampler gives another order each time it is asked for the same epoch, so that "
                    "a resume in a new process cannot be exact (it will be refused). Let it draw from torch's, numpy's "
                    "or random's global generator, which are seeded here for each epoch."
                )

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_engine": None}


def keeps_shards(plan: Plan) -> bool:
    """Say whether workers that get a plan's batches in turn have shards of their own."""
    return isinstance(getattr(plan, "order", None), ShardOrder)


def _block_of(plan: Plan) -> int | None:
    order = getattr(plan, "order", None)
    return order.block if isinstance(order, ShardOrder) else None
