"""Measure a ShardOrder by lanes and window: opens of a shard, shards in use, what nodes read, mixing, time per index.

1,000 shards of 1,000 samples, batches of 256, four workers, each with its last shards kept open; nodes of 8 ranks. `mix_16` is the
variation of the means of 16 batches over that of a full shuffle (1), for data that is sorted by shard. The first row reads in
order, the second shuffles fully. MosaicML's shuffle takes part where its package is installed, with as many canonical nodes as
we have lanes.
"""

import importlib.util
import math
import warnings
from collections import OrderedDict
from typing import Any

import numpy as np
from lib.harness import Row, parse_options, record, seconds, spread
from report.declare import Report, each

import loaderkit as lk
from loaderkit.sampling.batch_plan import BatchPlan

SHARD, BATCH, RANKS = 1000, 256, 8
KEPT = 256  # a dataset's max_open
STRETCH = 1 << 15
EPOCHS = 4
MOSAICML = "MosaicML py1e"

REPORT = Report(minutes=1, group="Data on disk")
REPORT.target(
    "Opens of a shard in an epoch of a ShardOrder (1,000 shards, 64 lanes), 4 workers",
    each("opens_per_shard_4_workers", lanes="64", window="1000"),
    most=2,
)
REPORT.target(
    "Shards that a node reads over its part: 8 and 64 nodes, and 8 over four epochs",
    each("read_8_nodes", "read_64_nodes", "read_8_nodes_4_epochs", lanes="64", window="1000"),
    most=1.1,
)
REPORT.chart(
    "ShardOrder by lanes and window, 1,000 shards of 1,000 samples (less is better)",
    {
        "read_8_nodes": "read by each of 8 nodes, over its part",
        "shards_in_use": "shards in use",
        "mix_16": "spread of means",
    },
    names=("order", "lanes", "window"),
    log=True,
)


class OfMosaicml(lk.Order):
    """MosaicML Streaming's shuffle of an epoch: canonical nodes take turns by the sample, as its workers read them."""

    def __init__(self, sizes: list[int], nodes: int) -> None:
        from streaming.base.shuffle import get_shuffle

        self._shuffle, self._sizes, self._nodes = get_shuffle, np.array(sizes), nodes
        self._made: dict[int, Any] = {}

    def size(self, epoch: int) -> int:
        return int(self._sizes.sum())

    @property
    def reach(self) -> int:
        return self.size(0)

    def key(self, epoch: int) -> str:
        return "mosaicml"

    def at(self, epoch: int, positions: Any) -> Any:
        if epoch not in self._made:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                ids = self._shuffle("py1e", self._sizes, self._nodes, 0, epoch, 4 * SHARD)
            # Batches come from the canonical nodes in turn.
            batches = ids.reshape(self._nodes, -1)
            each = batches.shape[1] // BATCH * BATCH
            whole = batches[:, :each].reshape(self._nodes, -1, BATCH).transpose(1, 0, 2).reshape(-1)
            self._made[epoch] = np.concatenate((whole, batches[:, each:].reshape(-1)))
        return self._made[epoch][positions]


