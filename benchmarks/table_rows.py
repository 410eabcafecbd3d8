"""The rows of the table of results, section by section: each from the CSV files of one script."""

import statistics
from collections.abc import Callable, Iterator
from pathlib import Path

from measured import Line, number, pick, read
from table_rows_disk import of_cloud, of_index, of_packed, of_resumes, of_speeds, of_tar


def of_rows(folder: Path) -> Iterator[Line]:
    rows = read("rows", folder)
    ours, theirs = pick(rows, contender="lk.Loader(ArrayDataset)"), pick(rows, contender="DataLoader(TensorDataset)")
    faster = float(theirs["ratio_to_reference"]) / float(ours["ratio_to_reference"])
    yield (
        "1M x 32 float32 in memory, batch 1,024, shuffled: time over a hand-written `index_select` loop (over its gather alone)",
        f"**{number(ours['ratio_to_reference'])} x** ({number(ours['ratio_to_limit'])} x)",
        f"`TensorDataset` + `DataLoader` {number(theirs['ratio_to_reference'])} x ({number(theirs['ratio_to_limit'])} x), "
        f"{faster:.0f} times as long as ours",
        "rows",
    )
    ours = pick(rows, contender="lk.Loader(ArrayDataset), 2 workers")
    theirs = pick(rows, contender="DataLoader(TensorDataset), 2 workers")
    faster = float(theirs["ratio_to_reference"]) / float(ours["ratio_to_reference"])
    yield (
        "The same with 2 workers",
        f"**{number(ours['ratio_to_reference'])} x** ({number(ours['ratio_to_limit'])} x)",
        f"`DataLoader` {number(theirs['ratio_to_reference'])} x, {faster:.0f} times as long as ours",
        "rows",
    )


def of_transport(folder: Path) -> Iterator[Line]:
    rows = read("transport", folder)
    for size, text in (("40000", "40 KB"), ("400000", "400 KB"), ("4000000", "4 MB")):
        row = pick(rows, contender="lk.Loader, ring", leaves="10", bytes=size)
        cheaper, faster = 1 / float(row["main_cpu_over_dataloader"]), 1 / float(row["wall_over_dataloader"])
        theirs = f"`DataLoader` {number(str(cheaper))} x as much ({number(str(faster))} x as long); ours over a bare shared buffer "
        theirs += f"{number(row['main_cpu_over_limit'])} x ({number(row['wall_over_limit'])} x)"
        yield (
            f"From a worker to the main process, {text} in ten tensors: CPU of the main process a batch (time from batch to batch)",
            f"**{number(row['main_cpu_us'], ' us')}** ({number(row['wall_us'], ' us')})",
            theirs,
            "transport",
        )


def of_stragglers(folder: Path) -> Iterator[Line]:
    rows = read("stragglers", folder)
    for work in ("computing", "waiting"):
        first, second = (
            ", ".join(
                number(pick(rows, contender=name, work=work, batch_size=size)["over_perfect_balance"], " x")
                for size in ("1", "8")
            )
            for name in ("lk.Loader", "DataLoader")
        )
        yield (
            f"Stragglers, {work}: 1 of 20 samples 10 times slower, 2 workers, order kept: time over perfect balance, batches of 1 and of 8",
            f"**{first}**",
            f"`DataLoader` {second}",
            "stragglers",
        )
    shares = [
        ", ".join(
            number(pick(rows, contender=name, work="waiting", batch_size=size)["over_perfect_balance"], " x")
            for size in ("1", "8")
        )
        for name in ("lk.Loader, threads, draws_nothing", "torchdata.nodes, threads")
    ]
    yield (
        "The same, waiting, where the dataset says that it draws nothing, by 2 threads",
        f"**{shares[0]}**",
        f"`torchdata.nodes` {shares[1]}",
        "stragglers",
    )


def of_startup(folder: Path) -> Iterator[Line]:
    rows = read("startup", folder)
    mine, other = (pick(rows, contender=name, start_method="fork") for name in ("lk.Loader", "DataLoader"))
    yield (
        "From one epoch to the next, 2 workers that stay (first batch of all, forked)",
        f"**{number(mine['epoch_gap_ms'], ' ms')}** ({number(mine['cold_ms'], ' ms')})",
        f"`DataLoader` {number(other['epoch_gap_ms'], ' ms')} ({number(other['cold_ms'], ' ms')})",
        "startup",
    )


def of_memory(folder: Path) -> Iterator[Line]:
    rows = read("memory", folder)
    mine, other = (pick(rows, contender=name) for name in ("lk.Loader, lk.share", "DataLoader, a list of dicts"))
    yield (
        "A million records, 4 workers, one pass: growth of the workers over the records' size",
        f"**{float(mine['growth_over_records']):.1%}** ({mine['contender'].split(', ')[1]})",
        f"a list of dicts {float(other['growth_over_records']):.0%} ({number(other['growth_mb'], ' MB')})",
        "memory",
    )


