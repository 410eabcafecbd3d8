"""The plan that a Loader's settings mean, for data with an index."""

from typing import Any

from loaderkit.loader.checks import check_order, check_plan
from loaderkit.loader.config import LoaderConfig
from loaderkit.sampling.batch_plan import BatchPlan
from loaderkit.sampling.batch_sampler import MOST_BATCHES, BatchSamplerOrder, BatchSamplerPlan
from loaderkit.sampling.order import Order, Sequential
from loaderkit.sampling.plan import Plan
from loaderkit.sampling.samplers import as_order
from loaderkit.sampling.shard_order import shuffled_order


def make_plan(dataset: Any, config: LoaderConfig, size: int, block: int | None = None) -> Plan:
    """Make the plan of a Loader's settings.

    Args:
        dataset: The data.
        config: The settings.
        size: The number of samples; 0 for data without a length.
        block: That of a shuffle of shards, if it is not the batch size.

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
    """Return the block of a plan's order, which a state names; None if the order has none."""
    return None if plan.order is None else plan.order.shard_block()


def _make_order(dataset: Any, config: LoaderConfig, size: int, block: int | None) -> Order:
    if config.order is not None:
        return as_order(config.order, seed=config.seed, size=size)
    if config.shuffle:
        blocks = config.batch_size if block is None else block
        return shuffled_order(dataset, size, seed=config.seed, batch_size=blocks)
    return Sequential(size)