def main() -> None:
    options = parse_options(__doc__)
    shards = 128 if options.quick else 1000
    sizes = [SHARD] * shards
    orders: dict[tuple[str, Any, Any], lk.Order] = {
        ("in order", "", ""): lk.Sequential(SHARD * shards),
        ("full shuffle", "", ""): lk.Shuffled(SHARD * shards),
    }
    for lanes in (16, 64, 256):
        for window in (1000, 4000):
            orders["ShardOrder", lanes, window] = lk.ShardOrder(sizes, lanes=lanes, window=window, block=BATCH)
    if importlib.util.find_spec("streaming") is not None:
        orders[MOSAICML, 64, ""] = OfMosaicml(sizes, 64)
    rows: list[Row] = []
    for (name, lanes, window), order in orders.items():
        found = order.indices(0, 0, SHARD * shards)
        used = found[: len(found) // BATCH * BATCH].reshape(-1, BATCH) // SHARD
        label = (used - used.mean()) / used.std()
        times = [walk(order) for _ in range(1 if options.quick else 5)]
        rows.append(
            {
                "order": name,
                "lanes": lanes,
                "window": window,
                "opens_per_shard_4_workers": opens(used, 4) / shards,
                "opens_per_shard_1_worker": opens(used, 1) / shards,
                "shards_in_use": in_use(found // SHARD),
                "largest_burst": largest_burst(used),
                **{f"read_{nodes}_nodes": read(order, shards, nodes) for nodes in (5, 8, 64)},
                f"read_8_nodes_{EPOCHS}_epochs": read(order, shards, 8, EPOCHS),
                "mix": float(label.mean(1).std() * math.sqrt(BATCH)),
                "mix_16": float(together(label, 16).mean(1).std() * math.sqrt(16 * BATCH)),
                "company": company(order, shards),
                "travel": travel(order),
                "ns_per_index": spread(times)[1] / order.size(0) * 1e9,
                "repeats": len(times),
            }
        )
        if name == MOSAICML:  # this says how its samples mix, not how it deals them to nodes and workers
            rows[-1] |= {column: "" for column in rows[-1] if column.startswith(("opens_", "read_", "largest_"))}
    record("shard_order", rows, options)


def walk(order: lk.Order) -> float:
    """Look up an epoch as a Loader does."""
    size = order.size(0)
    return seconds(lambda: [order.indices(1, at, min(at + STRETCH, size)) for at in range(0, size, STRETCH)])


def together(label: Any, batches: int) -> Any:
    return label[: len(label) // batches * batches].reshape(-1, batches * BATCH)


def opens(used: Any, workers: int) -> int:
    """Count how often a shard is opened, where each worker keeps the last ones."""
    count = 0
    for worker in range(workers):
        kept: OrderedDict[int, None] = OrderedDict()
        for batch in used[worker::workers]:
            for shard in np.unique(batch).tolist():
                count += shard not in kept
                kept[shard] = kept.pop(shard, None)
                if len(kept) > KEPT:
                    kept.popitem(last=False)
    return count


def in_use(shards: Any) -> int:
    """Return the most shards that have been begun and are still needed."""
    _, first = np.unique(shards, return_index=True)
    _, last = np.unique(shards[::-1], return_index=True)
    change = np.zeros(len(shards) + 1, dtype=np.int64)
    np.add.at(change, first, 1)
    np.add.at(change, len(shards) - last, -1)
    return int(change.cumsum().max())


def largest_burst(used: Any) -> int:
    """Return the most new shards in 16 batches, once each lane has had four turns of 64."""
    _, first = np.unique(used, return_index=True)
    return int(np.bincount(first // (16 * BATCH))[16:].max(initial=0))


def read(order: lk.Order, shards: int, nodes: int, epochs: int = 1) -> float:
    """Return the most shards that a node reads, over its part."""
    most = 0
    for node in range(nodes):
        # A node's ranks together read what one rank with all their samples reads.
        plan = BatchPlan(order=order, batch_size=RANKS * BATCH, world=lk.World(node, nodes))
        found: set[int] = set()
        for epoch in range(epochs):
            for key in plan.keys(lk.Cursor(epoch=epoch)):
                found.update(np.unique(key.indices // SHARD).tolist())
        most = max(most, len(found))
    return most / shards * nodes


def company(order: lk.Order, shards: int) -> float:
    """Return how many other samples share a batch with a sample in some epochs, over the most that can."""
    size = SHARD * shards
    watched = np.random.default_rng(0).choice(size, 200, replace=False)
    met: dict[int, set[int]] = {sample: set() for sample in watched.tolist()}
    for epoch in range(EPOCHS):
        found = order.indices(epoch, 0, size // BATCH * BATCH)
        place = np.full(size, -1)
        place[found] = np.arange(len(found))
        for sample, others in met.items():
            if place[sample] >= 0:
                begin = place[sample] // BATCH * BATCH
                others.update(found[begin : begin + BATCH].tolist())
    return float(np.mean([len(others) - 1 for others in met.values()])) / (EPOCHS * (BATCH - 1))


def travel(order: lk.Order) -> float:
    """Return how far a sample moves from one epoch to the next, over that of a full shuffle: a third of the epoch."""
    size = order.size(0)
    places = np.empty((2, size))
    for epoch in range(2):
        places[epoch, order.indices(epoch, 0, size)] = np.arange(size)
    return float(np.abs(places[1] - places[0]).mean() / size * 3)


if __name__ == "__main__":
    main()
