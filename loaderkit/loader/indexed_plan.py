"""The plan of a run over data with an index: made from the Loader's settings, for its ranks, without what it skips."""

import functools
from collections.abc import Iterator, Sequence, Sized
from typing import Any

from loaderkit.datasets.bad_samples import JUDGED_FROM, BadSampleCount, Reported
from loaderkit.loader.checks import (
    check_order,
    check_plan,
    inexact,
    no_batches,
    own_state,
    size_of,
    unrepeatable,
)
from loaderkit.loader.config import LoaderConfig
from loaderkit.loader.downloads import cache_remark
from loaderkit.loader.indexed_reader import make_reader, replacements
from loaderkit.loader.position import Crew
from loaderkit.reading.batch_reader import BatchReader
from loaderkit.sampling.batch_plan import BatchPlan
from loaderkit.sampling.batch_sampler import MOST_BATCHES, BatchSamplerOrder, BatchSamplerPlan
from loaderkit.sampling.cursor import Cursor, Identity
from loaderkit.sampling.order import Order, Sequential
from loaderkit.sampling.plan import BatchKey, Plan
from loaderkit.sampling.samplers import as_order
from loaderkit.sampling.shard_order import shuffled_order
from loaderkit.sampling.skips import Skips
from loaderkit.seeding.private import Found, PrivatePolicy
from loaderkit.system.arrays import Int64Array

Point = tuple[Cursor, int]  # where a pass started, and the batches counted since


class IndexedPlan:
    """The plan of a run. It computes batches and positions from cursors, and keeps no position itself.

    Args:
        dataset: The data.
        config: The Loader's settings.
        crew: The ranks that share the data.

    Attributes:
        size: Samples of the dataset when the present epoch began.
        skips: What the run leaves out.
        policy: What happens to random generators that the data keeps.
        version: Increases when workers have to be made again.
    """

    def __init__(self, dataset: Sized, config: LoaderConfig, crew: Crew) -> None:
        self._dataset, self._config, self._crew = dataset, config, crew
        self.policy: PrivatePolicy = config.private_generators or "seed"
        self.size, self.skips, self.version = size_of(dataset), Skips(), 0
        self._plan = make_plan(dataset, config, self.size)
        self._is_sampler_known = False
        replacements(self._plan, config, self.size, self.skips)

    # The plan

    @property
    def whole(self) -> Plan:
        """The plan of the whole order, for the present ranks."""
        world = self._crew.world
        if self._plan.world != world:
            self._plan = self._plan.with_world(world)
        return self._plan

    @property
    def kept(self) -> Plan:
        """The plan without the samples that the run leaves out."""
        plan = self.whole
        return plan.without(self.skips) if self.skips else plan

    @property
    def order(self) -> Order | None:
        """The order of the samples, if there is one."""
        return self._plan.order

    @property
    def block(self) -> int | None:
        """The order's block of positions (see `Order.shard_block`), which a state stores.

        None if the order is not by shards.
        """
        return block_of(self._plan)

    @property
    def repeats(self) -> bool:
        """Whether each epoch is known to have the same batches."""
        return self._plan.is_same_each_epoch()

    # What follows from a cursor

    def cursor_at(self, point: Point) -> Cursor:
        """Return a point as a cursor."""
        cursor, batches = point
        plan = self.kept
        return plan.placed(plan.advance(cursor, batches))

    def key(self, cursor: Cursor, ahead: int) -> BatchKey:
        """Return the key of this rank's batch `ahead` batches after a cursor; see `IndexedBatches.key`."""
        return self.kept.batch(cursor, ahead)

    def indices(self, epoch: int, batch: int) -> Int64Array:
        """Return the sample indices (B,) of a batch of this rank; see `IndexedBatches.indices`."""
        return self.key(Cursor(epoch=epoch), batch).indices

    def replay(self, cursor: Cursor, ahead: int) -> object:
        """Make this rank's batch `ahead` batches after a cursor."""
        batch = self.reader().read(self.key(cursor, ahead))
        return batch.batch if type(batch) is Reported else batch

    def size_of(self, epoch: int) -> int:
        """Return the number of positions in the order of an epoch."""
        return self.size if self.order is None else int(self.order.size(epoch))

    def samples(self, cursor: Cursor) -> int:
        """Return the number of samples in the cursor's epoch.

        Return `cursor.samples` at an epoch's start, or if the plan has no order.
        """
        return self.order.size(cursor.epoch) if cursor.samples and self.order is not None else cursor.samples

    def identity(self, cursor: Cursor, plan: Plan | None = None) -> Identity:
        """Return the identity of the data and order that a state at a cursor has.

        `plan` may be another plan for the same data; by default it is this one.
        """
        plan = plan or self._plan
        dataset, order = plan.identity(cursor, self._dataset, self.size)
        return Identity(dataset=dataset, order=order, seed=self._config.seed, block=block_of(plan))

    def told(self, cursor: Cursor) -> dict[str, str]:
        """Return what all ranks must have in common to share the data from a cursor on."""
        identity = self.identity(cursor)
        position = f"epoch {cursor.epoch}, sample {cursor.samples:,}"
        return {
            "data": identity.dataset,
            "order": identity.order,
            "position": position,
            "samples of a step": str(self.whole.step),
        }

    def judged(self, point: Point, bad: BadSampleCount) -> tuple[Cursor, float]:
        """Return a point as a cursor, and the number of samples that the count of bad samples is divided by for a rate.

        The number includes the next step. It is at least `JUDGED_FROM`, or the size of the dataset or epoch if both are
        smaller.
        """
        cursor = self.cursor_at(point)
        seen = bad.judged(cursor.epoch, cursor.samples + self.kept.step, self._crew.world.size)
        return cursor, max(seen, min(max(self.size, self.size_of(cursor.epoch)), JUDGED_FROM))

    # Changes of the plan

    def with_block(self, block: int | None) -> Plan:
        """Return the plan with the block of a saved order, if the Loader itself chose the block."""
        if block is None or not self._config.shuffle or block == self.block:
            return self._plan
        return make_plan(self._dataset, self._config, self.size, block)

    def use(self, plan: Plan) -> None:
        """Follow another plan for the same data. Workers are made again: the plan's order gives their replacements."""
        if plan is not self._plan:
            self._plan = plan
            self.version += 1

    def resize(self, size: int) -> None:
        """Make the plan again for a dataset whose length has changed. Workers are made again too."""
        self.size = size
        self.use(make_plan(self._dataset, self._config, size))

    def check_size(self) -> None:
        """Raise a RuntimeError if the dataset has another length than when the epoch began."""
        if (size := size_of(self._dataset)) != self.size:
            raise RuntimeError(
                f"loader: the dataset has {size:,} samples, and had {self.size:,} when the epoch began. An epoch reads one "
                "order of its samples, so change the dataset between epochs only."
            )

    def leave_out(self, skips: Skips) -> None:
        """Leave out these stretches and no others."""
        if skips != self.skips and self._config.bad_samples.policy != "raise":
            self.version += 1  # workers choose replacements from what stays
        self.skips = skips

    def stretches(self, epoch: int, steps: Sequence[range], samples: Sequence[range]) -> Skips:
        """Return the stretches of positions that these steps and samples of an epoch cover.

        Raises:
            ValueError: If the epoch has fewer steps or samples.
        """
        found = [(epoch, part.start, part.stop) for part in samples]
        if steps:
            plan = self.whole
            batches, end = plan.batches(epoch), self.size_of(epoch)
            for part in steps:
                if part.stop > batches:
                    raise ValueError(f"loader: skip of {part}, wanted steps of the {batches:,} of epoch {epoch}.")
                start, stop = (plan.advance(Cursor(epoch=epoch), step).samples for step in (part.start, part.stop))
                found.append((epoch, start, stop if part.stop < batches else end))
        for part in samples:
            if part.stop > (size := self.size_of(epoch)):
                raise ValueError(f"loader: skip of {part}, wanted samples of the {size:,} of epoch {epoch}.")
        return Skips.of(found)

    # The data

    def reader(self) -> BatchReader:
        """Make the BatchReader that reads and collates the batches."""
        return make_reader(self._dataset, self._config, self._plan, self.size, self.skips, step=self.kept.step)

    @functools.cached_property
    def generators(self) -> list[Found]:
        """The random generators that the data keeps."""
        return self.reader().found_generators()

    def remarks(self, cursor: Cursor) -> Iterator[str]:
        """Yield the warnings for a user before a pass that starts at a cursor."""
        if self.order is not None and not self._is_sampler_known:
            self._is_sampler_known = True
            if (remark := unrepeatable(self.order, cursor.epoch)) is not None:
                yield remark
        if (remark := own_state(self._dataset)) is not None:
            yield remark
        plan = self.kept
        if not plan.remaining(cursor):
            yield no_batches(self._config, plan, cursor, self.size)
            return
        left = [each for each in self.generators if self.policy == "leave" or each.seeded is None]
        nodes = self._crew.world.nodes or 1
        for remark in (plan.remark(), inexact(left), cache_remark(self._dataset, plan.order, nodes)):
            if remark is not None:
                yield remark

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name != "generators"}  # of this process


