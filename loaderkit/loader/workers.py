"""The workers of a Loader whose data has an index."""

import dataclasses

from loaderkit.datasets.shards.sharded import shards_within
from loaderkit.engine.description import Description
from loaderkit.engine.engine import Engine
from loaderkit.loader.config import LoaderConfig
from loaderkit.loader.engines import describe, make_engine
from loaderkit.loader.indexed_plan import IndexedPlan
from loaderkit.loader.position import Crew


class Workers:
    """Makes the engine when a pass starts, and makes another if the plan has changed in a way that concerns workers.

    Args:
        dataset: The data.
        config: The Loader's settings.
        crew: The number of workers, and the ranks.
        plan: The plan.
    """

    def __init__(self, dataset: object, config: LoaderConfig, crew: Crew, plan: IndexedPlan) -> None:
        self._dataset, self._config, self._crew, self._plan = dataset, config, crew, plan
        self._engine: Engine | None = None
        self._version = plan.version  # the plan's version that the engine was made for

    def start(self) -> Engine:
        """Return the engine for the plan as it is now."""
        if self._version != self._plan.version:
            self.close()
            self._engine = None
        if self._engine is None:
            self._engine, self._version = self._make(), self._plan.version
        return self._engine

    def close(self) -> bool:
        """Stop the engine, which a later pass starts again; return whether there is one."""
        if self._engine is None:
            return False
        self._engine.close()
        return True

    def describe(self) -> Description:
        """Describe how batches are made, or will be."""
        is_ready = self._engine is not None and self._version == self._plan.version
        engine = self._engine if is_ready and self._engine is not None else self._make()
        found = describe(engine, self._plan.reader(), self._config, self._crew.num_workers, self._crew.why)
        order, data = self._plan.order, shards_within(self._dataset)
        return dataclasses.replace(
            found,
            order=None if order is None else order.cost(self._crew.world, self._config.batch_size or 1),
            cache=None if data is None else data.files.cache_cost(),
        )

    def _make(self) -> Engine:
        # Workers take the batches of a shard order in turn, so that each keeps to its own shards.
        in_turn = self._plan.block is not None
        if self._crew.num_workers and (data := shards_within(self._dataset)) is not None and data.files.remote_bytes:
            data.close()  # workers open their own: the cache may evict what nobody has open
        return make_engine(self._plan.reader(), self._config, self._crew.num_workers, in_turn=in_turn)

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_engine": None}
