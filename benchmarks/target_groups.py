"""The targets of the benchmarks by group, and where their values are."""

from collections.abc import Callable, Iterator
from functools import partial

from measured import NotMeasuredError, Results
from summary import mean, summarise
from target import Target

LOADER, RING, ROWS = "lk.Loader", "lk.Loader, ring", "lk.Loader(ArrayDataset)"
ORDERS = ("in order", "shuffled")


def on_the_host(results: Results) -> Iterator[Target]:
    value = results.value

    def handed(column: str, turned: bool = False) -> list[float]:
        where = {"contender": RING, "leaves": "10"}
        found = [value("transport", column, bytes=size, **where) for size in ("40000", "400000", "4000000")]
        return [1 / one for one in found] if turned else found

    sizes = "40 KB, 400 KB and 4 MB in ten tensors"
    for column, text in (("main_cpu", "CPU of the main process"), ("wall", "time from batch to batch")):
        yield Target(
            f"Worker to main, {sizes}: `DataLoader` over ours, {text}",
            partial(handed, f"{column}_over_dataloader", turned=True),
            least=10,
        )
        yield Target(
            f"Worker to main, {sizes}: ours over a bare shared buffer, {text}",
            partial(handed, f"{column}_over_limit"),
            most=1.5,
        )

    def rows_over(other: str) -> list[float]:
        return [value("rows", "epoch_ms", contender=other) / value("rows", "epoch_ms", contender=f"{ROWS}, 2 workers")]

    yield Target(
        "Rows in memory, `auto`, 0 and 2 workers: over the bare gather",
        lambda: [value("rows", "ratio_to_limit", contender=name) for name in (ROWS, f"{ROWS}, 2 workers")],
        most=1.3,
    )
    yield Target(
        "Rows in memory, `auto`, 0 and 2 workers: over the loop written by hand (`torch.randperm` and `index_select`)",
        lambda: [value("rows", "ratio_to_reference", contender=name) for name in (ROWS, f"{ROWS}, 2 workers")],
        most=1.3,
    )
    yield Target(
        "Rows in memory, 2 workers: `DataLoader` over ours",
        lambda: rows_over("DataLoader(TensorDataset), 2 workers"),
        least=20,
    )

    def overall(timed: bool) -> list[float]:
        found, machines = summarise(results.folder)
        return [mean(found, timed)] if machines else []

    def behind() -> list[float]:
        found, machines = summarise(results.folder)
        speeds = [speed for workload, cells in found if workload.timed for speed in cells.values()]
        return [max(speeds)] if machines else []

    yield Target(
        "All workloads of throughput, geometric mean: ours over `DataLoader`", lambda: overall(True), least=3.5
    )
    yield Target(
        "All workloads of throughput, all loaders: the fastest of them over ours (samples of 100 us and JPEGs without workers are "
        "seeded one by one, which peers do not do: the price of a guarantee)",
        behind,
        most=1.1,
    )

    def slow(contender: str) -> list[float]:
        settings = [(work, size) for work in ("computing", "waiting") for size in ("1", "8")]
        where = [{"contender": contender, "work": work, "batch_size": size} for work, size in settings]
        return [value("stragglers", "over_perfect_balance", **one) for one in where]

    for name in (LOADER, RING):
        yield Target(
            f"Stragglers, `{name}`: over perfect balance; computing, batches of 1 and 8, then waiting",
            partial(slow, name),
            most=1.15,
        )
    yield Target(
        "Stragglers that draw nothing, waiting, by threads: over perfect balance; batches of 1 and 8",
        lambda: slow("lk.Loader, threads, draws_nothing")[2:],
        most=1.15,
    )
    methods = ("fork", "forkserver", "spawn")
    yield Target(
        "From epoch to epoch, 2 workers that stay: fork, forkserver, spawn",
        lambda: [value("startup", "epoch_gap_ms", contender=LOADER, start_method=method) for method in methods],
        most=5,
        unit=" ms",
    )

    def grown(name: str) -> list[float]:
        columns = ("growth_over_records", "total_growth_over_records")
        return [100 * value("memory", column, contender=f"{LOADER}, {name}") for column in columns]

    for name in ("lk.RecordDataset", "lk.share"):
        yield Target(
            f"A million records, `{name}`: growth of four workers over the records' size, and of all processes",
            partial(grown, name),
            most=10,
            unit=" %",
        )

    def worst_shares(loop: str) -> list[float]:
        found = [results.rows("data_wait", loop=loop, watched=watched) for watched in ("sleeps", LOADER)]
        return [max(float(row["points_off"]) for row in rows) for rows in found]

    def cost(loop: str) -> list[float]:
        return [value("data_wait", "cost_percent_of_5_ms", loop=loop, watched="sleeps")]

    for loop in ("plain loop", "Lightning"):
        yield Target(
            f"`DataWaitMonitor`, {loop}: off the share of synthetic sleeps, alone and in `{LOADER}`'s samples, the worst",
            partial(worst_shares, loop),
            most=5,
            unit=" points",
        )
        yield Target(f"`DataWaitMonitor`, {loop}: its cost of a step of 5 ms", partial(cost, loop), most=1, unit=" %")
    yield Target(
        "Samples of 100 us, each seeded, 0 and 2 workers: throughput over `DataLoader`'s",
        lambda: [
            value("per_sample", "throughput_ratio_to_reference", contender=LOADER, sample_us="100", workers=workers)
            for workers in ("0", "2")
        ],
        least=0.93,
    )

    def by_hand(script: str, loader: str, workers_of: tuple[str, ...], **where: str) -> list[float]:
        found = []
        for workers in workers_of:
            ours, theirs = (
                value(script, "us_per_sample", contender=name, workers=workers, **where)
                for name in (LOADER, f"{loader}, seeded by hand")
            )
            found.append(theirs / ours)
        return found

    for text, script, loader, workers_of, where in (
        ("Samples of 100 us", "per_sample", "DataLoader", ("0", "2"), {"sample_us": "100"}),
        ("JPEGs in memory, augmented", "pictures", "DataLoader", ("0", "2"), {}),
        ("JPEGs in memory, augmented", "pictures", "StatefulDataLoader", ("0", "2"), {}),
        ("JPEGs in memory, augmented", "pictures", "torchdata.nodes", ("0",), {}),
    ):
        yield Target(
            f"{text}, {' and '.join(workers_of)} workers: throughput over that of a `{loader}` whose dataset seeds each by hand",
            partial(by_hand, script, loader, workers_of, **where),
            least=0.98,  # the same work: equal, but for noise
        )

    def where_they_differ() -> list[float]:
        pairs = (
            (LOADER, "DataLoader, seeded by hand"),
            (LOADER, "torchdata.nodes, seeded by hand"),
            (f"{LOADER}, sample_rng", "torchdata.nodes, Philox by hand"),
        )
        over = partial(value, "seeding", "time_over_dataloader")
        return [over(contender=theirs) / over(contender=ours) for ours, theirs in pairs]

    yield Target(
        "The same JPEGs, 0 workers, where loaders differ: throughput over `DataLoader`, torchdata.nodes, both seeding by hand, and "
        "torchdata.nodes that makes a generator for each sample (by `lk.sample_rng()`)",
        where_they_differ,
        least=0.98,
    )