def of_samples(folder: Path) -> Iterator[Line]:
    rows = read("per_sample", folder)
    for workers in ("0", "2"):
        ours = pick(rows, contender="lk.Loader", workers=workers, sample_us="100")
        theirs = pick(rows, contender="DataLoader", workers=workers, sample_us="100")
        yield (
            f"100 us a sample, batch 32, {workers} workers, each sample seeded: throughput over `DataLoader`'s",
            f"**{number(ours['throughput_ratio_to_reference'])} x**",
            f"{number(ours['us_per_sample'])} against {number(theirs['us_per_sample'])} us a sample",
            "per_sample",
        )
    said = [
        pick(rows, contender="lk.Loader, draws_nothing", workers=workers, sample_us="100") for workers in ("0", "2")
    ]
    shares = [number(row["throughput_ratio_to_reference"], " x") for row in said]
    limits = [number(row["throughput_ratio_to_limit"], " x") for row in said]
    yield (
        "The same where the dataset says that it draws nothing, 0 and 2 workers: throughput over `DataLoader`'s",
        f"**{', '.join(shares)}**",
        f"over a bare loop's: {', '.join(limits)}",
        "per_sample",
    )


def of_large(folder: Path) -> Iterator[Line]:
    rows = read("large", folder)
    for job, text in (
        ("float32", "Batches of 38 MB, 64 pictures as float32 stacked, next to no work"),
        ("uint8 rows", "The same size, 256 rows of an array in memory"),
    ):
        ours = [pick(rows, contender="lk.Loader", workers=workers, job=job) for workers in ("0", "2")]
        theirs = [pick(rows, contender="DataLoader", workers=workers, job=job) for workers in ("0", "2")]
        yield (
            f"{text}, 0 and 2 workers: throughput over `DataLoader`'s",
            f"**{', '.join(number(row['throughput_ratio_to_reference'], ' x') for row in ours)}**",
            " and ".join(
                f"{number(mine['us_per_sample'])} against {number(other['us_per_sample'])} us"
                for mine, other in zip(ours, theirs, strict=True)
            )
            + " a sample",
            "large",
        )


def of_seeding(folder: Path) -> Iterator[Line]:
    rows = read("seeding", folder)
    seeded, own, none, *theirs = (
        f"{float(pick(rows, contender=name)['time_over_dataloader']):.3f}"
        for name in (
            "lk.Loader",
            "lk.Loader, sample_rng",
            "lk.Loader, not seeding",
            "DataLoader, seeded by hand",
            "torchdata.nodes",
            "torchdata.nodes, seeded by hand",
            "torchdata.nodes, Philox by hand",
        )
    )
    yield (
        "JPEGs decoded and augmented, 0 workers: time over that of `DataLoader`, which seeds nothing, where they differ",
        f"**{seeded}; by `lk.sample_rng()` {own}; told that the data draws nothing {none}**",
        "seeded by hand {}, torchdata.nodes {}, seeded by hand {}, with a generator for each sample {}".format(*theirs),
        "seeding",
    )


def of_resume(folder: Path) -> Iterator[Line]:
    rows = read("resume", folder)
    ours, theirs = pick(rows, contender="lk.Loader, resumed"), pick(rows, contender="StatefulDataLoader, resumed")
    again = pick(rows, contender="DataLoader, run to the place again")
    yield (
        "Resume at 90 % of 10M samples: time to the first batch (samples read again)",
        f"**{number(ours['first_batch_ms'], ' ms')}** ({int(ours['extra_getitem_calls'])})",
        f"`StatefulDataLoader` {number(theirs['first_batch_ms'], ' ms')} ({int(theirs['extra_getitem_calls']):,}), "
        f"`DataLoader` {number(again['first_batch_ms'], ' ms')} ({int(again['extra_getitem_calls']):,})",
        "resume",
    )
    yield (
        "The state of that run",
        f"**{ours['state_bytes']} bytes** of JSON",
        f"`StatefulDataLoader` {int(theirs['state_bytes']):,} bytes",
        "resume",
    )


def of_order(folder: Path) -> Iterator[Line]:
    rows = read("order", folder)
    ours = pick(rows, contender="lk.Loader", samples=str(10**12))
    sampler = max(
        (row for row in rows if row["contender"].startswith("DataLoader")), key=lambda row: int(row["samples"])
    )
    yield (
        "Shuffling 10^12 samples: first batch, memory",
        f"**{number(ours['first_batch_ms'], ' ms')}, {number(ours['allocated_peak_mb'], ' MB')}**",
        f"`RandomSampler` on 10^{len(sampler['samples']) - 1}: {number(sampler['first_batch_ms'], ' ms')}, "
        f"{number(sampler['rss_growth_mb'], ' MB')}",
        "order",
    )


