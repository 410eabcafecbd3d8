"""Compare each target of the benchmarks with what was measured: writes `targets.md` from the other scripts' CSV files.

A target is met if each of its values is. The values stand in the order in which the line names them.
"""

import argparse
from pathlib import Path

from harness import RESULTS
from measured import Results
from summary import ahead
from target_groups import GROUPS

TESTS = {
    "No shared memory or descriptors grow over 200 epochs": "`tests/engine/test_ring.py`",
    "Faults: each ends in an error or a clean stop, nothing is left over": "`tests/engine/test_ring_faults.py`",
    "Copies to CUDA: poisoned memory never shows": "`tests/device/test_device_gpu.py`, on CUDA alone",
}


def page(folder: Path) -> str:
    """Return all targets as Markdown."""
    results = Results(folder)
    lines: list[str] = []
    met: list[bool | None] = []
    for group, make in GROUPS.items():
        found = [target.line() for target in make(results)]
        lines += [
            "",
            f"## {group}",
            "",
            "| | target | measured | met |",
            "|---|---|---|---|",
            *(line for line, _ in found),
        ]
        met += [one for _, one in found]
    tests = [f"- {text}: {where}" for text, where in TESTS.items()]
    others = [f"- {loader} at {workload.name}: {speed:.2f} x" for workload, loader, speed in ahead(folder)]
    head = [
        "<!-- written by benchmarks/targets.py -->",
        "",
        "# Targets",
        "",
        f"{met.count(True)} met, {met.count(False)} not met, {met.count(None)} not measured. A line is met where each of its "
        "values is; they stand in the order in which it names them.",
    ]
    tail = ["", "## Where another loader is ahead", "", *(others or ["Nowhere."]), "", "## Held by tests", "", *tests]
    return "\n".join([*head, *lines, *tail])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the CSV files are, and targets.md goes")
    folder: Path = parser.parse_args().results
    text = page(folder)
    (folder / "targets.md").write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
