"""Indexing shards: CPU and wall time of `loaderkit index` per million samples, from the page cache.

Tar shards of 5,000 samples of two files: small (below 512 bytes), mixed (1 byte to 10 KB), and pictures of about
100 KB with a class; mixed ones also as Python's tarfile writes them when times have fractions, as webdataset's writer
does: an extended header before each file. Also lines of JSON, and rows of Parquet, whose footers alone are read. What
pictures hold is a hole in the file: only what is read of it takes memory. CPU time is that of one process, wall time that of two.

A run of ours is of a whole million samples, with its start and its end (with extended headers of 200,000): shards are linked
under several names. What it is compared with has no start, and goes through a part of them; `samples` says through how many.

The bare loop is the least that a reader of all headers in Python does: read a header, parse its size, go
on; for lines, to read the file and count its newlines; for Parquet, to read the footer. The floor of tar shards is the calls by which
they are indexed, recorded and made again with nothing in between, also by two processes that wait for the clock. The peer is Python's tarfile, which lists the members.
"""

import contextlib
import io
import multiprocessing
import os
import statistics
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from harness import DATA, LIMIT, OURS, TORCH, Row, interleave, parse_options, report, seconds, spread
from index_shards import SHARD, TARS, write_lines, write_rows, write_tar

from loaderkit.cli.command import main as loaderkit
from loaderkit.datasets.tar.index import group
from loaderkit.datasets.tar.walk import walk

OURS_NAME, FLOOR, BARE, PEER = "loaderkit index", "its reads alone (the floor)", "bare loop", "tarfile"
COLOURS = {OURS_NAME: OURS, FLOOR: LIMIT, BARE: DATA, PEER: TORCH}


def forget(folder: Path) -> None:
    for path in folder.glob("*.lkindex"):
        path.unlink()


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


def record_reads(shard: Path) -> list[tuple[int, int]]:
    """Return the offsets and sizes of the reads by which a shard is indexed."""
    found: list[tuple[int, int]] = []
    real = os.preadv

    def note(file: int, buffers: tuple[memoryview, ...], offset: int) -> int:
        found.append((offset, sum(buffer.nbytes for buffer in buffers)))
        return real(file, buffers, offset)

    os.preadv = note  # type: ignore[assignment]
    try:
        with shard.open("rb") as file:
            group(walk(file, shard.stat().st_size, str(shard)), str(shard))
    finally:
        os.preadv = real
    return found


Reads = dict[Path, list[tuple[int, tuple[memoryview]]]]  # of each shard, with offset and memory


def repeat_reads(reads: Reads, shards: list[Path]) -> None:
    preadv = os.preadv
    for shard in shards:
        number = os.open(shard, os.O_RDONLY)
        for offset, buffer in reads[shard]:
            preadv(number, buffer, offset)
        os.close(number)


def reads_of(shards: list[Path]) -> Reads:
    """Return the reads by which shards are indexed, to memory that is used again as ours is."""
    recorded = {shard.stat().st_ino: shard for shard in shards}
    reads = {number: record_reads(shard) for number, shard in recorded.items()}
    memory = memoryview(bytearray(1 << 20))
    # One window each, one after the other, as many as are read at once.
    views: dict[tuple[int, int], tuple[memoryview]] = {}

    def places(calls: list[tuple[int, int]]) -> Iterator[tuple[int, tuple[memoryview]]]:
        at = 0
        for offset, size in calls:
            at = at if at + size <= len(memory) else 0
            yield offset, views.setdefault((at, size), (memory[at : at + size],))
            at += size

    by_inode = {number: list(places(calls)) for number, calls in reads.items()}
    return {shard: by_inode[shard.stat().st_ino] for shard in shards}


@contextlib.contextmanager
def two_readers(reads: Reads, shards: list[Path]) -> Iterator[Callable[[], None]]:
    """Yield what has two processes, which are there already, make half of the reads each."""
    context = multiprocessing.get_context("fork")

    def serve(pipe: Any, half: list[Path]) -> None:
        while pipe.recv():
            repeat_reads(reads, half)
            pipe.send(None)

    pipes, processes = [], []
    for half in (shards[::2], shards[1::2]):
        mine, theirs = context.Pipe()
        pipes.append(mine)
        processes.append(context.Process(target=serve, args=(theirs, half), daemon=True))
        processes[-1].start()

    def both() -> None:
        for pipe in pipes:
            pipe.send(True)
        for pipe in pipes:
            pipe.recv()

    try:
        yield both
    finally:
        for pipe, process in zip(pipes, processes, strict=True):
            pipe.send(False)
            process.join()


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


def note(place: Path, function: Callable[[], object], clock: Callable[[], float], taken: list[float]) -> None:
    """Note what one call takes, in a folder without index files."""
    forget(place)
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
    both: dict[str, Callable[[], None]] = {OURS_NAME: partial(ours, place, 2)}
    with contextlib.ExitStack() as stack:
        if limit is walk_headers:
            reads = reads_of(shards)
            contenders[FLOOR] = (partial(repeat_reads, reads, some), len(some))
            both[FLOOR] = stack.enter_context(two_readers(reads, shards))
            contenders[PEER] = (partial(list_members, few), len(few))
        alone: dict[str, list[float]] = {name: [] for name in contenders}
        walls: dict[str, list[float]] = {name: [] for name in both}
        calls: dict[str, Callable[[], None]] = {
            name: partial(note, place, call, time.process_time, alone[name]) for name, (call, _) in contenders.items()
        }
        calls |= {
            f"{name}, two": partial(note, place, call, time.perf_counter, walls[name]) for name, call in both.items()
        }
        interleave(calls, rounds=rounds)
    # Without the first, for a million.
    cpu = {
        name: [value * len(shards) / part / samples * 1e6 for value in alone[name][1:]]
        for name, (_, part) in contenders.items()
    }
    floor = cpu.get(FLOOR, cpu[BARE])
    for name, (_, part) in contenders.items():
        low, middle, high = spread(cpu[name])
        wall = spread(value / samples * 1e6 for value in walls[name][1:]) if name in walls else ("", "", "")
        yield {
            "contender": name,
            "cpu_s_per_million": middle,
            "cpu_s_q1": low,
            "cpu_s_q3": high,
            "cpu_s_least": min(cpu[name]),
            "times_floor": statistics.median(value / least for value, least in zip(cpu[name], floor, strict=True)),
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
        for name, place, samples, limit in kinds(Path(folder), options.quick):
            found = measure(place, samples, limit, 3 if options.quick else 4)
            rows += [{"shards": name, **row} for row in found]
    report("index", rows, options, lambda figure: plot(figure, rows), height=6.5)


def plot(figure: Any, rows: list[Row]) -> None:
    axes = figure.subplots()
    names = list(dict.fromkeys(row["shards"] for row in rows))
    for offset, contender in enumerate(COLOURS):
        mine = {row["shards"]: row for row in rows if row["contender"] == contender}
        places = [names.index(name) + (offset - 1.5) * 0.2 for name in mine]
        values = [row["cpu_s_per_million"] for row in mine.values()]
        bars = axes.barh(places, values, height=0.19, label=contender, color=COLOURS[contender])
        axes.bar_label(bars, [f" {value:.2g} s" for value in values])
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.margins(x=0.15)
    axes.set_xlabel("seconds of CPU for a million samples (log scale; less is better)")
    axes.legend(frameon=False)


if __name__ == "__main__":
    main()
