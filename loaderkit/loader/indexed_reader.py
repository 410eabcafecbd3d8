"""Make the reader of a plan's batches, and choose the order that its replacements of bad samples come from."""

import functools
from typing import Any

from loaderkit.datasets.shards.epoch_shards import epoch_shards
from loaderkit.loader.config import LoaderConfig
from loaderkit.reading.batch_reader import BatchReader, StagedReader
from loaderkit.sampling.order import Order, Sequential
from loaderkit.sampling.plan import Plan
from loaderkit.sampling.skipping_plan import Remaining
from loaderkit.sampling.skips import Skips
from loaderkit.system.overrides import own_attribute


def make_reader(dataset: Any, config: LoaderConfig, plan: Plan, size: int, skips: Skips, *, step: int) -> BatchReader:
    """Make the BatchReader that reads and collates the batches of a plan.

    Args:
        dataset: The data.
        config: The Loader's settings.
        plan: The plan of the whole order.
        size: The number of samples.
        skips: Positions that the run leaves out. Their samples replace no bad ones.
        step: Samples in a full step of all ranks.
    """
    collate = config.collate_fn
    if collate is None:  # not `if not collate`: a collate function may be falsy
        collate = own_attribute(dataset, "default_collate")  # of a Pipeline
    make = functools.partial(
        BatchReader,
        dataset,
        seed=config.seed,
        batched=config.batch_size is not None,
        bad_samples=config.bad_samples,
        lengths=None if config.bad_samples.policy == "raise" else plan.lengths,
        shards=epoch_shards(dataset, plan.order, step, plan.world) if plan.follows_order else None,
        private_generators=config.private_generators or "seed",
        seeders=config.seeders,
        global_generators=config.global_generators,
    )
    order, parts = replacements(plan, config, size, skips), plan.parts()
    if parts[0].end is None:  # all batches are made in one way
        return make(collate_fn=collate, order=order)
    readers = [
        make(
            collate_fn=collate if part.collate_fn is None else part.collate_fn,
            order=None if order is None else part.order,
        )
        for part in parts
    ]
    # The reader with the most demands decides which engine can be used.
    shown = max(readers, key=lambda one: (one.draws_from(), one.collate_fn is not None))
    ends = [part.end for part in parts if part.end is not None]
    return StagedReader(dataset, shown.collate_fn, config.seed, stages=readers, ends=ends)


def replacements(plan: Plan, config: LoaderConfig, size: int, skips: Skips) -> Order | None:
    """Return the order that replacements of bad samples come from; None if none are needed.

    Raises:
        ValueError: If they are needed and the plan has no order.
    """
    if config.bad_samples.policy == "raise":
        return None
    order = plan.order
    if not isinstance(order, Order):
        raise ValueError(
            f"loader: bad_samples={config.bad_samples.policy!r} takes replacements from the plan's order, and "
            f"{type(plan).__name__} has no attribute `order`. Give it one, or use the policy 'raise'."
        )
    # An endless order would have to be drawn up to a replacement's position.
    if order.is_endless(0):
        return Sequential(size)
    return Remaining(order, skips) if skips else order
