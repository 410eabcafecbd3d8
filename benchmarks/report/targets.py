"""Compare each target of the benchmarks with what was measured: `targets.md`.

A target is met if each of its values is. The values stand in the order in which the line names them.
"""

from pathlib import Path

from report.declare import Target
from report.questions import QUESTIONS, declared, file_of
from report.results import Results
from report.summary import ahead, mean, summarise

GROUPS = (
    "On the host",
    "Data on disk",
    "Variable lengths",
    "Order and resume",
    "From a bucket",
    "Copies to the device",
)
TESTS = {
    "No shared memory or descriptors grow over 200 epochs": "`tests/engine/test_ring.py`",
    "Faults: each ends in an error or a clean stop, nothing is left over": "`tests/engine/test_ring_faults.py`",
    "Copies to CUDA: poisoned memory never shows": "`tests/device/test_device_gpu.py`, on CUDA alone",
}


def overall(results: Results) -> list[float]:
    found, machines = summarise(results.folder)
    return [mean(found, True)] if machines else []


def behind(results: Results) -> list[float]:
    found, machines = summarise(results.folder)
    speeds = [speed for workload, cells in found if workload.timed for speed in cells.values()]
    return [max(speeds)] if machines else []


OVERALL = (
    Target("All workloads of throughput, geometric mean: ours over `DataLoader`", overall, least=3.5),
    Target(
        "All workloads of throughput, all loaders: the fastest of them over ours (samples of 100 us and JPEGs without workers are "
        "seeded one by one, which peers do not do: the price of a guarantee)",
        behind,
        most=1.1,
    ),
)


def page(folder: Path) -> str:
    """Return all targets as Markdown."""
    results, lines, met = Results(folder), list[str](), list[bool | None]()
    for group in GROUPS:
        found = [
            target.line(results.of(file_of(question)))
            for question in QUESTIONS
            if declared(question).group == group
            for target in declared(question).targets
        ]
        found += [target.line(results) for target in OVERALL if group == GROUPS[0]]
        lines += ["", f"## {group}", "", "| | target | measured | met |", "|---|---|---|---|"]
        lines += [line for line, _ in found]
        met += [one for _, one in found]
    tests = [f"- {text}: {where}" for text, where in TESTS.items()]
    others = [f"- {loader} at {workload.name}: {speed:.2f} x" for workload, loader, speed in ahead(folder)]
    head = [
        "<!-- written by benchmarks/report -->",
        "",
        "# Targets",
        "",
        f"{met.count(True)} met, {met.count(False)} not met, {met.count(None)} not measured. A line is met where each of its "
        "values is; they stand in the order in which it names them.",
    ]
    tail = ["", "## Where another loader is ahead", "", *(others or ["Nowhere."]), "", "## Held by tests", "", *tests]
    return "\n".join([*head, *lines, *tail]) + "\n"
