"""The rows of the table of results for data on disk."""

from collections.abc import Iterator
from pathlib import Path

from measured import Line, number, pick, read


def both_epochs(row: dict[str, str]) -> str:
    first, later = (number(row[f"{epoch}_epoch_over_bare_loop"]) for epoch in ("first", "later"))
    return f"{first} x ({later} x)"


def of_index(folder: Path) -> Iterator[Line]:
    rows = read("index", folder)
    for shards in ("tar, below 512 B", "tar, 1 B to 10 KB", "tar, 100 KB and a class"):
        ours, bare, peer = (
            pick(rows, shards=shards, contender=name) for name in ("loaderkit index", "bare loop", "tarfile")
        )
        yield (
            f"Index of a million samples ({shards}): wall time of two processes (CPU of one)",
            f"**{number(ours['wall_s_two_processes'], ' s')}** ({number(ours['cpu_s_per_million'], ' s')})",
            f"`tarfile` (CPU {number(peer['cpu_s_per_million'], ' s')}), a bare loop over the headers (CPU "
            f"{number(bare['cpu_s_per_million'], ' s')})",
            "index",
        )


def of_resumes(folder: Path) -> Iterator[Line]:
    resumes = read("peers_resume", folder)
    names = [name for name in resumes[0] if name != "case"]
    elastic = [row for row in resumes if " then " in row["case"] or row["case"].startswith(("same", "resumed"))]
    exact = {name.rpartition(" ")[0]: sum(row[name] == "exact" for row in elastic) for name in names}
    ours_exact = exact.pop("loaderkit")
    yield (
        "Stopped in the middle of an epoch and resumed, also with other workers, ranks and batch size: cases of "
        f"{len(elastic)} in which each sample comes exactly once",
        f"**{ours_exact}**",
        ", ".join(f"{name} {count}" for name, count in sorted(exact.items(), key=lambda item: -item[1])),
        "peers/peers_resume",
    )


def of_tar(folder: Path) -> Iterator[Line]:
    rows = read("tar", folder)
    tar = [pick(rows, contender="lk.Loader", order=order) for order in ("in order", "shuffled")]
    yield (
        "5,000 small JPEGs in tar, in order and shuffled, one thread: speed over a bare loop that reads, decodes and stacks them "
        f"(CPU time, {tar[0]['repeats']} rounds in turn)",
        f"**{' and '.join(number(row['speed_over_limit']) for row in tar)}**",
        "",
        "tar",
    )


def of_speeds(folder: Path) -> Iterator[Line]:
    speeds = read("peers_throughput", folder)
    for workload, name, what, loop in (
        ("tokens", "loaderkit, documents", "200,000 token sequences of 16 to 512", "that reads and joins them"),
        ("pictures", "loaderkit, tar, one thread", "5,000 small JPEGs in tar", "that decodes them, both in one thread"),
    ):
        for order in ("in order", "shuffled"):
            setting = {"workload": workload, "order": order, "workers": "0"}
            ours = pick(speeds, contender=name, **setting)
            others = [row for row in speeds if setting.items() <= row.items() and "loaderkit" not in row["contender"]]
            others = [row for row in others if row["contender"] != "bare loop" and "DataLoader" not in row["contender"]]
            best = max(others, key=lambda row: float(row["first_epoch_samples_per_s"]))
            yield (
                f"{what}, {order}, batch 64, 0 workers: speed over a bare loop {loop}, in a process's first epoch "
                f"(and in a later one; {ours['repeats']} rounds)",
                f"**{both_epochs(ours)}**",
                f"{best['contender']} {both_epochs(best)}, the best of the peers",
                "peers/peers_throughput",
            )


def of_cloud(folder: Path) -> Iterator[Line]:
    rows = read("cloud", folder)
    for order in ("in order", "shuffled"):
        setting = {"order": order, "workers": "2", "step_ms": "0"}
        found = [row for row in rows if setting.items() <= row.items()]
        ours = pick(found, contender="lk.Loader")
        others = ", ".join(
            f"{row['contender']} {number(row['ratio_to_limit'])} x ({number(row['first_batch_s'], ' s')})"
            for row in found
            if row is not ours
        )
        yield (
            f"Ten shards of 64 MB from a slow bucket with an empty cache, {order}, 2 workers: epoch over the network's limit "
            f"(first batch; {ours['repeats']} rounds)",
            f"**{number(ours['ratio_to_limit'])} x** ({number(ours['first_batch_s'], ' s')})",
            others,
            "cloud",
        )


def of_packed(folder: Path) -> Iterator[Line]:
    rows = read("packed_throughput", folder)
    for kind, name in (("packed", "PackPlan, split"), ("windows", "TokenDataset")):
        for workers in ("0", "2"):
            found = [row for row in rows if (row["kind"], row["workers"]) == (kind, workers)]
            ours = pick(found, contender=f"loaderkit, {name}")
            best = max(
                (row for row in found if not row["contender"].startswith("loaderkit")),
                key=lambda row: float(row["first_epoch_tokens_per_s"]),
            )
            mine, theirs = (
                f"{float(row['first_epoch_tokens_per_s']) / 1e6:.1f} M ({float(row['rows_full']):.2%} full)"
                for row in (ours, best)
            )
            yield (
                f"Rows of 2,048 tokens from documents, {kind}, {workers} workers: tokens a second in a process's first epoch "
                f"({ours['repeats']} rounds)",
                f"**{mine}** by `{name.partition(',')[0]}`",
                f"{best['contender']} {theirs}, the fastest of the peers",
                "peers/packed_throughput",
            )