def on_disk(results: Results) -> Iterator[Target]:
    tokens, pictures = "loaderkit, documents", "loaderkit, tar"

    def over_bare(workload: str, contender: str) -> list[float]:
        where = {"workload": workload, "contender": contender, "workers": "0"}
        return [
            results.value("peers_throughput", "first_epoch_over_bare_loop", order=order, **where) for order in ORDERS
        ]

    def over_best(workload: str, contender: str, without: tuple[str, ...]) -> list[float]:
        found = []
        for workers in ("0", "2"):
            for order in ORDERS:
                rows = results.rows("peers_throughput", workload=workload, order=order, workers=workers)
                speeds = {row["contender"]: float(row["first_epoch_samples_per_s"]) for row in rows}
                others = [
                    speed for name, speed in speeds.items() if not any(part in name for part in ("loaderkit", *without))
                ]
                if contender not in speeds or not others:
                    raise NotMeasuredError
                found.append(speeds[contender] / max(others))
        return found

    where = "in order and shuffled"
    four = f"0 workers, {where}, then 2"
    yield Target(
        f"200,000 token sequences, 0 workers, {where}: over the bare loop", lambda: over_bare("tokens", tokens), least=2
    )
    yield Target(
        f"200,000 token sequences, {four}: over the best peer (`DataLoader` over a memory-map is none)",
        lambda: over_best("tokens", tokens, ("bare", "DataLoader")),
        least=5,
    )
    yield Target(
        f"5,000 JPEGs in tar, one thread, {where}: speed over the bare loop that reads, decodes and stacks, CPU time",
        lambda: [results.value("tar", "speed_over_limit", order=order, contender="lk.Loader") for order in ORDERS],
        least=0.97,
    )
    yield Target(
        f"5,000 JPEGs in tar, {four}: over the best peer",
        lambda: over_best("pictures", pictures, ("bare",)),
        least=1,
    )

    def index(shards: str) -> list[float]:
        ours, tarfile = (
            results.value("index", "cpu_s_per_million", shards=shards, contender=name)
            for name in ("loaderkit index", "tarfile")
        )
        return [tarfile / ours]

    for shards in ("tar, below 512 B", "tar, 1 B to 10 KB", "tar, 100 KB and a class"):
        yield Target(
            f"Index of {shards}: speed over Python's tarfile, CPU time", partial(index, shards), least=4, unit=" x"
        )

    def wrong_cells() -> list[float]:
        cells = {
            row["case"]: next(cell for name, cell in row.items() if name.startswith("loaderkit"))
            for row in results.rows("peers_resume")
        }
        cells = {case: cell for case, cell in cells.items() if not case.startswith(("state", "a shard"))}
        return [sum(not cell.startswith(("exact", "equal")) for cell in cells.values())]

    yield Target("Stopped and resumed, compared with the peers: cells of ours that are not exact", wrong_cells, most=0)
    yield Target(
        "Opens of a shard in an epoch of a ShardOrder (1,000 shards, 64 lanes), 4 workers",
        lambda: [results.value("shard_order", "opens_per_shard_4_workers", lanes="64", window="1000")],
        most=2,
    )

    def read() -> list[float]:
        columns = ("read_8_nodes", "read_64_nodes", "read_8_nodes_4_epochs")
        return [results.value("shard_order", column, lanes="64", window="1000") for column in columns]

    yield Target("Shards that a node reads over its part: 8 and 64 nodes, and 8 over four epochs", read, most=1.1)


