"""Print the results as a Markdown table, or write it into a file between its `<!-- benchmarks -->` markers.

python benchmarks/table.py
python benchmarks/table.py --write README.md
"""

import argparse
import csv
import re
import sys
from pathlib import Path

RESULTS = Path(__file__).parent / "results"
Rows = list[dict[str, str]]


def read(name: str, folder: Path) -> Rows:
    path = folder / f"{name}.csv"
    if not path.exists():
        raise SystemExit(f"table: {path.name} not found, wanted in {folder}. Run: python benchmarks/{name}.py")
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def pick(rows: Rows, **wanted: str) -> dict[str, str]:
    """Return the row with these values."""
    for row in rows:
        if wanted.items() <= row.items():
            return row
    raise SystemExit(f"table: no result for {wanted}. Run that benchmark again.")


def number(text: str, unit: str = "") -> str:
    value = float(text)
    shown = f"{value:,.0f}" if value >= 100 else f"{value:.2f}" if value < 10 else f"{value:.1f}"
    return shown + unit


def table(folder: Path) -> str:
    """Make the table: what was measured, ours, theirs, and the script that says so."""
    lines = ["| | loaderkit | for comparison | script |", "|---|---|---|---|"]

    def add(what: str, ours: str, theirs: str, script: str) -> None:
        lines.append(f"| {what} | {ours} | {theirs} | [`{script}.py`](benchmarks/{script}.py) |")

    rows = read("rows", folder)
    ours, theirs = pick(rows, contender="lk.Loader(ArrayDataset)"), pick(rows, contender="DataLoader(TensorDataset)")
    faster = float(theirs["ratio_to_reference"]) / float(ours["ratio_to_reference"])
    add(
        "1M x 32 float32 in memory, batch 1,024, shuffled: time over a hand-written `index_select` loop (over its gather alone)",
        f"**{number(ours['ratio_to_reference'])} x** ({number(ours['ratio_to_limit'])} x)",
        f"`TensorDataset` + `DataLoader` {number(theirs['ratio_to_reference'])} x ({number(theirs['ratio_to_limit'])} x), "
        f"{faster:.0f} times as long as ours",
        "rows",
    )
    rows = read("per_sample", folder)
    for workers in ("0", "2"):
        ours = pick(rows, contender="lk.Loader", workers=workers, sample_us="100")
        theirs = pick(rows, contender="DataLoader", workers=workers, sample_us="100")
        add(
            f"100 us a sample, batch 32, {workers} workers, each sample seeded: throughput over `DataLoader`'s",
            f"**{number(ours['throughput_ratio_to_reference'])} x**",
            f"{number(ours['us_per_sample'])} against {number(theirs['us_per_sample'])} us a sample",
            "per_sample",
        )
    rows = read("resume", folder)
    ours, theirs = pick(rows, contender="lk.Loader, resumed"), pick(rows, contender="StatefulDataLoader, resumed")
    again = pick(rows, contender="DataLoader, run to the place again")
    add(
        "Resume at 90 % of 10M samples: time to the first batch (samples read again)",
        f"**{number(ours['first_batch_ms'], ' ms')}** ({int(ours['extra_getitem_calls'])})",
        f"`StatefulDataLoader` {number(theirs['first_batch_ms'], ' ms')} ({int(theirs['extra_getitem_calls']):,}), "
        f"`DataLoader` {number(again['first_batch_ms'], ' ms')} ({int(again['extra_getitem_calls']):,})",
        "resume",
    )
    add(
        "The state of that run",
        f"**{ours['state_bytes']} bytes** of JSON",
        f"`StatefulDataLoader` {int(theirs['state_bytes']):,} bytes",
        "resume",
    )
    rows = read("order", folder)
    ours = pick(rows, contender="lk.Loader", samples=str(10**12))
    sampler = max(
        (row for row in rows if row["contender"].startswith("DataLoader")), key=lambda row: int(row["samples"])
    )
    add(
        "Shuffling 10^12 samples: first batch, memory",
        f"**{number(ours['first_batch_ms'], ' ms')}, {number(ours['allocated_peak_mb'], ' MB')}**",
        f"`RandomSampler` on 10^{len(sampler['samples']) - 1}: {number(sampler['first_batch_ms'], ' ms')}, "
        f"{number(sampler['rss_growth_mb'], ' MB')}",
        "order",
    )
    plans = read("text_plans", folder)
    for sigma in ("0.6", "1"):
        ratios = [
            f"{name.removeprefix('lk.')} {float(pick(plans, contender=name, sigma=sigma, longest='2048')['padded_to_real']):.3f}"
            for name in ("lk.LengthBuckets", "lk.TokenBudget", "lk.PackPlan")
        ]
        random = pick(plans, contender="random batches", sigma=sigma, longest="2048")
        add(
            f"Texts with lognormal lengths (sigma {float(sigma)}, at most 2,048): tokens computed for each real one",
            f"**{', '.join(ratios)}**",
            f"random batches {number(random['padded_to_real'])}",
            "text",
        )
    texts = read("text", folder)
    for sigma in ("0.6", "1"):
        packed, lhotse = (
            pick(texts, contender=name, sigma=sigma) for name in ("lk.PackPlan", "lhotse DynamicBucketingSampler")
        )
        budget = pick(texts, contender="lk.TokenBudget", sigma=sigma)
        add(
            f"Training on them (sigma {float(sigma)}), a small model: tokens a second of CPU time over `DataLoader` + `pad_sequence`",
            f"**TokenBudget {number(budget['throughput_ratio_to_reference'])} x, "
            f"PackPlan {number(packed['throughput_ratio_to_reference'])} x**",
            f"lhotse's dynamic buckets {number(lhotse['throughput_ratio_to_reference'])} x",
            "text",
        )
    resumes = read("peers_resume", folder)
    names = [name for name in resumes[0] if name != "case"]
    elastic = [row for row in resumes if " then " in row["case"] or row["case"].startswith(("same", "resumed"))]
    exact = {name.rpartition(" ")[0]: sum(row[name] == "exact" for row in elastic) for name in names}
    ours_exact = exact.pop("loaderkit")
    add(
        "Stopped in the middle of an epoch and resumed, also with other workers, ranks and batch size: cases of "
        f"{len(elastic)} in which each sample comes exactly once ([the table](benchmarks/results/peers_resume.md))",
        f"**{ours_exact}**",
        ", ".join(f"{name} {count}" for name, count in sorted(exact.items(), key=lambda item: -item[1])),
        "peers/peers_resume",
    )
    speeds = read("peers_throughput", folder)
    for workload, name, what, loop in (
        ("tokens", "loaderkit, documents", "200,000 token sequences of 16 to 512", "that reads and joins them"),
        ("pictures", "loaderkit, tar", "5,000 small JPEGs in tar", "that decodes in one thread, ours in two"),
    ):
        for order in ("in order", "shuffled"):
            setting = {"workload": workload, "order": order, "workers": "0"}
            ours = pick(speeds, contender=name, **setting)
            others = [row for row in speeds if setting.items() <= row.items() and "loaderkit" not in row["contender"]]
            others = [row for row in others if row["contender"] != "bare loop" and "DataLoader" not in row["contender"]]
            best = max(others, key=lambda row: float(row["samples_per_s"]))
            add(
                f"{what}, {order}, batch 64, 0 workers: speed over a bare loop {loop}, in a first epoch (3 rounds)",
                f"**{number(ours['over_bare_loop'])} x**",
                f"{best['contender']} {number(best['over_bare_loop'])} x, the best of the peers",
                "peers/peers_throughput",
            )
    machines: dict[str, list[str]] = {}
    for name in ("rows", "per_sample", "resume", "order", "text", "peers_throughput"):
        machines.setdefault(read(name, folder)[0]["machine"], []).append(name)
    where = "; ".join(f"{', '.join(names)}: {machine}" for machine, names in machines.items())
    lines += ["", f"Medians ({where}). Ratios carry over to other machines, milliseconds do not."]
    return "\n".join(lines)


def write(path: Path, text: str) -> None:
    content = path.read_text()
    parts = re.split(r"(<!-- /?benchmarks -->)", content)
    if len(parts) != 5:
        raise SystemExit(
            f"table: {path.name} has {len(parts) // 2} markers, wanted two: a line <!-- benchmarks -->, and further "
            "down a line <!-- /benchmarks -->."
        )
    before, begin, _, end, after = parts
    path.write_text(f"{before}{begin}\n{text}\n{end}{after}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, help="the file to write the table into")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the CSV files are")
    given = parser.parse_args()
    text = table(given.results)
    if given.write is None:
        sys.stdout.write(text + "\n")
    else:
        write(given.write, text)


if __name__ == "__main__":
    main()
