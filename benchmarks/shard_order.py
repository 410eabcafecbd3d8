"""Measure a ShardOrder by lanes and window: opens of a shard, mixing, time per index.

Shards of 1,000 samples, batches of 256, four workers and one, each with its last shards kept open. `mix` is the variation of
batch means over that of a full shuffle (1), for data that is sorted by shard. `mix_16` is the same for 16 batches together. The
first row reads in order, the second shuffles fully.
"""

import math
from collections import OrderedDict
from typing import Any

import numpy as np
from harness import DATA, OURS, Row, parse_options, report, seconds, spread

import loaderkit as lk

SHARD, BATCH = 1000, 256
KEPT = 128  # a dataset's max_open
STRETCH = 1 << 15


def main() -> None:
    options = parse_options(__doc__)
    shards = 100 if options.quick else 1000
    sizes = [SHARD] * shards
    orders: dict[tuple[str, Any, Any], lk.Order] = {
        ("in order", "", ""): lk.Sequential(SHARD * shards),
        ("full shuffle", "", ""): lk.Shuffled(SHARD * shards),
    }
    for lanes in (8, 16, 32):
        for window in (1024, 4096, 16384):
            orders["ShardOrder", lanes, window] = lk.ShardOrder(sizes, lanes=lanes, window=window, block=BATCH)
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
                "shards_a_batch": float(np.mean([len(np.unique(batch)) for batch in used])),
                "mix": float(label.mean(1).std() * math.sqrt(BATCH)),
                "mix_16": float(together(label, 16).mean(1).std() * math.sqrt(16 * BATCH)),
                "ns_per_index": spread(times)[1] / order.size(0) * 1e9,
                "repeats": len(times),
            }
        )
    report("shard_order", rows, options, lambda figure: draw(figure, rows))


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


def draw(figure: Any, rows: list[Row]) -> None:
    panels = figure.subplots(1, 2)
    labels = [row["order"] if not row["lanes"] else f"{row['lanes']} x {row['window']}" for row in rows]
    columns = (("opens_per_shard_4_workers", "opens of a shard, 4 workers"), ("mix_16", "spread of 16 batches' means"))
    for axes, (column, title) in zip(panels, columns, strict=True):
        colours = [OURS if row["lanes"] else DATA for row in rows]
        axes.barh(labels[::-1], [row[column] for row in rows][::-1], color=colours[::-1])
        axes.set_xscale("log")
        axes.set_title(title + " (log scale)", loc="left")
    figure.suptitle("ShardOrder: lanes x window, in samples", x=0.01, ha="left")


if __name__ == "__main__":
    main()
