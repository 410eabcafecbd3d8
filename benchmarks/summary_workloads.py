"""The workloads of the summary, and where their numbers are."""

from collections.abc import Mapping
from dataclasses import dataclass, field

LOADERS = (
    "DataLoader",
    "StatefulDataLoader",
    "torchdata.nodes",
    "grain",
    "spdl",
    "webdataset",
    "litdata",
    "mosaicml-streaming",
    "Hugging Face datasets",
    "Megatron-Energon",
)


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Where the numbers of a workload are.

    Args:
        name: Name in the table.
        file: The script that writes them.
        column: The column to compare.
        where: Values that select the rows.
        ours: Our contender's name.
        names: The other contenders' names, if they do not begin with the loader's.
        more: Whether more is better.
        timed: Whether it is a throughput; otherwise start-up, resume or memory.
    """

    name: str
    file: str
    column: str
    where: Mapping[str, str] = field(default_factory=dict)
    ours: str = "lk.Loader"
    names: Mapping[str, str] = field(default_factory=dict)
    more: bool = False
    timed: bool = True


def workloads() -> list[Workload]:
    found = []
    for workers in ("0", "2"):
        where = {"workers": workers}
        end = f", {workers} workers"
        ours = "lk.Loader(ArrayDataset)" + (end if workers == "2" else "")
        found += [
            Workload(name=f"rows in memory{end}", file="rows", column="epoch_ms", where=where, ours=ours),
            Workload(
                name=f"100 us a sample{end}",
                file="per_sample",
                column="us_per_sample",
                where=where | {"sample_us": "100"},
            ),
            Workload(
                name=f"100 us a sample that draws nothing{end}",
                file="per_sample",
                column="us_per_sample",
                where=where | {"sample_us": "100"},
                ours="lk.Loader, draws_nothing",
            ),
            Workload(name=f"JPEGs in memory, augmented{end}", file="pictures", column="us_per_sample", where=where),
            Workload(
                name=f"JPEGs in memory, augmented by lk.sample_rng(){end}",
                file="pictures",
                column="us_per_sample",
                where=where,
                ours="lk.Loader, sample_rng",
            ),
            Workload(
                name=f"JPEGs in memory, augmented, seeded by hand{end}",
                file="pictures",
                column="us_per_sample",
                where=where,
                names={loader: f"{loader}, seeded by hand" for loader in LOADERS},
            ),
            *(
                Workload(
                    name=f"{text}{end}",
                    file="large",
                    column="us_per_sample",
                    where=where | {"job": job},
                )
                for job, text in (
                    ("float32", "38 MB of float32 pictures a batch"),
                    ("uint8 rows", "38 MB of rows in memory a batch"),
                )
            ),
            Workload(name=f"windows of tokens{end}", file="tokens", column="us_per_sample", where=where),
        ]
    for work in ("computing", "waiting"):
        for size in ("1", "8"):
            found.append(
                Workload(
                    name=f"stragglers, {work}, batches of {size}",
                    file="stragglers",
                    column="epoch_ms",
                    where={"work": work, "batch_size": size},
                )
            )
    for size in ("1", "8"):
        found.append(
            Workload(
                name=f"stragglers that draw nothing, waiting, batches of {size}",
                file="stragglers",
                column="epoch_ms",
                where={"work": "waiting", "batch_size": size},
                ours="lk.Loader, threads, draws_nothing",
            )
        )
    for kind, ours, theirs, text in (
        ("tokens", "loaderkit, documents", "memory-map + DataLoader", "documents on disk"),
        ("pictures", "loaderkit, tar", "file + DataLoader", "JPEGs on disk"),
    ):
        for order in ("in order", "shuffled"):
            for workers in ("0", "2"):
                found.append(
                    Workload(
                        name=f"{text}, {order}, {workers} workers",
                        file="peers_throughput",
                        column="first_epoch_samples_per_s",
                        where={"workload": kind, "order": order, "workers": workers},
                        ours=ours,
                        names={"DataLoader": theirs},
                        more=True,
                    )
                )
    for leaves in ("1", "10"):
        for size in ("40000", "400000", "4000000"):
            found.append(
                Workload(
                    name=f"worker to main, {int(size):,} bytes in {leaves}",
                    file="transport",
                    column="wall_us",
                    where={"leaves": leaves, "bytes": size},
                    ours="lk.Loader, ring",
                )
            )
    found += [
        Workload(
            name="first shuffled batch of 10^8",
            file="order",
            column="first_batch_ms",
            where={"samples": str(10**8)},
            timed=False,
        ),
        Workload(
            name="resume at 90 % of 10M",
            file="resume",
            column="first_batch_ms",
            ours="lk.Loader, resumed",
            names={
                "DataLoader": "DataLoader, run to the place again",
                "StatefulDataLoader": "StatefulDataLoader, resumed",
            },
            timed=False,
        ),
    ]
    for column, text in (("cold_ms", "first batch, cold"), ("epoch_gap_ms", "from epoch to epoch")):
        found.append(
            Workload(name=f"{text}, forked", file="startup", column=column, where={"start_method": "fork"}, timed=False)
        )
    for column, text, how in (
        ("total_growth_mb", "growth of four workers, 10^6 records", "lk.RecordDataset"),
        ("total_growth_mb", "growth of four workers, 10^6 records, lk.share", "lk.share"),
        (
            "later_total_growth_mb",
            "growth of four workers that all have made a batch, 10^6 records",
            "lk.RecordDataset",
        ),
        ("total_growth_mb", "growth of four threads, 10^6 records", "lk.RecordDataset, threads"),
        ("whole_mb", "memory of 10^6 records and four workers", "lk.RecordDataset"),
    ):
        found.append(
            Workload(
                name=text,
                file="memory",
                column=column,
                ours=f"lk.Loader, {how}",
                names={
                    "DataLoader": "DataLoader, a list of dicts",
                    "Hugging Face datasets": "DataLoader, Hugging Face datasets",
                },
                timed=False,
            )
        )
    return found