def make_plan(dataset: Any, config: LoaderConfig, size: int, block: int | None = None) -> Plan:
    """Make the plan of a Loader's settings.

    Args:
        dataset: The data.
        config: The settings.
        size: The number of samples; 0 for data without a length.
        block: The block of a shuffle by shards; None takes the batch size.

    Raises:
        TypeError: If `order` is neither an order nor a sampler.
        ValueError: If the settings contradict each other or the data.
    """
    plan: Plan
    if config.plan is not None:
        check_plan(config, size)
        plan = config.plan
    elif config.batch_sampler is not None:
        if config.batch_size != 1:
            raise ValueError(
                f"loader: batch_sampler= makes the batches alone. Leave out batch_size={config.batch_size!r}."
            )
        batches = BatchSamplerOrder(config.batch_sampler, seed=config.seed, most=max(MOST_BATCHES, 4 * size))
        plan = BatchSamplerPlan(order=batches, tail=config.tail_policy)
    else:
        order = _make_order(dataset, config, size, block)
        plan = BatchPlan(order=order, batch_size=config.batch_size, tail=config.tail_policy)
    if plan.order is not None:
        check_order(plan.order, size if hasattr(type(dataset), "__len__") else plan.order.reach)
    return plan


def block_of(plan: Plan) -> int | None:
    """Return the order's block of positions (see `Order.shard_block`), which a state stores.

    None if the plan has no order, or the order is not by shards.
    """
    return None if plan.order is None else plan.order.shard_block()


def _make_order(dataset: Any, config: LoaderConfig, size: int, block: int | None) -> Order:
    if config.order is not None:
        return as_order(config.order, seed=config.seed, size=size)
    if config.shuffle:
        blocks = config.batch_size if block is None else block
        return shuffled_order(dataset, size, seed=config.seed, batch_size=blocks)
    return Sequential(size)
