"""The benchmark beside the peers: its own column is exact, and it finds what the peers break."""

import csv
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "benchmarks" / "peers"
RESULTS = ROOT / "benchmarks" / "results"


@pytest.mark.slow
def test_the_resume_table_runs_in_fresh_processes() -> None:
    command = [sys.executable, str(SCRIPTS / "peers_resume.py"), "--quick", "--peers", "loaderkit,torch"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    rows = [line for line in done.stdout.splitlines() if line.startswith("| same setting")]
    assert len(rows) == 2
    assert all("| **exact** | **exact** |" in row for row in rows), done.stdout


@pytest.mark.slow
def test_the_table_of_packed_rows_runs_in_fresh_processes() -> None:
    command = [sys.executable, str(SCRIPTS / "packed_resume.py"), "--quick", "--peers", "loaderkit"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    rows = [line for line in done.stdout.splitlines() if line.startswith("| loaderkit")]
    assert len(rows) == 3
    assert all(row.endswith(" | **exact** |") for row in rows), done.stdout


@pytest.mark.slow
def test_the_speed_of_packed_rows_runs_in_fresh_processes(tmp_path: Path) -> None:
    command = [
        sys.executable,
        str(SCRIPTS / "packed_throughput.py"),
        "--quick",
        "--peers",
        "loaderkit",
        "--out",
        str(tmp_path),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    with (tmp_path / "packed_throughput.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 8, done.stderr[-3000:]  # four ways, 0 and 2 workers
    for row in rows:
        assert float(row["first_epoch_tokens_per_s"]) > 0
        assert 0.98 < float(row["rows_full"]) <= 1
        assert row["kind"] == "windows" or float(row["tokens_used"]) == 1


def test_packed_rows_of_ours_come_once_each() -> None:
    with (RESULTS / "packed_resume.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 9
    assert sum(name.startswith("loaderkit") for name in rows[0]) == 3
    for row in rows[:7]:  # then come the tokens that an epoch leaves out, and the size of a state
        cells = {name: cell for name, cell in row.items() if name.startswith("loaderkit")}
        assert set(cells.values()) == {"exact"}, (row["case"], cells)


def test_every_cell_of_the_published_table_that_is_ours_is_exact() -> None:
    with (RESULTS / "peers_resume.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 15
    ours = {row["case"]: next(value for name, value in row.items() if name.startswith("loaderkit")) for row in rows}
    others = {
        "random augmentation after the resume": "equal",
        "uneven data on 2 ranks": "exact; 64 / 64 batches",
    }
    for case, cell in ours.items():
        if case.startswith("state"):
            assert all(int(size) < 1024 for size in cell.removesuffix(" B").split(" / "))
        elif "cut" in case:
            assert cell.startswith("error: ShardError")
        else:
            assert cell == others.get(case, "exact"), case