def of_lengths(results: Results) -> Iterator[Target]:
    def faster(contender: str, kind: str, dtype: str) -> list[float]:
        rows = results.rows("collate", contender=contender, samples=kind, dtype=dtype)
        return [float(row["times_faster"]) for row in rows]

    for contender, dtype, least in (
        ("lk.PadCollate", "int64", 2.3),
        ("lk.PadCollate", "uint16", 4),
        ("lk.RaggedCollate", "int64", 4.5),
        ("lk.RaggedCollate", "uint16", 4.5),
    ):
        for kind in ("tensors", "arrays"):
            yield Target(
                f"`{contender}` of {dtype} {kind}, batches of 64, 128 and 256: times as fast as `pad_sequence` + mask",
                partial(faster, contender, kind, dtype),
                least=least,
            )

    def planned(name: str, column: str) -> list[float]:
        where = {"contender": name, "longest": "2048"}
        return [results.value("text_plans", column, sigma=sigma, **where) for sigma in ("0.6", "1")]

    for name, most in (("lk.TokenBudget", 1.03), ("lk.LengthBuckets", 1.06), ("lk.PackPlan", 1.006)):
        yield Target(
            f"`{name}`: computed tokens for each real one, lognormal lengths, sigma 0.6 and 1.0",
            partial(planned, name, "padded_to_real"),
            most=most,
        )
    for name in ("lk.LengthBuckets", "lk.TokenBudget"):
        yield Target(
            f"`{name}`: planning a sample, sigma 0.6 and 1.0",
            partial(planned, name, "plan_ns_per_sample"),
            most=200,
            unit=" ns",
        )

    def over_packing_peers(kind: str) -> list[float]:
        """Return our speed over that of the fastest peer."""
        found = []
        for workers in ("0", "2"):
            rows = results.rows("packed_throughput", kind=kind, workers=workers)
            theirs = [row for row in rows if not row["contender"].startswith("loaderkit")]
            if not theirs:
                raise NotMeasuredError
            columns = ("first_epoch_over_ours", "later_epoch_over_ours")
            found += [1 / max(float(row[column]) for row in theirs) for column in columns]
        return found

    for kind, text in (
        ("packed", "Packed rows of tokens, `PackPlan`: tokens a second over the best peer that cuts and packs"),
        ("windows", "Windows of joined tokens, `TokenDataset`: tokens a second over the best peer"),
    ):
        yield Target(f"{text}; 0 workers, first and later epoch, then 2", partial(over_packing_peers, kind), least=0.9)

    def full(ours: bool) -> list[float]:
        rows = results.rows("packed_throughput", kind="packed", workers="0")
        shares = [float(row["rows_full"]) for row in rows if row["contender"].startswith("loaderkit, PackPlan") == ours]
        if not shares:
            raise NotMeasuredError
        return shares

    yield Target(
        "Packed rows, `PackPlan`: how full they are, over the fullest of any other",
        lambda: [full(True)[0] / max(full(False))],
        least=0.99,
    )
    yield Target(
        "Training on texts with `lk.TokenBudget`, sigma 0.6 and 1.0: tokens a second over lhotse's",
        lambda: [
            results.value("text", "throughput_ratio_to_lhotse", contender="lk.TokenBudget", sigma=sigma)
            for sigma in ("0.6", "1")
        ],
        least=1,
    )