def of_waits(folder: Path) -> Iterator[Line]:
    rows = read("data_wait", folder)
    for loop in ("plain loop", "Lightning"):
        mine = [row for row in rows if row["loop"] == loop]
        off, cost = max(float(row["points_off"]) for row in mine), mine[0]["cost_us_per_step"]
        yield (
            f"`DataWaitMonitor`, {loop}: off the share of synthetic sleeps, at worst (its cost a step)",
            f"**{off:.1f} points** ({number(cost, ' us')})",
            "",
            "data_wait",
        )


def of_plans(folder: Path) -> Iterator[Line]:
    plans = read("text_plans", folder)
    for sigma in ("0.6", "1"):
        ratios = [
            f"{name.removeprefix('lk.')} {float(pick(plans, contender=name, sigma=sigma, longest='2048')['padded_to_real']):.3f}"
            for name in ("lk.LengthBuckets", "lk.TokenBudget", "lk.PackPlan")
        ]
        random = pick(plans, contender="random batches", sigma=sigma, longest="2048")
        yield (
            f"Texts with lognormal lengths (sigma {float(sigma)}, at most 2,048): tokens computed for each real one",
            f"**{', '.join(ratios)}**",
            f"random batches {number(random['padded_to_real'])}",
            "text",
        )


def of_texts(folder: Path) -> Iterator[Line]:
    texts = read("text", folder)
    for sigma in ("0.6", "1"):
        packed, lhotse = (
            pick(texts, contender=name, sigma=sigma) for name in ("lk.PackPlan", "lhotse DynamicBucketingSampler")
        )
        budget = pick(texts, contender="lk.TokenBudget", sigma=sigma)
        yield (
            f"Training on them (sigma {float(sigma)}), a small model: tokens a second of CPU time over `DataLoader` + `pad_sequence`",
            f"**TokenBudget {number(budget['throughput_ratio_to_reference'])} x, "
            f"PackPlan {number(packed['throughput_ratio_to_reference'])} x**",
            f"lhotse's dynamic buckets {number(lhotse['throughput_ratio_to_reference'])} x",
            "text",
        )


def of_suite(folder: Path) -> Iterator[Line]:
    """The mean over the summary's workloads, and where another loader is ahead."""
    rows = [row for row in read("summary", folder) if row["kind"] == "throughput"]
    cells = [(row["workload"], name, row[name]) for row in rows for name in list(row)[2:]]
    speeds = [(workload, name, float(cell)) for workload, name, cell in cells if cell != "not measured"]
    ours = [1 / speed for _, name, speed in speeds if name == "DataLoader"]
    ahead = [(workload, name, speed) for workload, name, speed in speeds if speed > 1.05]
    said = ", ".join(f"{name} at {workload} ({speed:.2f} x)" for workload, name, speed in ahead)
    yield (
        f"{len(rows)} workloads of throughput, geometric mean over `DataLoader`; of {len(speeds)} comparisons with any loader those in which "
        "the other is more than 5 % ahead",
        f"**{statistics.geometric_mean(ours):.1f} x**",
        said or "none",
        "summary",
    )


SECTIONS: dict[str, tuple[str, Callable[[Path], Iterator[Line]]]] = {
    "Rows in memory": ("rows", of_rows),
    "From a worker to the main process": ("transport", of_transport),
    "Stragglers": ("stragglers", of_stragglers),
    "Start-up and epoch gaps": ("startup", of_startup),
    "Memory of workers": ("memory", of_memory),
    "Samples that cost something": ("per_sample", of_samples),
    "Seeds of samples": ("seeding", of_seeding),
    "Large batches": ("large", of_large),
    "Resume": ("resume", of_resume),
    "Shuffling 10^12 samples": ("order", of_order),
    "`DataWaitMonitor`": ("data_wait", of_waits),
    "Padding": ("text", of_plans),
    "Training on texts": ("text", of_texts),
    "Index of shards": ("index", of_index),
    "Pictures from tar": ("tar", of_tar),
    "Stopped and resumed, compared with the peers": ("peers/peers_resume", of_resumes),
    "Data on disk, compared with the peers": ("peers/peers_throughput", of_speeds),
    "Packed rows": ("peers/packed_throughput", of_packed),
    "A slow bucket": ("cloud", of_cloud),
    "Every workload by every loader": ("summary", of_suite),
}
