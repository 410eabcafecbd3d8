"""Indexing shards: CPU and wall time of `loaderkit index` per million samples, from the page cache.

Tar shards have 5,000 samples of two files: small (below 512 bytes), mixed (1 byte to 10 KB), and pictures of about 100 KB
with a class. Mixed shards come in a second form, as Python's tarfile writes them when times have fractions: with an extended header
before each file. The pictures' contents are holes in the file, so that only what is read takes memory. There are also lines of JSON, and rows of
Parquet, of which only the footers are read. CPU time is that of one process, wall time that of two.

Each run of `loaderkit index` covers a million samples, including start and end (with extended headers: 200,000). Shards are
linked under several names. The other contenders go through a part of the shards; `samples` says how many.

The bare loop does the least that a reader of all headers in Python does: it reads a header, parses its size and goes on. For
lines it reads the file and counts the newlines, for Parquet it reads the footer. The peer is Python's tarfile, which lists the members.
"""

import contextlib
import io
import os
import shutil
import statistics
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
from lib.harness import Row, interleave, parse_options, record, seconds, spread
from lib.index_shards import SHARD, TARS, write_lines, write_rows, write_tar
from report.declare import Report, cell, each, over

from loaderkit.cli.command import main as loaderkit

OURS_NAME, BARE, PEER = "loaderkit index", "bare loop", "tarfile"

REPORT = Report(minutes=4, group="Data on disk")
for shards in ("tar, below 512 B", "tar, 1 B to 10 KB", "tar, 100 KB and a class"):
    REPORT.target(
        f"Index of {shards}: speed over Python's tarfile, CPU time",
        over(*(each("cpu_s_per_million", shards=shards, contender=name) for name in ("tarfile", "loaderkit index"))),
        least=4,
        unit=" x",
    )
    REPORT.line(
        f"Index of a million samples ({shards}): wall time of two processes (CPU of one)",
        cell(
            "{} s ({} s)", each("wall_s_two_processes", "cpu_s_per_million", shards=shards, contender="loaderkit index")
        ),
        cell(
            "`tarfile` (CPU {} s), a bare loop over the headers (CPU {} s)",
            each("cpu_s_per_million", shards=shards, contender=("tarfile", "bare loop")),
        ),
    )
REPORT.chart(
    "Index: CPU seconds for a million samples (less is better)", "cpu_s_per_million", panels=("shards",), log=True
)


def forget() -> None:
    shutil.rmtree(os.environ["LOADERKIT_INDEX_DIR"], ignore_errors=True)


def ours(folder: Path, jobs: int) -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        if code := loaderkit(["index", str(folder), "--jobs", str(jobs), "--quiet"]):
            raise SystemExit(f"index: loaderkit index ended with {code}.")


def walk_headers(shards: list[Path]) -> None:
    for shard in shards:
        number = os.open(shard, os.O_RDONLY)
        offset = 0
        with contextlib.suppress(ValueError):  # the end mark
            while True:
                offset += 512 + (int(os.pread(number, 512, offset)[124:135], 8) + 511 & -512)
        os.close(number)


def list_members(shards: list[Path]) -> None:
    for shard in shards:
        with tarfile.open(shard) as archive:
            archive.getmembers()


def count_lines(shards: list[Path]) -> None:
    for shard in shards:
        with shard.open("rb") as file:
            while block := file.read(1 << 20):
                block.count(b"\n")


def read_footers(shards: list[Path]) -> None:
    for shard in shards:
        pq.read_metadata(shard)


def note(function: Callable[[], object], clock: Callable[[], float], taken: list[float]) -> None:
    """Note what one call takes, without index files."""
    forget()
    taken.append(seconds(function, clock))


def kinds(folder: Path, quick: bool) -> Iterator[tuple[str, Path, int, Callable[[list[Path]], None]]]:
    """Write each kind of shards: yield its name, folder, samples and limit."""
    for number, (name, (shards, copies, changed, sizes)) in enumerate(TARS.items()):
        place = folder / str(number)
        place.mkdir()
        shards = 2 if quick else shards
        for shard in range(shards):
            write_tar(place / f"{shard:03d}.tar", shard * SHARD, changed, sizes)
        copies = 1 if quick else copies
        for path in sorted(place.iterdir()):
            for copy in range(1, copies):
                path.with_name(f"{path.stem}-{copy}.tar").hardlink_to(path)
        yield name, place, shards * SHARD * copies, walk_headers
    for name, suffix, samples, write, limit in (
        ("lines of JSON", "jsonl", 50_000, write_lines, count_lines),
        ("rows of Parquet", "parquet", 200_000, write_rows, read_footers),
    ):
        place = folder / suffix
        place.mkdir()
        shards, each = 2 if quick else 10, samples // (100 if quick else 1)
        for shard in range(shards):
            write(place / f"{shard:03d}.{suffix}", shard * each, each)
        yield name, place, shards * each, limit


def measure(place: Path, samples: int, limit: Callable[[list[Path]], None], rounds: int) -> Iterator[Row]:
    """Time the contenders on a folder of shards."""
    shards = sorted(place.iterdir())
    some, few = (shards[: max(1, len(shards) // part)] for part in (5, 40))  # what has no start, or takes long
    contenders: dict[str, tuple[Callable[[], None], int]] = {
        OURS_NAME: (partial(ours, place, 1), len(shards)),
        BARE: (partial(limit, some), len(some)),
    }
    if limit is walk_headers:
        contenders[PEER] = (partial(list_members, few), len(few))
    alone: dict[str, list[float]] = {name: [] for name in contenders}
    walls: list[float] = []
    calls: dict[str, Callable[[], None]] = {
        name: partial(note, call, time.process_time, alone[name]) for name, (call, _) in contenders.items()
    }
    calls["two processes"] = partial(note, partial(ours, place, 2), time.perf_counter, walls)
    interleave(calls, rounds=rounds)
    # Without the first, for a million.
    cpu = {
        name: [value * len(shards) / part / samples * 1e6 for value in alone[name][1:]]
        for name, (_, part) in contenders.items()
    }
    for name, (_, part) in contenders.items():
        low, middle, high = spread(cpu[name])
        wall = spread(value / samples * 1e6 for value in walls[1:]) if name == OURS_NAME else ("", "", "")
        yield {
            "contender": name,
            "cpu_s_per_million": middle,
            "cpu_s_q1": low,
            "cpu_s_q3": high,
            "cpu_s_least": min(cpu[name]),
            "times_bare": statistics.median(value / bare for value, bare in zip(cpu[name], cpu[BARE], strict=True)),
            "wall_s_two_processes": wall[1],
            "wall_s_q1": wall[0],
            "wall_s_q3": wall[2],
            "samples": samples * part // len(shards),
            "repeats": rounds,
        }


def main() -> None:
    options = parse_options(__doc__)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LOADERKIT_INDEX_DIR"] = str(Path(folder, "indexes"))
        for name, place, samples, limit in kinds(Path(folder), options.quick):
            found = measure(place, samples, limit, 3 if options.quick else 4)
            rows += [{"shards": name, **row} for row in found]
    record("index", rows, options)


if __name__ == "__main__":
    main()