def of_order(results: Results) -> Iterator[Target]:
    huge = {"contender": LOADER, "samples": str(10**12)}
    yield Target("First batch of 10^12 shuffled samples", lambda: [results.value("order", "first_batch_ms", **huge)], 50, unit=" ms")  # fmt: skip
    yield Target("Its memory", lambda: [results.value("order", "allocated_peak_mb", **huge)], 10, unit=" MB")
    resumed = {"contender": "lk.Loader, resumed"}
    yield Target(
        "Resume at 90 % of 10M samples: over a fresh start",
        lambda: [results.value("resume", "ratio_to_own_fresh_start", **resumed)],
        1.05,
    )
    yield Target("Samples read again", lambda: [results.value("resume", "extra_getitem_calls", **resumed)], 0)
    yield Target("The state", lambda: [results.value("resume", "state_bytes", **resumed)], 1024, unit=" bytes")


def on_cuda(results: Results) -> Iterator[Target]:
    def worst(name: str, column: str, best: Callable[[list[float]], float], **where: str) -> list[float]:
        return [best([float(row[column]) for row in results.rows(name, **where)])]

    yield Target(
        "On CUDA: a step over the longer of computation and copy, the worst of all ratios",
        lambda: worst("device_overlap", "step_over_limit", max, way="lk.DeviceLoader"),
        most=1.03,
    )
    yield Target(
        "On CUDA: bandwidth of registered slots over that of pinned memory, the worst of 1 MiB and more",
        lambda: [
            min(
                float(row["of_pinned"])
                for row in results.rows("device_copies", method="registered slot, copy_")
                if int(row["bytes"]) >= 1 << 20
            )
        ],
        least=0.98,
    )


def from_a_bucket(results: Results) -> Iterator[Target]:
    def cold(column: str, order: str, name: str = LOADER) -> float:
        return results.value("cloud", column, order=order, workers="2", step_ms="0", contender=name)

    def of(case: str, column: str) -> float:
        return results.value("cloud_cases", column, case=case)

    small = ("small cache, in order", "small cache, shuffled")
    yield Target(
        "First epoch from a slow bucket, 2 workers, in order and shuffled: over the network's limit",
        lambda: [cold("ratio_to_limit", order) for order in ORDERS],
        most=1.2,
    )
    yield Target("Its first batch, shuffled", lambda: [cold("first_batch_s", "shuffled")], most=1.5, unit=" s")
    yield Target(
        "The same over webdataset's",
        lambda: [cold("first_batch_s", "shuffled") / cold("first_batch_s", "shuffled", "webdataset")],
        most=1,
    )
    yield Target("Requests that open 1,000 shards", lambda: [of("open 1,000 shards", "open_requests")], most=3)
    yield Target("Their time", lambda: [of("open 1,000 shards", "open_s")], most=1, unit=" s")
    yield Target(
        "A cache of 3 shards, in order and shuffled: peak over the limit",
        lambda: [of(case, "peak_shards_over_limit") for case in small],
        most=1,
        unit=" shards",
    )
    yield Target(
        "The same: bytes over the minimum", lambda: [of(case, "bytes_over_minimum") for case in small], most=1.3
    )
    yield Target(
        "First batch of a resume on an empty node",
        lambda: [of("resume on an empty node", "first_batch_s")],
        most=2,
        unit=" s",
    )


GROUPS: dict[str, Callable[[Results], Iterator[Target]]] = {
    "On the host": on_the_host,
    "Data on disk": on_disk,
    "Variable lengths": of_lengths,
    "Order and resume": of_order,
    "From a bucket": from_a_bucket,
    "Copies to the device": on_cuda,
}
